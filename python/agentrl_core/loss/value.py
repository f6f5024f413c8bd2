"""The loss of a critic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from agentrl_core._util.lazy_torch import functional, torch
from agentrl_core.component import Column, option, token
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.loss.base import WeightedLoss, metric_sums
from agentrl_core.loss.inputs import Tokens

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Value(WeightedLoss):
    """Trains a critic: fits the model output `value` to the column `return`, any target of V or Q.

        `squared`:       1/2 (V - R)^2
        `huber`:         1/2 e^2 where |e| = |V - R| <= delta, else delta (|e| - delta / 2)
        `cross_entropy`: binary cross-entropy of sigmoid(V) and R in [0, 1] (DigiRL, DAPO-direct's critic)
        `categorical`:   cross-entropy of softmax(`value_logits`, `[N, bins]`) and R spread over the bins as a Gaussian
                         of `sigma` bin widths (HL-Gauss, arXiv:2403.03950); see `expected_value`

    The option `of` defines V: `head`: the output of the value head; `logit`: the logit of the token, a log p +
    `soft_value` with sampling temperature a, so that the policy is softmax(Q / a); `duelling`: scale (l - max l) + V
    with logits l and V of the head (B-Coder, arXiv:2310.03173). The last two are a Q of the sampled token, and train
    the logits.

    With `clip` a second error is that of V_old + clamp(V - V_old, +-clip) (stream `old_value`); the loss takes the
    larger error (PPO) or the mean (SAFE). `value` may be `[N, k]` for k heads: each is fitted to R and the errors are
    added (twin critics), or their soft minimum is fitted (see `soft_minimum`; it needs `[N, k]`).

    Args:
        aggregate: see `WeightedLoss`.
        constant: see `WeightedLoss`.
        kind: `squared`, `huber`, `cross_entropy` or `categorical`, see above.
        delta: threshold of `huber`, above 0.
        clip: largest change of the value, above 0, or None.
        combine: with `clip`, the `max` or `mean` of both errors.
        heads: fit `each` head or their `soft_minimum`.
        temperature: temperature of the soft minimum, above 0.
        level: `token`: a value for every token; `step`: one for each step, at its first trained token, which
            `arl.annotate(batch, "value", critic, level="step")` also reads. Only those tokens are in the denominators.
        of: `head`, `logit` or `duelling`, see above.
        scale: factor for `duelling`, above 0.
        low: value at the middle of the first bin. R is clamped to the outer edges of the bins.
        high: value at the middle of the last bin.
        sigma: standard deviation for `categorical`, in bin widths, above 0.

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
        """Refuse `clip` for cross-entropies, an empty range of bins, and combinations that `of` does not support."""
        super().check_options()
        fits = self.clip is None or self.kind in ("squared", "huber")
        self.require(fits, "clip", "give it with kind='squared' or 'huber', or None")
        self.require(self.high > self.low, "high", f"give a number above low={self.low}")
        plain = self.of == "head" or (self.kind != "categorical" and self.heads == "each")
        self.require(
            plain, "of", "the value is then a single number: use heads='each' and a kind other than 'categorical'"
        )

    def own_reads(self) -> Iterable[str | Column]:
        """Yield the columns to read: weights, returns, old values for `clip`, temperatures unless `of` is `head`."""
        yield from ("weight_kl", token("return"))
        if self.clip is not None:
            yield token("old_value", model="critic")
        if self.of != "head":
            yield "inverse_temperature"

    @property
    def of_steps(self) -> bool:
        """Whether values are those of steps: each step has a single row."""
        return self.level == "step"

    def own_reads_outputs(self) -> Iterable[str]:
        """The model outputs from which V is computed: `value`, `value_logits`, or those for `logit` and `duelling`."""
        if self.of == "logit":
            return ("soft_value",)
        if self.of == "duelling":
            return ("max_logprob", "value")
        return ("value_logits",) if self.kind == "categorical" else ("value",)

    def own_foldable(self) -> bool:
        """False: branches that share a token may have different returns."""
        return False

    def evaluate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the error of the values, summed over rows by weight, and metrics."""
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
                        f"the answer 'value' has shape {tuple(value.shape)}, but heads='soft_minimum' needs several "
                        "values in each row; give the model a value head with several outputs"
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
        distance = (value - target).abs()
        if self.kind == "huber":
            return torch.where(
                distance <= self.delta, distance.square() / 2.0, self.delta * (distance - self.delta / 2.0)
            )
        if self.kind == "cross_entropy":
            error: Tensor = functional.binary_cross_entropy_with_logits(value, target, reduction="none")
            return error
        return distance.square() / 2.0

    def _spread(self, target: Tensor, bins: int) -> Tensor:
        width = (self.high - self.low) / (bins - 1)
        edges = self.low + width * (torch.arange(bins + 1, device=target.device) - 0.5)
        place = (edges - target.clamp(edges[0], edges[-1])[:, None]) / (self.sigma * width)
        mass: Tensor = torch.special.ndtr(place).diff(dim=-1)
        return mass / mass.sum(-1, keepdim=True)


def expected_value(logits: Tensor, low: float, high: float) -> Tensor:
    """Return the value that logits `[N, bins]` of a categorical critic represent: the mean over bins, `[N]`.

    Example:
        >>> import torch
        >>> from agentrl_core.loss.value import expected_value
        >>> expected_value(torch.zeros(1, 3), 0.0, 1.0).tolist()
        [0.5]
    """
    bins = torch.linspace(low, high, logits.shape[-1], dtype=logits.dtype, device=logits.device)
    return (logits.softmax(-1) * bins).sum(-1)


def soft_minimum(values: Tensor, temperature: float) -> Tensor:
    """Return a smooth minimum over the last dimension: -a log mean exp(-v / a).

    The temperature a interpolates: near 0 it gives the minimum (twin critics of TD3 and SAC), a large a gives the mean;
    SAFE uses 0.3.

    Example:
        >>> import torch
        >>> from agentrl_core.loss.value import soft_minimum
        >>> soft_minimum(torch.tensor([[1.0, 3.0]]), 0.1).tolist()
        [1.069]
    """
    count = values.new_tensor(float(values.shape[-1]))
    return -temperature * ((-values / temperature).logsumexp(-1) - count.log())
