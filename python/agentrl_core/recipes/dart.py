"""DART: GUI agents that see the newest screens, and learn step by step (arXiv:2509.23866).

The context of an action has the five newest observations; of older ones a placeholder is left. All steps of a task's
trajectories are compared with one another, each with the reward of its trajectory:

    A = (R - mean over the group's steps) / (std + 1e-6)

The fifth of a group's steps with the smallest mean entropy is left out (the paper; the public code has it switched
off). A token's loss weighs min(pi_old / mu, 1) and is clipped to 0.9 ... 1.28 with a dual bound of 10; KL 0.1. What is
kept of tasks and rollouts (newest versions, a success in a group of failures, fewer rollouts of easy tasks) belongs to
selection and replay, and is not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, option, step, sum_rows, token
from agentrl_core.loss import KL, Clip, Policy
from agentrl_core.rollout import ObservationWindow
from agentrl_core.weight import ImportanceWeight
from agentrl_core.weight.select import above_quantile

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class UncertainSteps(BatchComponent):
    """Only steps that the policy was not sure of are in the loss.

    Kept are the steps whose mean entropy, over the trained tokens, is above the quantile of their group.

    Args:
        quantile: 0 to 1.

    Example:
        >>> from agentrl_core.recipes.dart import UncertainSteps
        >>> UncertainSteps().needs
        (token('entropy'),)
    """

    phase: ClassVar[str] = "weight"
    needs: ClassVar[tuple[Column, ...]] = (token("entropy"),)
    makes: ClassVar[tuple[Column, ...]] = (step("keep"),)

    quantile: float = option(0.2, at_least=0, at_most=1)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with `keep` on steps."""
        tokens, rows = Rows(batch, "token"), Rows(batch, "step")
        known = tokens.known("entropy")
        steps = tokens.within("step")
        counts = sum_rows(known, steps, len(rows))
        entropies = sum_rows(np.where(known, tokens.values("entropy"), 0.0), steps, len(rows)) / np.maximum(counts, 1.0)
        chosen = above_quantile(entropies, rows.keys("group_id"), q=self.quantile, strict=True, valid=counts > 0.0)
        return rows.keep(chosen)


DART = Recipe(
    name="dart",
    source="arXiv:2509.23866",
    rollout=ObservationWindow(observations=5),
    advantage=GroupRelative(level="step"),
    weight=(UncertainSteps(), ImportanceWeight(at_most=1.0)),
    loss=Policy(clip=Clip(0.1, 0.28, dual=10.0), kl=KL(0.1)),
    old_logprob="recomputed",
)
