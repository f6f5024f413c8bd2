"""The band of entropies, and its history."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from cases import Case, agree
from torch import Tensor

from agentrl_core import Batch, Forest, loss
from agentrl_core.component import IterationRecord
from agentrl_core.recipes.epo import EntropyBand, EntropyHistory


@pytest.mark.parametrize("kind", ["hinge", "indicator"])
def test_epo(kind: str) -> None:
    case = Case.random(15)

    def expected(logprob: Tensor, entropy: Tensor, _: SimpleNamespace) -> Tensor:
        total = -(case.weight * case.advantage * logprob).sum()
        for t, h in enumerate(case.entropy_history):
            low, high = 0.5 * h, 1.5 * h
            if h == 0:
                penalty = 0.0
            elif kind == "hinge":
                penalty = 0.1 * (torch.relu(low - entropy[t]) + torch.relu(entropy[t] - high))
            else:
                penalty = 0.0 if low < entropy[t] < high else 0.1
            total = total - 0.01 * case.weight_entropy[t] * (entropy[t] - (0.7 + 0.4) * penalty)
        return total

    term = EntropyBand(0.01, 0.7, 0.5, 1.5, kind, early=0.4)
    agree(loss.Policy(clip=None, surrogate=loss.Reinforce(), entropy=term), case, expected)


def test_history_is_the_mean_of_the_iterations_before() -> None:
    state = EntropyHistory().initial_state()
    for entropies, steps in (([1.0, 3.0, 5.0], [0, 0, 1]), ([4.0], [0])):
        closed = rollouts(entropies, steps)
        first = EntropyHistory().add_columns(state, closed).column("entropy_history", "token")
        state = EntropyHistory().next(state, IterationRecord.of(closed))
    assert first.tolist() == [3.0]  # the second iteration sees the mean of the first
    assert state == {"sum": 7.0, "iterations": 2}
    third = rollouts([0.0, 0.0, 0.0], [0, 1, 2])
    assert EntropyHistory().add_columns(state, third).column("entropy_history", "token").tolist() == [3.5, 3.5, 3.5]
    assert EntropyHistory().next(state, IterationRecord.of(rollouts([0.0], [0], known=False))) == state


def rollouts(entropies: list[float], steps: list[int], *, known: bool = True) -> Batch:
    """Return one draw with tokens of these entropies at steps of these numbers."""
    forest = Forest()
    forest.add_group(0, "task")
    trajectory = forest.start(0, member=0)
    forest.append(trajectory, [1], kind="prompt")
    for number in sorted(set(steps)):
        step_entropies = [entropy for entropy, step in zip(entropies, steps, strict=True) if step == number]
        logprobs = [-1.0] * len(step_entropies)
        forest.append(
            trajectory,
            list(range(len(step_entropies))),
            kind="action",
            logprobs=logprobs,
            entropies=step_entropies if known else None,
        )
        forest.step(trajectory)
    forest.finish(trajectory, reward=1.0)
    return forest.freeze()
