"""Requests that a PyTorch model generates for together, one token each a step."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DynamicCache

from agentrl_core.engine.attention_windows import Windows
from agentrl_core.engine.base import Request, Sampling, Segment, TopLogprobs
from agentrl_core.engine.engine_images import EngineImages
from agentrl_core.engine.kv_cache import KVCache, cache_argument
from agentrl_core.engine.prefix_cache import Layers, PrefixCache
from agentrl_core.engine.shared_prefixes import shared_prefixes
from agentrl_core.engine.token_sampling import SampledTokens, sample_tokens
from agentrl_core.model.matmul import fast_linear_layers
from agentrl_core.model.routers import RouteTrace

# Padded prompt tokens of one forward pass before the first draw: bounds its memory, and its padding, since the prompts
# of a part have like lengths.
_PREFILL_TOKENS = 2048
# Initial capacity in tokens, doubled when a row needs more.
_FIRST_ROOM = 64
# What is known of a row: `drawn` of at most `limit` tokens; rows of one `kind` are drawn alike; `cached` of its prompt.
# Its images move the positions of drawn tokens by `shift`.
_ROW = np.dtype(
    [
        (name, "u8" if name == "seed" else "i8")
        for name in ("number", "seed", "limit", "drawn", "kind", "cached", "shift")
    ]
)
# Sampled results of a step.
_STEP = np.dtype([("token", "i4"), ("logprob", "f4"), ("entropy", "f4")])


class RunningBatch:
    """Rows of one batch: requests, their places in the cache, and their sampled tokens.

    Token i of a segment is drawn with `uniform(seed, i)`, independent of other rows.

    Args:
        model: a causal model of Hugging Face.
        requests: by number. Identical prompts, and what different ones begin with, are computed once.
        windows: of the model's layers.
        kept: prefix cache to read and fill; None: each row is computed from the start.
        images: features of the requests' images; None: they have none.
        never: tokens that are never drawn.
        routes: traces the experts of each token, for `Segment.routed_experts`; None: they are not reported. They are
            one more layer of the cache, so that they follow the keys and values of their tokens.
    """

    def __init__(
        self,
        model: Any,
        requests: Mapping[int, Request],
        windows: Windows,
        kept: PrefixCache | None = None,
        images: EngineImages | None = None,
        never: Sequence[int] = (),
        routes: RouteTrace | None = None,
    ) -> None:
        self._model = model
        self._images = images
        self._pictures = {image.sha256: image for request in requests.values() for image in request.images}
        self._never = list(never)
        self._windows = windows
        self._kept = kept
        self._routes = routes
        self._requests = list(requests.values())
        samplings = [_without_limit(request.sampling) for request in self._requests]
        self._samplings = {id(sampling): sampling for sampling in samplings}
        self._rows = np.zeros(len(requests), _ROW)
        self._rows["number"] = list(requests)
        self._rows["seed"] = [request.seed for request in self._requests]
        self._rows["limit"] = [request.sampling.max_tokens for request in self._requests]
        self._rows["kind"] = [id(sampling) for sampling in samplings]
        self._steps = np.empty((len(requests), min(int(self._rows["limit"].max()), _FIRST_ROOM)), _STEP)
        self._top: list[list[tuple[NDArray[np.int32], NDArray[np.float32]]]] = [[] for _ in requests]
        """For each row the most likely tokens of each step, if requested."""

        self._prompts = [request.tokens if images is None else images.coded(request) for request in self._requests]
        """Tokens of each row's request, with codes of its images."""
        prompts, prompt_of_row = _distinct(self._prompts)
        shift = np.zeros(len(prompts), np.int64) if images is None else images.shifts(prompts)
        self._rows["shift"] = shift[prompt_of_row]
        # The last token of each prompt is the first one fed: the head runs only for sampled positions.
        computed, known = self._prefill([prompt[:-1] for prompt in prompts])
        # All but the first of identical prompts have it from that one.
        self._rows["cached"] = computed.lengths[prompt_of_row]
        self._rows["cached"][np.unique(prompt_of_row, return_index=True)[1]] = known
        token = torch.tensor([int(prompt[-1]) for prompt in prompts], device=model.device)
        logits = self._next_logits(token, computed, shift)
        self._cache = self._cache_of(np.empty(0, np.int64))
        self._cache.join(computed, prompt_of_row)
        self._token = token
        self._first_logits: torch.Tensor | None = logits[torch.from_numpy(prompt_of_row).to(model.device)]

    def __len__(self) -> int:
        return len(self._rows)

    def run(self, version: int, goes_on: Callable[[], bool]) -> dict[int, Segment]:
        """Take steps while none ends a row and `goes_on()`; return the segments of rows that ended, by number."""
        ended = self.step(version)
        while not ended and goes_on():
            ended = self.step(version)
        return ended

    def step(self, version: int) -> dict[int, Segment]:
        """Sample one token for every row; return the segments of those that ended, by number."""
        logits = self._first_logits
        if logits is None:
            logits = self._next_logits(self._token, self._cache, self._rows["shift"])
        self._first_logits = None
        if self._never:
            logits[:, self._never] = -torch.inf
        ended = self._rows["drawn"] + 1 == self._rows["limit"]
        if int(self._rows["drawn"].max()) == self._steps.shape[1]:
            self._steps = _grown(self._steps, len(self), 2 * self._steps.shape[1])
        uniform = torch.from_numpy(self._uniform()).to(logits.device)
        self._token = torch.empty(len(self), dtype=torch.int64, device=logits.device)
        kinds = np.unique(self._rows["kind"]).tolist()
        for kind in kinds:
            sampling, rows = self._samplings[kind], np.flatnonzero(self._rows["kind"] == kind)
            if len(kinds) == 1:
                drawn = sample_tokens(logits, uniform, sampling)
                self._token = drawn.token
            else:
                place = torch.from_numpy(rows).to(logits.device)
                drawn = sample_tokens(logits[place], uniform[place], sampling)
                self._token[place] = drawn.token
            tokens = self._write(rows, drawn)
            if sampling.stop_token_ids:
                ended[rows] |= (tokens[:, None] == sampling.stop_token_ids).any(axis=1)
        self._rows["drawn"] += 1
        return self._leave(ended, version, aborted=False) if ended.any() else {}

    def end(self, numbers: Sequence[int], version: int) -> dict[int, Segment]:
        """End those of some requests that are here; return their segments, by number."""
        leaving = np.isin(self._rows["number"], numbers)
        return self._leave(leaving, version, aborted=True) if leaving.any() else {}

    def join(self, other: RunningBatch) -> None:
        """Append the rows of another batch, which have their first token."""
        before = len(self)
        self._cache.join(other._cache, np.arange(len(other)))
        self._rows = np.concatenate([self._rows, other._rows])
        self._steps = _grown(self._steps, len(self), max(self._steps.shape[1], other._steps.shape[1]))
        self._steps[before : len(self), : other._steps.shape[1]] = other._steps[: len(other)]
        self._token = torch.cat([self._token, other._token])
        self._requests += other._requests
        self._prompts += other._prompts
        self._samplings |= other._samplings
        self._top += other._top

    def _uniform(self) -> NDArray[np.float64]:
        """Return the number with which each row draws now."""
        from agentrl_core._core.rng import uniform

        numbers = np.empty(len(self))
        for count in np.unique(self._rows["drawn"]).tolist():  # rows that came together are equally far
            rows = self._rows["drawn"] == count
            numbers[rows] = uniform(self._rows["seed"][rows], count)
        return numbers

    def _write(self, rows: NDArray[np.int64], drawn: SampledTokens) -> NDArray[np.int64]:
        """Keep what was drawn for some rows; return the tokens."""
        place = (rows, self._rows["drawn"][rows])
        tokens: NDArray[np.int64] = drawn.token.cpu().numpy()
        self._steps["token"][place] = tokens
        self._steps["logprob"][place] = drawn.logprob.float().cpu().numpy()
        self._steps["entropy"][place] = drawn.entropy.float().cpu().numpy()
        if drawn.top is not None:
            ids, logprobs = drawn.top[0].int().cpu().numpy(), drawn.top[1].float().cpu().numpy()
            for index, row in enumerate(rows.tolist()):
                self._top[row].append((ids[index], logprobs[index]))
        return tokens

    def _leave(self, leaving: NDArray[np.bool_], version: int, *, aborted: bool) -> dict[int, Segment]:
        segments = {
            int(self._rows["number"][row]): self._segment(row, version, aborted=aborted)
            for row in np.flatnonzero(leaving).tolist()
        }
        if self._kept is not None:
            for row in np.flatnonzero(leaving).tolist():
                drawn = self._steps["token"][row, : int(self._rows["drawn"][row])]
                # The last token was drawn and not fed.
                tokens = np.concatenate([self._prompts[row], drawn])[:-1].astype(np.int32, copy=False)
                self._kept.keep(tokens, self._cache.row(row))
        order = self._cache.keep(~leaving)
        moved = np.flatnonzero(order != np.arange(len(order)))
        self._steps[moved] = self._steps[order[moved]]
        self._rows = self._rows[order]
        self._token = self._token[torch.from_numpy(order).to(self._token.device)]
        self._requests = [self._requests[row] for row in order]
        self._prompts = [self._prompts[row] for row in order]
        self._top = [self._top[row] for row in order]
        return segments

    def _segment(self, row: int, version: int, *, aborted: bool) -> Segment:
        request, top = self._requests[row], self._top[row]
        steps = self._steps[row, : int(self._rows["drawn"][row])]
        stopped = int(steps["token"][-1]) in request.sampling.stop_token_ids
        reason: Literal["stop", "length", "abort"] = "abort" if aborted else "stop" if stopped else "length"
        return Segment(
            tokens=steps["token"].copy(),
            logprobs=steps["logprob"].copy(),
            entropies=steps["entropy"].copy(),
            finish_reason=reason,
            policy_version=version,
            seed=request.seed,
            top=TopLogprobs(np.stack([ids for ids, _ in top]), np.stack([numbers for _, numbers in top]))
            if top
            else None,
            cached_tokens=int(self._rows["cached"][row]),
            routed_experts=None if self._routes is None else self._experts(row),
        )

    def _experts(self, row: int) -> NDArray[np.uint8] | NDArray[np.uint16]:
        """Return the experts of the tokens of a row that were fed: of all but the last."""
        experts = self._cache.keys_of(-1, row)[0].cpu().numpy().copy()
        return experts if experts.dtype == np.uint8 else experts.view(np.uint16)

    def _next_logits(self, token: torch.Tensor, cache: KVCache, shift: NDArray[np.int64]) -> torch.Tensor:
        """Return logits [B, V] after one more token per row."""
        logits: torch.Tensor = cache.forward(self._model, token[:, None], shift=shift).logits
        return logits[:, -1]

    def _prefill(self, prompts: list[NDArray[np.int32]]) -> tuple[KVCache, NDArray[np.int64]]:
        """Return keys and values of each prompt, and the number of its tokens that were not computed for it.

        What prompts share is computed once, for the first one that has it.
        """
        shared = PrefixCache(most_bytes=sys.maxsize)
        computed = np.zeros(len(prompts), np.int64)
        for level in shared_prefixes(prompts):
            beginnings = [prompts[prefix.prompt][: prefix.length] for prefix in level]
            found = [self._known(tokens, shared) for tokens in beginnings]
            for rows, layers in self._computed(beginnings, found):
                pairs = list(layers)
                for place, row in enumerate(rows.tolist()):
                    tokens = beginnings[row]
                    count = len(tokens)
                    own = [(k[place, :, :count].clone(), v[place, :, :count].clone()) for k, v in pairs]
                    shared.keep(tokens, own)
                    if self._kept is not None:
                        self._kept.keep(tokens, own)
                    computed[level[row].prompt] += count - found[row][1]
        found = [self._known(prompt, shared) for prompt in prompts]
        cache = self._cache_of(np.array([len(prompt) for prompt in prompts]))
        for rows, layers in self._computed(prompts, found):
            cache.fill(rows, layers)
        return cache, np.array([count for _, count in found], np.int64) - computed

    def _cache_of(self, lengths: NDArray[np.int64]) -> KVCache:
        return KVCache(lengths, self._model, self._windows, self._routes)

    def _known(self, tokens: NDArray[np.int32], shared: PrefixCache) -> tuple[Layers, int]:
        """Return keys and values of the longest beginning that is cached or shared, and its number of tokens."""
        found = shared.find(tokens)
        kept = ([], 0) if self._kept is None else self._kept.find(tokens)
        return max(found, kept, key=lambda each: each[1])

    def _computed(
        self, prompts: list[NDArray[np.int32]], found: list[tuple[Layers, int]]
    ) -> Iterator[tuple[NDArray[np.int64], Iterable[tuple[torch.Tensor, torch.Tensor]]]]:
        """Yield rows and their keys and values, computed from those of their beginnings.

        Padding is on the right, which causal models ignore.
        """
        known = np.array([count for _, count in found], np.int64)
        missing = np.array([len(prompt) for prompt in prompts], np.int64) - known
        order = np.argsort(missing, kind="stable")
        for row in order[missing[order] == 0].tolist():
            yield np.array([row]), [(keys[None], values[None]) for keys, values in found[row][0]]
        for rows in (
            order[(missing[order] > 0) & (known[order] == 0)],
            order[(missing[order] > 0) & (known[order] > 0)],
        ):
            for chunk in _chunks(rows, missing):
                ids = np.zeros((len(chunk), missing[chunk[-1]]), dtype=np.int64)
                for row, prompt in enumerate(chunk):
                    ids[row, : missing[prompt]] = prompts[prompt][known[prompt] :]
                ids_there = torch.from_numpy(ids).to(self._model.device)
                shown, shift = self._shown([prompts[row] for row in chunk], known[chunk], ids_there)
                if known[chunk[0]]:
                    layers_known = [found[row][0] for row in chunk]
                    yield chunk, self._continued(ids_there, layers_known, missing[chunk], shown, shift)
                else:
                    yield chunk, self._begun(ids_there, shown)

    def _begun(self, ids: torch.Tensor, shown: dict[str, Any]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the keys and values of rows of which nothing is known."""
        computed = DynamicCache()
        traced: AbstractContextManager[list[torch.Tensor]] = nullcontext([])
        if self._routes is not None:
            traced = self._routes.forward()
        with traced as found, fast_linear_layers(self._model, ids.numel()):
            self._model.base_model(ids, use_cache=True, **{cache_argument(self._model): computed}, **shown)
        layers: list[Any] = computed.layers
        pairs = [(layer.keys, layer.values) for layer in layers]
        return pairs if self._routes is None else [*pairs, self._routes.layer(found, len(ids))]

    def _shown(
        self, prompts: list[NDArray[np.int32]], known: NDArray[np.int64], ids: torch.Tensor
    ) -> tuple[dict[str, Any], NDArray[np.int64]]:
        """Return the model's arguments for images after known beginnings, and how far those in them move positions."""
        if self._images is None:
            return {}, np.zeros(len(prompts), np.int64)
        shift = self._images.shifts(prompt[:count] for prompt, count in zip(prompts, known, strict=True))
        parts = [prompt[count:] for prompt, count in zip(prompts, known, strict=True)]
        return self._images.arguments(parts, ids, known + shift, self._pictures), shift

    def _continued(
        self,
        ids: torch.Tensor,
        known: list[Layers],
        missing: NDArray[np.int64],
        shown: dict[str, Any],
        shift: NDArray[np.int64],
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the keys and values of rows whose beginnings are known."""
        lengths = np.array([layers[0][0].shape[1] for layers in known], np.int64)
        cache = self._cache_of(lengths)
        for row, layers in enumerate(known):
            cache.fill(np.array([row]), [(keys[None], values[None]) for keys, values in layers])
        blocks = self._images.blocks(ids) if self._images is not None and shown else None
        cache.forward(self._model.base_model, ids, counts=missing, shift=shift, blocks=blocks, **shown)
        return cache.pairs()


@lru_cache(maxsize=1024)
def _without_limit(sampling: Sampling) -> Sampling:
    """Return the sampling parameters that rows of a batch share; the same object for equal ones."""
    return replace(sampling, max_tokens=1)


def _grown(steps: NDArray[Any], rows: int, room: int) -> NDArray[Any]:
    """Return the steps with room for `rows` rows and `room` tokens of each."""
    if rows <= len(steps) and room == steps.shape[1]:
        return steps
    more = len(steps) if rows <= len(steps) else max(rows, len(steps) * 3 // 2)
    grown = np.empty((more, room), steps.dtype)
    grown[: len(steps), : steps.shape[1]] = steps
    return grown


def _distinct(prompts: list[NDArray[np.int32]]) -> tuple[list[NDArray[np.int32]], NDArray[np.int64]]:
    """Return the different prompts, and for each row the index of its own."""
    index: dict[bytes, int] = {}
    distinct: list[NDArray[np.int32]] = []
    of_row: list[int] = []
    for prompt in prompts:
        key = prompt.astype(np.int32, copy=False).tobytes()
        if key not in index:
            index[key] = len(distinct)
            distinct.append(prompt)
        of_row.append(index[key])
    return distinct, np.array(of_row, np.int64)


def _chunks(order: NDArray[np.int64], lengths: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Cut rows, sorted by length, so that each part holds at most _PREFILL_TOKENS padded tokens (or one row)."""
    first = 0
    for last in range(1, len(order) + 1):
        if last == len(order) or (last + 1 - first) * lengths[order[last]] > _PREFILL_TOKENS:
            yield order[first:last]
            first = last
