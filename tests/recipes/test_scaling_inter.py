"""ScalingInter-RL: the maximum length of a trajectory, by iteration."""

from __future__ import annotations

import pytest
from riddles import check_resumes, in_turn, solve, step

from agentrl_core import recipes
from agentrl_core.exceptions import RecipeError
from agentrl_core.recipes.scaling_inter import Horizon


def test_a_trajectory_is_truncated_at_the_limit_of_its_stage() -> None:
    run = solve(recipes.SCALING_INTER, in_turn("look"), group_size=2)
    assert [(row.status, row.drawn) for row in run.rows] == [("truncated", True)] * 2
    assert run.num_requests == 2 * 10
    program = Horizon(stages=(2, 3), every=4)
    assert [program.limit(iteration) for iteration in range(9)] == [2] * 4 + [3] * 5
    assert solve(program, in_turn("look", "<answer>right</answer>"), group_size=1).rows[0].status == "finished"
    for stages in ("", "a", "3,0"):
        with pytest.raises(RecipeError, match="stages="):
            Horizon(stages=stages)


def test_the_recipe_resumes_and_takes_optimizer_steps() -> None:
    recipe = recipes.SCALING_INTER.replace(rollout=Horizon(stages=(3,)))
    assert check_resumes(recipe, in_turn("look")) >= 2

    def speak(context: str, request: object) -> str:
        return f"<answer>{'right' if request.seed % 2 else 'wrong'}</answer>" if "go on" in context else "look"

    assert step(recipe, solve(recipe, speak).batch) >= 1
