"""M2PO: mask the fewest tokens that keep the second moment of log-ratios within a bound (arXiv:2510.01161).

If data is many updates old, a fixed clip range removes much of the learning signal. M2PO instead keeps the second
moment of the log-ratios below a budget, over the tokens that an update would push further from the old policy. The
tokens furthest away are masked, until the mean over the rest is within the budget.

`M2PO_DELAYED` is the paper's setting of stale data: every iteration trains on the batch of 64 iterations before, and
stores its own rollouts for later. Until there is such a batch, an iteration trains on its own.

Equations:
    Read: the public code, the documentation of another framework, notes on the paper, and the abstract; the paper's
    text was not read.

    - D1, second moment: over the log-ratios to the policy that sampled, in `SecondMomentMask`.
    - D2, objective: `Policy(clip=None)`, mean over all tokens, including masked ones.
    - N1, mask: `SecondMomentMask(at_most=0.04)`.
    - C1, tokens that count: `SecondMomentMask`, `SecondMomentClip`.
    - C2 and C3, threshold and loss of the code: an option, `M2PO.replace(loss=Policy(clip=SecondMomentClip()))`.
    - C4, floors: `SecondMomentClip(narrowest=...)`, an option, off as in the code.
    - C5, stale batches: `M2PO_DELAYED`; not computed: it needs a store.
    - C6, advantage: `GroupRelative`; a group of one has advantage 0 here, and its reward in the code
      (`singleton="raw"`).

Differs:
    - Bound: the code caps ratios and masks no tokens. A capped token stays in the mean at the cap, so the code's range
      is narrower: some tokens without a gradient in the code have one here.
    - Tokens that are equally far away are masked together.
    - Budget: for each micro-batch in the code, for the update here.
    - First 64 iterations of stale data: the code trains nothing; `M2PO_DELAYED` trains on its own batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import Column, option
from agentrl_core.loss import ADVANTAGES, Clip, ClipBounds, ClipRange, Mask, Policy, Tokens, Unit, torch
from agentrl_core.replay import Memory, Mix

if TYPE_CHECKING:
    from torch import Tensor


def _harmful(tokens: Tokens, distance: Tensor) -> Tensor:
    """Return which tokens an update would push further away: A > 0 and r > 1, or A < 0 and r < 1."""
    return ((tokens.advantage_positive > 0) & (distance > 0)) | ((tokens.advantage_negative < 0) & (distance < 0))


@dataclass(frozen=True)
class SecondMomentMask(Mask):
    """Mask the furthest of the tokens that an update would push away, to keep their second moment within a budget.

    Only tokens that an update would push further from the old policy count and are masked: S = {A > 0, r > 1} or {A <
    0, r < 1}. The tokens of S with the largest (log r)^2 are masked until the mean over the rest of S is at most
    `at_most`. Tokens that are equally far away are masked together. S consists of the rows that are given.

    Args:
        at_most: the largest second moment of log r, above 0.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import ClipBounds, Tokens
        >>> from agentrl_core.recipes.m2po import SecondMomentMask
        >>> one, none = torch.ones(3), torch.zeros(3)
        >>> streams = {"weight_kl": one, "advantage_positive": one, "advantage_negative": none}
        >>> moved = torch.tensor([0.1, 0.6, -0.9])  # (0.01 + 0.36) / 2 exceeds 0.04; the last is not pushed further
        >>> SecondMomentMask()(Tokens(none, None, streams), moved, ClipBounds())[0].tolist()
        [1.0, 0.0, 1.0]
    """

    reads: ClassVar[tuple[str | Column, ...]] = ADVANTAGES
    over: ClassVar[Unit] = "update"

    at_most: float = option(0.04, above=0)

    def __call__(self, tokens: Tokens, log_ratio: Tensor, bounds: ClipBounds) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Return the same factors for both signs of the advantage: 0 for harmful tokens beyond the budget, else 1."""
        distance = log_ratio.detach()
        harmful = _harmful(tokens, distance)
        squares = torch.where(harmful, distance.square(), torch.inf).sort().values  # tokens of S first, ascending
        moments = squares.cumsum(0) / torch.arange(1, len(squares) + 1, device=squares.device)
        over_budget = torch.where(moments > self.at_most, squares, torch.inf)
        first = over_budget.min() if len(over_budget) else over_budget.sum()
        factors = (~(harmful & (distance.square() >= first))).to(distance)
        return factors, factors


@dataclass(frozen=True)
class SecondMomentClip(ClipRange):
    """Clip ratios with the widest range that keeps the second moment of the log-ratios within a budget (public code).

    S = {A > 0, r > 1} or {A < 0, r < 1} are the tokens that an update would push further from the old policy, and d is
    their log-ratio. If the mean of d^2 is at most `at_most`, nothing is clipped. Otherwise k^2 is the largest of the
    d^2 in S with sum over S of min(d^2, k^2) <= at_most |S| (0 if there is none), and the bounds are [exp(-k), exp(k)].
    S consists of the rows that are given.

    Args:
        at_most: the largest second moment of log r, above 0.
        narrowest: the range is never narrower than this one; None: it may close entirely.
        dual: as in `Clip`.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import Tokens
        >>> from agentrl_core.recipes.m2po import SecondMomentClip
        >>> one, none = torch.ones(2), torch.zeros(2)
        >>> streams = {"weight_kl": one, "advantage_positive": one, "advantage_negative": none}
        >>> bounds = SecondMomentClip()(Tokens(none, None, streams), torch.tensor([0.1, 0.6]))
        >>> bounds.lower.item(), bounds.upper.item()  # the mean square 0.185 exceeds 0.04, so k = 0.1
        (0.905, 1.105)
    """

    reads: ClassVar[tuple[str | Column, ...]] = ADVANTAGES
    over: ClassVar[Unit] = "update"

    at_most: float = option(0.04, above=0)
    narrowest: Clip | None = None
    dual: float | None = option(None, above=1)

    def check_options(self) -> None:
        """Check that the centre of the narrowest range is one."""
        fits = self.narrowest is None or self.narrowest.center == "one"
        self.require(fits, "narrowest", "give a clip with center='one'")

    def __call__(self, tokens: Tokens, log_ratio: Tensor) -> ClipBounds:
        """Return the widest bounds that keep the second moment within the budget."""
        distance = log_ratio.detach()
        harmful = _harmful(tokens, distance)
        allowed = self.at_most * harmful.sum()
        squares = torch.where(harmful, distance.square(), 0.0).sort().values  # tokens of S last, ascending
        larger = torch.arange(len(squares) - 1, -1, -1, device=squares.device)
        fits = squares.cumsum(0) + larger * squares <= allowed
        limit = torch.where(fits, squares, 0.0).max() if len(squares) else squares.sum()
        width = torch.where(squares.sum() <= allowed, torch.inf, limit.sqrt())
        lower, upper = (-width).exp(), width.exp()
        if self.narrowest is not None:
            narrowest_lower, narrowest_upper = self.narrowest.interval()
            lower, upper = lower.clamp(max=narrowest_lower), upper.clamp(min=narrowest_upper)
        return ClipBounds(lower, upper, self.dual)


M2PO = Recipe(
    name="m2po",
    source="arXiv:2510.01161",
    advantage=GroupRelative(),
    loss=Policy(clip=None, mask=SecondMomentMask()),
    minibatches=4,
)

_DELAY = Memory(min_age=64, max_age=64, unit="group", order="oldest")
M2PO_DELAYED = M2PO.replace(name="m2po_delayed", replay=Mix(_DELAY, share=1.0, replaces=True))
