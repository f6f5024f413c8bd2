"""Entropy branching: the places of copies, within the budget; options."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from agentrl_core import _core, rollout
from agentrl_core.engine import Segment
from agentrl_core.exceptions import InvalidInputError, RecipeError


def turn(
    entropies: list[float] | None = None,
    *,
    follows_tool: bool = True,
    used_tool: bool = False,
    over: bool = False,
    seed: int = 0,
    failed: str | None = None,
) -> rollout.Turn:
    """Return a turn of one segment."""
    values = [1.0] if entropies is None else entropies
    numbers = np.array(values, np.float32)
    segment = Segment(np.zeros(len(values), np.int32), -numbers, numbers, "stop", 0, seed)
    return rollout.Turn(
        branch_ref=lambda: SimpleNamespace(name="0.0/0.0", seed=seed),  # type: ignore[arg-type]
        index=1,
        begin=rollout.Position(0, None, 1, 1, follows_tool),
        length=len(values),
        segments=() if failed else (segment,),
        text="",
        observation=None,
        reward=None,
        facts={},
        flags=4 if used_tool else 0,
        failed=failed,
        over=over,
    )


def seed_with(numbers: list[tuple[float, float]]) -> int:
    """Return a seed whose first uniform numbers lie in these intervals."""
    for seed in range(100_000):
        inside = _core.rng.structural_seed(seed, 1)
        drawn = [float(_core.rng.uniform(np.array([inside], np.uint64), place)[0]) for place in range(len(numbers))]
        if all(low <= number < high for number, (low, high) in zip(drawn, numbers, strict=True)):
            return seed
    raise AssertionError("no seed has such numbers")


def test_branches_where_the_entropy_rose() -> None:
    program = rollout.EntropyBranching(budget=16, initial=4, probability=0.5, entropy_weight=1.0)
    high, low = seed_with([(0.55, 0.65)]), seed_with([(0.35, 0.45)])
    turns = [turn(seed=high), turn(seed=high), turn(seed=low)]
    # The numbers are near 0.6, 0.6 and 0.4, the changes are subtracted from them, and 0.5 is the bound.
    assert program.copies(turns, np.array([0.0, 0.3, -0.3]), 3) == [0, 1, 0]


def test_only_turns_at_a_tool_result_branch() -> None:
    turns = [
        turn(follows_tool=True),
        turn(follows_tool=False, used_tool=True),
        turn(follows_tool=False),
        turn(follows_tool=True, failed="it broke"),
        turn(follows_tool=False, used_tool=True, over=True),
    ]
    change = np.full(5, 9.0)
    assert rollout.EntropyBranching(measure="after_tool").copies(turns, change, 3) == [1, 0, 0, 0, 0]
    assert rollout.EntropyBranching(measure="before_tool").copies(turns, change, 3) == [0, 1, 0, 0, 0]


def test_the_budget_is_kept() -> None:
    program = rollout.EntropyBranching(budget=8, initial=2, beam=4, probability=1.0)
    assert program.copies([turn()] * 3, np.zeros(3), 3) == [3, 2, 0]
    assert program.copies([turn()] * 3, np.zeros(3), 8) == [0, 0, 0]


@pytest.mark.parametrize(("reduce", "expected"), [("sum", [3.0, 4.0, math.nan]), ("mean", [1.5, 4.0, math.nan])])
def test_entropies_of_segments(reduce: Any, expected: list[float]) -> None:
    program = rollout.EntropyBranching(tokens=2, reduce=reduce)
    entropies = program.entropies([turn([1.0, 2.0, 100.0]), turn([4.0]), turn(failed="it broke")], 10)
    np.testing.assert_allclose(entropies, np.array(expected) / np.log(10), rtol=1e-12)


def test_unknown_entropy_is_an_error_only_where_it_matters() -> None:
    program = rollout.EntropyBranching()
    assert program.copies([turn(follows_tool=False), turn()], np.array([np.nan, 9.0]), 1) == [0, 1]
    with pytest.raises(InvalidInputError, match=r"turn 1 of branch 0.0/0.0 is unknown; use an engine that reports"):
        program.copies([turn()], np.array([np.nan]), 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": 0}, "budget=0"),
        ({"initial": 0}, "initial=0"),
        ({"budget": 4}, "initial=8 is not possible; give a whole number from 1 to budget=4"),
        ({"beam": 1}, r"beam=1 is not possible; give a number of at least 2"),
        ({"probability": 1.5}, "probability=1.5"),
        ({"entropy_weight": -0.2}, "entropy_weight=-0.2"),
        ({"tokens": 0}, "tokens=0"),
        ({"tokens": 1.5}, "tokens=1.5 is not possible; give a whole number"),
        ({"reduce": "max"}, "reduce='max'"),
        ({"measure": "tool"}, "measure='tool'"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        rollout.EntropyBranching(**options)
