"""SFPO: three fast steps, a part of the way back, and a slow step, by hand on a model of one number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from rollouts import small
from torch import Tensor, nn

from agentrl_core.component import IterationRecord
from agentrl_core.model.pack import PackOutput
from agentrl_core.recipe import Recipe
from agentrl_core.recipes.sfpo import SFPO, DeviationSwitch
from agentrl_core.schedule import Choice

RATE = 0.01
BATCH = small([(0, [1]), (0, [1])], draw_score=[1.0, 0.0])
A = 0.5 / (0.5**0.5 + 1e-6)


class Tilted(nn.Module):
    """A model whose log p is the sampled one + theta for the first draw and - theta for the second."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def run(self, pack: Any) -> PackOutput:
        sign = torch.where(pack.streams.advantage_positive > 0, 1.0, -1.0).double()
        logprob: Tensor = pack.streams.old_logprob.double() + sign * self.theta
        return PackOutput(logprob, entropy=-logprob)


def trained(recipe: Recipe, iterations: int, entropies: list[float]) -> list[list[float]]:
    """Return theta after each optimizer step of each iteration, and at its end."""
    model, states, results = Tilted(), dict[str, Any](), []
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for iteration in range(iterations):
        nothing = BATCH.select_draws(np.zeros(0, np.int64))
        batch = nothing.with_draws(BATCH.column("trajectory_id", "draw"), source="fresh", iteration=iteration)
        batch = batch.with_columns("draw", score=BATCH.column("score", "draw"))
        batch = recipe.credit(recipe.with_states(batch, states))
        updates = recipe.updates(batch, models={"policy": model})
        thetas = []
        for update in updates:
            for pack in update.pack(max_tokens=100):
                update.loss(model.run(pack), pack).backward()
            update.step(optimizer)
            thetas.append(model.theta.item())
        recipe.run_hooks(updates, policy=model)
        results.append([*thetas, model.theta.item()])
        metrics = {**updates.metrics, "entropy": entropies[iteration]}
        states = recipe.next_states(states, IterationRecord.of(batch, metrics))
    return results


def step(theta: float) -> float:
    """Return theta after a step: dL/dtheta = - A (r_1 + r_2)/2 with r = exp(theta), exp(-theta), not clipped."""
    r_1, r_2 = 2.718281828459045**theta, 2.718281828459045**-theta
    return theta + RATE * A * (r_1 + r_2) / 2


def test_three_fast_steps_a_part_of_the_way_and_a_slow_one() -> None:
    (thetas,) = trained(SFPO, 1, [1.0])
    first = step(0.0)
    assert first == pytest.approx(RATE * A), "both ratios are 1"
    third = step(step(first))
    assert thetas[:2] == pytest.approx([first, step(first)], abs=1e-7)
    assert thetas[-1] == pytest.approx(step(0.8 * third), abs=1e-7)


def test_an_unlike_entropy_leaves_the_fast_steps_out_from_then_on() -> None:
    """The last ten are 1, 1.1, 1, 1.1, 1, 1.1, 1, 1, 1, 3: mean 1.23, deviation 0.592: 2.99 of them; before, 1."""
    trigger = DeviationSwitch()
    state, values = trigger.initial_state(), []
    for entropy in [1.0, 1.1] * 5 + [1.0] * 3 + [3.0, 1.0]:
        state = trigger.moved(state, {"entropy": entropy})
        values.append(trigger.value(state))
    assert values == [0.0] * 13 + [1.0, 1.0]
    (either,) = SFPO.chain("hooks")
    assert isinstance(either, Choice)
    early = SFPO.replace(hooks=Choice(either.of, by=DeviationSwitch(window=2, threshold=0.9)))
    first, second, third = trained(early, 3, [1.0, 3.0, 1.0])
    assert len({*first}) > 2
    assert len({*second}) > 2, "what was measured in an iteration counts from the next on"
    before = second[-1]
    assert third[:3] == [before] * 3, "no step was taken"
    assert third[-1] == pytest.approx(step(before), abs=1e-7)
