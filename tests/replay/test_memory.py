"""Memories and their draws against plain lists."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replayed import grow, keep

from agentrl_core import Store, replay
from agentrl_core.component import IterationRecord, Where
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.replay.memory_rows import MemoryRows

TASKS = ("a", "b", "c")


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(TASKS), st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=3), min_size=1
        ),
        max_size=6,
    ),
    st.sampled_from([None, 1, 2]),
    st.sampled_from([None, 3]),
    st.sampled_from([None, 1, 2]),
    st.booleans(),
)
def test_a_memory_keeps_the_same_trajectories_as_a_plain_list(
    tmp_path_factory: pytest.TempPathFactory,
    iterations: list[dict[str, list[float]]],
    per_task: int | None,
    capacity: int | None,
    max_age: int | None,
    successes: bool,
) -> None:
    where = Where(column="score", above=0.5) if successes else None
    memory = replay.Memory(per_task=per_task, capacity=capacity, max_age=max_age, where=where)
    state, plain = memory.initial_state(), list[tuple[int, str, int]]()
    with Store.open(tmp_path_factory.mktemp("run"), sync="never") as store:
        for iteration, groups in enumerate(iterations):
            closed = keep(store, grow(iteration, groups))
            ids, scores = closed.batch.column("trajectory_id", "draw"), closed.batch.column("score", "draw")
            tasks = closed.batch.texts("task_id", "draw")
            plain += [
                (int(row), task, iteration)
                for row, task, score in zip(ids.tolist(), tasks, scores.tolist(), strict=True)
                if score > 0.5 or not successes
            ]
            if max_age is not None:
                plain = [row for row in plain if row[2] > iteration - max_age]
            if per_task is not None:
                plain = [
                    row
                    for place, row in enumerate(plain)
                    if sum(other[1] == row[1] for other in plain[place + 1 :]) < per_task
                ]
            if capacity is not None:
                plain = plain[-capacity:]
            before = {name: value for name, value in state.items() if name != "columns"}
            copies = {name: value.copy() for name, value in before.items()}
            state = memory.next(state, closed)
            assert all((before[name] == copies[name]).all() for name in before), "the state before stays as it is"
            remembered = MemoryRows.from_state(state)
            assert remembered.trajectory_id.tolist() == [row[0] for row in plain]
            assert remembered.iteration.tolist() == [row[2] for row in plain]


def test_a_memory_of_groups_keeps_them_whole(tmp_path: Path) -> None:
    memory = replay.Memory(capacity=2, unit="group", where=Where(column="score", above=0.5))
    state = memory.initial_state()
    with Store.open(tmp_path / "run") as store:
        for iteration, groups in enumerate(({"a": [0, 1], "b": [0, 0]}, {"a": [1, 1, 0]}, {"c": [0, 1]})):
            state = memory.next(state, keep(store, grow(iteration, groups)))
    remembered = MemoryRows.from_state(state)
    assert remembered.iteration.tolist() == [1, 1, 1, 2, 2], "the oldest group went, the one without success never came"
    rows, chances = memory.draw(remembered, 1, key=3)
    assert len(set(remembered.group_id[rows].tolist())) == 1
    assert len(rows) == (remembered.group_id == remembered.group_id[rows[0]]).sum(), "a group is drawn whole"
    assert chances is not None
    assert chances.tolist() == [0.5] * len(rows)


def test_a_memory_keeps_only_draws_that_match_its_filter(tmp_path: Path) -> None:
    """Filter by agent and by a column that only credit computes; both must hold."""
    with Store.open(tmp_path / "run") as store:
        closed = keep(store, grow(0, {"a": [0.0, 1.0], "b": [1.0]}), advantage=[-0.5, 0.5, 0.0])
    for where, expected in (
        (Where(origin="generated"), [0, 1, 2]),
        (Where(origin="imported"), []),
        (Where(column="advantage", at_least=0.0), [1, 2]),
        (Where(column="advantage", above=0.0, below=0.5), []),
        (Where(origin="generated", source="fresh", column="advantage", above=0.0), [1]),
        (Where(column="nobody_made_it", above=0.0), []),
    ):
        memory = replay.Memory(where=where)
        remembered = MemoryRows.from_state(memory.next(memory.initial_state(), closed))
        assert remembered.trajectory_id.tolist() == expected


def test_further_columns_are_stored_by_their_names(tmp_path: Path) -> None:
    memory = replay.Memory(keep=("advantage", "reward"))
    with Store.open(tmp_path / "run") as store:
        closed = keep(store, grow(0, {"a": [0.0, 1.0], "b": [1.0]}), advantage=[-0.5, 0.5, 0.0])
    remembered = MemoryRows.from_state(memory.next(memory.initial_state(), closed), memory.keep)
    assert {name: column.tolist() for name, column in remembered.columns.items()} == {
        "advantage": [-0.5, 0.5, 0.0],
        "reward": [0.0, 1.0, 1.0],
    }
    # Format of earlier builds.
    assert replay.Memory(keep="advantage, reward") == memory  # type: ignore[arg-type]


def rows_of(scores: list[float]) -> MemoryRows:
    remembered = MemoryRows.empty()
    count = len(scores)
    return MemoryRows(
        **{
            name: np.zeros(count, getattr(remembered, name).dtype)
            for name in ("group_id", "task", "iteration", "version", "uses", "drawn_last")
        },
        trajectory_id=np.arange(count, dtype=np.int64),
        score=np.array(scores),
        priority=np.array(scores),
    )


def test_orders_by_hand() -> None:
    remembered = rows_of([2.0, 9.0, 1.0])
    for order, expected in (("oldest", [0, 1]), ("newest", [2, 1]), ("best", [1, 0])):
        rows, _ = replay.Memory(order=order).draw(remembered, 2, key=0)  # type: ignore[arg-type]
        assert rows.tolist() == expected
    assert sorted(replay.Memory().draw(remembered, 9, key=1)[0].tolist()) == [0, 1, 2]


@pytest.mark.parametrize(("order", "weights"), [("proportional", [1.0, 2.0, 5.0]), ("rank", [1 / 3, 1 / 2, 1.0])])
def test_the_probability_of_one_draw_follows_its_priority(order: str, weights: list[float]) -> None:
    """Priorities 1, 2, 5: P = p / 8; ranks 3, 2, 1: P = (1/3, 1/2, 1) / (11/6). 20 000 draws, 2 degrees of freedom."""
    memory, remembered = replay.Memory(order=order), rows_of([1.0, 2.0, 5.0])  # type: ignore[arg-type]
    counts = np.bincount([int(memory.draw(remembered, 1, key)[0][0]) for key in range(20_000)], minlength=3)
    expected = 20_000 * np.array(weights) / sum(weights)
    assert ((counts - expected) ** 2 / expected).sum() < 25.0  # probability 4e-6


def test_no_priority_is_too_large_and_no_exponent_too_steep() -> None:
    """Powers out of the range of floats: (1e-6 / 1)^100 and (1e200)^2. The largest is almost certainly drawn first."""
    for exponent, priorities in ((100.0, [1e-6, 1.0, 1e-3]), (2.0, [1e150, 1e200, 1e-200])):
        memory, remembered = replay.Memory(order="proportional", exponent=exponent), rows_of(priorities)
        drawn = [memory.draw(remembered, 3, key)[0].tolist() for key in range(50)]
        assert all(rows[0] == 1 and sorted(rows) == [0, 1, 2] for rows in drawn)


def test_an_infinite_priority_is_a_clear_error(tmp_path: Path) -> None:
    memory = replay.Memory(priority="surprise")
    with Store.open(tmp_path / "run") as store:
        closed = keep(store, grow(0, {"a": [0, 1]}), surprise=[1.0, np.inf])
        with pytest.raises(InvalidInputError, match=r"Memory: column 'surprise' of trajectory 1 is inf, .* bound this"):
            memory.next(memory.initial_state(), closed)


def test_a_replayed_trajectory_is_counted_and_its_priority_is_updated(tmp_path: Path) -> None:
    memory = replay.Memory(priority="surprise", floor=0.5)
    state = memory.initial_state()
    with Store.open(tmp_path / "run") as store:
        closed = keep(store, grow(0, {"a": [0, 1]}), surprise=[-2.0, 1.0])
        state = memory.next(state, closed)
        assert MemoryRows.from_state(state).priority.tolist() == [2.5, 1.5]
        batch = grow(1, {"a": [0]})
        draws = replay.Draws.of([0, 0], votes_in=replay.Draws.NEW_GROUP, probability=0.5)
        batch = store.rebase(batch.with_stored_draws(store.trajectory_batch([0]), draws))
        batch = batch.with_columns("draw", score=np.zeros(3, np.float32), surprise=np.array([0, 4, 4], np.float32))
        store.append(batch, iteration=1)
        store.close_iteration(batch, {})
        state = memory.next(state, IterationRecord.of(store.batch(1)))
        assert store.verify() == [], "a trajectory that was drawn twice, with its probability, is lawful"
    remembered = MemoryRows.from_state(state)
    assert remembered.uses.tolist() == [2, 0, 0]
    assert remembered.drawn_last.tolist() == [1, -1, -1]
    assert remembered.priority.tolist() == [4.5, 1.5, 0.5], "renewed; as it was; of the new row as the column says"


def test_age_and_version_limits_restrict_replayed_trajectories(tmp_path: Path) -> None:
    memory = replay.Memory(min_age=2, max_age=3, max_versions=2)
    state = memory.initial_state()
    with Store.open(tmp_path / "run") as store:
        for iteration in range(4):
            state = memory.next(state, keep(store, grow(iteration, {"a": [1.0]})))
    assert MemoryRows.from_state(state).iteration.tolist() == [1, 2, 3]
    assert memory.drawable(state, 4).iteration.tolist() == [1, 2]
    assert memory.drawable(state, 4, versions=4).iteration.tolist() == [2]
