"""Draw a token from each row of logits, with log-probability and entropy of the distribution."""

from __future__ import annotations

from typing import NamedTuple

import torch

from agentrl_core.engine.base import Sampling
from agentrl_core.engine.entropy_temperature import LEAST, EntropyTemperature


class SampledTokens(NamedTuple):
    """`token` int64 [B], `logprob` [B] and `entropy` [B] in the type of the log-softmax.

    `top` is the `sampling.top` likeliest tokens, int64 [B, c], and their log-probabilities [B, c]; None if c is 0.
    """

    token: torch.Tensor
    logprob: torch.Tensor
    entropy: torch.Tensor
    top: tuple[torch.Tensor, torch.Tensor] | None = None


def sample_tokens(logits: torch.Tensor, uniform: torch.Tensor, sampling: Sampling) -> SampledTokens:
    """Draw by inverse CDF: the first token whose cumulative probability exceeds `uniform`.

        x = z / temperature, -inf outside top_k and top_p;  log p = x - logsumexp(x);  H = -sum p log p  (0 log 0 = 0)

    With `sampling.by_entropy` the temperature is that of the row, and H the entropy by which it was chosen.

    `logits` [B, V] (taken to float32 unless float64), `uniform` float64 [B] in [0, 1). A row's result depends on its
    own logits and uniform number only. A token with probability 0 is never drawn. At temperature 0 the likeliest tokens
    are those of softmax(z).
    """
    if sampling.temperature == 0.0:
        x = logits if logits.dtype == torch.float64 else logits.float()
        token = x.argmax(dim=-1)
        zero = torch.zeros_like(token, dtype=x.dtype)
        return SampledTokens(
            token, zero, zero, _top(torch.log_softmax(x, dim=-1), sampling.top) if sampling.top else None
        )
    x, chosen_by = _at_temperature(logits, sampling)
    log_p = _truncated(x, sampling)
    p = log_p.exp()
    cumulative = p.cumsum(dim=-1, dtype=torch.float64)
    total = cumulative[:, -1]
    # uniform < 1, but the product may round up to the total, which no cumulative sum exceeds.
    level = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
    token = torch.searchsorted(cumulative, level[:, None], right=True)
    entropy = torch.special.entr(p).sum(dim=-1) if chosen_by is None else chosen_by
    return SampledTokens(token[:, 0], log_p.gather(-1, token)[:, 0], entropy, _top(log_p, sampling.top))


def processed_logprobs(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Return the log p of `sample_tokens`, [B, V], at a temperature above 0."""
    return _truncated(_at_temperature(logits, sampling)[0], sampling)


def temperature_factor(log_p: torch.Tensor, rule: EntropyTemperature) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the temperature factor of each row, [B], and its entropy [B]."""
    entropy = torch.special.entr(log_p.exp()).sum(dim=-1)
    height = entropy.clamp(min=LEAST).log() - rule.zero
    above, below = (max(width, LEAST) for width in (rule.above, rule.below))
    height = torch.where(height > 0, height / above, height / below).clamp(-1.0, 1.0)
    return 1.0 + rule.change * height, entropy


def _at_temperature(logits: torch.Tensor, sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return logits at the temperature of each row, and the entropies by which it was chosen."""
    x = logits if logits.dtype == torch.float64 else logits.float()
    if sampling.temperature != 1.0:
        x = x / sampling.temperature
    if sampling.by_entropy is None:
        return x, None
    by, entropy = temperature_factor(torch.log_softmax(x, dim=-1), sampling.by_entropy)
    return x / by[:, None], entropy


def _truncated(x: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Return the log p of logits, -inf outside top_k and top_p."""
    if 0 < sampling.top_k < x.shape[-1]:
        smallest_kept = torch.topk(x, sampling.top_k, dim=-1).values[:, -1:]
        x = x.masked_fill(x < smallest_kept, -torch.inf)
    if sampling.top_p < 1.0:
        x = x.masked_fill(_outside_top_p(x, sampling.top_p), -torch.inf)
    return torch.log_softmax(x, dim=-1)


def _top(log_p: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor] | None:
    if count == 0:
        return None
    logprobs, tokens = torch.topk(log_p, count, dim=-1)
    return tokens, logprobs


def _outside_top_p(x: torch.Tensor, top_p: float) -> torch.Tensor:
    """Return a mask of tokens outside the smallest set of most likely ones whose probabilities sum to top_p or more."""
    ordered, order = torch.sort(torch.softmax(x, dim=-1), dim=-1, descending=True, stable=True)
    before = ordered.cumsum(dim=-1) - ordered
    outside = before >= top_p
    outside[:, 0] = False
    return torch.zeros_like(outside).scatter(-1, order, outside)
