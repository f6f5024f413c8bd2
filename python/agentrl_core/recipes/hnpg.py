"""HNPG: the critic learns from stored trajectories as well, the policy from what it sampled itself (arXiv:2311.08384).

On-policy gradients are robust and need many samples; what others did is free. So half of a batch are trajectories of
before, or of an offline data set in the store, which train the critic alone:

    fresh tokens:   R_t = the score,               A_t = R_t - V_t
    stored tokens:  R_t = V_{t+1}, at the end the score
    L_critic = mean over fresh of 1/2 (V - R)^2 + lambda mean over stored of 1/2 (V - R)^2
    L_policy = - mean over fresh of min(r A, clip(r, 0.8, 1.2) A)

Source: arXiv:2311.08384. There the step of the policy is a natural gradient, here PPO's clip bounds it; lambda is 1
if it is not known. With minibatches both means are those of the whole batch.

Needs: the critic's `value` of each token; `Recipe(old_logprob="behaviour")`, as the stored rows have it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import Gae
from agentrl_core.component import BatchComponent, Column, Rows, Where, draw, option
from agentrl_core.loss import Policy, Train, Value
from agentrl_core.replay import Memory, Mix

if TYPE_CHECKING:
    from agentrl_core import Batch

FRESH, STORED = Where(source="fresh"), Where(source="replay")


@dataclass(frozen=True)
class TwoMeans(BatchComponent):
    """Makes one mean over all tokens of a batch the mean over its fresh ones plus that over its stored ones.

        kl_weight = n / n_fresh of fresh draws, coefficient n / n_stored of stored ones

    with the trained tokens as n; 1 if there are of one kind alone. It is the weight of the terms that no advantage
    multiplies, such as a critic's errors.

    Args:
        coefficient: lambda, at least 0.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.hnpg import TwoMeans
        >>> TwoMeans().makes
        (draw('kl_weight'),)
    """

    phase: ClassVar[str] = "weight"
    makes: ClassVar[tuple[Column, ...]] = (draw("kl_weight"),)

    coefficient: float = option(1.0, at_least=0)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with its `kl_weight`."""
        rows = Rows(batch, "draw")
        tokens = np.where(rows.valid, rows.trained, 0.0)
        stored = STORED.holds(batch)
        counts = float(tokens[~stored].sum()), float(tokens[stored].sum())
        if not all(counts):
            return rows.write(kl_weight=np.ones(len(rows)))
        of_fresh, of_stored = (sum(counts) / count for count in counts)
        return rows.write(kl_weight=np.where(stored, self.coefficient * of_stored, of_fresh))


HNPG = Recipe(
    name="hnpg",
    source="arXiv:2311.08384",
    replay=Mix(Memory(capacity=10_000), share=0.5),
    advantage=(Gae(where=FRESH), Gae(lam=0.0, where=STORED)),
    weight=TwoMeans(),
    loss=(Train(Value("token_mean"), model="critic"), Train(Policy(), where=FRESH)),
)
