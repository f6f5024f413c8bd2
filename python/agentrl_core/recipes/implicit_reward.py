"""Implicit reward (SFT as a relative of DPO): clone with a divergence from the reference, then train on preferences.

    L = - mean over demonstrations of f'(u),   u = p / p_ref of the whole demonstration
    gradient: - w grad log p,   w = u f''(u), at most 10, with log u within +-5

Cloning learns an implicit reward beta f'(u); plain likelihood drops the divergence. f' is 2 (u - 1) for Pearson's chi
squared (here), 1 - u^(-1/2) for Hellinger's distance and log u + 1 for the reverse KL, which has the gradient of plain
likelihood. Keeping the divergence leaves room for preferences. The loss is the stage `warm_start`. The preferences of
`dpo` follow, with the policy after the warm start as reference: copy it into the model `reference` between the stages.
The paper's objectives were not read: the form is a reconstruction.

Equations:
    Read: the abstract, and notes of others.

    - S1, implicit reward: `Preference(beta=0.1)`, in which it is the log-ratio of each answer.
    - S2, reward for an f-divergence: `ImplicitReward`; beta scales the loss, and is left to the optimizer.
    - S3, alternative loss: `ImplicitReward`.
    - S4, weight of the gradient: `ImplicitReward(at_most=10.0)`.
    - S5, DPO after the warm start: `Preference(beta=0.1)`.

Differs:
    - Learning rate: lower than usual in the paper, by a factor that is not stated; here set in the user's optimizer.
    - beta: not stated; 0.1 here.

Source: Implicit Reward as the Bridge: A Unified View of SFT and DPO Connections (arXiv:2507.00018). Needs:
demonstrations; then pairs; the model reference.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import Column, option, token
from agentrl_core.loss import Preference, Tokens, Train, Unit, WeightedLoss, metric_sums

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ImplicitReward(WeightedLoss):
    """Raise the implicit reward f'(u) of demonstrations, with u = p / p_ref of a whole demonstration.

    f' by `kind`: `pearson`: f'(u) = 2 (u - 1); `hellinger`: 1 - u^(-1/2); `reverse_kl`: log u + 1. The loss is -f'(u).
    Its gradient is the negative gradient of log u times u f''(u), and this factor is bounded. The weight of a
    demonstration is the sum of the weights of its tokens.

    Args:
        aggregate: see `WeightedLoss`; `sequence_mean` gives the mean over demonstrations.
        constant: see `WeightedLoss`.
        kind: the divergence, see above.
        at_most: the largest factor u f''(u) of a gradient.
        log_at_most: largest absolute value of log u in this factor.

    Metrics: `log_ratio` (log u) and `slope` (the factor); every row has the value of its demonstration.

    Example:
        >>> from agentrl_core.recipes.implicit_reward import ImplicitReward
        >>> ImplicitReward(kind="hellinger").unit
        'trajectory'
    """

    kind: Literal["pearson", "hellinger", "reverse_kl"] = "pearson"
    at_most: float = option(10.0, above=0)
    log_at_most: float = option(5.0, above=0)

    def own_reads(self) -> Iterable[str | Column]:
        """Return the columns to read: weights, the reference's log-probs, and the trajectory of each token."""
        return ("weight_kl", token("reference_logprob", model="reference"), "sequence")

    def own_unit(self) -> Unit:
        """Return `trajectory`: log u is a sum over the tokens of one trajectory."""
        return "trajectory"

    def own_foldable(self) -> bool:
        """Return False: the loss needs the sum over all tokens of each branch."""
        return False

    def evaluate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the negative reward of the demonstrations, and metrics."""
        sequences = tokens.segments("sequence")
        log_ratio = sequences.sum(tokens.logprob - tokens.stream("reference_logprob"))
        known = log_ratio.detach()
        reward = self._reward(tokens.limited(known))
        slope = self._slope(known.clamp(-self.log_at_most, self.log_at_most)).clamp(max=self.at_most)
        term = reward + slope * (log_ratio - known)
        loss = -(sequences.sum(tokens.stream("weight_kl")) * term).sum()
        return loss, metric_sums(tokens, log_ratio=sequences.spread(known), slope=sequences.spread(slope))

    def _reward(self, away: Tensor) -> Tensor:
        """Return f'(u), with the log-ratio log u given."""
        if self.kind == "pearson":
            return 2.0 * away.expm1()
        return -(-away / 2.0).expm1() if self.kind == "hellinger" else away + 1.0

    def _slope(self, away: Tensor) -> Tensor:
        """Return u f''(u), with the log-ratio log u given."""
        if self.kind == "pearson":
            return 2.0 * away.exp()
        return (-away / 2.0).exp() / 2.0 if self.kind == "hellinger" else away.new_ones(len(away))


IMPLICIT_REWARD = Recipe(
    name="implicit_reward",
    source="arXiv:2507.00018",
    advantage=GroupRelative(),
    loss=(Train(ImplicitReward(kind="pearson"), stage="warm_start"), Train(Preference(beta=0.1))),
)
