"""A success without a verdict is in no statistic, and does not prevent credit."""

from __future__ import annotations

import numpy as np
import pytest

import agentrl_core as arl
from agentrl_core import recipes, reward, weight
from agentrl_core.component import Rows
from agentrl_core.select import Band


def judged(*verdicts: bool | None, rewards: tuple[float, ...] | None = None) -> arl.Batch:
    forest = arl.Forest(facts={"trajectory": {"fact": "number"}})
    forest.add_group(0, "task")
    for member, success in enumerate(verdicts):
        trajectory = forest.start(0, member)
        forest.append(trajectory, [1, 2], kind="prompt")
        forest.append(
            trajectory,
            [3] * (2 + member),
            kind="action",
            logprobs=[-0.5] * (2 + member),
            entropies=[0.5] * (2 + member),
        )
        paid = float(bool(success)) if rewards is None else rewards[member]
        forest.finish(trajectory, reward=paid, success=success, facts={"fact": 1.0})
    return forest.freeze()


def test_an_unknown_success_is_nan() -> None:
    batch = judged(True, None, False)
    assert np.array_equal(batch.column("success", "draw"), [1.0, np.nan, 0.0], equal_nan=True)
    assert batch.column("success", "step").shape == (3,)
    assert judged(True, False).column("success", "draw").dtype == np.uint8
    rows = Rows(batch, "draw")
    assert rows.flags("success").tolist() == [True, False, False]
    assert rows.is_known("success").tolist() == [True, False, True]


def test_a_score_made_of_success_is_unknown_without_it() -> None:
    scores = reward.OutcomeScore(success=1.0, failure=-1.0)(judged(True, None, False)).column("score", "draw")
    assert np.array_equal(scores, [1.0, np.nan, -1.0], equal_nan=True)


@pytest.mark.parametrize("only", ["success", "failure"])
def test_an_unknown_outcome_counts_neither_as_success_nor_as_failure(only: str) -> None:
    batch = reward.OutcomeScore()(judged(True, None, False, rewards=(1.0, 1.0, 1.0)))
    of_kind = [only == "success", False, only == "failure"]
    fused = reward.CombineReward(column="fact", only=only)(batch).column("score", "draw")  # type: ignore[arg-type]
    assert (fused == 2.0).tolist() == of_kind
    charged = reward.LengthPenalty(free=0, full_at=2, only=only)(batch).column("score", "draw")  # type: ignore[arg-type]
    assert (charged < 1.0).tolist() == of_kind


def test_groups_are_kept_by_the_verdicts_that_are_known() -> None:
    batch = reward.OutcomeScore()(judged(True, True, None))
    filtered = weight.GroupFilter(column="success", band=Band(std_above=0.0))(batch)
    assert not filtered.column("keep", "draw").any(), "all known verdicts are equal"


@pytest.mark.parametrize("name", ["v05", "ares", "dars", "drpo", "apriel", "shorter_better", "a3t", "rstar2", "fathom"])
def test_recipes_that_read_success_leave_an_unknown_one_out(name: str) -> None:
    recipe, batch = recipes.get(name), judged(True, False, True, None, rewards=(1.0, 0.0, 1.0, 1.0))
    links = [link for phase in ("reward", "advantage", "weight") for link in recipe.chain(phase)]
    named = {need.name for link in links for need in link.needs}
    batch = batch.with_columns("draw", **{name: np.ones(4) for name in named if name.startswith(("reward.", "prior"))})
    credited = recipe.credit(batch)
    advantages = credited.column("advantage", "token")
    assert np.isfinite(advantages).all()
