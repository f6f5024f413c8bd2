"""Convert sampling options to vLLM's, and vLLM's output for a request to a segment."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core.engine.base import Request, Segment, TopLogprobs
from agentrl_core.exceptions import InvalidInputError

PROCESSED = "processed_logprobs"
"""The mode in which vLLM's log-probabilities are those of the sampling distribution."""
ENTROPY_ESTIMATOR = "top_10"
LEAST_BIAS = -100.0
"""The smallest logit bias of vLLM, for tokens that are never sampled."""
_TOP = 10
# vLLM clamps temperatures below this, so its log-probabilities would be those of another temperature.
_LOWEST_TEMPERATURE = 0.01


def check(request: Request, context_tokens: int, remedy: str) -> None:
    """Refuse a request that vLLM would change silently, or that does not fit into its context.

    Raises:
        InvalidInputError: vLLM would clamp the temperature; the context has no room for a token (`remedy` is part of
            the message).
    """
    temperature = request.sampling.temperature
    if 0.0 < temperature < _LOWEST_TEMPERATURE:
        raise InvalidInputError(
            f"generate: temperature is {temperature} and vLLM clamps it to {_LOWEST_TEMPERATURE}; "
            f"give 0 or at least {_LOWEST_TEMPERATURE}"
        )
    if len(request.tokens) >= context_tokens:
        raise InvalidInputError(
            f"generate: the request has {len(request.tokens)} tokens, which leaves no room for an answer in the "
            f"context of {context_tokens} tokens; {remedy}"
        )


def columns(request: Request, *, entropies: bool = True) -> int:
    """Return the number of most likely tokens needed at each place, for the entropy and for `Sampling.top`."""
    return max(_TOP if entropies else 0, request.sampling.top)


def params(request: Request, logprobs: int) -> dict[str, Any]:
    """Return the sampling parameters of a request with vLLM's names."""
    sampling = request.sampling
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "max_tokens": sampling.max_tokens,
        "stop_token_ids": list(sampling.stop_token_ids),
        "ignore_eos": True,  # only the stop tokens asked for end a segment
        "seed": int(request.seed),
        "logprobs": logprobs,
        "detokenize": False,
    }


def segment(
    request: Request,
    chosen: tuple[NDArray[np.int32], NDArray[np.float32]],
    likeliest: tuple[NDArray[np.int32], NDArray[np.float32]],
    *,
    aborted: bool,
    version: int,
    cached_tokens: int | None,
    entropies: bool = True,
    routed_experts: NDArray[Any] | None = None,
) -> Segment:
    """Create the segment of a request from vLLM's output.

        H10 = -sum_{i in top 10} p_i log p_i  <=  H

    Args:
        request: the request.
        chosen: the sampled tokens and their log-probabilities, [n].
        likeliest: the most likely tokens at each place, in order, and their log-probabilities,
            [n, at least `columns`].
        aborted: whether the request was aborted.
        version: version of the weights.
        cached_tokens: see `Segment`.
        entropies: whether to estimate entropies.
        routed_experts: integers [tokens read, layers, k], from the request's first token on; None: not reported.
    """
    (tokens, logprobs), (ids, of_ids) = chosen, likeliest
    ten = of_ids[:, :_TOP]
    estimated = -(np.exp(ten) * np.where(np.isfinite(ten), ten, 0)).sum(axis=1)
    if request.sampling.temperature == 0.0:
        logprobs, estimated = np.zeros_like(logprobs), np.zeros_like(estimated)
    count = request.sampling.top
    stopped = len(tokens) > 0 and int(tokens[-1]) in request.sampling.stop_token_ids
    ended: Literal["stop", "length"] = "stop" if stopped else "length"
    return Segment(
        tokens=tokens,
        logprobs=logprobs.copy(),
        entropies=estimated if entropies else None,
        finish_reason="abort" if aborted else ended,
        policy_version=version,
        seed=request.seed,
        top=TopLogprobs(ids[:, :count].copy(), of_ids[:, :count].copy()) if count else None,
        cached_tokens=cached_tokens,
        routed_experts=None if routed_experts is None else _experts(request, len(tokens), routed_experts),
    )


def _experts(request: Request, tokens: int, experts: NDArray[Any]) -> NDArray[Any] | None:
    """Return the experts of all tokens but the last, in the form of `Segment`; None if vLLM reports too few."""
    count = len(request.tokens) + tokens - 1
    return None if len(experts) < count else experts[:count].reshape(count, -1).copy()


def difference(expanded: list[int], request: Request) -> str:
    """Describe for an error how vLLM's tokens of a prompt with images differ from the request's."""
    own = request.tokens.tolist()
    if len(expanded) != len(own):
        return f"{len(expanded)} tokens, but request.tokens has {len(own)}"
    place = next(place for place, token in enumerate(own) if token != expanded[place])
    return f"token {expanded[place]} at position {place}, but request.tokens[{place}] is {own[place]}"
