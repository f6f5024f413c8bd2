"""FixPO: no update ends further from the old policy than it may, since what went too far is fetched back.

    L = - mean over tokens of r A + beta KL(p_old || p),   beta <- max(0, beta + 0.02 (max KL - 0.1)) after every step
    then passes over the batch on KL alone, up to 10, until max KL <= 0.2

max KL is the largest mean over the tokens of a trajectory of k3; the paper takes it over states, from whole
distributions. There is no clip. The multiplier follows its own optimizer in the paper: here it is plain ascent, with C
= 2 (eps / C = 0.1, rate 2 * 0.01) from the public code. The bound on the number of passes is ours, and passes train
every draw and not those alone that went too far.

Source: Guaranteed Trust Region Optimization via Two-Phase KL Penalization (arXiv:2312.05405).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import Column, option
from agentrl_core.loss import Policy, Sum, Tokens, Train, Unit, WeightedLoss, metric_sums, torch
from agentrl_core.schedule import Above, Dual, RepeatStage

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class OldDivergence(WeightedLoss):
    """Pulls the policy back to the one that sampled, and measures how far the furthest trajectory has gone.

        L = coefficient * sum of w (exp(x) - x - 1),   x = log p - log p_old

    Metric: `max_kl`, the largest mean of that estimate over the tokens of a trajectory.

    Args:
        aggregate: as of every loss.
        constant: as of every loss.
        coefficient: at least 0.

    Example:
        >>> from agentrl_core.recipes.fix_po import OldDivergence
        >>> OldDivergence().unit
        'trajectory'
    """

    coefficient: float = option(1.0, at_least=0)

    def own_reads(self) -> Iterable[str | Column]:
        """Weights, old log-probs, and which trajectory a token is of."""
        return ("weight_kl", "old_logprob", "sequence")

    def own_unit(self) -> Unit:
        """The trajectory, of which a mean is taken."""
        return "trajectory"

    def evaluate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """The divergence of all rows, and how far the furthest trajectory is."""
        away = tokens.log_ratio_to("old_logprob")
        estimate = away.expm1() - away
        loss = self.coefficient * (tokens.stream("weight_kl") * estimate).sum()
        means = tokens.segments("sequence").mean(estimate.detach())
        largest = torch.nn.functional.pad(means, (0, 1)).max()  # 0 where there is no row
        return loss, {**metric_sums(tokens, old_kl=estimate), "max_kl": largest}


FIX_PO = Recipe(
    name="fix_po",
    source="arXiv:2312.05405",
    advantage=GroupRelative(),
    loss=(
        Train(
            Sum(
                Policy(clip=None),
                OldDivergence("token_mean", coefficient=Dual("max_kl", target=0.1, rate=0.02, every="step")),
            )
        ),
        Train(OldDivergence("token_mean"), stage="fixup"),
    ),
    hooks=RepeatStage("fixup", at_most=10, when=Above("max_kl", 0.2)),
)
