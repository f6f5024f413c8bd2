"""The loss of a critic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from agentrl_core._util.lazy_torch import functional, torch
from agentrl_core.component import Column, option, token
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.loss.base import WeightedLoss, metric_sums
from agentrl_core.loss.tokens import Tokens

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Value(WeightedLoss):
    """Trains a critic: the model's answer `value` is fitted to the stream `return`, any target of V or Q.

        `squared`:       1/2 (V - R)^2
        `huber`:         1/2 e^2 where |e| = |V - R| <= delta, else delta (|e| - delta / 2)
        `cross_entropy`: binary cross-entropy of sigmoid(V) and R in [0, 1] (DigiRL, DAPO-direct's critic)
        `categorical`:   cross-entropy of softmax(`value_logits`, `[N, bins]`) and R spread over the bins as a Gaussian
                         of `sigma` bin widths (HL-Gauss, arXiv:2403.03950); see `expected_value`

    V is given by the option `of`: the `head`'s answer; the `logit` of the token, a log p + `soft_value` with a the
    temperature that it was sampled at, so that the policy is softmax(Q / a); or `duelling`: scale (l - max l) + V, l
    the logits and V the head's answer (B-Coder, arXiv:2310.03173). The last two are a Q of the sampled token, and
    train the logits.

    With `clip` the error is also taken of V_old + clamp(V - V_old, +-clip) (stream `old_value`), and the larger of both
    counts (PPO), or their mean (SAFE). `value` may be `[N, k]`, k heads: each is fitted to R, and their errors add up
    (twin critics); or their soft minimum is (see `soft_minimum`; it needs `[N, k]`).

    Args:
        aggregate: as of every loss.
        constant: as of every loss.
        kind: see above.
        delta: of `huber`, above 0.
        clip: above 0, or None.
        combine: `max` or `mean`.
        heads: `each` or `soft_minimum`.
        temperature: of the soft minimum, above 0.
        level: `token`: a value of every token; `step`: one of each step, at its first trained token, which is what
            `arl.annotate(batch, "value", critic, level="step")` reads. Only those tokens are in the denominators.
        of: `head`, `logit` or `duelling`, see above.
        scale: of `duelling`, above 0.
        low: value of the first bin, its middle. R is kept within the outer edges of the bins.
        high: value of the last bin.
        sigma: above 0.

    Metrics: `value` and `return`, and `value_error` (the error itself).

    Example:
        >>> from agentrl_core import loss
        >>> loss.Value(clip=0.5).streams
        ('weight_kl', 'return', 'old_value')
    """

    kind: Literal["squared", "huber", "cross_entropy", "categorical"] = "squared"
    delta: float = option(1.0, above=0)
    clip: float | None = option(None, above=0)
    combine: Literal["max", "mean"] = "max"
    heads: Literal["each", "soft_minimum"] = "each"
    temperature: float = option(0.3, above=0)
    level: Literal["token", "step"] = "token"
    of: Literal["head", "logit", "duelling"] = "head"
    scale: float = option(1.0, above=0)
    low: float = 0.0
    high: float = 1.0
    sigma: float = option(0.75, above=0)

    def check_options(self) -> None:
        """Only distances can be clipped, and bins have a width."""
        super().check_options()
        fits = self.clip is None or self.kind in ("squared", "huber")
        self.require(fits, "clip", "give it with kind='squared' or 'huber', or None")
        self.require(self.high > self.low, "high", f"give a number above low={self.low}")
        plain = self.of == "head" or (self.kind != "categorical" and self.heads == "each")
        self.require(plain, "of", "it is one value: use heads='each' and another kind than 'categorical'")

    def own_reads(self) -> Iterable[str | Column]:
        """Weights, returns, and with `clip` the old values."""
        yield from ("weight_kl", token("return"))
        if self.clip is not None:
            yield token("old_value", model="critic")
        if self.of != "head":
            yield "inverse_temperature"

    @property
    def of_steps(self) -> bool:
        """Where its values are those of steps."""
        return self.level == "step"

    def own_reads_outputs(self) -> Iterable[str]:
        """The value, or its logits, or what a Q of the token is made of."""
        if self.of == "logit":
            return ("soft_value",)
        if self.of == "duelling":
            return ("max_logprob", "value")
        return ("value_logits",) if self.kind == "categorical" else ("value",)

    def own_foldable(self) -> bool:
        """No: branches that share a token may have different returns."""
        return False

    def evaluate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """How far the values are from their targets, and metrics."""
        target = tokens.stream("return")
        if self.kind == "categorical":
            logits = tokens.output("value_logits")
            error = -(self._spread(target, logits.shape[1]) * logits.log_softmax(-1)).sum(-1)
            value = expected_value(logits, self.low, self.high)
        else:
            value = self._value(tokens)
            if self.heads == "soft_minimum":
                if value.dim() == 1:
                    raise InvalidInputError(
                        f"the answer 'value' has shape {tuple(value.shape)}, but heads='soft_minimum' needs [N, k]; "
                        "give the model a value head with several outputs"
                    )
                value = soft_minimum(value, self.temperature)
            heads = value[:, None] if value.dim() == 1 else value
            error = self._error(heads, target[:, None])
            if self.clip is not None:
                old = tokens.stream("old_value")[:, None]
                bounded = self._error(old + (heads - old).clamp(-self.clip, self.clip), target[:, None])
                error = torch.maximum(error, bounded) if self.combine == "max" else (error + bounded) / 2.0
            error, value = error.sum(-1), heads.mean(-1)
        loss = (tokens.stream("weight_kl") * error).sum()
        metrics: dict[str, Any] = {"value": value, "return": target, "value_error": error}
        return loss, metric_sums(tokens, **metrics)

    def _value(self, tokens: Tokens) -> Tensor:
        if self.of == "head":
            return tokens.output("value")
        temperature = 1.0 / torch.where(tokens.trained, tokens.raw("inverse_temperature"), 1.0)
        if self.of == "logit":
            return tokens.output("soft_value") + temperature * tokens.logprob
        gap = temperature * (tokens.logprob - tokens.output("max_logprob"))
        return tokens.output("value") + self.scale * gap

    def _error(self, value: Tensor, target: Tensor) -> Tensor:
        target = target.expand_as(value).to(value.dtype)
        away = (value - target).abs()
        if self.kind == "huber":
            return torch.where(away <= self.delta, away.square() / 2.0, self.delta * (away - self.delta / 2.0))
        if self.kind == "cross_entropy":
            error: Tensor = functional.binary_cross_entropy_with_logits(value, target, reduction="none")
            return error
        return away.square() / 2.0

    def _spread(self, target: Tensor, bins: int) -> Tensor:
        width = (self.high - self.low) / (bins - 1)
        edges = self.low + width * (torch.arange(bins + 1, device=target.device) - 0.5)
        place = (edges - target.clamp(edges[0], edges[-1])[:, None]) / (self.sigma * width)
        mass: Tensor = torch.special.ndtr(place).diff(dim=-1)
        return mass / mass.sum(-1, keepdim=True)


def expected_value(logits: Tensor, low: float, high: float) -> Tensor:
    """The value that `[N, bins]` logits of a categorical critic stand for: the mean of their bins, `[N]`.

    Example:
        >>> import torch
        >>> from agentrl_core.loss.value import expected_value
        >>> expected_value(torch.zeros(1, 3), 0.0, 1.0).tolist()
        [0.5]
    """
    bins = torch.linspace(low, high, logits.shape[-1], dtype=logits.dtype, device=logits.device)
    return (logits.softmax(-1) * bins).sum(-1)


def soft_minimum(values: Tensor, temperature: float) -> Tensor:
    """A smooth minimum over the last dimension: -a log mean exp(-v / a).

    a towards 0 gives the minimum (twin critics of TD3 and SAC), a large a the mean; SAFE takes 0.3.

    Example:
        >>> import torch
        >>> from agentrl_core.loss.value import soft_minimum
        >>> soft_minimum(torch.tensor([[1.0, 3.0]]), 0.1).tolist()
        [1.069]
    """
    count = values.new_tensor(float(values.shape[-1]))
    return -temperature * ((-values / temperature).logsumexp(-1) - count.log())
