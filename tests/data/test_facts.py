"""Facts of the environment are identical on every path of the rows, compared with plain dicts."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import agentrl_core as arl
from agentrl_core import Batch, Forest, Store, scan
from agentrl_core.exceptions import InvalidInputError, NotFoundError

FACTS = {"step": {"flawed": "number", "tool": "key"}, "trajectory": {"answer": "key", "length": "number"}}

numbers = st.one_of(st.none(), st.floats(width=32, allow_nan=False, allow_infinity=False))
texts = st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"]), max_size=4))
steps = st.fixed_dictionaries({}, optional={"flawed": numbers, "tool": texts})
ends = st.fixed_dictionaries({}, optional={"answer": texts, "length": numbers})
trajectories = st.tuples(st.lists(steps, min_size=1, max_size=3), ends, st.booleans())
batches = st.lists(st.lists(trajectories, min_size=1, max_size=3), min_size=1, max_size=2)

FactRows = list[dict[str, Any]]


def filled(facts: dict[str, Any], level: str) -> dict[str, Any]:
    """Return the facts of a row, None for missing ones."""
    return {name: facts.get(name) for name in sorted(FACTS[level])}


def grow(script: Any, iteration: int) -> tuple[Batch, FactRows, FactRows]:
    """Return a batch of groups, with facts of its steps and trajectories; a fork inherits its parent's first ones."""
    forest = Forest(iteration=iteration, facts=FACTS)
    of_steps: FactRows = []
    of_ends: FactRows = []
    for group, members in enumerate(script):
        forest.add_group(group, "task")
        for member, (turns, end, forks) in enumerate(members):
            trajectory = forest.start(group, member)
            forest.append(trajectory, [1, group], kind="prompt")
            fork = None
            for turn, facts in enumerate(turns):
                forest.append(trajectory, [3 + turn, member], kind="action", logprobs=[-1.0, -0.5])
                forest.step(trajectory, facts=facts)
                forest.append(trajectory, [2], kind="observation")
                fork = forest.fork(trajectory, ordinal=0) if forks and turn == 0 else fork
            forest.finish(trajectory, reward=1.0, facts=end)
            of_steps += [filled(facts, "step") for facts in turns]
            of_ends.append(filled(end, "trajectory"))
            if fork is not None:
                forest.append(fork, [9], kind="action", logprobs=[-1.0])
                forest.finish(fork, reward=0.0)
                of_steps += [filled(turns[0], "step"), filled({}, "step")]
                of_ends.append(filled({}, "trajectory"))
    return forest.freeze(), of_steps, of_ends


def facts_of(table: Any) -> FactRows:
    return pl.DataFrame(table)["facts"].to_list()


def check(batch: Batch, of_steps: FactRows, of_ends: FactRows) -> None:
    """Compare the columns at every level with the dicts."""
    assert facts_of(batch.steps) == of_steps
    assert facts_of(batch.trajectories) == of_ends
    assert batch.facts == FACTS
    rows = pl.DataFrame(batch.trajectories).with_row_index()["trajectory_id", "index"].rows()
    row_of = dict(rows)
    order = [row_of[draw] for draw in batch.column("trajectory_id", "draw").tolist()]
    owners = pl.DataFrame(batch.steps)["trajectory_id"].to_list()
    drawn = [[place for place, owner in enumerate(owners) if row_of[owner] == row] for row in order]
    lengths = [np.nan if of_ends[row]["length"] is None else of_ends[row]["length"] for row in order]
    np.testing.assert_array_equal(batch.column("length", "draw"), np.array(lengths, np.float32))
    of_draws = np.repeat(np.arange(len(order)), [len(places) for places in drawn])
    np.testing.assert_array_equal(batch.column("length", "step"), np.array(lengths, np.float32)[of_draws])
    places = [place for draw_places in drawn for place in draw_places]
    flawed = [np.nan if of_steps[place]["flawed"] is None else of_steps[place]["flawed"] for place in places]
    np.testing.assert_array_equal(batch.column("flawed", "step"), np.array(flawed, np.float32))
    tokens = np.diff(batch.offsets("token"))
    np.testing.assert_array_equal(batch.column("flawed", "token"), np.repeat(np.array(flawed, np.float32), tokens))
    for name, level, known in (
        ("answer", "draw", [(row, of_ends[row]["answer"]) for row in order]),
        ("tool", "step", [(place, of_steps[place]["tool"]) for place in places]),
    ):
        dense: dict[Any, int] = {}
        alone = [("none", row) if key is None else ("key", key) for row, key in known]
        expected = [dense.setdefault(key, len(dense)) for key in alone]
        assert batch.keys(name, level).tolist() == expected


@settings(max_examples=40, deadline=None)
@given(st.lists(batches, min_size=1, max_size=3))
def test_facts_go_with_their_rows(tmp_path_factory: pytest.TempPathFactory, scripts: Any) -> None:
    run = tmp_path_factory.mktemp("run")
    grown = [grow(script, iteration) for iteration, script in enumerate(scripts)]
    for batch, of_steps, of_ends in grown:
        check(batch, of_steps, of_ends)
        check(pickle.loads(pickle.dumps(batch)), of_steps, of_ends)
        draws = np.arange(batch.num_draws)[::-1]
        check(batch.select_draws(draws), of_steps, of_ends)
        check(batch.with_draws(batch.column("trajectory_id", "draw")[:1]), of_steps, of_ends)
    every = [[row for part in parts for row in part] for parts in zip(*(facts[1:] for facts in grown), strict=True)]
    check(Batch.concat([batch for batch, *_ in grown]), *every)
    with Store.open(run) as store:
        for iteration, (new, *_) in enumerate(grown):
            batch = store.rebase(new)
            store.append(batch, iteration=iteration)
            store.close_iteration(batch, {})
        adopted = Forest(iteration=len(grown), facts=FACTS)
        adopted.add_group(0, "task")
        stored = store.batch(0)
        handle = adopted.adopt(0, stored, int(stored.column("trajectory_id", "draw")[0]), source="replay")
        fork = adopted.fork(handle)
        adopted.append(fork, [5], kind="action", logprobs=[-1.0])
        adopted.step(fork, facts={"tool": "new"})
        adopted.finish(fork)
        more = store.rebase(adopted.freeze())
        store.append(more, iteration=len(grown))
        store.close_iteration(more, {})
    first = pl.DataFrame(stored.steps).filter(pl.col("trajectory_id") == stored.column("trajectory_id", "draw")[0])
    inherited = first["facts"].to_list()
    every[0] += [*inherited, filled({"tool": "new"}, "step")]
    every[1] += [filled({}, "trajectory")]
    for _ in range(2):
        with Store.open(run, read_only=True) as store:
            for iteration, (_, of_steps, of_ends) in enumerate(grown):
                check(store.batch(iteration), of_steps, of_ends)
            assert [facts_of(store.steps), facts_of(store.trajectories)] == every
            assert store.verify() == []
            ids = pl.DataFrame(store.trajectories)["trajectory_id"].to_list()
            check(store.trajectory_batch(ids), *every)
        for name, expected in zip(("steps", "trajectories"), every, strict=True):
            assert pl.scan_ipc(run / name / "*.arrow").collect()["facts"].to_list() == expected
            assert getattr(scan(run), name).select("facts").collect()["facts"].to_list() == expected
        with Store.open(run) as store:
            store.compact()


def one(declared: Any, **options: Any) -> Batch:
    forest = Forest(facts=declared)
    forest.add_group(0, "task")
    trajectory = forest.start(0, 0)
    forest.append(trajectory, [1], kind="prompt")
    forest.append(trajectory, [2], kind="action", logprobs=[-1.0])
    forest.finish(trajectory, reward=1.0, **options)
    return forest.freeze()


def test_a_run_without_facts_has_no_column() -> None:
    batch = one(None)
    assert "facts" not in batch.steps.column_names
    assert "facts" not in batch.trajectories.column_names
    assert batch.facts == {}
    half = one({"step": {"flawed": "number"}})
    assert "facts" in half.steps.column_names
    assert "facts" not in half.trajectories.column_names
    with pytest.raises(NotFoundError, match="flawed"):
        half.column("flawed", "draw")


def test_a_store_has_the_facts_of_its_first_batch(tmp_path: Path) -> None:
    declared = {"step": {"flawed": "number"}}
    with Store.open(tmp_path / "run") as store:
        store.append(store.rebase(one(declared)), iteration=0)
        for other, words in ((None, r"\{\}"), ({"step": {"flawed": "key"}}, '"flawed": "key"')):
            message = rf'the batch has facts .*{words}.*but the store has \{{"step": \{{"flawed": "number"\}}\}}'
            with pytest.raises(InvalidInputError, match=message):
                store.append(store.rebase(one(other)), iteration=0)
        store.append(store.rebase(one(declared)), iteration=0)
    with Store.open(tmp_path / "run") as store:
        with pytest.raises(InvalidInputError, match="the batch has facts"):
            store.append(store.rebase(one({"trajectory": {"answer": "key"}})), iteration=0)
        assert len(store.trajectories) == 2


def test_parts_of_other_facts_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r'the parts have different facts, \{"step".*\} and \{\}'):
        Batch.concat([one({"step": {"flawed": "number"}}), one(None)])
    forest = Forest()
    forest.add_group(0, "task")
    with pytest.raises(InvalidInputError, match=r"the batch has facts .* but the forest declares"):
        forest.adopt(0, one({"step": {"flawed": "number"}}), 0)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"draw": {"a": "number"}}, 'level "draw"; use "step" or "trajectory"'),
        ({"step": {"a": "text"}}, 'kind of fact is "text"; use "number" or "key"'),
        ({"step": {"reward": "number"}}, '"reward", which is a column of the tables'),
        ({"trajectory": {"task_id": "key"}}, '"task_id", which is a column of the tables'),
        ({"step": {"entropy": "number"}}, "is a column of tokens"),
        ({"trajectory": {"advantage": "number"}}, "is computed by recipes"),
        ({"step": {"facts": "number"}}, "is a column of the tables"),
        ({"step": {"": "number"}}, "is empty"),
        ({"step": {"a,b": "number"}}, "contains a comma"),
        ({"step": {"a": "number"}, "trajectory": {"a": "key"}}, "for steps and for trajectories"),
    ],
)
def test_a_declaration_that_cannot_be(facts: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        Forest(facts=facts)


def test_a_fact_beside_a_component_of_the_reward() -> None:
    facts = {"trajectory": {"reward.format": "number"}}
    with pytest.raises(InvalidInputError, match="reward_components"):
        Forest(reward_components=["format"], facts=facts)
    assert one(facts, facts={"reward.format": 0.5}).column("reward.format", "draw").tolist() == [0.5]


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"other": 1.0}, r'facts has "other", which is not declared for level "trajectory" \(declared: .*"answer"'),
        ({"answer": 1.0}, r'facts\["answer"\] is the number 1, but it is declared as a key'),
        ({"length": "x"}, r'facts\["length"\] is the text "x", but it is declared as a number'),
        ({"length": float("inf")}, "give a finite number"),
        ({"length": 1e300}, "finite number that fits 32 bits"),
        ({"length": [1]}, r'facts\["length"\] is of type list; give a number, a text or bytes'),
    ],
)
def test_invalid_facts_are_refused(facts: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        one({"trajectory": {"answer": "key", "length": "number"}}, facts=facts)


def test_facts_are_stored_as_keys_and_numbers() -> None:
    declared = {"trajectory": {"answer": "key", "length": "number"}}
    batch = one(declared, facts={"answer": b"\x00\xff", "length": True})
    assert facts_of(batch.trajectories) == [{"answer": "00ff", "length": 1.0}]
    assert facts_of(one(declared, facts={"answer": None, "length": float("nan")}).trajectories) == [
        {"answer": None, "length": None}
    ]
    halves = one(declared, facts={"length": 0.5})
    with pytest.raises(InvalidInputError, match=r"cannot be a key; give strings or integers"):
        halves.keys("length", "draw")


def test_ingest_takes_columns_of_facts() -> None:
    def start_chats() -> tuple[Forest, list[int]]:
        forest = Forest(facts=FACTS)
        forest.add_group(0, "task")
        return forest, [forest.start(0, member) for member in range(3)]

    columns = {"flawed": [1, None, 0.5], "tool": ["a", None, b"\x01"]}
    expected = [{"flawed": 1.0, "tool": "a"}, {"flawed": None, "tool": None}, {"flawed": 0.5, "tool": "01"}]
    forest, chats = start_chats()
    forest.ingest(chats, prompts=[[1]] * 3, outputs=[[2], [3], [4]], facts=columns)
    forest.abort()
    assert facts_of(forest.freeze().steps) == expected
    forest, chats = start_chats()
    forest.append_many(chats, [[1]] * 3, kind="prompt")
    series = {"flawed": pl.Series([1.0, None, 0.5]), "tool": pl.Series(["a", None, "01"])}
    forest.append_many(chats, [[2], [3], [4]], kind="action", facts=series)
    forest.abort()
    assert facts_of(forest.freeze().steps) == expected
    for wrong, message in (
        ({"flawed": [1.0]}, r'facts\["flawed"\] has 1 rows, but trajectories has 3'),
        ({"other": [1.0, 2.0, 3.0]}, 'facts has "other".*nothing of the call was stored'),
        ({"tool": ["a", 1, "b"]}, r'facts\["tool"\]\[1\] is 1; give str'),
    ):
        forest, chats = start_chats()
        with pytest.raises(InvalidInputError, match=message):
            forest.ingest(chats, prompts=[[1]] * 3, outputs=[[2], [3], [4]], facts=wrong)
        assert forest.tokens(chats[0]).tolist() == []


def test_metrics_are_rows_of_the_store(tmp_path: Path) -> None:
    with Store.open(tmp_path / "run") as store:
        for iteration in range(12):
            batch = store.rebase(Batch.concat([]))
            store.append(batch, iteration=iteration)
            numbers = {"loss": 0.5 * iteration, "collect": {"draws": iteration, "by": {"math": np.float32(1.0)}}}
            store.close_iteration(batch, {"metrics": {**numbers, "note": "text", "done": True, "nan": float("nan")}})
        assert store.state["metrics"]["note"] == "text"
    rows = arl.scan(tmp_path / "run").metrics.collect()
    assert rows["name"].to_list() == ["loss", "collect.draws", "collect.by.math", "nan"] * 12
    assert rows["iteration"].to_list() == [iteration for iteration in range(12) for _ in range(4)]
    assert rows.filter(name="loss")["value"].to_list() == [0.5 * iteration for iteration in range(12)]
    assert rows.filter(name="nan")["value"].is_nan().all()
    with Store.open(tmp_path / "run") as store:
        assert pl.DataFrame(store.metrics).equals(rows, null_equal=True)
        assert len(store.files("metrics")) < 12
        store.drop_before(12)
        store.compact()
        assert len(store.metrics) == 48
        assert store.verify() == []
    assert pl.scan_ipc(tmp_path / "run" / "metrics" / "*.arrow").collect().height == 48
