"""M2PO: clip only as far as stale data asks for (arXiv:2510.01161).

With data that is many updates old a fixed clip range silences much of what could be learnt. Here the second moment of
the log-ratios, over the tokens that an update would push further away, is held below a budget, by the widest range that
does.

`M2PO_DELAYED` is its setting of stale data: every iteration trains the batch of 64 iterations before, and what it rolls
out waits. Before there is one, it trains on its own.

Equations:
    Read: the public code, the documentation of another framework, notes, and the abstract.

    - D1 and D2, second moment and mask of the documentation: left out: the code bounds the tokens that an update
      pushes further away, which is C1 to C3.
    - C1, tokens that count: `SecondMomentClip`.
    - C2, threshold: `SecondMomentClip(at_most=0.04)`: tau is that of the place before the budget is spent.
    - C3, loss: `Policy`, mean over tokens, no dual clip.
    - C4, floors: `SecondMomentClip(narrowest=...)`, an option, off as in the code.
    - C5, stale batches: `M2PO_DELAYED`; not computed: it needs a store.
    - C6, advantage: `GroupRelative`; a group of one is 0 here, and its reward in the code (`singleton="raw"`).

Differs:
    - Threshold: of each micro-batch in the code, of the update here.
    - First 64 iterations of stale data: nothing is trained in the code; `M2PO_DELAYED` trains on its own batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import Column, option
from agentrl_core.loss import ADVANTAGES, Clip, ClipBounds, ClipRange, Policy, Tokens, Unit, torch
from agentrl_core.replay import Memory, Mix

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class SecondMomentClip(ClipRange):
    """Holds the second moment of the log-ratios below a budget, with the widest range that does.

    Over the tokens that an update would push further away, S = {A > 0, r > 1} or {A < 0, r < 1}: if the mean of
    d^2 is at most `at_most`, nothing is clipped. Else k^2 is the largest of the d^2 in S with
    sum over S of min(d^2, k^2) <= at_most |S| (0 if there is none), and the bounds are [exp(-k), exp(k)]. Over the rows
    given.

    Args:
        at_most: of the second moment of log r, above 0.
        narrowest: a range that is never narrowed further; None: it may close entirely.
        dual: as of `Clip`.

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
        """The narrowest range is plain."""
        fits = self.narrowest is None or self.narrowest.center == "one"
        self.require(fits, "narrowest", "its centre is one here")

    def __call__(self, tokens: Tokens, log_ratio: Tensor) -> ClipBounds:
        """The widest range that holds the second moment within its bound."""
        distance = log_ratio.detach()
        harmful = ((tokens.advantage_positive > 0) & (distance > 0)) | (
            (tokens.advantage_negative < 0) & (distance < 0)
        )
        allowed = self.at_most * harmful.sum()
        squares = torch.where(harmful, distance.square(), 0.0).sort().values  # those of S come last, in order
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
    loss=Policy(clip=SecondMomentClip()),
    minibatches=4,
)

_DELAY = Memory(min_age=64, max_age=64, unit="group", order="oldest")
M2PO_DELAYED = M2PO.replace(name="m2po_delayed", replay=Mix(_DELAY, share=1.0, replaces=True))
