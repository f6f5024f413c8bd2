"""Ratios: how far the policy has moved from the one that sampled, as the logarithm of a ratio for every token."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from agentrl_core.component import Column, option, token
from agentrl_core.loss.base import Part, Unit
from agentrl_core.loss.tokens import LOG_RATIO_LIMIT, Tokens

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ImportanceRatio(Part, ABC):
    """Base of the ratios: a vector, the log of the ratio of each token; and perhaps a factor outside the surrogate."""

    @abstractmethod
    def __call__(self, tokens: Tokens) -> tuple[Tensor, Tensor | None]:
        """The log-ratios `[N]`, with gradient, and detached factors `[N]` of the surrogate, or None for 1."""


@dataclass(frozen=True)
class Ratio(ImportanceRatio):
    """How much likelier the policy finds a token, step, sequence or item now than the old policy did.

    It is made of d = log p - log p_old within +-20.

    `token`: log r_t = d_t. Of a step (the tokens of one action), a sequence or an item: the mean of d over its
    trained tokens (a geometric mean of ratios), or their sum (the joint ratio), within +-20 again. The sequence ratio
    with `mean` is GSPO (arXiv:2507.18071), the step ratio that of IPA, the item ratio that of the items of a list
    (Rank-GRPO, arXiv:2510.20150), the sums those of LOOP's turns and trajectories and of multi-agent PPO.

    verl bounds the mean log-ratio of GSPO by 10 from above, and has no gradient beyond: `log_at_most=10`.

    Args:
        level: `token`, `step`, `sequence`, or `item`: the tokens of a sequence that have one number, from 1, in the
            token column `item`, such as `arl.annotate` makes with `model.spans`; a token of none (0) is alone.
        reduce: `mean` or `sum` over the tokens.
        gradient: how a token moves the ratio of its segment. `segment`: as it does; a joint ratio (`sum`) wants this.
            `token`: by its own log-prob alone, r_t = sg(r) p_t / sg(p_t), which is GSPO-token and what verl runs:
            advantages and weights may then differ inside a segment. With `mean` both give the same gradient where the
            advantage and the weight are one for the whole segment.
        log_at_most: upper bound of log r, above 0, at most 20; there is no gradient beyond it.

    Example:
        >>> from agentrl_core import loss
        >>> loss.Policy(ratio=loss.Ratio("sequence"), clip=loss.Clip(3e-4, 4e-4), aggregate="sequence_mean").unit
        'trajectory'
    """

    level: Literal["token", "step", "sequence", "item"] = "token"
    reduce: Literal["mean", "sum"] = "mean"
    gradient: Literal["token", "segment"] = "token"
    log_at_most: float = option(LOG_RATIO_LIMIT, above=0, at_most=LOG_RATIO_LIMIT)

    def check_options(self) -> None:
        """A token is no segment."""
        plain = self.reduce == "mean" and self.gradient == "token"
        remedy = "'token' has nothing to reduce: give step, sequence or item"
        self.require(self.level != "token" or plain, "level", remedy)

    def own_reads(self) -> Iterable[str | Column]:
        """Old log-probs, and the ids of the segments."""
        yield "old_logprob"
        if self.level == "item":
            yield from ("sequence", token("item", model="spans"))
        elif self.level != "token":
            yield self.level

    def own_unit(self) -> Unit:
        """The unit of the ratio; an item lies in one sequence."""
        return "trajectory" if self.level in ("sequence", "item") else self.level  # type: ignore[return-value]

    def __call__(self, tokens: Tokens) -> tuple[Tensor, Tensor | None]:
        """The log-ratio of each token, or of the step, sequence or item that it belongs to."""
        if self.level == "token":
            return tokens.log_ratio.clamp(max=self.log_at_most), None
        segments = tokens.items if self.level == "item" else tokens.segments(self.level)
        reduce = segments.mean if self.reduce == "mean" else segments.sum
        whole = segments.spread(reduce(tokens.log_ratio)).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        if self.gradient == "token":
            whole = whole.detach() + tokens.logprob - tokens.logprob.detach()
        return whole.clamp(max=self.log_at_most), None
