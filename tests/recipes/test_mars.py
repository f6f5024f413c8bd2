"""MARS: players of a game, compared with themselves, turn by turn."""

from __future__ import annotations

import numpy as np
from referee_game import GameWorld, Says
from sampled import Heard, check_sampled

import agentrl_core as arl
from agentrl_core import recipes
from agentrl_core.rollout import Play


def test_turns_are_centred_for_each_player() -> None:
    recipe = recipes.MARS.replace(rollout=Play(agents="one,two,referee", helpers="referee"))
    heard = Heard(Says())
    batch = arl.Collector(heard, GameWorld(), recipe, task_pool=4, seed=5)(tasks=2, group_size=2)
    assert check_sampled(batch, heard) > 0
    assert batch.num_draws == 2 * 2 * 2
    centred = recipe.replace(advantage=recipe.chain("advantage")[:2]).credit(batch)
    rewards, agents = batch.column("reward", "step"), batch.keys("agent", "step")
    found = centred.column("advantage", "step")
    draws = np.repeat(np.arange(batch.num_draws), np.diff(batch.offsets("step")))
    for agent in set(agents.tolist()):
        own = agents == agent
        paid = np.isfinite(rewards) & own
        rest = np.where(paid, rewards - (rewards[paid].mean() if paid.any() else 0.0), 0.0)
        for draw in set(draws[own].tolist()):
            rows = np.flatnonzero(draws == draw)
            expected = np.cumsum(rest[rows][::-1])[::-1]
            np.testing.assert_allclose(found[rows], expected, atol=1e-5)
    whitened = recipe.credit(batch).column("advantage", "token")
    assert abs(whitened.mean()) < 1e-5
