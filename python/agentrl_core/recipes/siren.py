"""SIREN: hold the entropy of likely tokens at uncertain places at its first value (arXiv:2509.25133).

A plain entropy bonus spreads probability over tokens that make no sense. SIREN looks only at the most likely tokens of
a place, and only at the most uncertain places of a response, and anchors their mean entropy at that of the first
policy: the metric `peak_entropy` of the first iteration, which has no penalty itself.

Equations:
    Read: the authors' code, and a digest; the paper's text was not read.

    - C1 and C2, top-p mask and entropy in it: the model's answer `top_p_entropy`, which keeps the token that reaches p;
      `model.top_p_entropy(include_crossing=False)` drops it, as the code does.
    - C3, peak mask: `EntropyAnchor`, quantile 0.8 of the response.
    - C4, aggregate: `EntropyAnchor`; a response without a peak does not count, as in the digest; the code counts it as
      0.
    - C5, anchored loss: `EntropyAnchor(0.005, anchor=FirstValue())`.
    - C6, policy loss: `Policy`, `aggregate="constant"`; advantages without std, a group of one keeps its score.

Differs:
    - Anchor: of the first batch before its first optimizer step in the code; here the mean over the optimizer steps of
      the first iteration.
    - Square: of the mean of each micro-batch in the code, of the update here.
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
    """First measured value of a metric other than 0, which stays.

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
        """The metric."""
        return (self.metric,)

    def begin(self) -> State:
        """Return the state without a measurement."""
        return {"value": None}

    def move(self, state: State, *metrics: float) -> State:
        """Keep the first measurement."""
        return {"value": state["value"] or metrics[0]}

    def value(self, state: State) -> float:
        """Return the anchor."""
        return float(state["value"] or self.start)


@dataclass(frozen=True)
class EntropyAnchor(EntropyTerm):
    """Hold the entropy of likely tokens at uncertain places at an anchor.

        L = coefficient * (mean over responses of the mean over peaks of H - anchor)^2

    H is the model's answer `top_p_entropy` (see `model.answers`); the peaks of a response are its tokens with
    H above its `quantile`; responses without a peak do not count. The square is of all rows of the update, not of each
    pack (`Update.gradient_cached`); it is not weighted, and 0 without any peak.

    Args:
        coefficient: above 0.
        anchor: the mean of the first policy, at least 0; 0: not known yet, no penalty.
        quantile: between 0 and 1.

    Metrics: `peak_entropy`, the mean that is anchored.

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
        """The mean that is anchored, a scalar with gradient; without any peak the anchor."""
        responses = tokens.segments("sequence")
        entropy = tokens.output("top_p_entropy")
        peak = tokens.trained & (entropy > responses.spread(responses.quantile(entropy, self.quantile)))
        count = responses.sum(peak.to(entropy))
        mean = responses.sum(torch.where(peak, entropy, 0.0)) / count.clamp(min=1.0)
        # Without any peak the anchor itself, so that the term is 0.
        return torch.where(count.any(), mean.sum() / (count > 0).sum().clamp(min=1), self.anchor)

    def metrics(self, tokens: Tokens) -> dict[str, Tensor]:
        """`peak_entropy`, the same for every row."""
        return {"peak_entropy": self.peak_entropy(tokens).expand_as(tokens.logprob)}

    def __call__(self, tokens: Tokens) -> Tensor:
        """A price on how far the entropy of the chosen tokens is from the anchor."""
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
