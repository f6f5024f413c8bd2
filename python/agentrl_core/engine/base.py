"""Interface of engines: token ids in, token ids out."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core._util.wrong_values import first_wrong, is_number, shown
from agentrl_core.engine.entropy_temperature import EntropyTemperature
from agentrl_core.env.image import Image
from agentrl_core.exceptions import DataError, InvalidInputError, UnsupportedError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from agentrl_core.engine.chat import Chat


@dataclass(frozen=True)
class Sampling:
    """Sampling of a segment's tokens from the model's logits `z` over a vocabulary of V tokens.

        x = z / temperature;  top_k: keep the k largest;  top_p: keep the smallest set of most likely tokens whose
        probabilities sum to at least top_p;  p = softmax(x over kept tokens)

    Tokens that tie with the smallest kept one by `top_k` are kept too. Log-probabilities and entropies that an engine
    reports are those of `p`, the actual sampling distribution.

    Args:
        temperature: above 0; or 0 for the most likely token, reported with log-probability 0 and entropy 0.
        top_p: in (0, 1]; 1 keeps all.
        top_k: 0 keeps all.
        max_tokens: most tokens of a segment, including the stop token.
        stop_token_ids: a segment ends with the first of these tokens, which is part of it.
        top: number of most likely tokens to report at each place (`Segment.top`), at most V.
        by_entropy: changes the temperature for each token; see `EntropyTemperature`.

    Raises:
        InvalidInputError: a number is out of range, or `by_entropy` is not an `EntropyTemperature`.

    Example:
        >>> from dataclasses import replace
        >>> from agentrl_core.engine import Sampling
        >>> sampling = Sampling(temperature=0.7, max_tokens=256)
        >>> replace(sampling, temperature=0.0, top=3)
        Sampling(temperature=0.0, top_p=1.0, top_k=0, max_tokens=256, stop_token_ids=(), top=3, by_entropy=None)
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 64
    stop_token_ids: tuple[int, ...] = ()
    top: int = 0
    by_entropy: EntropyTemperature | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise InvalidInputError(f"Sampling: temperature is {self.temperature}; give 0 or a finite positive number")
        if not 0.0 < self.top_p <= 1.0:
            raise InvalidInputError(f"Sampling: top_p is {self.top_p}; give a number above 0 and at most 1")
        if self.top_k < 0:
            raise InvalidInputError(f"Sampling: top_k is {self.top_k}; give 0 (all tokens) or a positive integer")
        if self.max_tokens < 1:
            raise InvalidInputError(f"Sampling: max_tokens is {self.max_tokens}; give at least 1")
        if self.top < 0:
            raise InvalidInputError(f"Sampling: top is {self.top}; give 0 (none) or a positive integer")
        rule: object = self.by_entropy
        if rule is not None and not isinstance(rule, EntropyTemperature):
            raise InvalidInputError(f"Sampling: by_entropy is {rule!r:.80}; give an engine.EntropyTemperature, or None")
        # Lists are converted, since samplings are compared and hashed.
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))


@dataclass(frozen=True, eq=False)
class Request:
    """One segment to generate: the continuation of `tokens` (int32 [n], n >= 1), sampled with `sampling`.

    `seed` (0 to 2^63 - 1) alone determines the random numbers of the segment: hash it per segment (`structural_seed`),
    since two requests with one seed draw the same numbers. `images` are the images of the tokens' placeholders, in
    order; only engines with `takes_images = True` get any. Requests are compared by identity, which `Engine.abort`
    uses.

    Requests of one `group` share long prefixes: an engine with several servers sends them all to one, to use its prefix
    cache. It does not change the sampled tokens; "" means no group.

    Raises:
        InvalidInputError: `tokens` is not an integer array or is empty, the seed is out of range, `sampling` is not a
            `Sampling`, or an image is not an `env.Image`.

    Example:
        >>> import numpy as np
        >>> from agentrl_core.engine import Request, Sampling
        >>> Request(np.array([5, 7, 9], np.int32), seed=1, sampling=Sampling(max_tokens=32)).sampling.max_tokens
        32
    """

    tokens: NDArray[np.int32]
    seed: int
    sampling: Sampling
    group: str = ""
    images: tuple[Image, ...] = ()

    def __post_init__(self) -> None:
        tokens: object = self.tokens
        if not isinstance(tokens, np.ndarray):
            raise InvalidInputError(
                f"Request: tokens is a {type(tokens).__name__}; give a NumPy array of int32 token ids"
            )
        if self.tokens.ndim != 1 or self.tokens.size == 0 or self.tokens.dtype.kind not in "iu":
            raise InvalidInputError(
                f"Request: tokens is an array of shape {self.tokens.shape} and type {self.tokens.dtype}; "
                f"give at least one token as a one-dimensional integer array"
            )
        seed: object = self.seed
        if not isinstance(seed, (int, Integral)) or not 0 <= int(seed) < 1 << 63:
            raise InvalidInputError(f"Request: seed is {seed!r}; give an integer from 0 to 2^63 - 1")
        sampling: object = self.sampling
        if not isinstance(sampling, Sampling):
            raise InvalidInputError(f"Request: sampling is {sampling!r:.80}; give an engine.Sampling")
        for image in self.images:
            if not isinstance(image, Image):
                raise InvalidInputError(f"Request: images holds {image!r:.60}; give a tuple of env.Image")


@dataclass(frozen=True, eq=False)
class TopLogprobs:
    """The c most likely tokens at each of the n places of a segment, the likeliest first.

    `tokens` int32 [n, c]; `logprobs` float32 [n, c] in the distribution sampled from, -inf if top_k or top_p kept fewer
    than c. At temperature 0 they are those of softmax(z).
    """

    tokens: NDArray[np.int32]
    logprobs: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Segment:
    """Tokens generated for one request: n >= 1 tokens, including the stop token; an aborted one may have none.

    Args:
        tokens: int32 [n].
        logprobs: float32 [n]: log p of each token as sampled (see `Sampling`).
        entropies: float32 [n]: -sum p log p in nats at each token, or the entropy that determined its temperature
            (`Sampling.by_entropy`); None if unknown.
        finish_reason: "stop" (after a stop token), "length" (`max_tokens` were generated) or "abort" (ended early by
            `Engine.abort`, new weights or the closing of the engine, with the tokens so far).
        policy_version: version of the weights that sampled all tokens.
        seed: seed of the request.
        top: the most likely tokens at each place, if `Sampling.top` requests them.
        cached_tokens: number of the request's tokens with keys and values from a cache; None if unknown.
        routed_experts: uint8 or uint16 [rows, layers * k]: the k experts that the router of each layer chose for a
            token. The last row is that of the second-last token, since the model has not read the last one; earlier
            rows are those of earlier tokens, including the request's, as far as they are known. None: not reported.

    Raises:
        DataError: log-probabilities are missing, or a list does not have one number for each token; there are no tokens
            without an abort; routed experts have another shape or dtype.
    """

    tokens: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    entropies: NDArray[np.float32] | None
    finish_reason: Literal["stop", "length", "abort"]
    policy_version: int
    seed: int
    top: TopLogprobs | None = None
    cached_tokens: int | None = None
    routed_experts: NDArray[np.uint8] | NDArray[np.uint16] | None = None

    def __post_init__(self) -> None:
        if self.logprobs is None:
            raise DataError("Segment: logprobs is None; give the log-probability of every token that was sampled")
        count = len(self.tokens)
        for name, numbers in (("logprobs", self.logprobs), ("entropies", self.entropies)):
            if numbers is not None and len(numbers) != count:
                raise DataError(f"Segment: there are {len(numbers)} {name} of {count} tokens; give one for each")
        experts = self.routed_experts
        if experts is not None and (experts.ndim != 2 or experts.dtype not in (np.uint8, np.uint16)):
            raise DataError(
                f"Segment: routed_experts is of shape {experts.shape} and dtype {experts.dtype}; give uint8 or uint16 "
                "of shape [tokens, layers * experts per token]"
            )
        if self.finish_reason not in ("stop", "length", "abort"):
            raise DataError(f"Segment: finish_reason is {self.finish_reason!r}; give 'stop', 'length' or 'abort'")
        if not count and self.finish_reason != "abort":
            raise DataError(
                f"Segment: tokens is empty, but finish_reason is {self.finish_reason!r}; give at least one token, or "
                "finish_reason='abort'"
            )


class Engine(Protocol):
    """Interface of engines. Requests may come from several event loops and threads at once.

    An engine may have two more attributes: `takes_images` (see `Request`), and `precision`, the bits per weight in
    sampling, an integer or None (`rollout.RecordPrecision` records it).

    Example:
        >>> import numpy as np
        >>> from agentrl_core import engine, env, warm_start
        >>> model, tokenizer = warm_start.build(env.ReasoningGym(["chain_sum"]), seed=0)
        >>> generate: engine.Engine = engine.Transformers(model, tokenizer)
        >>> async def first_and_second(prompt):
        ...     sampling = engine.Sampling(max_tokens=4)
        ...     first = await generate.generate(engine.Request(prompt, seed=1, sampling=sampling))
        ...     longer = np.append(prompt, first.tokens)
        ...     return first, await generate.generate(engine.Request(longer, seed=2, sampling=sampling))
        >>> import asyncio
        >>> first, second = asyncio.run(first_and_second(generate.chat.prompt("2 + 2 =")))
        >>> first.finish_reason, len(second.tokens)
        ('length', 4)
    """

    @property
    def chat(self) -> Chat:
        """The chat, which converts text and messages to tokens of this model and back."""
        ...

    @property
    def policy_version(self) -> int:
        """The version of the weights that the next segments are sampled from."""
        ...

    @property
    def vocabulary_size(self) -> int:
        """V, the width of the model's logits."""
        ...

    @property
    def entropy_estimator(self) -> str:
        """The estimator of `Segment.entropies`: "exact", "top_10" or "none"."""
        ...

    @property
    def shares_parameters(self) -> bool:
        """True if the engine samples from the tensors that the optimizer updates; it must not generate meanwhile.

        A collector that generates while the trainer steps refuses such an engine.
        """
        ...

    async def generate(self, request: Request) -> Segment:
        """Generate the segment of one request. Cancelling the caller drops the segment.

        Raises:
            InvalidInputError: the value is not a request, or has a token outside the vocabulary; the engine is closed.
            EngineError: the engine failed to generate; it can be used again.
        """
        ...

    def abort(self, request: Request) -> None:
        """End a running request: its `generate` soon returns the tokens so far.

        A request that is not running is ignored, since it may have ended meanwhile.
        """
        ...

    def update_weights(self, model: nn.Module | Mapping[str, Tensor], version: int) -> None:
        """Sample from `model`'s weights from now on and stamp segments with `version`.

        `model` is a bare or wrapped model, or a state dict. Running segments end as aborted, with their tokens so far
        and the old version.
        """
        ...

    def close(self) -> None:
        """Release the engine's resources; running segments end as aborted. A second call does nothing."""
        ...


def complete(engine: Engine, requests: Sequence[Request]) -> list[Segment]:
    """Generate one segment per request, in order, and wait for all: for scripts and notebooks.

    A segment ends at the end of the turn, one of `engine.chat.stop_token_ids`, or at a stop token of its sampling.
    `engine.generate` only stops at the latter, and only its requests can be aborted.

    It also works while an event loop is running, as in Jupyter, but blocks it: asynchronous programs should await
    `engine.generate` instead. If one request fails, the others are cancelled.

    Raises:
        InvalidInputError, EngineError: errors of `engine.generate`.

    Example:
        >>> from agentrl_core import engine, env, warm_start
        >>> model, tokenizer = warm_start.build(env.ReasoningGym(["chain_sum"]), seed=0)
        >>> generate = engine.Transformers(model, tokenizer)
        >>> prompt, sampling = generate.chat.prompt("2 + 2 ="), engine.Sampling(max_tokens=4)
        >>> requests = [engine.Request(prompt, seed, sampling) for seed in range(3)]
        >>> [len(segment.tokens) for segment in engine.complete(generate, requests)]
        [4, 4, 4]
    """
    ends = tuple(engine.chat.stop_token_ids) if requests else ()
    ending = []
    for request in requests:
        if isinstance(request, Request):  # the engine refuses others
            stops = tuple(dict.fromkeys((*request.sampling.stop_token_ids, *ends)))
            ending.append(replace(request, sampling=replace(request.sampling, stop_token_ids=stops)))
        else:
            ending.append(request)
    return generate_all(engine, ending)


def generate_all(engine: Engine, requests: Sequence[Request]) -> list[Segment]:
    """Generate one segment per request with unchanged sampling; `complete` adds the chat's stop tokens."""

    async def all_of_them() -> list[Segment]:
        return await asyncio.gather(*map(engine.generate, requests))

    if not requests:
        return []
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(all_of_them())
    # A running loop cannot be entered again, so another loop runs in a separate thread.
    segments: list[Segment] = []
    failures: list[BaseException] = []

    def apart() -> None:
        try:
            segments.extend(asyncio.run(all_of_them()))
        except BaseException as error:  # noqa: BLE001 -- raised in the caller's thread
            failures.append(error)

    thread = threading.Thread(target=apart, name="agentrl complete", daemon=True)
    thread.start()
    try:
        thread.join()
    except BaseException:  # Ctrl-C
        for request in requests:
            engine.abort(request)
        raise
    if failures:
        raise failures[0]
    return segments


def aborted(request: Request, version: int) -> Segment:
    """Return the empty segment of a request that ended before its first token."""
    nothing, top = np.empty(0, np.float32), (0, request.sampling.top)
    likeliest = TopLogprobs(np.empty(top, np.int32), np.empty(top, np.float32)) if request.sampling.top else None
    return Segment(np.empty(0, np.int32), nothing, nothing, "abort", version, request.seed, likeliest)


def check_version(version: object) -> None:
    """Refuse a value that is not a version number of weights: an integer from 0 to 2^63 - 1.

    Raises:
        InvalidInputError: the version is not an integer of at least 0.
    """
    if isinstance(version, bool) or not isinstance(version, Integral) or not 0 <= int(version) < 1 << 63:
        raise InvalidInputError(f"update_weights: version is {version!r}; give a whole number from 0 to 2^63 - 1")


def check_request(request: object, vocabulary_size: int, *, takes_images: bool = False) -> None:
    """Refuse a value that is not a request, unsupported images, and token ids outside the vocabulary.

    Raises:
        InvalidInputError: the value is not a request.
        DataError: a token id is outside the vocabulary.
        UnsupportedError: the request has images, which the engine does not support.
    """
    if not isinstance(request, Request):
        raise InvalidInputError(
            f"generate: the request is a {type(request).__name__}; give an engine.Request(tokens, seed, sampling)"
        )
    smallest, largest = int(request.tokens.min()), int(request.tokens.max())
    if smallest < 0 or largest >= vocabulary_size:
        wrong = smallest if smallest < 0 else largest
        raise DataError(
            f"generate: the request holds token {wrong}, outside the vocabulary of {vocabulary_size} tokens; "
            f"render the request with this engine's chat"
        )
    if request.images and not takes_images:
        raise UnsupportedError(
            "generate: the request has images, and this engine takes none; use an engine with takes_images = True, "
            "such as engine.Transformers with a model that takes images and its processor"
        )


def checked_segment(segment: object, request: Request, vocabulary_size: int) -> Segment:
    """Return an engine's response, checked, with its arrays in the stored types: `int32` and `float32`.

    Args:
        segment: the value that the engine returned.
        request: the request.
        vocabulary_size: vocabulary size of the engine's model.

    Raises:
        DataError: the value is not a segment, or has a value that cannot be stored; the message names it.
    """
    if not isinstance(segment, Segment):
        raise DataError(f"generate: the engine returned {segment!r:.60}; return an engine.Segment")
    tokens = _array("tokens", segment.tokens, "iu")
    if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocabulary_size:
        wrong = int(tokens.min()) if tokens.min() < 0 else int(tokens.max())
        raise DataError(
            f"Segment: tokens has {wrong}, outside the vocabulary of {vocabulary_size} tokens; return the ids that the "
            "model sampled"
        )
    logprobs = _array("logprobs", segment.logprobs, "f")
    entropies = None if segment.entropies is None else _array("entropies", segment.entropies, "f")
    whole_numbers = {
        "policy_version": segment.policy_version,
        "seed": segment.seed,
        "cached_tokens": segment.cached_tokens,
    }
    for name, value in whole_numbers.items():
        largest = len(request.tokens) if name == "cached_tokens" else (1 << 63) - 1
        if value is None and name == "cached_tokens":
            continue
        if isinstance(value, bool) or not isinstance(value, Integral) or not 0 <= int(value) <= largest:
            limit = ", the length of the request's tokens" if name == "cached_tokens" else ""
            raise DataError(f"Segment: {name} is {value!r}; give a whole number from 0 to {largest}{limit}")
    if len(tokens):
        try:
            _core.Forest.check_action(tokens, logprobs=logprobs, entropies=entropies)
        except InvalidInputError as error:
            raise DataError(f"Segment: {error}") from None
    return replace(
        segment,
        tokens=tokens,
        logprobs=logprobs,
        entropies=entropies,
        policy_version=int(segment.policy_version),
        seed=int(segment.seed),
        cached_tokens=None if segment.cached_tokens is None else int(segment.cached_tokens),
        top=None if segment.top is None else _checked_top(segment.top, len(tokens), vocabulary_size),
    )


def _checked_top(top: object, count: int, vocabulary_size: int) -> TopLogprobs:
    if not isinstance(top, TopLogprobs):
        raise DataError(f"Segment: top is {top!r:.60}; give an engine.base.TopLogprobs, or None")
    tokens = _array("top.tokens", top.tokens, "iu", dimensions=2)
    logprobs = _array("top.logprobs", top.logprobs, "f", dimensions=2)
    if tokens.shape != logprobs.shape or len(tokens) != count:
        raise DataError(
            f"Segment: top has tokens of shape {tokens.shape} and log-probs of shape {logprobs.shape} for {count} "
            "tokens; give both the same shape, with a row for each token"
        )
    if tokens.size and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocabulary_size:
        wrong = int(tokens.min()) if tokens.min() < 0 else int(tokens.max())
        raise DataError(
            f"Segment: top.tokens holds {wrong}, outside the vocabulary of {vocabulary_size} tokens; return ids from 0 "
            f"to {vocabulary_size - 1}"
        )
    if np.isnan(logprobs).any() or (logprobs == np.inf).any():
        row, column = map(int, np.argwhere(np.isnan(logprobs) | (logprobs == np.inf))[0])
        raise DataError(
            f"Segment: top.logprobs[{row}, {column}] is {logprobs[row, column]}; give log-probs, and -inf for tokens "
            "that cannot be sampled"
        )
    return TopLogprobs(tokens, logprobs)


def _array(name: str, values: object, kinds: str, dimensions: int = 1) -> NDArray[Any]:
    """Return values as an array of `int32` or `float32`, after checking their kind and range."""
    try:
        array = np.asarray(values)
    except (TypeError, ValueError):
        array = None
    if array is None or array.ndim != dimensions or (array.dtype.kind not in kinds and array.size):
        value_text = f"{' '.join(shown(values, 200).split()):.60} ({type(values).__name__})"
        if array is not None and array.ndim == dimensions == 1 and array.dtype.kind == "O":
            place = first_wrong(array, lambda value: is_number(value, "iu" if kinds == "iu" else "iuf"))
            if place is not None:
                name, value_text = (
                    f"{name}[{place}]",
                    shown(array[place]) + ", beyond 64 bits" * (type(array[place]) is int),
                )
        elif array is not None and array.ndim:
            value_text = f"of shape {array.shape} and dtype {array.dtype}"
        raise DataError(
            f"Segment: {name} is {value_text}; give an array of "
            f"{'whole numbers' if kinds == 'iu' else 'floats'} with {dimensions} dimension{'s' * (dimensions > 1)}"
        )
    if kinds == "iu":
        if array.size and not -(1 << 31) <= int(array.min()) <= int(array.max()) < 1 << 31:
            largest = max(int(array.max()), int(array.min()), key=abs)
            raise DataError(f"Segment: {name} holds {largest}, which does not fit 32 bits; return token ids")
        return array.astype(np.int32, copy=False)
    with np.errstate(over="ignore"):  # numbers that are too large become infinite, and are refused
        return array.astype(np.float32, copy=False)
