"""Compare an engine's log-probabilities with the policy's, and find the cause of a difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from agentrl_core.engine.base import Engine, Request, Sampling, Segment, generate_all
from agentrl_core.engine.decoding import processed_logprobs
from agentrl_core.model.images import placeholder_ids

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Cause = Literal["none", "version", "mode", "temperature", "position", "precision", "weights"]
# Candidates for the engine's temperature; the search is then refined around the best one.
_TEMPERATURES = np.geomspace(0.1, 4.0, 60)
# Largest differences due to another precision: on average, and at one token.
_MEAN, _LARGEST = 0.02, 0.5
# With other weights, sequences differ from the first token on. Fewer sequences than this share may do so by chance.
_BEGIN_WELL = 0.25
_PROMPT_LENGTHS = (1, 3, 9, 17, 33, 40, 280)
# Two blocks of vLLM's prefix cache, which has 128 tokens in a block on a CPU and 16 on a GPU, and some tokens more.
_LONG = max(_PROMPT_LENGTHS)
# Observed tokens of a next turn.
_OBSERVED = 3


@dataclass(frozen=True)
class LogprobCheck:
    """Result of `check_logprobs`: differences of log-probs between an engine and the policy, and the likely cause.

    Args:
        sampling: sampling of the requests.
        cause: "none" if they agree; otherwise the likely cause.
        message: the cause in a sentence, with a remedy.
        tokens: number of compared tokens.
        cached_tokens: tokens of the requests in the engine's cache; None if unknown.
        mean: mean absolute difference of the log-probabilities.
        largest: the largest one.
        request: the request of this token.
        position: position of this token in its sequence, including the request's tokens.
    """

    sampling: Sampling
    cause: Cause
    message: str
    tokens: int
    cached_tokens: int | None
    mean: float
    largest: float
    request: int
    position: int


def sample_requests(
    vocabulary_size: int,
    sampling: Sampling,
    seed: int = 0,
    *,
    context_tokens: int | None = None,
    excluded: Sequence[int] = (),
) -> list[Request]:
    """Return requests of random tokens of several lengths, each twice with different seeds.

    The longest one fills two blocks of vLLM's prefix cache, which the second turn then reads, as far as two turns fit
    into the context.

    Args:
        vocabulary_size: vocabulary size of the engine.
        sampling: sampling of all requests.
        seed: seed of the random tokens.
        context_tokens: most tokens of a request with its answer; None: there is no limit.
        excluded: tokens that no request has, such as placeholders of images.
    """
    random = np.random.default_rng(seed)
    words = np.setdiff1d(np.arange(vocabulary_size, dtype=np.int32), excluded)
    room = _LONG
    if context_tokens is not None:
        room = max(1, min(room, context_tokens - 2 * sampling.max_tokens - _OBSERVED))
    lengths = sorted({min(length, room) for length in _PROMPT_LENGTHS})
    prompts = [words[random.integers(0, len(words), length)] for length in lengths]
    return [Request(prompt, 2 * index + copy, sampling) for index, prompt in enumerate(prompts) for copy in range(2)]


def check_logprobs(
    engine: Engine,
    model: PreTrainedModel,
    requests: Sequence[Request],
    *,
    version: int | None = None,
    tolerance: float = 1e-3,
) -> LogprobCheck:
    """Compare the log-probabilities of an engine with those of the model, and find the cause of differences.

        d_t = | log p_engine(t) - log p(t) |,   p as in `Sampling`, from the model's logits

    They agree if no d_t is above the tolerance. Otherwise the first of these that explains it is the cause: the engine
    reports another version of the weights; all d_t vanish without temperature, top_k and top_p (mode); or at another
    temperature; the first tokens of sequences agree and later ones do not (position); all d_t are small (precision);
    else its weights are others. Every request is repeated with its segment and a few more tokens, like the next turn of
    a branch, so that caches are compared too. If all requests are short, the second turn of the longest one observes
    more tokens, and a third turn reads whole blocks of a prefix cache.

    Args:
        engine: the engine.
        model: the policy.
        requests: requests with one sampling and a temperature above 0.
        version: version of the model's weights; None: not compared.
        tolerance: tolerance of d_t; 1e-3 suits float32 on both sides.

    Raises:
        InvalidInputError, EngineError: errors of the engine.

    Example:
        >>> from agentrl_core import engine, env, warm_start
        >>> from agentrl_core.engine.logprob_check import check_logprobs, sample_requests
        >>> model, tokenizer = warm_start.build(env.ReasoningGym(["chain_sum"]), seed=0)
        >>> generate = engine.Transformers(model, tokenizer)
        >>> requests = sample_requests(generate.vocabulary_size, engine.Sampling(temperature=0.7, max_tokens=8))
        >>> check_logprobs(generate, model, requests).cause
        'none'
    """
    first = generate_all(engine, requests)
    turns = [_next_turn(request, segment) for request, segment in zip(requests, first, strict=True)]
    longest = max(range(len(requests)), key=lambda index: len(requests[index].tokens))
    observed = _room_for_blocks(engine, model, turns[longest])
    if observed > 0:
        turns[longest] = _next_turn(requests[longest], first[longest], observed + _OBSERVED)
    second = generate_all(engine, turns)
    third = [_next_turn(turns[longest], second[longest])] if observed > 0 else []
    all_requests = [*requests, *turns, *third]
    segments = [*first, *second, *generate_all(engine, third)]
    sampling = requests[0].sampling
    scored = [_ScoredSegment(model, request, segment) for request, segment in zip(all_requests, segments, strict=True)]
    differences = [one.differences(sampling) for one in scored]
    every = np.concatenate(differences)
    index = int(np.argmax([one.max() for one in differences]))
    token = int(differences[index].argmax())
    cause, message = _cause(scored, differences, sampling, version, tolerance)
    cached = [segment.cached_tokens for segment in segments]
    return LogprobCheck(
        sampling=sampling,
        cause=cause,
        message=message,
        tokens=len(every),
        cached_tokens=None if None in cached else sum(count for count in cached if count is not None),
        mean=float(every.mean()),
        largest=float(every.max()),
        request=index,
        position=len(all_requests[index].tokens) + token,
    )


class _ScoredSegment:
    """A segment, and the model's logits at each of its tokens."""

    def __init__(self, model: Any, request: Request, segment: Segment) -> None:
        ids = torch.from_numpy(np.concatenate([request.tokens, segment.tokens]).astype(np.int64))[None]
        ids = ids.to(model.device)
        with torch.inference_mode():
            self.logits: torch.Tensor = model(ids).logits[0, len(request.tokens) - 1 : -1].float()
            self.logits[:, list(placeholder_ids(model))] = -torch.inf
        self.tokens = ids[0, len(request.tokens) :]
        self.segment = segment
        self.begin = len(request.tokens)

    def differences(self, sampling: Sampling) -> NDArray[np.float64]:
        """Return |engine's log-prob - model's| of each token, after this sampling processes the model's logits."""
        logprobs = processed_logprobs(self.logits, sampling).gather(-1, self.tokens[:, None])[:, 0]
        differences: NDArray[np.float64] = np.abs(logprobs.double().cpu().numpy() - self.segment.logprobs)
        return np.minimum(np.nan_to_num(differences, nan=np.inf), 1e9)  # a token that should never have been drawn


def context_tokens(engine: Engine, model: PreTrainedModel) -> int | None:
    """Return how many tokens a request and its response may have together; None if there is no limit."""
    config: Any = model.config.get_text_config()
    limits = (getattr(config, "max_position_embeddings", None), getattr(engine, "context_tokens", None))
    return min((limit for limit in limits if limit), default=None)


def _room_for_blocks(engine: Engine, model: PreTrainedModel, turn: Request) -> int:
    """Return how many more tokens a turn must observe so that the next one reads whole cache blocks; may be 0."""
    limit, missing = context_tokens(engine, model), _LONG - len(turn.tokens)
    if limit is not None:
        missing = min(missing, limit - len(turn.tokens) - 2 * turn.sampling.max_tokens - _OBSERVED)
    return max(missing, 0)


def _next_turn(request: Request, segment: Segment, observed: int = _OBSERVED) -> Request:
    """Return the request of the next turn: request, segment, and some tokens of the request as an observation."""
    tokens = np.concatenate([request.tokens, segment.tokens, np.resize(request.tokens, observed)]).astype(np.int32)
    return Request(tokens, request.seed + (1 << 32), request.sampling, request.group)


def _cause(
    scored: list[_ScoredSegment],
    differences: list[NDArray[np.float64]],
    sampling: Sampling,
    version: int | None,
    tolerance: float,
) -> tuple[Cause, str]:
    versions = sorted({one.segment.policy_version for one in scored})
    if version is not None and versions != [version]:
        return "version", (
            f"the engine samples from weights of version {', '.join(map(str, versions))}, and the model's are of "
            f"version {version}; call engine.update_weights(model, version={version})"
        )
    every = np.concatenate(differences)
    if every.max() <= tolerance:
        return "none", "engine and model agree"
    plain = Sampling(max_tokens=sampling.max_tokens)
    if replace(sampling, temperature=1.0, top_p=1.0, top_k=0) != sampling and _largest(scored, plain) <= tolerance:
        return "mode", (
            "the engine reports log-probabilities before temperature, top_k and top_p; have it report those of the "
            "distribution sampled from (vLLM: logprobs_mode=processed_logprobs)"
        )
    temperature = _fitted(scored, sampling)
    if _largest(scored, replace(sampling, temperature=temperature)) <= tolerance:
        return "temperature", (
            f"the engine samples at temperature {temperature:.4g}, not {sampling.temperature:g}; look at its defaults "
            f"and limits"
        )
    if every.mean() <= _MEAN and every.max() <= _LARGEST:
        return "precision", (
            "differences are small, as of another precision or another kernel; compute the head in float32 on both "
            "sides, or correct for it in the loss"
        )
    if np.mean([one[0] <= tolerance for one in differences]) >= _BEGIN_WELL:
        positions = [
            of.begin + int((one > tolerance).argmax())
            for of, one in zip(scored, differences, strict=True)
            if one.max() > tolerance
        ]
        return "position", (
            f"tokens before position {min(positions)} agree, and later ones differ; look at the limit of the context, "
            f"sliding windows, the scaling of positions, and the cache of prefixes"
        )
    starts = sum(one[0] > tolerance for one in differences)
    return "weights", (
        f"{starts} of {len(differences)} sequences differ at the first sampled token, at any temperature; the weights "
        f"of the engine are not the model's, although the engine reports version {', '.join(map(str, versions))}: call "
        "engine.update_weights"
    )


def _largest(scored: list[_ScoredSegment], sampling: Sampling) -> float:
    return max(float(segment.differences(sampling).max()) for segment in scored)


def _fitted(scored: list[_ScoredSegment], sampling: Sampling) -> float:
    """Return the temperature at which the engine's numbers are closest to the model's."""

    def distance(temperature: float) -> float:
        return float(
            np.concatenate([one.differences(replace(sampling, temperature=temperature)) for one in scored]).mean()
        )

    best = int(np.argmin([distance(float(temperature)) for temperature in _TEMPERATURES]))
    low, high = max(best - 1, 0), min(best + 1, len(_TEMPERATURES) - 1)
    left, right = float(_TEMPERATURES[low]), float(_TEMPERATURES[high])
    for _ in range(60):  # ternary search between the neighbours
        one, two = left + (right - left) / 3, right - (right - left) / 3
        left, right = (left, two) if distance(one) < distance(two) else (one, right)
    return (left + right) / 2
