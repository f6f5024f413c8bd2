"""TurnOPD: full rollouts set the depth of the others."""

from __future__ import annotations

import numpy as np
import pytest
from riddles import Riddles, check_resumes, in_turn, script

import agentrl_core as arl
from agentrl_core import recipes
from agentrl_core.component import IterationRecord
from agentrl_core.exceptions import RecipeError
from agentrl_core.recipes.turn_opd import AdaptiveDepth

RIGHT = "<answer>right</answer>"
DEPTH = AdaptiveDepth(warm_up=1, every=3, successes=1)
RECIPE = recipes.TURN_OPD.replace(rollout=DEPTH)


def annotated(batch: arl.Batch) -> arl.Batch:
    """Return the batch with a teacher whose log-probs equal the policy's."""
    teacher = np.where(batch.column("trainable", "token") != 0, batch.column("behaviour_logprob", "token"), np.nan)
    return batch.with_columns("token", teacher_logprob=teacher)


def test_full_rollouts_set_the_depth_of_those_after_them() -> None:
    replies = ["look", "look", RIGHT, *["look"] * 6, RIGHT, "look", "look", "look", "look"]
    collect = arl.Collector(script(in_turn(*replies)), Riddles(), RECIPE, task_pool=64)
    turns = []
    for _ in range(5):
        batch = annotated(collect(tasks=1, group_size=1))
        turns.append(len(batch.offsets("token")) - 1)
        collect.end_iteration(batch, {})
    # Full: three turns. Then at most three, twice, without success. Full: one turn. The depth falls by 0.3 of 2.
    assert turns == [3, 3, 3, 1, 2]


def test_it_resumes() -> None:
    def speak(context: str, request: object) -> str:
        del request
        return RIGHT if context.count("go on") >= 2 else "look"

    assert check_resumes(recipes.TURN_OPD, speak) >= 2


def test_a_depth_needs_the_teacher_s_answers() -> None:
    collect = arl.Collector(script(in_turn(RIGHT)), Riddles(), RECIPE, task_pool=64)
    batch = collect(tasks=1, group_size=1)
    with pytest.raises(RecipeError, match="add the column before the credit"):
        DEPTH.next(DEPTH.initial_state(), IterationRecord.of(batch))
    limited = DEPTH.next({"covered": 1.0, "depth": 1.0}, IterationRecord(1, batch))
    assert limited == {"covered": 1.0, "depth": 1.0}, "what was limited changes nothing"
    with pytest.raises(RecipeError, match="coverage=0"):
        AdaptiveDepth(coverage=0.0)


def test_no_success_sets_no_depth() -> None:
    collect = arl.Collector(script(in_turn("<answer>wrong</answer>")), Riddles(), RECIPE, task_pool=64)
    batch = annotated(collect(tasks=1, group_size=1))
    assert DEPTH.next(DEPTH.initial_state(), IterationRecord.of(batch)) == DEPTH.initial_state()
