"""UI-S1: returns that stop at a deviation from the expert, comparisons and the filter, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from compared import close, column
from rollouts import small

from agentrl_core import recipes
from agentrl_core.exceptions import RecipeError
from agentrl_core.recipes.ui_s1 import MatchedReturns
from agentrl_core.reward import OutcomeScore


def test_returns_break_where_the_expert_was_left() -> None:
    batch = small(
        [(0, [1] * 5), (0, [1])],
        draw_score=[0.0, 0.0],
        step_reward=[0.2, 1.0, 1.0, 0.5, 1.0, np.nan],
        step_matched=[1, 1, 0, 1, 1, 1],
    )
    returned = MatchedReturns()(batch)
    close(column(returned, "matched_return", "step"), [0.95, 1.5, 1.0, 1.0, 1.0, 0.0])
    close(column(returned, "first_return"), [0.95, 0.0])
    code = MatchedReturns(with_mismatch=False)(batch)
    close(column(code, "matched_return", "step"), [0.7, 1.0, 1.0, 1.0, 1.0, 0.0])
    close(column(code, "first_return"), [0.7, 0.0])


def test_advantages_and_the_filter() -> None:
    # Two rollouts of equal scores, whose first returns are 1 and .2; two others whose returns are equal.
    batch = small(
        [(0, [1, 1]), (0, [1]), (1, [1]), (1, [1])],
        draw_score=[1.0, 1.0, 2.0, 0.0],
        step_reward=[0.5, 1.0, 0.2, 0.5, 0.5],
        step_matched=[1, 1, 0, 1, 1],
    )
    assert recipes.UI_S1.chain("reward") == (OutcomeScore(), MatchedReturns())
    for link in (MatchedReturns(), *recipes.UI_S1.chain("advantage"), *recipes.UI_S1.chain("weight")):
        batch = link(batch)
    deviation = 0.4 * np.sqrt(2.0)
    of_steps = [0.4 / (deviation + 1e-6), 0.0, -0.4 / (deviation + 1e-6), 0.0, 0.0]
    of_groups = [0.0, 0.0, 0.0, 1.0 / (np.sqrt(2.0) + 1e-6), -1.0 / (np.sqrt(2.0) + 1e-6)]
    close(column(batch, level="step"), np.add(of_steps, of_groups))
    # The population standard deviations of the first returns are .4 and 0; those of the scores 0 and 1.
    assert column(batch, "keep") == [1.0, 1.0, 0.0, 0.0]


def test_a_single_rollout_stays() -> None:
    batch = small([(0, [1])], draw_score=[1.0], step_reward=[0.5], step_matched=[1])
    for link in (MatchedReturns(), *recipes.UI_S1.chain("weight")):
        batch = link(batch)
    assert column(batch, "keep") == [1.0]


def test_options_out_of_range() -> None:
    with pytest.raises(RecipeError, match=r"gamma=1\.5"):
        MatchedReturns(gamma=1.5)
