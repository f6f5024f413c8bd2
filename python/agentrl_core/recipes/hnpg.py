"""HNPG: the critic and the direction of the policy are fitted to fresh and to stored trajectories (arXiv:2311.08384).

On-policy gradients are robust and need many samples; what others did is free. So half of a batch are trajectories of
before, or of an offline data set in the store. With the policy p_t of the iteration,

    fresh tokens:   R_t = the score,               A_t: GAE with lambda 0.97
    stored tokens:  R_t = V_{t+1}, at the end the score,   A_t = R_t - V_t
    L_critic = mean over stored of 1/2 (V - R)^2 + lambda mean over fresh of 1/2 (V - R)^2
    L_policy = mean over stored of (log p/p_t - A)^2 + lambda mean over fresh of (log p/p_t - A)^2

The paper solves the second regression with log p/p_t = eta w grad log p_t, the natural gradient w, and searches for
eta within a bound of 0.01 on KL(p_t, p). Here the log-ratio itself is fitted, with eta = 1, and the optimizer's steps
bound it.

Equations:
    Read: the paper.

    - 6, online advantages: `Gae(lam=0.97, where=FRESH)`.
    - 1, hybrid policy evaluation: `Value` of the model `critic`, V in the place of f(s, a); `ScoreAsReturn`
      gives Monte-Carlo returns, then `Gae(lam=0.0, where=STORED)` bootstraps; `TwoMeans` makes the two means.
    - A2, mean of critics: left out: the critic goes on from the last iteration, without repeated fits.
    - A1, softmax update: left out: it needs f of every action, of which a vocabulary has too many.
    - A3.4, features and centred critic: the advantages of `Gae`; the features are the gradients of the log-probs.
    - 2, direction: `Regression`, of rows of both kinds.
    - A3.6, actor step: the optimizer's, on `Regression`.
    - 49, finite-horizon evaluation: as 1, without a discount.
    - 50, line search: left out: an optimizer's step has no search; the learning rate bounds it.

Differs:
    - Critic: V(s) for f(s, a): the advantage of a stored token is r + V' - V. It is one model for all time steps.
    - Order: the policy is fitted to the new critic in the paper, to the values from before its update here.
    - Advantages of fresh tokens: of the fitted critic in algorithm 3; by GAE with 0.97 in the experiments and here.
    - KL: a bound of 0.01 on the step in the paper; neither a bound nor a penalty here.
    - Lambda: 1, of the values 0.1, 1 and 10 in the paper.

Needs: the model critic; its `value` of each token; `recomputed_logprob` of stored tokens, by the policy before the
first update.
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
    """Makes one mean over all tokens of a batch the mean over its stored ones plus that over its fresh ones.

        weight = kl_weight = coefficient n / n_fresh of fresh draws, n / n_stored of stored ones

    with the trained tokens as n; 1 if there are of one kind alone. Both columns are equal, so that squared errors have
    the weight and advantages stay as they are.

    Args:
        coefficient: lambda, at least 0.

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
        """Return `batch` with its `weight` and `kl_weight`."""
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
