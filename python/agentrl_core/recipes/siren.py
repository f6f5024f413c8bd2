"""SIREN: keep the entropy of likely tokens, at uncertain positions, at its first value (arXiv:2509.25133).

A plain entropy bonus spreads probability over tokens that make no sense. SIREN only considers the most likely tokens of
a position, and only the most uncertain positions of a response. It anchors their mean entropy at the mean entropy of
the first policy: the metric `peak_entropy` of the first iteration. The first iteration itself has no penalty.

Equations:
    Read: the authors' code, and a digest; the paper's text was not read.

    - C1 and C2, top-p mask and entropy in it: the model output `top_p_entropy`, which keeps the token that reaches p;
      `model.logit_statistics.top_p_entropy(include_crossing=False)` drops it, as the code does.
    - C3, peak mask: `EntropyAnchor`, with quantile 0.8 of the response.
    - C4, aggregate: `EntropyAnchor`; a response without a peak does not count, as in the digest; in the code it counts
      as 0.
    - C5, anchored loss: `EntropyAnchor(0.005, anchor=FirstValue())`.
    - C6, policy loss: `Policy`, `aggregate="constant"`; advantages are not divided by a std, and a group of one keeps
      its score.

Differs:
    - Anchor: in the code, the entropy of the first batch before its first optimizer step; here, the mean over the
      optimizer steps of the first iteration.
    - Square: of the mean of each micro-batch in the code, of the mean of the update here.
    - Denominator: the code divides by the padded length, which is the longest response of its script: 3072.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import Column, State, option
from agentrl_core.loss import Clip, EntropyTerm, Policy, Tokens, Unit, torch
from agentrl_core.schedule import Controller

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class FirstValue(Controller):
    """First measured value of a metric that is not 0; it does not change afterwards.

    Args:
        metric: name of the metric.
        start: the number before the first measurement.

    Example:
        >>> from agentrl_core.recipes.siren import FirstValue
        >>> anchor = FirstValue("peak_entropy")
        >>> state = anchor.initial_state()
        >>> for entropy in (0.8, 0.3):
        ...     state = anchor.moved(state, {"peak_entropy": entropy})
        >>> anchor.value(state)
        0.8
    """

    metric: str = option("peak_entropy", filled=True)
    start: float = 0.0

    @property
    def reads(self) -> tuple[str, ...]:
        """Return the name of the metric that the controller reads."""
        return (self.metric,)

    def begin(self) -> State:
        """Return the state without a measurement."""
        return {"value": None}

    def move(self, state: State, *metrics: float) -> State:
        """Return the state with the first measurement that is not 0."""
        return {"value": state["value"] or metrics[0]}

    def value(self, state: State) -> float:
        """Return the first value, or `start` before it is measured."""
        return float(state["value"] or self.start)


@dataclass(frozen=True)
class EntropyAnchor(EntropyTerm):
    """Keep the entropy of likely tokens, at uncertain positions, at an anchor.

        L = coefficient * (mean over responses of the mean over peaks of H - anchor)^2

    H is the model output `top_p_entropy` (see `model.logit_statistics`). The peaks of a response are its tokens with H
    above its `quantile`; responses without a peak do not count. The square is computed over all rows of the update, not
    for each pack (`Update.gradient_cached`). It is not weighted, and is 0 if there are no peaks.

    Args:
        coefficient: factor of the penalty, above 0.
        anchor: the mean of the first policy, at least 0; 0: not known yet, no penalty.
        quantile: quantile of H above which a token is a peak, between 0 and 1.

    Metrics: `peak_entropy`, the anchored mean.

    Example:
        >>> import torch
        >>> from types import SimpleNamespace
        >>> from agentrl_core.loss import Tokens
        >>> from agentrl_core.recipes.siren import EntropyAnchor
        >>> streams = {"weight_kl": torch.ones(5), "sequence": torch.zeros(5, dtype=torch.int64)}
        >>> answers = SimpleNamespace(top_p_entropy=torch.tensor([0.0, 3.0, 0.0, 0.0, 0.0]))
        >>> EntropyAnchor()(Tokens(torch.zeros(5), None, streams, answers)).item()  # 0.005 (3 - 1)^2
        0.02
    """

    reads: ClassVar[tuple[str | Column, ...]] = ("sequence",)
    reads_outputs: ClassVar[tuple[str, ...]] = ("top_p_entropy",)
    over: ClassVar[Unit] = "update"

    coefficient: float = option(0.005, above=0)
    anchor: float = option(1.0, at_least=0)
    quantile: float = option(0.8, above=0, below=1)

    def peak_entropy(self, tokens: Tokens) -> Tensor:
        """Return the mean top-p entropy at uncertain positions, with gradient; the anchor if there are none."""
        responses = tokens.segments("sequence")
        entropy = tokens.output("top_p_entropy")
        peak = tokens.trained & (entropy > responses.spread(responses.quantile(entropy, self.quantile)))
        count = responses.sum(peak.to(entropy))
        mean = responses.sum(torch.where(peak, entropy, 0.0)) / count.clamp(min=1.0)
        # Without any peak, return the anchor itself, so that the penalty is 0.
        return torch.where(count.any(), mean.sum() / (count > 0).sum().clamp(min=1), self.anchor)

    def metrics(self, tokens: Tokens) -> dict[str, Tensor]:
        """Return `peak_entropy`, the same for every row."""
        return {"peak_entropy": self.peak_entropy(tokens).expand_as(tokens.logprob)}

    def __call__(self, tokens: Tokens) -> Tensor:
        """Return the penalty on the squared distance of the peak entropy from the anchor."""
        known = float(self.anchor > 0)
        return known * self.coefficient * (self.peak_entropy(tokens) - self.anchor).square()


SIREN = Recipe(
    name="siren",
    source="arXiv:2509.25133",
    advantage=GroupRelative(scale="none", singleton="raw"),
    loss=Policy(
        clip=Clip(0.28, 0.28, dual=3.0),
        entropy=EntropyAnchor(0.005, anchor=FirstValue()),
        aggregate="constant",
        constant=3072.0,
    ),
    minibatches=16,
)
