"""Requests that a PyTorch model processes together, one token each per step."""

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
from agentrl_core.engine.decoding import ROW, Decoder, KVCache, cache_argument
from agentrl_core.engine.engine_images import EngineImages
from agentrl_core.engine.prefix_cache import Layers, PrefixCache, shared_prefixes
from agentrl_core.model.matmul import fast_from, fast_linear_layers
from agentrl_core.model.routers import RouteTrace

# Most padded prompt tokens of one prefill pass: limits its memory, and its padding, since prompts of one pass have
# similar lengths.
_PREFILL_TOKENS = 2048


class RunningBatch:
    """Requests that are decoded together, one token of each per step, after a prefill of their prompts.

    Args:
        model: a causal model of Hugging Face.
        requests: requests by number. Identical prompts, and common prefixes of different ones, are computed once.
        windows: attention windows of the model's layers.
        kept: prefix cache to read and fill; None: each row is computed from the start.
        images: features of the requests' images; None: there are no images.
        never: tokens that are never sampled.
        routes: traces the experts of each token, for `Segment.routed_experts`; None: they are not reported. They are
            stored as one more layer of the cache, with the keys and values of their tokens.
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
        self._windows = windows
        self._fast_from = fast_from(model)
        self._kept = kept
        self._routes = routes
        self._requests = list(requests.values())
        samplings = [_without_limit(request.sampling) for request in self._requests]
        rows = np.zeros(len(requests), ROW)
        rows["number"] = list(requests)
        rows["seed"] = [request.seed for request in self._requests]
        rows["limit"] = [request.sampling.max_tokens for request in self._requests]
        rows["kind"] = [id(sampling) for sampling in samplings]
        self._prompts = [request.tokens if images is None else images.coded(request) for request in self._requests]
        """Tokens of each row's request, with codes of its images."""
        prompts, prompt_of_row = _distinct(self._prompts)
        shift = np.zeros(len(prompts), np.int64) if images is None else images.shifts(prompts)
        rows["shift"] = shift[prompt_of_row]
        # The last token of each prompt is the first one fed: the head runs only for sampled positions.
        computed, known = self._prefill([prompt[:-1] for prompt in prompts])
        # Identical prompts reuse the result of the first one.
        rows["cached"] = computed.lengths[prompt_of_row]
        rows["cached"][np.unique(prompt_of_row, return_index=True)[1]] = known
        token = torch.tensor([int(prompt[-1]) for prompt in prompts], device=model.device)
        logits = computed.forward(model, token[:, None], shift=shift).logits[:, -1]
        cache = computed
        if len(prompts) < len(requests):
            cache = self._cache_of(np.empty(0, np.int64))
            cache.join(computed, prompt_of_row)
            logits = logits[torch.from_numpy(prompt_of_row).to(model.device)]
        kinds = {id(sampling): sampling for sampling in samplings}
        self._decoder = Decoder(model, cache, logits, rows, kinds, list(never))

    def __len__(self) -> int:
        return len(self._requests)

    def run(self, version: int, continues: Callable[[], bool] | None = None) -> dict[int, Segment]:
        """Run a step, and more while no row ends and `continues()` is true; return segments of ended rows, by number.

        With `continues=None` it runs one step.
        """
        ended = self._decoder.run(continues)
        return self._leave(ended, version, aborted=False) if ended.any() else {}

    def end(self, numbers: Sequence[int], version: int) -> dict[int, Segment]:
        """End those of the given requests that are in this batch; return their segments, by number."""
        leaving = np.isin(self._decoder.rows["number"], numbers)
        return self._leave(leaving, version, aborted=True) if leaving.any() else {}

    def join(self, other: RunningBatch) -> None:
        """Append the rows of another batch, which have their first token."""
        self._decoder.join(other._decoder)
        self._requests += other._requests
        self._prompts += other._prompts

    def _leave(self, leaving: NDArray[np.bool_], version: int, *, aborted: bool) -> dict[int, Segment]:
        decoder, segments = self._decoder, dict[int, Segment]()
        for row in np.flatnonzero(leaving).tolist():
            request, known, top = self._requests[row], decoder.rows[row], decoder.top[row]
            steps = decoder.steps[row, : int(known["drawn"])]
            stopped = int(steps["token"][-1]) in request.sampling.stop_token_ids
            reason: Literal["stop", "length", "abort"] = "abort" if aborted else "stop" if stopped else "length"
            segments[int(known["number"])] = Segment(
                tokens=steps["token"].copy(),
                logprobs=steps["logprob"].copy(),
                entropies=steps["entropy"].copy(),
                finish_reason=reason,
                policy_version=version,
                seed=request.seed,
                top=TopLogprobs(*map(np.stack, zip(*top, strict=True))) if top else None,
                cached_tokens=int(known["cached"]),
                routed_experts=None if self._routes is None else self._experts(row),
            )
            if self._kept is not None:
                # The last token was sampled but not fed to the model.
                tokens = np.concatenate([self._prompts[row], steps["token"]])[:-1].astype(np.int32, copy=False)
                self._kept.keep(tokens, decoder.cache.row(row))
        order = decoder.keep(~leaving)
        self._requests = [self._requests[row] for row in order]
        self._prompts = [self._prompts[row] for row in order]
        return segments

    def _experts(self, row: int) -> NDArray[np.uint8] | NDArray[np.uint16]:
        """Return the experts of the tokens of a row that the model has read: all but the last."""
        experts = self._decoder.cache.keys_of(-1, row)[0].cpu().numpy().copy()
        return experts if experts.dtype == np.uint8 else experts.view(np.uint16)

    def _prefill(self, prompts: list[NDArray[np.int32]]) -> tuple[KVCache, NDArray[np.int64]]:
        """Return keys and values of each prompt, and how many of its tokens were cached or computed for another prompt.

        A shared prefix is computed once, for the first prompt that has it.
        """
        computed = np.zeros(len(prompts), np.int64)
        levels = shared_prefixes(prompts) if len(prompts) > 1 else []
        shared = PrefixCache(most_bytes=sys.maxsize) if levels else None
        for level in levels:
            beginnings = [prompts[prefix.prompt][: prefix.length] for prefix in level]
            known_prefixes = [self._known(tokens, shared) for tokens in beginnings]
            for rows, layers in self._computed(beginnings, known_prefixes):
                pairs = list(layers)
                for place, row in enumerate(rows.tolist()):
                    tokens = beginnings[row]
                    count = len(tokens)
                    row_layers = [(k[place, :, :count].clone(), v[place, :, :count].clone()) for k, v in pairs]
                    for prefix_cache in filter(None, (shared, self._kept)):
                        prefix_cache.keep(tokens, row_layers)
                    computed[level[row].prompt] += count - known_prefixes[row][1]
        known_prefixes = [self._known(prompt, shared) for prompt in prompts]
        cache = self._cache_of(np.array([len(prompt) for prompt in prompts]))
        for rows, layers in self._computed(prompts, known_prefixes):
            cache.fill(rows, layers)
        return cache, np.array([count for _, count in known_prefixes], np.int64) - computed

    def _cache_of(self, lengths: NDArray[np.int64]) -> KVCache:
        return KVCache(lengths, self._model, self._windows, self._fast_from, self._routes)

    def _known(self, tokens: NDArray[np.int32], shared: PrefixCache | None) -> tuple[Layers, int]:
        """Return keys and values of a prompt's longest cached or shared prefix, and its length."""
        known: tuple[Layers, int] = ([], 0)
        for cache in (shared, self._kept):
            if cache is not None:
                found = cache.find(tokens)
                known = found if found[1] > known[1] else known
        return known

    def _computed(
        self, prompts: list[NDArray[np.int32]], known_prefixes: list[tuple[Layers, int]]
    ) -> Iterator[tuple[NDArray[np.int64], Iterable[tuple[torch.Tensor, torch.Tensor]]]]:
        """Yield rows with their keys and values, computed from those of their known prefixes.

        Padding is on the right, which causal models ignore.
        """
        known = np.array([count for _, count in known_prefixes], np.int64)
        missing = np.array([len(prompt) for prompt in prompts], np.int64) - known
        order = np.argsort(missing, kind="stable")
        for row in order[missing[order] == 0].tolist():
            yield np.array([row]), [(keys[None], values[None]) for keys, values in known_prefixes[row][0]]
        for rows in (
            order[(missing[order] > 0) & (known[order] == 0)],
            order[(missing[order] > 0) & (known[order] > 0)],
        ):
            for chunk in _chunks(rows, missing):
                ids = np.zeros((len(chunk), missing[chunk[-1]]), dtype=np.int64)
                for row, prompt in enumerate(chunk):
                    ids[row, : missing[prompt]] = prompts[prompt][known[prompt] :]
                ids_there = torch.from_numpy(ids).to(self._model.device)
                image_arguments, shift = self._shown([prompts[row] for row in chunk], known[chunk], ids_there)
                if known[chunk[0]]:
                    layers_known = [known_prefixes[row][0] for row in chunk]
                    yield chunk, self._continued(ids_there, layers_known, missing[chunk], image_arguments, shift)
                else:
                    yield chunk, self._begun(ids_there, image_arguments)

    def _begun(self, ids: torch.Tensor, image_arguments: dict[str, Any]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the keys and values of rows without a known prefix."""
        computed = DynamicCache()
        traced: AbstractContextManager[list[torch.Tensor]] = nullcontext([])
        if self._routes is not None:
            traced = self._routes.forward()
        with traced as experts, fast_linear_layers(self._model, ids.numel()):
            self._model.base_model(ids, use_cache=True, **{cache_argument(self._model): computed}, **image_arguments)
        layers: list[Any] = computed.layers
        pairs = [(layer.keys, layer.values) for layer in layers]
        return pairs if self._routes is None else [*pairs, self._routes.layer(experts, len(ids))]

    def _shown(
        self, prompts: list[NDArray[np.int32]], known: NDArray[np.int64], ids: torch.Tensor
    ) -> tuple[dict[str, Any], NDArray[np.int64]]:
        """Return the model's arguments for images after known prefixes, and the position offset of images in those."""
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
        image_arguments: dict[str, Any],
        shift: NDArray[np.int64],
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the keys and values of rows that continue a known prefix."""
        lengths = np.array([layers[0][0].shape[1] for layers in known], np.int64)
        cache = self._cache_of(lengths)
        for row, layers in enumerate(known):
            cache.fill(np.array([row]), [(keys[None], values[None]) for keys, values in layers])
        blocks = self._images.blocks(ids) if self._images is not None and image_arguments else None
        cache.forward(self._model.base_model, ids, counts=missing, shift=shift, blocks=blocks, **image_arguments)
        return cache.pairs()


@lru_cache(maxsize=1024)
def _without_limit(sampling: Sampling) -> Sampling:
    """Return sampling parameters with a fixed token limit, so that rows with different limits share them."""
    return replace(sampling, max_tokens=1)


def _distinct(prompts: list[NDArray[np.int32]]) -> tuple[list[NDArray[np.int32]], NDArray[np.int64]]:
    """Return the distinct prompts, and for each row the index of its prompt."""
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
    """Divide rows, sorted by length, into parts of at most _PREFILL_TOKENS padded tokens (or a single row)."""
    first = 0
    for last in range(1, len(order) + 1):
        if last == len(order) or (last + 1 - first) * lengths[order[last]] > _PREFILL_TOKENS:
            yield order[first:last]
            first = last
