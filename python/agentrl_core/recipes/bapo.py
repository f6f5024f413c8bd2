"""BAPO: raise the clip bounds until positive advantages have a target share of the update (arXiv:2510.18927).

Negative advantages contribute most of an off-policy update. With a fixed clip range they dominate, and the entropy
falls. With P = sum of A min(r, upper) over positive advantages and N = sum of -A max(r, lower) over negative ones, the
bounds rise until P / (P + N) >= 0.4: first the upper bound, from 1.2 by 0.05 to 3, then the lower bound, from 0.6 by
0.02 to 0.9. The public code compares P / N, raises the lower bound first, and searches in every micro-batch; here one
search covers the whole update.

Equations:
    Read: third-party transcripts of the paper's objective, condition, algorithm 1 and settings; the public code.

    - N1, condition: `BalancedClip(target=0.4)`, without the factor p_rollout (see `Differs`).
    - N2, search: `BalancedClip(first="high")`, which starts from the initial bounds at every step.
    - N3, objective: `Policy`, mean over tokens.
    - C1, contributions in the code: `BalancedClip(kind="odds", target=1.0)`.
    - C2, search in the code: `BalancedClip(first="low")`.
    - C3, loss in the code: `Policy` with these options of `BalancedClip` and `dual=3.0`.

Differs:
    - Factor of the condition: the paper multiplies each term of the sums by p_rollout of the token. Its code does
      not, nor does this recipe, because the tokens are already sampled with that probability.
    - Search: on each micro-batch in the code, on the whole update here.
    - Importance of the rollout engine: left out; the code multiplies by importance weights if they are given, as
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
    """Raise the clip bounds until positive advantages have a target share of the update.

    With P = sum of A min(r, upper) over positive advantages and N = sum of -A max(r, lower) over negative ones (each
    term with its weight), the bounds start at `low` and `high`. First `upper` rises by `high_step` up to
    `high_at_most`, then `lower` by `low_step` up to `low_at_most`. The first pair whose share reaches `target` is
    used, or else the last pair. The sums are over all rows of the update, so the losses of its packs do not add up;
    use `Update.gradient_cached`.

    Args:
        low: initial lower bound, above 0.
        low_at_most: largest lower bound, at most 1.
        low_step: increment of the lower bound, above 0.
        high: initial upper bound, at least 1.
        high_at_most: largest upper bound.
        high_step: increment of the upper bound, above 0.
        target: value that the share must reach, above 0.
        kind: definition of the share: `share`: P / (P + N), as in the paper; `odds`: P / N, as in the public code.
        first: the bound that rises first: `high`, as in the paper, or `low`, as in the public code.
        dual: as in `Clip`; None: no such bound, as in the paper.

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
        """Check that the initial bounds do not exceed the largest ones."""
        self.require(self.low <= self.low_at_most, "low", f"give at most low_at_most={self.low_at_most}")
        self.require(self.high <= self.high_at_most, "high", f"give at most high_at_most={self.high_at_most}")

    def own_foldable(self) -> bool:
        """Return True: P and N are sums over tokens, so equal prefixes can be folded."""
        return True

    def __call__(self, tokens: Tokens, log_ratio: Tensor) -> ClipBounds:
        """Return the first bounds at which the share reaches `target`, or else the last bounds."""
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
    """Return the values from `start` to `end` in increments of `step`."""
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
