"""Schedules: numbers by hand, properties of each kind, and refused options."""

from __future__ import annotations

import copy
import json
import math
import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rollouts import small

from agentrl_core import Forest, Schedule
from agentrl_core.advantage import EntropyBonus, GroupRelative
from agentrl_core.exceptions import RecipeError
from agentrl_core.recipe import Recipe
from agentrl_core.reward import CombineReward, OutcomeScore

NUMBERS = st.floats(0.01, 100.0)
SCHEDULES = st.builds(
    Schedule,
    NUMBERS,
    NUMBERS,
    st.integers(1, 50),
    begin=st.integers(0, 50),
    kind=st.sampled_from(["linear", "cosine", "exponential", "step"]),
)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("linear", [4.0, 4.0, 3.25, 2.5, 1.75, 1.0, 1.0]),
        ("cosine", [4.0, 4.0, 2.5 + 1.5 * math.sqrt(0.5), 2.5, 2.5 - 1.5 * math.sqrt(0.5), 1.0, 1.0]),
        ("exponential", [4.0, 4.0, 4.0 / math.sqrt(2.0), 2.0, math.sqrt(2.0), 1.0, 1.0]),
        ("step", [4.0, 4.0, 4.0, 4.0, 4.0, 1.0, 1.0]),
    ],
)
def test_numbers_by_hand(kind: str, expected: list[float]) -> None:
    schedule = Schedule(4.0, 1.0, iterations=4, begin=1, kind=kind)
    np.testing.assert_allclose([schedule.at(iteration) for iteration in range(7)], expected, rtol=1e-15)


@given(SCHEDULES, st.integers(0, 200))
def test_a_schedule_moves_from_start_to_end_and_stays_between_them(schedule: Schedule, iteration: int) -> None:
    low, high = sorted((schedule.start, schedule.end))
    now, later = schedule.at(iteration), schedule.at(iteration + 1)
    assert low * (1 - 1e-12) <= now <= high * (1 + 1e-12)
    assert (later - now) * (schedule.end - schedule.start) >= -1e-9
    assert schedule.at(schedule.begin) == schedule.start
    assert schedule.at(schedule.begin + schedule.iterations) == schedule.end


@given(SCHEDULES)
def test_it_is_a_value(schedule: Schedule) -> None:
    assert not isinstance(schedule, float)
    assert schedule not in (schedule.start, None, "a schedule")
    for again in (Schedule(**schedule.to_dict()), pickle.loads(pickle.dumps(schedule)), copy.deepcopy(schedule)):
        assert again == schedule
        assert hash(again) == hash(schedule)
        assert repr(again) == repr(schedule)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"start": math.nan}, "start=nan is not possible; give a finite number"),
        ({"end": "0"}, "end='0' is not possible"),
        ({"end": Schedule(1.0, 0.0, 2)}, "end=Schedule"),
        ({"iterations": 0}, "iterations=0 is not possible; give a whole number of at least 1"),
        ({"begin": -1}, "begin=-1 is not possible"),
        ({"kind": "cubic"}, "kind='cubic' is not possible; give one of 'linear'"),
        ({"kind": "exponential", "end": -1.0}, "end=-1.0 is not possible; give start and end on one side of 0"),
    ],
)
def test_invalid_schedules_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Schedule(**({"start": 1.0, "end": 0.0, "iterations": 4} | arguments))


def test_options_are_in_range_at_both_ends() -> None:
    with pytest.raises(RecipeError, match=r"option at_most=-1\.0 is not possible; give a number above 0"):
        EntropyBonus(at_most=Schedule(2.0, -1.0, iterations=3))
    with pytest.raises(RecipeError, match=r"option coefficient=.* is not a Schedule; give the keys start, end"):
        EntropyBonus.from_dict({"coefficient": {"from": 1.0, "to": 0.0}})


def test_the_iteration_of_the_batch_decides() -> None:
    for iteration, added in ((0, 1.0), (100, 0.75), (400, 0.0), (500, 0.0)):
        forest = Forest(iteration=iteration)
        forest.add_group(0, "task")
        for member in range(2):
            trajectory = forest.start(0, member)
            forest.append(trajectory, [1, 2], kind="action", logprobs=[-1.0, -1.0])
            forest.finish(trajectory, reward=1.0, success=True)
        batch = forest.freeze().with_columns("draw", shown=[1.0, 0.0])
        fuse = CombineReward(column="shown", coefficient=Schedule(1.0, 0.0, iterations=400))
        shaped = Recipe(name="mine", reward=(OutcomeScore(), fuse)).score(batch)
        np.testing.assert_allclose(shaped.column("score", "draw"), [1.0 + added, 1.0])


def test_a_recipe_records_its_schedules() -> None:
    schedule = Schedule(1.0, 0.0, iterations=4, kind="cosine")
    recipe = Recipe(name="mine", advantage=(GroupRelative(coefficient=schedule), GroupRelative(add=True)))
    batch = recipe.credit(small([(0, [1]), (0, [1])], draw_reward=[1.0, 0.0]))
    np.testing.assert_allclose(
        batch.column("advantage", "draw"), np.array([2, -2]) * 0.5 / (0.5**0.5 + 1e-6), rtol=1e-6
    )
    assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe
    assert Recipe.from_toml(recipe.to_toml()) == recipe


def test_a_batch_without_draws() -> None:
    batch = small([(0, [1])], draw_score=[1.0], token_entropy=[1.0], draw_advantage=[1.0]).select_draws([])
    assert len(EntropyBonus(coefficient=Schedule(1.0, 0.0, 4)).at(0)(batch).column("advantage", "token")) == 0


@pytest.mark.parametrize(
    "compute",
    [
        lambda schedule: schedule + 1,
        lambda schedule: 1.0 - schedule,
        lambda schedule: np.ones(2) * schedule,
        lambda schedule: torch.ones(2) * schedule,
        lambda schedule: schedule > 0.0,
        lambda schedule: -schedule,
        float,
        lambda schedule: schedule(3),
        lambda schedule: EntropyBonus(coefficient=schedule)(
            small([(0, [1])], draw_score=[1.0], token_entropy=[1.0], draw_advantage=[1.0])
        ),
    ],
)
def test_a_schedule_is_not_a_number_before_the_iteration_is_given(compute: Callable[[Schedule], object]) -> None:
    with pytest.raises(RecipeError, match=r"Schedule\(start=1.0.*is not a number yet; .*component\.at\(iteration\)"):
        compute(Schedule(1.0, 0.5, iterations=4))
