"""Compare preferences between trajectories with a loop over pairs; the reference of step rewards follows the policy."""

from __future__ import annotations

import pytest
import torch
from cases import Case, agree, total
from rollouts import small
from torch import Tensor
from torch.nn import functional

from agentrl_core.recipes.istar import ISTAR, TrajectoryPairs


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_all_pairs_of_a_group(reduce: str, seed: int) -> None:
    case = Case.random(seed, per="sequence")

    def expected(logprob: Tensor, *_: object) -> Tensor:
        costs = []
        for parts in case.parts("group"):
            scores = []
            for part in parts:
                away = (logprob - case.reward_reference_logprob)[part]
                steps = case.step[part]
                scores.append(torch.stack([0.3 * away[steps == step].sum() for step in steps.unique()]))
                scores[-1] = getattr(scores[-1], reduce)()
            labels = [case.score[part[0]] for part in parts]
            costs += [
                -total(case, part) * functional.logsigmoid(better - worse)  # the weight of the better one
                for part, better, high in zip(parts, scores, labels, strict=True)
                for worse, low in zip(scores, labels, strict=True)
                if high > low
            ]
        assert len(costs) > 2
        return torch.stack(costs).sum()

    agree(TrajectoryPairs(beta=0.3, reduce=reduce), case, expected)


def test_step_rewards_are_against_the_policy_of_the_iteration() -> None:
    """Equation 1, r = 0.05 (log phi - log old) of one token: 0.05 (-0.4 + 0.6); then the policy has moved to -0.35."""
    models = {name: torch.nn.Linear(1, 1, bias=False) for name in ("policy", "reward_model", "reward_reference")}
    models["policy"].weight.data.fill_(-0.35)
    models["reward_reference"].weight.data.fill_(-0.6)
    rewards = []
    for _ in range(2):
        reference = models["reward_reference"].weight.item()
        columns = {"reward_model_logprob": [-0.4, -0.4], "reward_reference_logprob": [reference, reference]}
        batch = ISTAR.credit(small([(0, [1]), (0, [1])], draw_reward=[1.0, 0.0]).with_columns("token", **columns))
        rewards.append(batch.column("process_reward", "step")[0])
        updates = ISTAR.updates(batch, models=models)
        for update in updates:
            update.step(torch.optim.SGD(models[update.model].parameters(), lr=1.0))
        assert ISTAR.run_hooks(updates, **models).changed == ("reward_reference",)
    assert rewards == pytest.approx([0.01, -0.0025])
