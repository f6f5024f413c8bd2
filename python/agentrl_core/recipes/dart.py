"""DART: GUI agents that see the newest screens, and learn step by step (arXiv:2509.23866).

The context of an action has the five newest observations; of older ones a placeholder is left. All steps of a task's
trajectories are compared with one another, each with the reward of its trajectory:

    A = (R - mean over the group's steps) / (std + 1e-6)

The fifth of a group's steps with the smallest mean entropy has weight 0, and still counts in the mean over steps (the
paper; the public code has it switched off). The ratio is that of a step, the geometric mean over its tokens, clipped to
0.9 ... 1.28 with a dual bound of 10; a token's loss weighs min(pi_old / mu, 1); KL 0.1. Tasks that succeed in more than
0.6 of their attempts get fewer rollouts. If all rollouts of a task fail, its latest success takes the place of the
oldest. The paper's limit of a task's length, by its longest success, is left out: the collector's limit is one for all
tasks.

Equations:
    Read: translated notes with the paper's equations, and the public code. The paper's text was not read.

    - 1, step-wise GRPO: `GroupRelative(level="step")`, std with n - 1, and `Policy("step_mean")`.
    - 2, final objective: the same with `UncertainSteps` and `ImportanceWeight`; the mean is over all steps.
    - 3.3, entropy of a step: `UncertainSteps`.
    - 3.4, truncated importance weight: `ImportanceWeight(at_most=1.0)`.
    - 3.1, rollouts of a task: `DecayAllocator(above=0.6)`; how far they fall is not given.
    - 3.2, experience pool: `Inject`.
    - C1, data filter of the code: left out: which model versions may be old is the collector's `staleness`.
    - C2, replacement in the code: `Inject(replaces="first")`, with a success of the same task.
    - C3, cut to n: left out: the collector rolls out as many as the group has.
    - C4, weight of the code: the same as 3.4; a token without behaviour log-prob weighs 1.
    - C5, sequence ratio: `Ratio("step")`, since a row of the code is a step.

Differs:
    - Ratio: of a whole step in equations 1 and 2, which the code takes as the geometric mean over its tokens, as here;
      the product is `Ratio("step", "sum")`.
    - Optimizer steps a batch: not given; 1 here. Log-probs are recomputed before it, so that its ratio is 1 and the
      clip range acts only with `DART.replace(minibatches=...)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, Where, option, sum_rows, token
from agentrl_core.loss import KL, Clip, Policy, Ratio
from agentrl_core.replay import GroupFailed, Inject, Memory
from agentrl_core.rollout import ObservationWindow
from agentrl_core.select import ComposedSelector
from agentrl_core.select.allocator import DecayAllocator
from agentrl_core.weight import ImportanceWeight
from agentrl_core.weight.select import above_quantile

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class UncertainSteps(BatchComponent):
    """Only steps that the policy was not sure of have a loss.

    The others, whose mean entropy over the trained tokens is below the quantile of their group, have weight 0, also
    of their KL penalty. They still count in the denominator of the loss.

    Args:
        quantile: 0 to 1.

    Example:
        >>> from agentrl_core.recipes.dart import UncertainSteps
        >>> UncertainSteps().needs
        (token('entropy'),)
    """

    phase: ClassVar[str] = "weight"
    needs: ClassVar[tuple[Column, ...]] = (token("entropy"),)
    makes: ClassVar[tuple[Column, ...]] = (token("weight"), token("kl_weight"))

    quantile: float = option(0.2, at_least=0, at_most=1)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with another `weight` and `kl_weight` on tokens."""
        tokens, rows = Rows(batch, "token"), Rows(batch, "step")
        known = tokens.known("entropy")
        steps = tokens.within("step")
        counts = sum_rows(known, steps, len(rows))
        entropies = sum_rows(np.where(known, tokens.values("entropy"), 0.0), steps, len(rows)) / np.maximum(counts, 1.0)
        chosen = above_quantile(entropies, rows.keys("group_id"), q=self.quantile, strict=False, valid=counts > 0.0)
        weights = chosen[steps].astype(np.float64)
        return Rows(tokens.scale(weights), "token").scale(weights, "kl_weight")


DART = Recipe(
    name="dart",
    source="arXiv:2509.23866",
    select=ComposedSelector(count=DecayAllocator(above=0.6)),
    rollout=ObservationWindow(observations=5),
    replay=Inject(
        Memory(per_task=1, where=Where(column="score", above=0.0)),
        GroupFailed(best_at_most=0.0),
        replaces="first",
        old_logprob="recomputed",
    ),
    advantage=GroupRelative(level="step"),
    weight=(UncertainSteps(), ImportanceWeight(at_most=1.0)),
    loss=Policy("step_mean", ratio=Ratio("step"), clip=Clip(0.1, 0.28, dual=10.0), kl=KL(0.1)),
    old_logprob="recomputed",
)
