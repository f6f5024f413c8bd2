"""BAPO: a clip range that moves until the positive advantages carry their share (arXiv:2510.18927).

Most of the mass that an off-policy update moves belongs to negative advantages; a fixed clip range lets them win, and
the entropy falls. With P = sum of A min(r, upper) over positive advantages and N = sum of -A max(r, lower) over
negative ones, the range opens until P / (P + N) >= 0.4: first the upper bound, from 1.2 by 0.05 to 3, then the lower
one, from 0.6 by 0.02 to 0.9. The public code compares P / N, opens the lower bound first and searches in every
micro-batch; here the range is that of the whole update.

Equations:
    Read: others' transcripts of the paper's objective, condition, algorithm 1 and settings; the public code.

    - N1, condition: `BalancedClip(target=0.4)`, without the factor p_rollout, see below.
    - N2, search: `BalancedClip(first="high")`, from its first bounds at every step.
    - N3, objective: `Policy`, mean over tokens.
    - C1, contributions in the code: `BalancedClip(kind="odds", target=1.0)`.
    - C2, search in the code: `BalancedClip(first="low")`.
    - C3, loss in the code: the same, with `dual=3.0`.

Differs:
    - Factor of the condition: the paper multiplies each term of its sums by p_rollout of the token; its code does not,
      and neither does this recipe, as the tokens are drawn by that probability already.
    - Search: on each micro-batch in the code, on the update here.
    - Importance of the rollout engine: left out, the code multiplies by weights if they are given;
      `weight.ImportanceWeight` does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import Column, option
from agentrl_core.loss import ADVANTAGES, ClipBounds, ClipRange, Policy, Tokens, Unit, torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class BalancedClip(ClipRange):
    """Widens the clip range until positive advantages have their share of what an update moves.

    With P = sum of A min(r, upper) over positive advantages and N = sum of -A max(r, lower) over negative ones (each
    with its weight), the bounds start at `low`, `high`; first `upper` rises by `high_step` up to `high_at_most`, then
    `lower` by `low_step` up to `low_at_most`; the first pair whose share reaches `target` is taken, else the last.
    The sums are over all rows of the update: the packs of one do not add up (`Update.gradient_cached`).

    Args:
        low: first lower bound, above 0.
        low_at_most: last lower bound, at most 1.
        low_step: above 0.
        high: first upper bound, at least 1.
        high_at_most: last upper bound.
        high_step: above 0.
        target: above 0.
        kind: `share`: P / (P + N), as the paper; `odds`: P / N, as the public code.
        first: which bound rises first: `high`, as the paper, or `low`, as the public code.
        dual: as of `Clip`; None: none, as the paper.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import Tokens
        >>> from agentrl_core.recipes.bapo import BalancedClip
        >>> gain, pull = torch.tensor([1.0, 0.0]), torch.tensor([0.0, -3.0])
        >>> streams = {"weight_kl": torch.ones(2), "advantage_positive": gain, "advantage_negative": pull}
        >>> bounds = BalancedClip()(Tokens(torch.zeros(2), None, streams), torch.zeros(2))
        >>> bounds.lower.item(), bounds.upper.item()  # P / (P + N) is 1/4 whatever the bounds, so they open fully
        (0.9, 3.0)
    """

    reads: ClassVar[tuple[str | Column, ...]] = ADVANTAGES
    over: ClassVar[Unit] = "update"

    low: float = option(0.6, above=0)
    low_at_most: float = option(0.9, at_most=1)
    low_step: float = option(0.02, above=0)
    high: float = option(1.2, at_least=1)
    high_at_most: float = 3.0
    high_step: float = option(0.05, above=0)
    target: float = option(0.4, above=0)
    kind: Literal["share", "odds"] = "share"
    first: Literal["high", "low"] = "high"
    dual: float | None = option(None, above=1)

    def check_options(self) -> None:
        """A bound begins before it ends."""
        self.require(self.low <= self.low_at_most, "low", "give 0 < low <= low_at_most <= 1")
        self.require(self.high <= self.high_at_most, "high", "give 1 <= high <= high_at_most")

    def own_foldable(self) -> bool:
        """Yes: its sums are sums of what folds."""
        return True

    def __call__(self, tokens: Tokens, log_ratio: Tensor) -> ClipBounds:
        """The narrowest range in which positive advantages have their share."""
        ratio = log_ratio.detach().exp()
        pairs = list(self._pairs())
        reached = []
        for lower, upper in pairs:
            gain = (tokens.advantage_positive * ratio.clamp(max=upper)).sum()
            pull = -(tokens.advantage_negative * ratio.clamp(min=lower)).sum()
            share = gain / (gain + pull) if self.kind == "share" else gain / (pull + 1e-8 * (gain + pull))
            reached.append((share >= self.target) | (pull <= 0))
        reached[-1] = torch.ones_like(reached[-1])
        first = torch.stack(reached).int().argmax()
        lower, upper = ratio.new_tensor(pairs).index_select(0, first[None])[0]
        return ClipBounds(lower, upper, self.dual)

    def _pairs(self) -> Iterable[tuple[float, float]]:
        lows = _rising(self.low, self.low_step, self.low_at_most)
        highs = _rising(self.high, self.high_step, self.high_at_most)
        if self.first == "high":
            return [(self.low, high) for high in highs] + [(low, highs[-1]) for low in lows[1:]]
        return [(low, self.high) for low in lows] + [(lows[-1], high) for high in highs[1:]]


def _rising(start: float, step: float, end: float) -> list[float]:
    """From `start` by `step` to `end`."""
    values = [start]
    while values[-1] < end - 1e-9:
        values.append(min(values[-1] + step, end))
    return values


BAPO = Recipe(
    name="bapo",
    source="arXiv:2510.18927",
    advantage=GroupRelative(),
    loss=Policy(clip=BalancedClip()),
    epochs=2,
    minibatches=4,
)
