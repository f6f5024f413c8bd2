"""HNPG: fit the critic and the policy's update to fresh and stored trajectories (arXiv:2311.08384).

On-policy gradients are robust but need many samples; stored trajectories cost nothing. So half of a batch are
trajectories of earlier iterations, or of an offline data set in the store. With the policy p_t of the iteration,

    fresh tokens:   R_t = the score,               A_t: GAE with lambda 0.97
    stored tokens:  R_t = V_{t+1}, at the end the score,   A_t = R_t - V_t
    L_critic = mean over stored of 1/2 (V - R)^2 + lambda mean over fresh of 1/2 (V - R)^2
    L_policy = mean over stored of (log p/p_t - A)^2 + lambda mean over fresh of (log p/p_t - A)^2

The paper solves the second regression with log p/p_t = eta w grad log p_t, where w is the natural gradient, and
searches for eta within a bound of 0.01 on KL(p_t, p). Here the log-ratio itself is fitted, with eta = 1, and the size
of the optimizer's steps bounds it.

Equations:
    Read: the paper.

    - 6, online advantages: `Gae(lam=0.97, where=FRESH)`.
    - 1, hybrid policy evaluation: `Value` of the model `critic`, with V in place of f(s, a); `ScoreAsReturn` writes
      Monte-Carlo returns, then `Gae(lam=0.0, where=STORED)` writes bootstrapped ones; `TwoMeans` makes the two means.
    - A2, mean of critics: left out: training of the critic continues from the last iteration, without repeated fits.
    - A1, softmax update: left out: it needs f of every action, and a vocabulary has too many.
    - A3.4, features and centred critic: the advantages of `Gae`; the features are the gradients of the log-probs.
    - 2, direction: `Regression`, on fresh and stored rows.
    - A3.6, actor step: the optimizer's step on `Regression`.
    - 49, finite-horizon evaluation: as 1, without a discount.
    - 50, line search: left out: an optimizer's step has no search; the learning rate bounds it.

Differs:
    - Critic: V(s) in place of f(s, a): the advantage of a stored token is r + V' - V. One model serves all time steps.
    - Order: the paper fits the policy to the new critic; here it is fitted to values from before the critic's update.
    - Advantages of fresh tokens: from the fitted critic in algorithm 3; by GAE with 0.97 in the experiments and here.
    - KL: a bound of 0.01 on the step in the paper; neither a bound nor a penalty here.
    - Lambda: 1; the paper has the values 0.1, 1 and 10.

Needs: the model critic; its `value` of each token; `recomputed_logprob` of stored tokens, computed with the policy
before the first update.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import Gae
from agentrl_core.component import BatchComponent, Column, Rows, Where, draw, option
from agentrl_core.loss import Regression, Train, Value
from agentrl_core.recipes.t_ppo import ScoreAsReturn
from agentrl_core.replay import Memory, Mix

if TYPE_CHECKING:
    from agentrl_core import Batch

FRESH, STORED = Where(source="fresh"), Where(source="replay")


@dataclass(frozen=True)
class TwoMeans(BatchComponent):
    """Turn one mean over all tokens into the mean over stored tokens plus lambda times the mean over fresh tokens.

        weight = kl_weight = coefficient n / n_fresh of fresh draws, n / n_stored of stored ones

    n is the number of trained tokens. Without fresh or without stored tokens, both columns are 1. Both columns are
    equal, so squared errors get the weight and advantages stay unchanged.

    Args:
        coefficient: lambda, the weight of the mean over fresh tokens, at least 0.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.hnpg import TwoMeans
        >>> TwoMeans().makes
        (draw('weight'), draw('kl_weight'))
    """

    phase: ClassVar[str] = "weight"
    makes: ClassVar[tuple[Column, ...]] = (draw("weight"), draw("kl_weight"))

    coefficient: float = option(1.0, at_least=0)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the columns `weight` and `kl_weight`."""
        rows = Rows(batch, "draw")
        tokens = np.where(rows.valid, rows.trained, 0.0)
        stored = STORED.holds(batch)
        counts = float(tokens[~stored].sum()), float(tokens[stored].sum())
        if not all(counts):
            weights = np.ones(len(rows))
        else:
            of_fresh, of_stored = (sum(counts) / count for count in counts)
            weights = np.where(stored, of_stored, self.coefficient * of_fresh)
        return rows.write(weight=weights, kl_weight=weights)


HNPG = Recipe(
    name="hnpg",
    source="arXiv:2311.08384",
    replay=Mix(Memory(capacity=10_000), share=0.5, old_logprob="recomputed"),
    advantage=(Gae(lam=0.97, where=FRESH), ScoreAsReturn(), Gae(lam=0.0, where=STORED)),
    weight=TwoMeans(),
    loss=(Train(Value("token_mean"), model="critic"), Regression("token_mean", level="token")),
)
