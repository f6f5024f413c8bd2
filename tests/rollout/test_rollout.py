"""Planners: roots, branches within the budget, top-up."""

from __future__ import annotations

import numpy as np
import pytest

from agentrl_core import rollout
from agentrl_core.exceptions import InvalidInputError, RecipeError


def frontier(**columns: list) -> rollout.Frontier:
    """A frontier of rows in one group of 3 trajectories, all at a tool result, unless said otherwise."""
    rows = len(columns["entropy"])
    kinds = {
        "trajectory": (np.int64, range(rows)),
        "group": (np.uint32, [0] * rows),
        "entropy": (np.float64, []),
        "initial_entropy": (np.float64, [0.0] * rows),
        "is_after_tool": (np.bool_, [True] * rows),
        "has_tool_result": (np.bool_, [True] * rows),
        "existing": (np.uint32, [3]),
        "uniform": (np.float64, [[0.5]] * rows),
    }
    return rollout.Frontier(**{name: np.array(columns.get(name, value), kind) for name, (kind, value) in kinds.items()})


def test_independent() -> None:
    planner = rollout.Independent()
    assert planner.roots(8) == 8
    assert (planner.fork_at, planner.needs_entropy, planner.random_columns) == ("end", False, 0)
    assert planner.plan(frontier(entropy=[1.0, 2.0])).tolist() == [0, 0]
    assert planner.top_up(np.array([3], np.uint32), np.array([0], np.uint32)).tolist() == [0]
    assert np.isnan(planner.segment_entropy(np.zeros(3, np.float32), np.array([0, 1, 3]), 10)).all()


def test_branches_where_the_entropy_rose() -> None:
    planner = rollout.EntropyBranching(budget=16, initial=4, probability=0.5, entropy_weight=1.0)
    plan = planner.plan(frontier(entropy=[0.0, 0.3, -0.3], uniform=[[0.6], [0.6], [0.4]]))
    assert plan.dtype == np.uint32
    assert plan.tolist() == [0, 1, 0]  # 0.6 > 0.5; 0.6 - 0.3 <= 0.5; 0.4 + 0.3 > 0.5


def test_only_rows_at_a_tool_result_branch() -> None:
    columns = {
        "entropy": [9.0, 9.0, 9.0],
        "is_after_tool": [True, False, False],
        "has_tool_result": [False, True, False],
    }
    after = rollout.EntropyBranching(measure="after_tool")
    before = rollout.EntropyBranching(measure="before_tool")
    assert after.fork_at == "segment_start"
    assert before.fork_at == "end"
    assert after.plan(frontier(**columns)).tolist() == [1, 0, 0]
    assert before.plan(frontier(**columns)).tolist() == [0, 1, 0]


def test_the_budget_of_each_group_is_kept() -> None:
    planner = rollout.EntropyBranching(budget=5, initial=2, beam=4)
    plan = planner.plan(
        frontier(entropy=[9.0] * 5, group=[0, 1, 0, 1, 2], existing=[1, 4, 5], uniform=[[0.0, 0.0, 0.0]] * 5)
    )
    assert plan.tolist() == [3, 1, 1, 0, 0]


def test_top_up() -> None:
    planner = rollout.EntropyBranching(budget=4, initial=2)
    existing, active = np.array([2, 2, 4, 0], np.uint32), np.array([0, 1, 0, 0], np.uint32)
    assert planner.top_up(existing, active).tolist() == [1, 0, 0, 1]


@pytest.mark.parametrize(("reduce", "expected"), [("sum", [3.0, 4.0, 0.0]), ("mean", [1.5, 4.0, 0.0])])
def test_segment_entropy(reduce: str, expected: list[float]) -> None:
    planner = rollout.EntropyBranching(tokens=2, reduce=reduce)
    entropies = np.array([1.0, 2.0, 100.0, 4.0], np.float32)
    found = planner.segment_entropy(entropies, np.array([0, 3, 4, 4]), 10)
    np.testing.assert_allclose(found, np.array(expected) / np.log(10), rtol=1e-12)


def test_unknown_entropy_is_an_error_only_where_it_matters() -> None:
    planner = rollout.EntropyBranching()
    columns = {"entropy": [np.nan, 1.0], "is_after_tool": [False, True]}
    planner.plan(frontier(**columns))
    with pytest.raises(InvalidInputError, match=r"frontier\.entropy\[0\]=nan .* use an engine that reports them"):
        planner.plan(frontier(entropy=[np.nan]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": 0}, "budget=0"),
        ({"initial": 0}, "initial=0"),
        ({"budget": 4}, "initial=8 is not possible; give a whole number from 1 to budget=4"),
        ({"beam": 1}, r"beam=1 is not possible; give at least 2, or use rollout\.Independent"),
        ({"probability": 1.5}, "probability=1.5"),
        ({"entropy_weight": -0.2}, "entropy_weight=-0.2"),
        ({"tokens": 0}, "tokens=0"),
        ({"tokens": 1.5}, "tokens=1.5 is not possible; give a whole number"),
        ({"reduce": "max"}, "reduce='max'"),
        ({"measure": "tool"}, "measure='tool'"),
    ],
)
def test_options_out_of_range(options: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        rollout.EntropyBranching(**options)
