"""Token columns from the forest to the store, Polars and packs, against plain lists."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from golden_wide import top_ids

import agentrl_core as arl
from agentrl_core.exceptions import AgentRLError, InvalidInputError

V3 = Path(__file__).parent / "v3"


def recorded(iteration: int, dtype: Any = np.uint16, width: int = 3) -> tuple[arl.Batch, dict[int, list[float]]]:
    """Two branches with rows for all tokens but the last ones; the rows by token."""
    forest = arl.Forest(iteration=iteration)
    forest.add_group(0, f"task {iteration}")
    trunk = forest.start(0, member=0)
    forest.append(trunk, [1, 2], kind="prompt")
    first = (np.arange(4 * width).reshape(4, width) + iteration).astype(dtype)
    node = forest.append(trunk, [3, 4, 5], kind="action", logprobs=[-0.5] * 3, columns={"routes": (0, first)})
    branch = forest.fork(trunk, node=node, end=2)
    more = (np.arange(5 * width).reshape(5, width) + 100).astype(dtype)
    forest.append(branch, [6, 7], kind="action", logprobs=[-0.5] * 2, columns={"routes": (0, more)})
    for trajectory in (trunk, branch):
        forest.finish(trajectory, reward=1.0)
    rows = {token: first[token - 1].tolist() for token in (1, 2, 3, 4)}
    return forest.freeze(), {**rows, 6: more[4].tolist()}


def rows_of(batch: arl.Batch, level: Any = "node_token") -> dict[int, list[float]]:
    """The rows by token, for tokens that have one."""
    known = batch.column("routes.known", level) != 0
    return dict(
        zip(
            batch.column("token", level)[known].tolist(),
            batch.column("routes", level)[known].tolist(),
            strict=True,
        )
    )


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32, np.float32])
def test_rows_are_those_of_their_tokens(dtype: Any) -> None:
    batch, expected = recorded(0, dtype)
    assert rows_of(batch) == expected
    assert rows_of(batch, "token") == {token: row for token, row in expected.items() if token > 2}
    values = batch.column("routes", "node_token")
    assert values.dtype == dtype
    missing = values[batch.column("routes.known", "node_token") == 0]
    fill_value = {np.uint8: 255, np.uint16: 65535, np.int32: -1, np.float32: np.nan}[dtype]
    np.testing.assert_array_equal(missing, np.full((2, 3), fill_value, dtype))
    for layout in ("sequence", "tree"):
        plan = batch.plan([0, 1], 100, layout=layout)
        for index, pack in enumerate(plan):
            stored = plan.row_tokens(index)
            assert batch.column("token", "node_token")[stored].tolist() == pack.input_ids.tolist()
            assert values[stored].tolist() == [expected[token] for token in pack.input_ids.tolist()]


def test_a_store_keeps_them_and_polars_reads_arrays(tmp_path: Path) -> None:
    batches = []
    with arl.Store.open(tmp_path) as store:
        for iteration in range(3):
            batch = store.rebase(recorded(iteration)[0])
            store.append(batch, iteration=iteration)
            store.close_iteration(batch, {})
            batches.append(batch)
        with pytest.raises(InvalidInputError, match=r"uint16 of width 3 .* and uint8 of width 3"):
            store.append(store.rebase(recorded(3, np.uint8)[0]), iteration=3)
        store.compact()
    with arl.Store.open(tmp_path, read_only=True) as store:
        assert store.verify() == []
        for iteration, batch in enumerate(batches):
            assert rows_of(store.batch(iteration)) == rows_of(batch) == recorded(iteration)[1]
    rows = pl.scan_ipc(tmp_path / "nodes" / "*.arrow").select("tokens", "routes").collect()
    assert rows.schema["routes"] == pl.List(pl.Array(pl.UInt16, 3))
    exploded = rows.drop_nulls().explode("tokens", "routes").drop_nulls()
    assert exploded.height == 3 * 5
    pickled = arl.Batch.concat([batches[0], recorded(9)[0]])
    assert len(rows_of(pickled)) == 5


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.zeros((2, 2), np.float64), "is float64; give uint8"),
        (np.zeros((2, 2), np.int64), "is int64; give uint8"),
        (np.zeros(2, np.uint8), r"give an array of shape \[tokens, width\]"),
        (np.zeros((3, 2), np.uint8), "3 rows for 2 tokens"),
        ((1, np.zeros((2, 2), np.uint8)), "2 rows from position 1 on, but the path has 2 tokens"),
        ((-1, np.zeros((2, 2), np.uint8)), "the position of columns"),
        ([[1, 2], [3, 4]], r"columns\[\"routes\"\] is list"),
        (np.zeros((2, 0), np.uint8), "a width of at least 1"),
    ],
)
def test_rows_that_do_not_fit_are_one_error(rows: Any, message: str) -> None:
    forest = arl.Forest()
    forest.add_group(0, "task")
    trajectory = forest.start(0, 0)
    with pytest.raises(AgentRLError, match=message):
        forest.append(trajectory, [1, 2], kind="prompt", columns={"routes": rows})
    assert forest.tokens(trajectory).tolist() == []


def two_chats(by: str) -> arl.Batch:
    """Two chats of two turns; the experts of all context tokens come with each answer."""
    forest = arl.Forest()
    forest.add_group(0, "task")
    chats = [forest.start(0, member) for member in range(2)]
    prompts, answers, more, last = [[1, 2], [1, 2]], [[3, 4], [5, 6]], [[7], [8]], [[9, 10], [11]]
    # Tokens shared by both chats have one row, from the first chat.
    routes = [np.full((5, 2), 10 * chat, np.uint8) + np.arange(5, dtype=np.uint8)[:, None] for chat in (1, 2)]
    first = [None if by == "one by one" else (0, rows[:3]) for rows in routes]
    second = [(2, routes[0][2:]), None]
    logprobs = [[-0.5] * len(row) for row in answers], [[-0.5] * len(row) for row in last]
    if by == "append_many":
        kinds = ["prompt"] * 2 + ["action"] * 2
        forest.append_many(
            chats * 2,
            [*prompts, *answers],
            kind=kinds,
            logprobs=[[], [], *logprobs[0]],
            columns={"routes": [None, None, *first]},
        )
        forest.append_many(chats, more, kind="tool")
        forest.append_many(chats, last, kind="assistant", logprobs=logprobs[1], columns={"routes": second})
    elif by == "ingest":
        forest.ingest(chats, prompts, answers, logprobs=logprobs[0], columns={"routes": first})
        contexts = [prompts[chat] + answers[chat] + more[chat] for chat in range(2)]
        forest.ingest(chats, contexts, last, logprobs=logprobs[1], columns={"routes": second})
    else:
        for chat, handle in enumerate(chats):
            forest.append(handle, prompts[chat], kind="prompt")
            columns = {"routes": (0, routes[chat][:3])}
            forest.append(handle, answers[chat], kind="action", logprobs=logprobs[0][chat], columns=columns)
            forest.append(handle, more[chat], kind="observation")
            columns = {} if chat else {"routes": (2, routes[0][2:])}
            forest.append(handle, last[chat], kind="action", logprobs=logprobs[1][chat], columns=columns)
    for handle in chats:
        forest.finish(handle, reward=1.0)
    return forest.freeze()


@pytest.mark.parametrize("by", ["append_many", "ingest"])
def test_batched_calls_record_the_same_rows_as_single_calls(by: str) -> None:
    expected = {1: [10, 10], 2: [11, 11], 3: [12, 12], 4: [13, 13], 7: [14, 14], 5: [22, 22]}
    assert rows_of(two_chats(by)) == rows_of(two_chats("one by one")) == expected


def test_a_rewritten_context_gets_the_rows_of_its_own_response() -> None:
    forest = arl.Forest()
    forest.add_group(0, "task")
    chat = forest.start(0, 0)
    routes = [np.full((3, 2), number, np.uint8) for number in (1, 2)]
    turns = forest.ingest(
        [chat, chat],
        [[1, 2], [1, 5]],
        [[3, 4], [6, 7]],
        logprobs=[[-0.5, -0.5]] * 2,
        columns={"routes": [(0, rows) for rows in routes]},
    )
    assert turns.counts()["rewritten"] == 1
    forest.finish(chat, reward=1.0)
    assert rows_of(forest.freeze()) == {1: [1, 1], 2: [1, 1], 3: [1, 1], 5: [2, 2], 6: [2, 2]}


def test_a_call_that_fails_records_no_rows() -> None:
    forest = arl.Forest()
    forest.add_group(0, "task")
    chat = forest.start(0, 0)
    forest.append(chat, [1, 2], kind="prompt")
    wide = np.ones((2, 3), np.uint16)
    with pytest.raises(InvalidInputError, match=r"row 1 .*uint8 of width 2.*earlier rows are uint16 of width 3"):
        forest.append_many(
            [chat] * 2, [[3], [4]], kind="tool", columns={"routes": [(0, wide), np.ones((1, 2), np.uint8)]}
        )
    with pytest.raises(InvalidInputError, match=r"turn 0 .* 4 rows from position 0 on, but the path has 3 tokens"):
        forest.ingest([chat], [[1, 2]], [[3]], logprobs=[[-0.5]], columns={"routes": [(0, np.ones((4, 2), np.uint8))]})
    # Neither the type nor a row of the failed calls is left.
    forest.append(chat, [3], kind="action", logprobs=[-0.5], columns={"routes": (1, np.full((2, 2), 7, np.uint8))})
    forest.finish(chat, reward=1.0)
    assert rows_of(forest.freeze()) == {2: [7, 7], 3: [7, 7]}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"routes": [np.ones((1, 2), np.uint8)]}, r"columns\['routes'\] has 1 rows, but trajectories has 2"),
        ({"routes": [None, [[1, 2]]]}, r'columns\["routes"\]\[1\] is list'),
        ({"routes": 3}, r"columns\['routes'\] is int"),
        ({"routes": [None, (0, np.ones((1, 2), np.int64))]}, "is int64; give uint8"),
    ],
)
def test_columns_of_many_rows_that_do_not_fit_are_one_error(columns: Any, message: str) -> None:
    forest = arl.Forest()
    forest.add_group(0, "task")
    chats = [forest.start(0, member) for member in range(2)]
    with pytest.raises(InvalidInputError, match=message):
        forest.append_many(chats, [[1], [2]], kind="prompt", columns=columns)
    assert [forest.tokens(chat).tolist() for chat in chats] == [[], []]


def test_a_store_of_format_v3_is_read_and_extended(tmp_path: Path) -> None:
    shutil.copytree(V3, tmp_path / "run")
    with arl.Store.open(tmp_path / "run") as store:
        assert store.iteration == 2
        before = [store.batch(iteration) for iteration in range(2)]
        for iteration, batch in enumerate(before):
            expected = top_ids(iteration, batch)
            np.testing.assert_array_equal(batch.column("teacher_top_ids", "node_token"), expected)
            assert not batch.has("routes", "node_token")
        batch = store.rebase(recorded(2)[0])
        store.append(batch, iteration=2)
        store.close_iteration(batch, {})
        store.compact()
    with arl.Store.open(tmp_path / "run", read_only=True) as store:
        assert store.verify() == []
        assert rows_of(store.batch(2)) == recorded(2)[1]
        for iteration, batch in enumerate(before):
            again = store.batch(iteration)
            assert pl.DataFrame(again.nodes).equals(pl.DataFrame(batch.nodes), null_equal=True)
        both = store.trajectory_batch([0, 4])
        assert rows_of(both) == {token: row for token, row in recorded(2)[1].items() if token != 6}
