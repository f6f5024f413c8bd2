"""Ingest of turns, chats and columns of nodes, against plain lists and the rules of other systems."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core import Batch, Forest
from agentrl_core.data.forest_ingest import DRIFT
from agentrl_core.exceptions import InvalidInputError, NotFoundError

Turn = tuple[list[int], list[int]]


def session(members: int = 1, **options: Any) -> tuple[Forest, list[int]]:
    forest = Forest()
    forest.add_group(0, "task")
    return forest, [forest.start(0, member, **options) for member in range(members)]


def names(drift: np.ndarray) -> list[str]:
    return [DRIFT[code] for code in drift]


def frames(batch: Batch) -> tuple[pl.DataFrame, pl.DataFrame]:
    return pl.DataFrame(batch.nodes), pl.DataFrame(batch.steps)


def turns_of(batch: Batch, trajectory: int = 0) -> list[Turn]:
    """Return context and action of each step, by following parents in the table of nodes."""
    nodes, steps = frames(batch)
    rows = {row["node_id"]: row for row in nodes.iter_rows(named=True)}
    turns = []
    for step in steps.filter(pl.col("trajectory_id") == trajectory).iter_rows(named=True):
        action = rows[step["node_id"]]
        assert step["first_node_id"] == step["node_id"]
        context: list[int] = []
        node = action
        while node["parent_id"] is not None:
            end, node = node["parent_end"], rows[node["parent_id"]]
            context = node["tokens"][:end] + context
        turns.append((context, action["tokens"]))
    return turns


def skyrl_rows(turns: list[Turn]) -> list[tuple[list[int], list[int]]]:
    """Return prefix-aware merged steps, by definition: tokens and loss mask of each row."""
    rows: list[tuple[list[int], list[int]]] = []
    for prompt, output in turns:
        if rows and prompt[: len(rows[-1][0])] == rows[-1][0]:
            tokens, mask = rows.pop()
        else:
            tokens, mask = [], []
        mask = mask + [0] * (len(prompt) - len(tokens)) + [1] * len(output)
        rows.append((prompt + output, mask))
    return rows


CHAT: list[Turn] = [([1, 2, 3], [4, 5, 9]), ([1, 2, 3, 4, 5, 9, 6], [7, 9]), ([1, 2, 3, 4, 5, 9, 6, 7, 9, 8], [9])]


@pytest.mark.parametrize(
    ("prompt", "drift", "at"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 9, 20], "clean", -1),
        ([1, 2, 3, 4, 5, 6, 7, 20], "realigned", 7),
        ([1, 2, 3, 4, 5, 6, 17, 9, 20], "realigned", 6),
        ([1, 2, 13, 4, 5, 6, 7, 9, 20], "rewritten", 2),
        ([1, 30, 31], "rewritten", 1),
        ([30, 31], "rewritten", 0),
        ([1, 2, 5, 6, 7, 9, 20], "truncated", 2),
        ([5, 6, 7, 9, 20], "truncated", 0),
        ([1, 2, 3, 4, 5], "truncated", 5),
    ],
)
def test_each_class_of_drift_by_hand(prompt: list[int], drift: str, at: int) -> None:
    forest, [chat] = session()
    ingested = forest.ingest([chat, chat], [[1, 2, 3, 4], prompt], [[5, 6, 7, 9], [40]], realign=2)
    assert (names(ingested.drift), ingested.drift_at.tolist()) == (["clean", drift], [-1, at])
    assert ingested.counts()[drift] == 1 + (drift == "clean")
    forest.finish(chat)
    batch = forest.freeze()
    assert turns_of(batch) == [([1, 2, 3, 4], [5, 6, 7, 9]), (prompt, [40])]
    _, steps = frames(batch)
    assert steps["drift"].to_list() == ingested.drift.tolist()
    assert steps["drift_at"].to_list() == [None, None if at < 0 else at]


def test_the_same_text_in_other_tokens_needs_the_vocabulary() -> None:
    texts = [b"a", b"b", b"ab", b"<end>", b"?"]
    prompts, outputs = [[4], [4, 2, 2, 3, 4]], [[0, 1, 0, 1, 3], [0]]
    for vocabulary, expected in [(None, "rewritten"), (texts, "retokenised"), (pa.array(texts), "retokenised")]:
        forest, [chat] = session()
        ingested = forest.ingest([chat, chat], prompts, outputs, vocabulary=vocabulary, realign=2)
        assert names(ingested.drift) == ["clean", expected]
    forest.finish(chat)
    nodes, _ = frames(forest.freeze())
    rows = nodes.select("tokens", "kind", "origin_node_id").rows()
    assert rows == [([4], 0, None), ([0, 1, 0, 1, 3], 1, None), ([2, 2, 3], 3, 1), ([4], 2, None), ([0], 1, None)]


def test_slime_merges_a_short_rewrite_and_here_its_output_stays_trained() -> None:
    # slime: REALIGN overwrites the drifted output by context, so turn 0 would not be trained.
    turns: list[Turn] = [([1, 2], [3, 4, 9]), ([1, 2, 3, 4, 5], [6, 9])]
    forest, [chat] = session()
    forest.ingest([chat] * 2, *map(list, zip(*turns, strict=True)))
    forest.finish(chat)
    batch = forest.freeze()
    assert turns_of(batch) == turns
    assert trained(batch) == [[3, 4, 9], [6, 9]]


def trained(batch: Batch) -> list[list[int]]:
    """Return the tokens of each step of drawn trajectories."""
    return [action for row in range(batch.num_draws) for _, action in turns_of(batch, row)]


def test_sub_agents_come_back_to_the_main_context() -> None:
    turns: list[Turn] = [([1, 2], [3]), ([50, 51], [52]), ([50, 51, 52, 53], [54]), ([1, 2, 3, 4], [5])]
    forest, [chat] = session()
    ingested = forest.ingest([chat] * 4, *map(list, zip(*turns, strict=True)))
    assert names(ingested.drift) == ["clean", "rewritten", "clean", "clean"]
    forest.finish(chat)
    batch = forest.freeze()
    assert turns_of(batch) == turns
    nodes, _ = frames(batch)
    assert sum(map(len, nodes["tokens"])) == 2 + 1 + 1 + 1 + 2 + 1 + 1 + 1


FORMS: dict[str, Callable[[list[list[int]]], Any]] = {
    "lists": lambda rows: rows,
    "tuples": lambda rows: [tuple(row) for row in rows],
    "arrays": lambda rows: [np.array(row) for row in rows],
    "flat": lambda rows: (np.concatenate(rows).astype(np.int32), np.cumsum([0, *map(len, rows)])),
    "arrow": lambda rows: pa.array(rows, pa.list_(pa.int32())),
    "arrow, large and wide": lambda rows: pa.array(rows, pa.large_list(pa.int64())),
    "arrow, chunked": lambda rows: pa.chunked_array([pa.array(rows[:1]), pa.array(rows[1:])]),
    "arrow, sliced": lambda rows: pa.array([[77], *rows, [78]])[1:-1],
    "polars": pl.Series,
}


@pytest.mark.parametrize("form", FORMS)
def test_columns_of_lists_come_in_every_form(form: str) -> None:
    forest, [chat] = session()
    make = FORMS[form]
    prompts, outputs = ([list(part) for part in column] for column in zip(*CHAT, strict=True))
    logprobs = [[-float(len(row))] * len(row) for row in outputs]
    floats = logprobs if form in {"lists", "tuples", "flat"} else pa.array(logprobs)
    forest.ingest([chat] * 3, make(prompts), make(outputs), logprobs=floats, policy_version=3, reward=[0.5, 1, np.nan])
    forest.finish(chat)
    batch = forest.freeze()
    assert turns_of(batch) == CHAT
    nodes, steps = frames(batch)
    assert nodes["tokens"].to_list() == [[1, 2, 3], [4, 5, 9], [6], [7, 9], [8], [9]]
    assert nodes["logprobs"].drop_nulls().to_list() == logprobs
    assert nodes["policy_version"].to_list() == [None, 3, None, 3, None, 3]
    assert steps["reward"].to_list() == [0.5, 1.0, None]


def test_rows_with_nothing_known_are_empty_or_missing() -> None:
    for logprobs in ([None, [-1.0]], [[], [-1.0]], pa.array([None, [-1.0]]), pl.Series([None, [-1.0]])):
        forest, chats = session(2)
        forest.ingest(chats, [[1], [1]], [[2], [3]], logprobs=logprobs)
        for chat in chats:
            forest.finish(chat)
        nodes, _ = frames(forest.freeze())
        assert nodes["logprobs"].to_list() == [None, None, [-1.0]]


def test_ingest_stores_every_argument_of_a_turn() -> None:
    forest, [chat] = session()
    options: dict[str, Any] = {
        "entropies": [[0.5, 0.25], [0.125]],
        "trainable": [[1, 0], [True]],
        "state": ["here", b"there"],
        "policy": 2,
        "policy_version": np.array([5, 6]),
        "seed": [11, 12],
        "temperature": 0.5,
        "top_p": 0.75,
        "top_k": 20,
        "finish_reason": ["stop", "length"],
        "reward": [1.0, 2.0],
        "rewards": [[0.5, 0.5], [1.0, 1.0]],
        "terminated": [False, True],
        "truncated": [0, 1],
        "flags": [1, 4],
    }
    forest.ingest([chat, chat], [[1], [1, 2, 3, 4]], [[2, 3], [5]], logprobs=[[-1.0, -2.0], [-3.0]], **options)
    forest.finish(chat)
    nodes, steps = frames(forest.freeze())
    actions = nodes.filter(pl.col("kind") == 1)
    for name in ("entropies", "trainable"):
        assert actions[name].to_list() == [[float(value) for value in row] for row in options[name]]
    assert actions["policy"].to_list() == [2, 2]
    assert actions["policy_version"].to_list() == [5, 6]
    assert actions["seed"].to_list() == [11, 12]
    assert actions["sampling"].to_list() == [{"temperature": 0.5, "top_p": 0.75, "top_k": 20}] * 2
    assert actions["finish_reason"].to_list() == [1, 2]
    for name in ("reward", "rewards", "flags"):
        assert steps[name].to_list() == options[name]
    assert steps["terminated"].to_list() == [0, 1]
    assert steps["truncated"].to_list() == [0, 1]
    assert steps["state_key"].n_unique() == 2


def test_append_many_is_append_row_by_row() -> None:
    kinds = ["system", "user", "assistant", "tool", "assistant", "injected", "assistant"]
    tokens = [[1], [2, 3], [4], [5], [6, 7], [8], [9]]
    logprobs = [[], [], [-1.0], None, [-2.0, -3.0], [], [-4.0]]
    nan = float("nan")
    many, [chat] = session()
    many.append_many([chat] * 7, tokens, kind=kinds, logprobs=logprobs, reward=[nan, nan, 1, nan, nan, nan, 2])
    one, [other] = session()
    plain = ["prompt", "prompt", "action", "observation", "action", "injected", "action"]
    for kind, row, values in zip(plain, tokens, logprobs, strict=True):
        one.append(other, row, kind=kind, logprobs=values or None)
        if row in ([4], [9]):
            one.step(other, reward=1.0 if row == [4] else 2.0)
    tables = []
    for forest, handle in ((many, chat), (one, other)):
        forest.finish(handle)
        batch = forest.freeze()
        tables.append([frame.drop("created_us", strict=False) for frame in frames(batch)])
    assert all(left.equals(right) for left, right in zip(*tables, strict=True))


def test_imported_chats_are_actions_and_context() -> None:
    forest, [chat] = session(origin="expert")
    last = forest.append_chats(
        [chat], [[1, 2, 3, 4, 5, 6]], [[0, 0, 1, 1, 0, 1]], logprobs=[[0, 0, -1, -2, 0, -3]], reward=2.0
    )
    assert last.tolist() == [chat + 3]
    forest.finish(chat)
    batch = forest.freeze()
    assert turns_of(batch) == [([1, 2], [3, 4]), ([1, 2, 3, 4, 5], [6])]
    nodes, steps = frames(batch)
    assert nodes["logprobs"].to_list() == [None, [-1.0, -2.0], None, [-3.0]]
    assert steps["reward"].to_list() == [None, 2.0]


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "prompt": (
        {"prompts": [[1], [-5]]},
        r"turn 1 \(trajectory \d+\): prompts\[0\] is -5; give token ids of at least 0",
    ),
    "output": ({"outputs": [[2], []]}, r"turn 1 \(trajectory \d+\): outputs is empty; give each turn a context and"),
    "logprobs": (
        {"logprobs": [[-1.0], [-1.0, -2.0]]},
        r"turn 1 \(trajectory \d+\): logprobs has 2 values for 1 tokens",
    ),
    "nan": ({"logprobs": [[float("nan")], []]}, r"turn 0 \(trajectory \d+\): outputs: logprobs\[0\] is NaN"),
    "rows": ({"logprobs": [[-1.0]]}, "logprobs has 1 rows, but trajectories has 2; give one for each"),
    "length": ({"reward": [1.0]}, "reward has 1 rows"),
    "wide": ({"outputs": [[2], [1 << 40]]}, r"outputs\[1\] contains a wrong value .*; give a list of int32"),
    "float": ({"outputs": [[2], [1.5]]}, r"outputs\[1\] contains a wrong value .*; give a list of int32"),
    "wide arrays": (
        {"outputs": [np.array([2]), np.array([3, 1 << 40])]},
        r"^outputs\[1\]\[1\] is 1099511627776; give numbers that fit int32$",
    ),
    "wide values": (
        {"outputs": (np.array([2, 3, 1 << 40]), np.array([0, 1, 3]))},
        r"^outputs\[1\]\[1\] is 1099511627776; give numbers that fit int32$",
    ),
    "wide table": (
        {"outputs": np.array([[2, 3], [4, 1 << 40]])},
        r"^outputs\[1\]\[1\] is 1099511627776; give numbers that fit int32$",
    ),
    "whole floats": (
        {"outputs": [np.array([2.0]), np.array([3.0])]},
        "^outputs has dtype float64; give whole numbers without missing values$",
    ),
    "float arrays": (
        {"outputs": [np.array([2]), np.array([3, 1.5])]},
        r"^outputs\[1\]\[1\] is 1\.5; give whole numbers without missing values$",
    ),
    "None in arrays": (
        {"outputs": [np.array([2, 3]), np.array([3, None])]},
        r"^outputs\[1\]\[1\] is None; give whole numbers without missing values$",
    ),
    "text in arrays": (
        {"logprobs": [np.array([-1.0]), np.array(["x"], object)]},
        r"^logprobs\[1\]\[0\] is 'x'; give ints or floats, with NaN in place of None$",
    ),
    "reason": ({"finish_reason": ["stop", "eos"]}, r"^finish_reason\[1\] is 'eos'; use one of \[None, 'stop'"),
    "state": ({"state": [None, 3]}, r"^state\[1\] is 3; give text or bytes$"),
    "one reason": (
        {"finish_reason": "eos"},
        r"^finish_reason is 'eos'; use one of \[None, 'stop', 'length', 'abort'\]$",
    ),
    "list as reason": ({"finish_reason": ["stop", []]}, r"^finish_reason\[1\] is \[\]; use one of \[None, 'stop'"),
    "version": ({"policy": 1 << 40}, r"policy\[0\] is 1099511627776; give numbers that fit int32"),
    "realign": ({"realign": -1}, "realign is -1; give a whole number from 0"),
    "type": ({"outputs": pa.array([["a"], ["b"]])}, "outputs has Arrow type List.*; give lists of int32 or int64"),
    "hole": ({"outputs": pa.array([[2], [None]])}, "outputs has 1 missing values inside its rows"),
    "mask": ({"trainable": [[2], [1]]}, r"turn 0 \(trajectory \d+\): outputs: trainable\[0\] is 2; use 0 or 1"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_rejected_ingest_reports_the_error_and_stores_nothing(case: str) -> None:
    change, message = BAD[case]
    forest, [chat] = session()
    good: dict[str, Any] = {"prompts": [[1], [1, 2, 3]], "outputs": [[2], [4]]}
    with pytest.raises(InvalidInputError, match=message):
        forest.ingest([chat, chat], **(good | change))
    assert forest.tokens(chat).tolist() == []
    forest.ingest([chat, chat], **good)
    assert forest.tokens(chat).tolist() == [1, 2, 3, 4]


ROWS: dict[str, tuple[dict[str, Any], str]] = {
    "token": (
        {"tokens": [[1], [2], [-3]]},
        r"row 2 \(trajectory \d+\): tokens\[0\] is -3; give token ids of at least 0",
    ),
    "empty": (
        {"tokens": [[1], [], [3]]},
        r"row 1 \(trajectory \d+\): tokens is empty; give an action at least one token",
    ),
    "kinds": ({"kind": ["prompt", "action"]}, "kind has 2 rows, but trajectories has 3; give one for each"),
    "kind": ({"kind": ["prompt", "answer", "tool"]}, r"kind\[1\] is 'answer'; use one of"),
    "tokens": ({"tokens": [[1], [2]]}, "tokens has 2 rows, but trajectories has 3"),
    "no action": (
        {"logprobs": [[-1.0], [-1.0], []]},
        r"row 0 \(trajectory \d+\): logprobs has 1 values for tokens of kind",
    ),
    "logprobs": ({"logprobs": [[], [-1.0, -1.0], []]}, r"row 1 \(trajectory \d+\): logprobs has 2 values for 1 tokens"),
    "positive": (
        {"logprobs": [[], [1.0], []]},
        r"row 1 \(trajectory \d+\): logprobs\[0\] is 1; give a finite number of at most 0",
    ),
    "entropies": ({"entropies": [[], [float("inf")], []]}, r"row 1 \(trajectory \d+\): entropies\[0\] is inf"),
    "trainable": ({"trainable": [[], [3], []]}, r"row 1 \(trajectory \d+\): trainable\[0\] is 3; use 0 or 1"),
    "reward": ({"reward": [np.nan, np.inf, np.nan]}, r"row 1 \(trajectory \d+\): reward is inf"),
    "unpaid": ({"reward": [1.0, 1.0, np.nan]}, r"row 0 \(trajectory \d+\): trajectory \d+ has no open action to close"),
    "nucleus": ({"temperature": 1.0, "top_p": 0.0}, r"row 1 \(trajectory \d+\): top_p is 0; give a number above 0"),
    "seed": ({"seed": [1, 2]}, "seed has 2 rows"),
}


@pytest.mark.parametrize("case", ROWS)
def test_rejected_rows_are_reported_and_none_is_stored(case: str) -> None:
    change, message = ROWS[case]
    forest, [chat] = session()
    good: dict[str, Any] = {"tokens": [[1], [2], [3]], "kind": ["prompt", "action", "tool"]}
    with pytest.raises(InvalidInputError, match=message):
        forest.append_many([chat] * 3, **(good | change))
    assert forest.tokens(chat).tolist() == []
    assert forest.tree(0).depth.tolist() == []
    forest.append_many([chat] * 3, **good)
    assert forest.tokens(chat).tolist() == [1, 2, 3]


def test_a_turn_that_is_sent_twice_is_refused() -> None:
    forest, [chat] = session()
    turn: dict[str, Any] = {"prompts": [[1, 2]], "outputs": [[3]], "logprobs": [[-1.0]]}
    forest.ingest([chat], **turn)
    with pytest.raises(
        InvalidInputError, match=r"turn 0 \(trajectory \d+\): the turn repeats step 0 of the trajectory"
    ):
        forest.ingest([chat], **turn)
    forest.ingest([chat], **turn, seed=7)
    forest.finish(chat)
    assert turns_of(forest.freeze()) == [([1, 2], [3])] * 2


def test_ingest_of_lists_arrays_and_arrow_gives_the_same_turns() -> None:
    contexts = [[1, 2], [1, 2, 3, 4, 5], [1, 2, 3], [1, 9, 3, 8], [1, 9, 3, 8, 3, 7], [1, 2, 3, 4, 5, 3]]
    forms: list[Callable[[list[list[int]]], Any]] = [list, FORMS["arrays"], FORMS["arrow"]]
    results = []
    for form in forms:
        forest, chats = session(2)
        prompts = [list(context) for context in contexts for _ in chats]
        ingested = forest.ingest(chats * 6, form(prompts), [[3 + row % 2] for row in range(12)])
        results.append(
            ((ingested.nodes - ingested.nodes[0]).tolist(), ingested.drift.tolist(), ingested.drift_at.tolist())
        )
        assert [len(prompt) for prompt in prompts] == [len(context) for context in contexts for _ in chats]
        for chat in chats:
            forest.finish(chat)
        assert [context for context, _ in turns_of(forest.freeze())] == contexts
    assert results[0] == results[1] == results[2]


def test_shared_prefixes_of_prompts_in_a_group_are_stored_once() -> None:
    forest, chats = session(3)
    prompts = [[1, 2, 3, 4], [1, 2, 3, 9], [1, 2]]
    forest.ingest(chats, prompts, [[5], [6], [7]])
    for chat in chats:
        forest.finish(chat)
    batch = forest.freeze()
    assert [turns_of(batch, row) for row in range(3)] == [
        [(prompt, [output])] for prompt, output in zip(prompts, (5, 6, 7), strict=True)
    ]
    nodes, _ = frames(batch)
    assert nodes["tokens"].to_list() == [[1, 2, 3, 4], [5], [9], [6], [7]]
    assert nodes["parent_end"].to_list() == [None, None, 3, None, 2]


def test_an_unknown_or_ended_trajectory_is_refused() -> None:
    forest, [chat, ended] = session(2)
    forest.ingest([ended], [[1]], [[2]])
    forest.finish(ended)
    with pytest.raises(NotFoundError, match="trajectory 77 is not in the forest"):
        forest.ingest([chat, 77], [[1], [1]], [[2], [2]])
    with pytest.raises(InvalidInputError, match="has ended"):
        forest.append_many([chat, ended], [[1], [1]], kind="prompt")
    assert forest.tokens(chat).tolist() == []


tokens = st.lists(st.integers(0, 3), max_size=3)
changes = st.tuples(st.integers(0, 30), st.integers(0, 30), tokens, tokens)


@given(
    st.lists(st.tuples(st.integers(0, 1), changes, st.lists(st.integers(0, 3), min_size=1, max_size=3)), max_size=10)
)
def test_every_output_is_trained_once_and_rows_are_those_of_skyrl(
    plays: list[tuple[int, tuple[int, int, list[int], list[int]], list[int]]],
) -> None:
    forest, chats = session(2)
    contexts: list[list[list[int]]] = [[], []]
    turns: list[tuple[int, Turn]] = []
    for member, (cut, skip, middle, new), output in plays:
        base = contexts[member][skip % len(contexts[member])] if contexts[member] else []
        # Most contexts continue the previous one; in the others a part is replaced.
        prompt = (base if cut > 10 else base[:cut] + middle + base[cut + skip % 4 :]) + new or [0]
        if (member, (prompt, output)) in turns:
            continue
        contexts[member].append(prompt + output)
        turns.append((member, (prompt, output)))
    handles = [chats[member] for member, _ in turns]
    logprobs = [[-1.0 - token for token in output] for _, (_, output) in turns]
    ingested = forest.ingest(handles, [turn[0] for _, turn in turns], [turn[1] for _, turn in turns], logprobs=logprobs)
    assert len(ingested.nodes) == len(set(ingested.nodes.tolist())) == len(turns)
    for member, chat in enumerate(chats):
        forest.finish(chat, status="finished" if contexts[member] else "aborted")
    batch = forest.freeze()
    nodes, _ = frames(batch)
    row = 0
    for member in range(2):
        member_turns = [turn for of, turn in turns if of == member]
        if not member_turns:
            continue
        assert turns_of(batch, row) == member_turns
        # The number of trained tokens equals that of SkyRL's rows, and no row of theirs stores less than the tree.
        rows = skyrl_rows(member_turns)
        assert sum(len(output) for _, output in member_turns) == sum(sum(mask) for _, mask in rows)
        row += 1
    merged = sum(len(tokens) for member in range(2) for tokens, _ in skyrl_rows([t for of, t in turns if of == member]))
    assert sum(map(len, nodes["tokens"])) <= merged
    actions = nodes.filter(pl.col("kind") == 1)
    assert sorted(map(sum, actions["logprobs"])) == sorted(map(sum, logprobs))
    assert nodes.filter(pl.col("kind") != 1)["logprobs"].null_count() == len(nodes) - len(turns)
