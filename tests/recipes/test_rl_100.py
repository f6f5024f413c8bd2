"""RL-100: a policy that is worse on stored rollouts is not kept, and the pass that detects it trains nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from rollouts import small
from torch import Tensor, nn

from agentrl_core.model.pack import PackOutput
from agentrl_core.recipes.rl_100 import RL_100, Gain
from agentrl_core.update.hooks import HookResult

BATCH = small([(0, [1]), (0, [1])], draw_score=[1.0, 0.0], step_action_value=[1.0, 0.0], step_state_value=[0.5, 0.5])


class Tilted(nn.Module):
    """A model whose log p is the sampled one + theta for the first draw and - theta for the second."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def run(self, pack: Any) -> PackOutput:
        sign = torch.where(torch.as_tensor(pack.token) == 0, 1.0, -1.0).double()
        logprob: Tensor = pack.streams.old_logprob.double() + sign * self.theta
        return PackOutput(logprob, entropy=-logprob)


def trained(rate: float, fraction: float = 0.0) -> tuple[list[float], float, HookResult, dict[str, float]]:
    """Return theta after each step and at the end, the actions, and the metrics; a negative rate climbs the loss."""
    *others, _ = RL_100.chain("advantage")
    recipe = RL_100.replace(advantage=(*others, Gain(fraction=fraction)))
    model = Tilted()
    optimizer = torch.optim.SGD([{"params": model.parameters(), "lr": abs(rate)}], maximize=rate < 0, momentum=0.9)
    updates = recipe.updates(recipe.credit(BATCH), models={"policy": model})
    thetas = []
    for update in updates:
        for pack in update.pack(max_tokens=100):
            update.loss(model.run(pack), pack).backward()
        update.step(optimizer)
        thetas.append(model.theta.item())
    outcome = recipe.run_hooks(updates, policy=model)
    return thetas, model.theta.item(), outcome, updates.metrics


def test_a_better_policy_is_kept() -> None:
    thetas, end, outcome, metrics = trained(0.05)
    assert not outcome.rolled_back
    assert len(thetas) == 5, "four epochs and the pass behind them"
    assert 0 < thetas[0] < thetas[3]
    assert thetas[4] == thetas[3] == end, "the pass took no step, though the optimizer has momentum"
    # w = exp(theta), exp(-theta); gains 0.5, -0.5; minus their mean.
    assert metrics["evaluation.loss"] == pytest.approx(-(0.5 * np.exp(end) - 0.5 * np.exp(-end)) / 2)


def test_a_worse_policy_is_rolled_back() -> None:
    thetas, end, outcome, metrics = trained(-0.05)
    assert thetas[3] < 0
    assert metrics["evaluation.loss"] > 0
    assert outcome.rolled_back
    assert end == 0.0


def test_the_fraction_decides() -> None:
    """J(new) = exp(theta)/(exp(theta) + exp(-theta)) = 1/(1 + exp(-2 theta)); it has to exceed 0.5 (1 + fraction)."""
    thetas, _, _, _ = trained(0.05)
    gained = 1.0 / (1.0 + np.exp(-2.0 * thetas[3])) - 0.5
    assert gained > 0.01
    assert not trained(0.05, fraction=2 * (gained - 0.001))[2].rolled_back
    assert trained(0.05, fraction=2 * (gained + 0.001))[2].rolled_back
