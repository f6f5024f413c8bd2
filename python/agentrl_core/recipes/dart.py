"""DART: train GUI agents that see only the newest screens, with an advantage for each step (arXiv:2509.23866).

The context of an action contains the five newest observations; a placeholder replaces each older one. All steps of a
task's trajectories are compared with one another, and each step has the reward of its trajectory:

    A = (R - mean over the group's steps) / (std + 1e-6)

The fifth of a group's steps with the smallest mean entropy has weight 0, but still counts in the mean over steps (as
in the paper; the public code has this switched off). The ratio of a step is the geometric mean over its tokens,
clipped to 0.9 ... 1.28 with a dual bound of 10. The loss of a token is weighted by min(pi_old / mu, 1), with mu the
behaviour policy; the KL coefficient is 0.1. Tasks with a success rate above 0.6 get fewer rollouts. If all rollouts
of a task fail, the task's latest success replaces the first of them. The paper also limits the length of a task's
rollouts by its longest success. This is left out, because the collector has one limit for all tasks.

Equations:
    Read: translated notes with the paper's equations, and the public code. The paper's text was not read.

    - 1, step-wise GRPO: `GroupRelative(level="step")`, std with divisor n - 1, and `Policy("step_mean")`.
    - 2, final objective: equation 1 with `UncertainSteps` and `ImportanceWeight`; the mean is over all steps.
    - 3.3, entropy of a step: `UncertainSteps`.
    - 3.4, truncated importance weight: `ImportanceWeight(at_most=1.0)`.
    - 3.1, rollouts of a task: `DecayAllocator(above=0.6)`; the sources do not state how far the number falls.
    - 3.2, experience pool: `Inject`.
    - C1, data filter of the code: left out: the collector's `staleness` limits the age of model versions.
    - C2, replacement in the code: `Inject(replaces="first")`, with a success of the same task.
    - C3, cut to n: left out: the collector rolls out exactly the members of the group.
    - C4, weight of the code: as 3.4; a token without behaviour log-prob has weight 1.
    - C5, sequence ratio: `Ratio("step")`, because a row in the code is a step.

Differs:
    - Ratio: equations 1 and 2 have the ratio of a whole step. The code computes it as the geometric mean over the
      tokens of the step, as here; the product is `Ratio("step", "sum")`.
    - Optimizer steps a batch: not given; 1 here. Log-probs are recomputed before this step, so its ratio is 1, and
      the clip range acts only with `DART.replace(minibatches=...)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, Where, option, sum_rows, token
from agentrl_core.loss import KL, Clip, Policy, Ratio
from agentrl_core.operators.row_selection import above_quantile
from agentrl_core.replay import GroupFailed, Inject, Memory
from agentrl_core.rollout import ObservationWindow
from agentrl_core.select import Allocator, ComposedSelector
from agentrl_core.weight import ImportanceWeight

if TYPE_CHECKING:
    from agentrl_core import Batch
    from agentrl_core.component import State


@dataclass(frozen=True)
class UncertainSteps(BatchComponent):
    """Train only the steps whose mean entropy is at least a quantile of their group.

    A step whose mean entropy over its trained tokens is below the quantile of its group gets weight 0, for its
    advantage and for its KL penalty. It still counts in the denominator of the loss.

    Args:
        quantile: the quantile of the mean entropies, 0 to 1.

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
        """Return `batch` with scaled `weight` and `kl_weight` on tokens."""
        tokens, rows = Rows(batch, "token"), Rows(batch, "step")
        known = tokens.known("entropy")
        steps = tokens.within("step")
        counts = sum_rows(known, steps, len(rows))
        entropies = sum_rows(np.where(known, tokens.values("entropy"), 0.0), steps, len(rows)) / np.maximum(counts, 1.0)
        chosen = above_quantile(entropies, rows.keys("group_id"), q=self.quantile, strict=False, valid=counts > 0.0)
        weights = chosen[steps].astype(np.float64)
        return Rows(tokens.scale(weights), "token").scale(weights, "kl_weight")


@dataclass(frozen=True)
class DecayAllocator(Allocator):
    """Allocate an equal share of rollouts up to success rate `above`, then fewer, down to `low` at rate 1.

    n(p) = max(low, round_up(n min(1, (1 - p) / (1 - above)))), with n the mean of the total. Remaining rollouts are
    saved.

    Source: DART arXiv:2509.23866, which gives the threshold (0.6) but not the shape of the decay.

    Args:
        above: success rate above which the number falls.
        low: fewest rollouts.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> import numpy as np
        >>> from agentrl_core.recipes.dart import DecayAllocator
        >>> DecayAllocator().counts({}, {"estimate": np.array([0.3, 0.8, 1.0])}, total=24).tolist()
        [8, 4, 1]
    """

    above: float = option(0.6, at_least=0, below=1)
    low: int = option(1, at_least=1)

    def counts(self, state: State, known: Mapping[str, NDArray[np.float64]], total: int) -> NDArray[np.int32]:  # noqa: ARG002 - no state
        """Return the number of rollouts of each task."""
        rates = known["estimate"]
        per_task = total // max(len(rates), 1)
        parts = per_task * np.minimum(1.0, (1 - rates) / (1 - self.above))
        # Rounding errors in the last bits must not add a rollout.
        return np.clip(np.ceil(parts - 1e-9), min(self.low, per_task), per_task).astype(np.int32)


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
