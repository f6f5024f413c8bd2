"""Statistics of rows of logits, besides log-prob and entropy: divergences, top-p entropy, likeliest tokens."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad


def full_kl(logits: Tensor, reference_logits: Tensor) -> Tensor:
    """KL(p || reference) over the whole vocabulary, `[N]`: the output `full_kl`.

    Args:
        logits: `[N, V]`, with gradient.
        reference_logits: `[N, V]`.

    Example:
        >>> import torch
        >>> from agentrl_core.model.logit_statistics import full_kl
        >>> full_kl(torch.zeros(1, 2), torch.tensor([[0.0, 0.0]])).tolist()
        [0.0]
    """
    logprob, reference = logits.log_softmax(-1), reference_logits.log_softmax(-1)
    difference = torch.where(logprob > -torch.inf, logprob - reference, 0.0)
    return (logprob.exp() * difference).sum(-1)


def divergence(logits: Tensor, teacher_logits: Tensor, beta: float) -> Tensor:
    """The generalised Jensen-Shannon divergence of `loss.Divergence` over the whole vocabulary, `[N]`.

    Args:
        logits: `[N, V]`, with gradient.
        teacher_logits: `[N, V]`.
        beta: from 0 (forward KL) to 1 (reverse KL).

    Example:
        >>> import torch
        >>> from agentrl_core.model.logit_statistics import divergence
        >>> divergence(torch.zeros(1, 2), torch.tensor([[0.9, 0.1]]).log(), 0.0).tolist()
        [0.368]
    """
    return bin_divergence(logits.log_softmax(-1), teacher_logits.log_softmax(-1), beta)


def bin_divergence(logprobs: Tensor, teacher_logprobs: Tensor, beta: float) -> Tensor:
    """The generalised Jensen-Shannon divergence of distributions over k bins, `[N]`.

    Args:
        logprobs: `[N, k]`, log-probs of the bins, with gradient; -inf for a bin that is empty.
        teacher_logprobs: `[N, k]`.
        beta: from 0 (forward KL) to 1 (reverse KL).
    """
    empty = torch.isneginf(logprobs) & torch.isneginf(teacher_logprobs)
    log_p, log_q = (torch.where(empty, 0.0, values) for values in (logprobs, teacher_logprobs))
    if beta == 0.0:
        terms = _kl_terms(log_q, log_p)
    elif beta == 1.0:
        terms = _kl_terms(log_p, log_q)
    else:
        log_m = torch.logaddexp(log_p + math.log1p(-beta), log_q + math.log(beta))
        terms = beta * _kl_terms(log_q, log_m) + (1.0 - beta) * _kl_terms(log_p, log_m)
    return torch.where(empty, 0.0, terms).sum(-1)


def _kl_terms(log_a: Tensor, log_b: Tensor) -> Tensor:
    """Return the terms of KL(a || b) by token; 0 if the token has probability 0 in a."""
    return log_a.exp() * torch.where(torch.isneginf(log_a), 0.0, log_a - log_b)


def log_tail(top_logprobs: Tensor) -> Tensor:
    """Log of the total probability of all tokens except the likeliest ones, `[N, 1]`.

    The probability is at least 1e-7, the resolution of float32 log-probs.

    Args:
        top_logprobs: `[N, k]`; -inf: no token.
    """
    covered = top_logprobs.double().exp().sum(-1, keepdim=True)
    return (1.0 - covered).clamp(min=1e-7).log().to(top_logprobs.dtype)


def top_logprobs(logits: Tensor, ids: Tensor) -> Tensor:
    """Log-probs of some tokens, and of all others together in the last column: `[N, k + 1]`.

    Args:
        logits: `[N, V]`, with gradient.
        ids: `int64[N, k]`, tokens, the first of them at least 0; a negative id is no token, with log-prob -inf.
    """
    known = ids >= 0
    total = logits.logsumexp(dim=-1, keepdim=True)
    places = torch.where(known, ids, ids[:, :1].clamp(min=0))
    logprobs = torch.where(known, logits.gather(1, places) - total, -torch.inf)
    others = logits.scatter(1, places, -torch.inf)
    none = torch.isneginf(others.detach().amax(dim=-1, keepdim=True))
    rest = torch.where(none, 0.0, others).logsumexp(dim=-1, keepdim=True) - total
    return torch.cat([logprobs, torch.where(none, -torch.inf, rest)], dim=1)


def likeliest_tokens(logits: Tensor, count: int) -> Tensor:
    """Log-probs of the likeliest tokens, then their ids as floats, `[N, 2 * count]`, without gradient.

    If the vocabulary has fewer tokens, the remaining entries are -inf and -1. Ids below 2^24 are exact in float32.

    Args:
        logits: `[N, V]`.
        count: at least 1.
    """
    logprobs, ids = logits.detach().log_softmax(-1).topk(min(count, logits.shape[-1]), dim=-1)
    absent = (0, count - logprobs.shape[1])
    return torch.cat([pad(logprobs, absent, value=-torch.inf), pad(ids.to(logits.dtype), absent, value=-1.0)], dim=1)


def top_p_entropy(logits: Tensor, p: float = 0.8, *, include_crossing: bool = True) -> Tensor:
    """Entropy of the most likely tokens (top p), renormalised, `[N]`: the output `top_p_entropy`.

    Args:
        logits: `[N, V]`, with gradient.
        p: tokens are taken in descending order of probability, while the tokens before them sum to less than p.
        include_crossing: keep the token that reaches p, as in nucleus sampling. False: drop it, as SIREN's code does;
            if no token is left, the entropy is 0.

    Returns:
        Nats.

    Example:
        >>> import torch
        >>> from agentrl_core.model.logit_statistics import top_p_entropy
        >>> top_p_entropy(torch.tensor([[0.5, 0.4, 0.1]]).log(), 0.8).tolist()
        [0.687]
    """
    logprob, _ = logits.log_softmax(-1).sort(dim=-1, descending=True)
    total = logprob.detach().exp().cumsum(-1)
    before = total - logprob.detach().exp() if include_crossing else total
    kept = before < p
    inside = torch.where(kept, logprob, -torch.inf)
    empty = ~kept.any(-1, keepdim=True)
    inside = torch.where(empty, 0.0, inside)
    inside = inside - inside.logsumexp(-1, keepdim=True)
    entropy = -(inside.exp() * torch.where(kept, inside, 0.0)).sum(-1)
    return torch.where(empty.squeeze(-1), 0.0, entropy)


def mean_logprob(logits: Tensor) -> Tensor:
    """Mean log-prob over the vocabulary, `[N]`: the expected log-prob of a uniformly drawn token.

    Args:
        logits: `[N, V]`, with gradient.

    Example:
        >>> import torch
        >>> from agentrl_core.model.logit_statistics import mean_logprob
        >>> mean_logprob(torch.tensor([[0.8, 0.2]]).log()).tolist()
        [-0.916]
    """
    return logits.mean(dim=-1) - logits.logsumexp(dim=-1)


def sum_probability_squared(logits: Tensor) -> Tensor:
    """Sum of the squared probabilities over the vocabulary, `[N]`: the probability that two samples are equal.

    Args:
        logits: `[N, V]`, with gradient.

    Example:
        >>> import torch
        >>> from agentrl_core.model.logit_statistics import sum_probability_squared
        >>> sum_probability_squared(torch.tensor([[0.8, 0.2]]).log()).tolist()
        [0.68]
    """
    return logits.softmax(dim=-1).square().sum(dim=-1)


def max_logprob(logits: Tensor) -> Tensor:
    """Log-prob of the likeliest token, `[N]`.

    Args:
        logits: `[N, V]`, with gradient.

    Example:
        >>> import torch
        >>> from agentrl_core.model.logit_statistics import max_logprob
        >>> max_logprob(torch.tensor([[0.8, 0.2]]).log()).tolist()
        [-0.223]
    """
    return logits.amax(dim=-1) - logits.logsumexp(dim=-1)


def likeliest(logits: Tensor) -> Tensor:
    """The likeliest token, `int64[N]`; ties: the first.

    Args:
        logits: `[N, V]`.

    Example:
        >>> import torch
        >>> from agentrl_core.model.logit_statistics import likeliest
        >>> likeliest(torch.tensor([[0.1, 0.7, 0.2]])).tolist()
        [1]
    """
    return logits.detach().argmax(dim=-1)


def soft_value(logits: Tensor) -> Tensor:
    """Soft state value if logits are Q-values, `[N]`: the log-sum-exp of each row.

    `Pack.run` returns a log sum exp(Q / a), with Q the model's logits and a the temperature at which the token was
    sampled. The policy is then softmax(Q / a), and Q of a token is a times its log-prob, plus this value.

    Args:
        logits: `[N, V]`, with gradient.

    Example:
        >>> import torch
        >>> from agentrl_core.model.logit_statistics import soft_value
        >>> soft_value(torch.zeros(1, 2)).tolist()
        [0.693]
    """
    return logits.logsumexp(dim=-1)


ANSWERS_OF_LOGITS: dict[str, Callable[[Tensor], Tensor]] = {
    "top_p_entropy": top_p_entropy,
    "mean_logprob": mean_logprob,
    "sum_probability_squared": sum_probability_squared,
    "max_logprob": max_logprob,
    "likeliest": likeliest,
    "soft_value": soft_value,
}
"""The outputs that can be computed from one model's logits, by name."""
