"""Losses of draws: their mean is the loss of the step, and each is the loss of a step on that draw alone."""

from __future__ import annotations

import numpy as np
import pytest
from systems import LOSSES
from updates import Rollouts

from agentrl_core import Batch, loss, recipes
from agentrl_core.exceptions import InvalidInputError, UnsupportedError
from agentrl_core.update.minibatches import Updates
from agentrl_core.update.optimizer_step import Update

NO_SUMS = {"drpo", "siren"}
"""A loss with a logarithm of a mean over a group, and one with the square of a mean over all tokens."""


def recorded(policy: loss.Loss, rollouts: Rollouts, *, tree: bool) -> tuple[Updates, Update, float]:
    """Return a step whose packs were run, and its loss."""
    updates = recipes.GRPO.replace(loss=policy).updates(rollouts.batch, draw_losses=True)
    (update,) = updates
    in_one_pack = policy.unit not in ("token", "step")
    packs = update.pack(max_tokens=4000 if in_one_pack else 60, layout="tree" if tree else "sequence")
    assert in_one_pack or len(packs) > 1
    value = sum(float(update.loss(rollouts.outputs(pack.token), pack).detach()) for pack in packs)
    return updates, update, value


@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("name", sorted(set(LOSSES) - NO_SUMS))
def test_the_mean_over_the_draws_of_a_step_is_its_loss(name: str, tree: bool) -> None:
    rollouts = Rollouts.random(LOSSES[name], seed=3)
    updates, update, value = recorded(LOSSES[name], rollouts, tree=tree)
    losses = updates.with_losses().column("loss", "draw")
    assert np.isfinite(losses[update.draws]).all()
    others = np.setdiff1d(np.arange(rollouts.batch.num_draws), update.draws)
    assert len(others) or not LOSSES[name].needs_score
    assert np.isnan(losses[others]).all()
    assert losses[update.draws].mean() == pytest.approx(value, rel=2e-5, abs=2e-6)


@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize(
    "kind",
    [
        loss.Policy("sequence_mean"),
        loss.Policy("sequence_mean", kl=loss.KL(0.1)),
        loss.Policy("turn_mean"),
        loss.Imitation(),
    ],
)
def test_the_loss_of_a_draw_equals_that_of_a_step_on_it_alone(kind: loss.Loss, tree: bool) -> None:
    rollouts = Rollouts.random(kind, seed=4)
    updates, update, _ = recorded(kind, rollouts, tree=tree)
    losses = updates.with_losses().column("loss", "draw")
    assert len(update.draws) > 8
    for draw in update.draws.tolist():
        (alone,) = recipes.GRPO.replace(loss=kind).updates(only(rollouts.batch, draw))
        value = sum(
            float(alone.loss(rollouts.outputs(pack.token), pack).detach()) for pack in alone.pack(max_tokens=4000)
        )
        assert losses[draw] == pytest.approx(value, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("name", sorted(NO_SUMS))
def test_a_loss_that_is_not_a_sum_over_draws_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedError, match="is not a sum of the losses of draws"):
        recorded(LOSSES[name], Rollouts.random(LOSSES[name], seed=3), tree=False)


def only(batch: Batch, draw: int) -> Batch:
    """Return the batch with one scored draw."""
    score = np.where(np.arange(batch.num_draws) == draw, batch.column("score", "draw"), np.nan)
    return batch.with_columns("draw", score=score)


def test_several_steps_are_a_mean_over_those_that_a_draw_is_in() -> None:
    rollouts = Rollouts.random(loss.Policy(), seed=5)
    recipe = recipes.GRPO.replace(loss=loss.Policy(), epochs=2, minibatches=3)
    updates, step_losses = recipe.updates(rollouts.batch, draw_losses=True), []
    for step, update in enumerate(updates):
        for pack in update.pack(max_tokens=4000):
            output = rollouts.outputs(pack.token)
            output.logprob.data += 0.01 * step  # the policy moves
            update.loss(output, pack)
        step_losses.append((update.draws, update.metrics()["loss"]))
    assert len(step_losses) == 6
    losses = updates.with_losses().column("loss", "draw")
    # Minibatches differ by at most one draw, so sums are compared.
    total = sum(len(draws) * value for draws, value in step_losses) / 2
    assert np.nansum(losses) == pytest.approx(total, rel=1e-5)


def test_draw_losses_must_be_enabled() -> None:
    rollouts = Rollouts.random(loss.Policy(), seed=6)
    with pytest.raises(InvalidInputError, match="draw_losses=True"):
        recipes.GRPO.updates(rollouts.batch).with_losses()
    updates = recipes.GRPO.updates(rollouts.batch, draw_losses=True)
    with pytest.raises(InvalidInputError, match="model='critic'; give a model that the updates train: 'policy'"):
        updates.with_losses("critic")
    (update,) = updates
    with pytest.raises(InvalidInputError, match=r"update\.pack and update\.loss"):
        next(update.gradient_cached(lambda pack: rollouts.outputs(pack.token), max_tokens=4000))


def test_draw_losses_are_not_recorded_by_default() -> None:
    batch = Rollouts.random(loss.Policy(), seed=6).batch
    (update,) = recipes.GRPO.updates(batch)
    assert type(update) is Update
    assert "sequence" not in next(update.pack(max_tokens=4000)).streams
