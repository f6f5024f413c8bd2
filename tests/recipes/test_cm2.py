"""CM2: items of a checklist as advantages of steps, by hand; the paper's level is the trajectory."""

from __future__ import annotations

import math

import pytest
from compared import close, column
from rollouts import small

from agentrl_core import advantage, recipes
from agentrl_core.exceptions import RecipeError
from agentrl_core.recipes.cm2 import ChecklistRelative


def test_items_of_checklists() -> None:
    # Two draws of one turn with two steps; item 0 exists in all, item 1 not.
    batch = small(
        [(0, [1, 1]), (0, [1, 1])],
        draw_score=[1.0, 0.0],
        step_turn=[0] * 4,
        **{
            "step_satisfied.0": [0.0, 1.0, 0.0, 0.0],
            "step_item_weight.0": [2.0] * 4,
            "step_item_reward.0": [1.0, 1.0, 0.0, 0.0],
            "step_item_eligible.0": [1, 1, 1, 1],
            "step_satisfied.1": [math.nan] * 4,
            "step_item_weight.1": [math.nan] * 4,
            "step_item_reward.1": [0.0] * 4,
            "step_item_eligible.1": [0] * 4,
        },
    )
    component = ChecklistRelative(items=2, members_at_least=2)
    close(column(component(batch), level="step"), [0.5, 0.5, -0.5, -0.5])
    close(column(ChecklistRelative(items=2, members_at_least=3)(batch), level="step"), [0.0] * 4)


def test_the_level_is_the_trajectory() -> None:
    batch = small([(0, [1, 1]), (0, [1])], draw_score=[0.75, 0.25])
    assert recipes.CM2.advantage == advantage.GroupRelative(scale="none")
    close(column(recipes.CM2.advantage(batch)), [0.25, -0.25])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ChecklistRelative(items=0), "items=0"),
    ],
)
def test_options_out_of_range(make: object, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        make()
