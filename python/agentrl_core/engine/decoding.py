"""Decode rows together, one token each per step: forward passes with a KV cache, and sampling from the logits."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import AttentionInterface, Cache, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from agentrl_core import _core
from agentrl_core.engine.attention_windows import ALL_LAYERS, Windows
from agentrl_core.engine.base import Sampling
from agentrl_core.engine.entropy_temperature import LEAST, EntropyTemperature
from agentrl_core.model.matmul import fast_linear_layers
from agentrl_core.model.routers import RouteTrace

# The attention of `_grouped_attention`, in the registry of transformers.
_GROUPED = "agentrl_grouped"
# The cache grows by this many positions at a time.
_GROWTH = 32
# And by this factor of its rows, so that adding rows one by one does not copy it each time.
_MORE_ROWS = 1.5


def cache_argument(model: nn.Module) -> str:
    """Return the argument name of a model's cache: `cache`, or `past_key_values` before transformers 5.24.

    Args:
        model: a causal model of Hugging Face, or a wrapper of one, such as PEFT's.
    """
    inner = next((part for part in model.modules() if isinstance(part, PreTrainedModel)), model)
    return _cache_argument(type(inner).forward)


@functools.cache
def _cache_argument(forward: Callable[..., object]) -> str:
    return "cache" if "cache" in inspect.signature(forward).parameters else "past_key_values"


class KVCache(Cache):
    """Keys and values of every layer, [rows, heads, positions, width], with spare rows and positions.

    Row b has tokens at positions 0 to lengths[b] - 1. In a step every row writes after its last position and attends,
    through the mask, to its own tokens. When a row is removed, the last row moves to its place.

    Args:
        lengths: number of tokens of each row, int64 [B].
        model: a causal model of Hugging Face.
        windows: attention windows of the model's layers.
        fast_from: number of tokens in a pass from which it uses `fast_linear_layers`.
        routes: traces the experts of each token, stored as one more layer of the cache; None: they are not stored.
    """

    def __init__(
        self,
        lengths: NDArray[np.int64],
        model: Any,
        windows: Windows,
        fast_from: float,
        routes: RouteTrace | None = None,
    ) -> None:
        super().__init__(layers=[])
        self._model = model
        self._argument = cache_argument(model)
        self._fast_from = fast_from
        self._windows = windows
        self._routes = routes
        self.lengths = lengths
        self._device = model.device
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        self._position = self._positions = self._row = torch.empty(0)
        self._set_rows()

    def fill(self, rows: NDArray[np.int64], computed: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Store keys and values of each layer, [rows, heads, positions, width], that were computed for some rows."""
        place = torch.from_numpy(rows).to(self._device)
        for layer, pair in enumerate(computed):
            for store, value in zip((self._keys, self._values), pair, strict=True):
                if layer == len(store):
                    store.append(_room(value, len(self.lengths), self._longest + _GROWTH))
                positions = min(value.shape[2], self._longest)
                store[layer][place, :, :positions] = value[:, :, :positions]

    def row(self, index: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return a copy of one row's keys and values for each layer, [heads, tokens, width]."""
        count = int(self.lengths[index])
        layers = zip(self._keys, self._values, strict=True)
        return [(keys[index, :, :count].clone(), values[index, :, :count].clone()) for keys, values in layers]

    def keys_of(self, layer: int, index: int) -> torch.Tensor:
        """Return one row's keys in a layer, [heads, tokens, width]."""
        return self._keys[layer][index, :, : int(self.lengths[index])]

    def pairs(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return keys and values of each layer for all rows, including spare positions."""
        count = len(self.lengths)
        return [(keys[:count], values[:count]) for keys, values in zip(self._keys, self._values, strict=True)]

    def join(self, other: KVCache, rows: NDArray[np.int64]) -> None:
        """Append rows of another cache; a row may be given several times."""
        before = len(self.lengths)
        count = before + len(rows)
        lengths = np.concatenate([self.lengths, other.lengths[rows]])
        longest = int(lengths.max())
        place = torch.from_numpy(rows).to(self._device)
        self._grow(before, count, longest)
        for mine, theirs in ((self._keys, other._keys), (self._values, other._values)):
            for layer, source in enumerate(theirs):
                if layer == len(mine):
                    mine.append(_room(source, count, longest + _GROWTH))
                mine[layer][before:count, :, : other._longest] = source[:, :, : other._longest].index_select(0, place)
        self.lengths = lengths
        self._set_rows()

    def keep(self, rows: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Keep only the given rows, and return the old index of each remaining row, int64 [number of kept rows]."""
        count = int(rows.sum())
        order = np.arange(count)
        holes, movers = np.flatnonzero(~rows[:count]), count + np.flatnonzero(rows[count:])
        order[holes] = movers
        if count == 0:
            self._keys, self._values = [], []
        elif len(holes):
            target, source = torch.from_numpy(holes).to(self._device), torch.from_numpy(movers).to(self._device)
            longest = int(self.lengths[movers].max())
            for store in (self._keys, self._values):
                for layer in store:
                    layer[target, :, :longest] = layer[source, :, :longest]
        self.lengths = self.lengths[order]
        self._set_rows()
        return order

    def forward(
        self,
        run: Any,
        ids: torch.Tensor,
        *,
        counts: NDArray[np.int64] | None = None,
        shift: NDArray[np.int64],
        blocks: torch.Tensor | None = None,
        **shown: Any,
    ) -> Any:
        """Run the model over the next tokens of each row, keep their keys and values, and return its outputs.

        Args:
            run: the model, or its body without the output layer.
            ids: the tokens, int64 [B, count], with padding on the right.
            counts: number of tokens of each row; None: no row has padding.
            shift: offset of the positions of each row's next tokens due to its images, int64 [B].
            blocks: int64 [B, count]: tokens of the same block attend to each other inside their window; 0: no block.
            shown: arguments of the model for images.
        """
        count = ids.shape[1]
        self._longest += count
        self._grow(len(self.lengths), len(self.lengths), self._longest)
        self._positions = positions = self._position[:, None] + torch.arange(count, device=self._device)
        mask = _masks(self._windows, positions, self._longest, self._model.dtype, blocks)
        if shift.any():
            positions = positions + torch.from_numpy(shift).to(self._device)[:, None]
        arguments: dict[str, Any] = {"position_ids": positions, self._argument: self, **shown}
        traced: AbstractContextManager[list[torch.Tensor]] = nullcontext([])
        if self._routes is not None:
            traced = self._routes.forward()
        fast: AbstractContextManager[object] = nullcontext()
        if ids.numel() >= self._fast_from:
            fast = fast_linear_layers(self._model, ids.numel())
        with _grouped_attention(self._model), fast, traced as experts:
            outputs = run(ids, attention_mask=mask, use_cache=True, **arguments)
        if self._routes is not None:
            layers = self._model.config.get_text_config().num_hidden_layers
            self.update(*self._routes.layer(experts, len(self.lengths)), layers)
        if counts is None:
            self.lengths = self.lengths + count
            self._position = self._position + count
        else:
            self.lengths = self.lengths + counts
            self._set_rows()
        return outputs

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *args: object,  # noqa: ARG002 -- what other caches need
        **kwargs: object,  # noqa: ARG002
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the new keys and values of each row, and return all; called by the model's attention."""
        count = len(self.lengths)
        if layer_idx == len(self._keys):  # no prompt had more than one token
            self._keys.append(_room(key_states, count, self._longest + _GROWTH))
            self._values.append(_room(value_states, count, self._longest + _GROWTH))
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        keys[self._row, :, self._positions] = key_states.transpose(1, 2)
        values[self._row, :, self._positions] = value_states.transpose(1, 2)
        return keys[:count, :, : self._longest], values[:count, :, : self._longest]

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002 -- all layers are alike
        """Return the number of tokens of the longest row."""
        return self._longest

    def _grow(self, filled: int, rows: int, positions: int) -> None:
        """Ensure room for `rows` rows and `positions` positions; the first `filled` rows are preserved."""
        if not self._keys:
            return
        room = self._keys[0].shape  # that of all layers
        if rows <= room[0] and positions <= room[2]:
            return
        new_rows = room[0] if rows <= room[0] else max(rows, int(_MORE_ROWS * room[0]))
        new_positions = room[2] if positions <= room[2] else positions + _GROWTH
        for store in (self._keys, self._values):
            for layer, old in enumerate(store):
                store[layer] = _room(old, new_rows, new_positions)
                store[layer][:filled, :, : room[2]] = old[:filled]

    def _set_rows(self) -> None:
        self._longest = int(self.lengths.max(initial=0))
        self._position = torch.from_numpy(self.lengths).to(self._device, copy=True)
        self._row = torch.arange(len(self.lengths), device=self._device)[:, None]


def _room(like: torch.Tensor, rows: int, positions: int) -> torch.Tensor:
    # Zeros and not uninitialised memory: a masked slot has weight 0, and 0 times NaN is NaN.
    return like.new_zeros(rows, like.shape[1], positions, like.shape[3])


def _masks(
    windows: Windows, positions: torch.Tensor, count: int, dtype: torch.dtype, blocks: torch.Tensor | None
) -> torch.Tensor | dict[str, torch.Tensor]:
    """Return the additive mask of new tokens over slots, [B, 1, new tokens, count]; a dict by layer type if needed.

    Args:
        windows: attention windows of the model.
        positions: slots of the new tokens, [B, new tokens].
        count: number of slots.
        dtype: dtype of the mask.
        blocks: int64 [B, new tokens]: tokens of the same block attend to each other inside their window; 0: no block.
    """
    slots = torch.arange(count, device=positions.device)
    later = slots > positions[:, :, None]
    if blocks is not None:
        of_slot = blocks.new_zeros(len(blocks), count).scatter(1, positions, blocks)
        later &= (blocks[:, :, None] != of_slot[:, None]) | (blocks == 0)[:, :, None]
    masks: dict[str, torch.Tensor] = {}
    for kind, window in windows.items():
        unseen = later if window is None else later | (slots <= positions[:, :, None] - window)
        mask = torch.zeros(unseen.shape, dtype=dtype, device=positions.device)
        masks[kind] = mask.masked_fill_(unseen, torch.finfo(dtype).min)[:, None]
    return masks.get(ALL_LAYERS, masks)


@contextmanager
def _grouped_attention(model: nn.Module) -> Iterator[None]:
    """Use grouped attention inside the block, if the Hugging Face model uses sdpa.

    With a mask, transformers repeats keys and values for each query head before it calls sdpa; in a step of one token
    per row, these copies take longer than the attention. Here the query heads of a key head become further queries:

        q [B, heads, T, D] -> [B, KV heads, heads / KV heads * T, D];  o = softmax(q k^T s + mask) v

    The choice is a field of the model's config, so the model must not run elsewhere meanwhile.
    """
    outer_config: Any = model.config
    config = outer_config.get_text_config()
    if config._attn_implementation != "sdpa":  # noqa: SLF001 - the library's own switch, in no public name
        yield
        return
    config._attn_implementation = _GROUPED  # noqa: SLF001
    try:
        yield
    finally:
        config._attn_implementation = "sdpa"  # noqa: SLF001


def _attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Grouped attention with the signature of transformers: `[B, heads, T, D]` in, `[B, T, heads, D]` out."""
    batch, heads, count, width = query.shape
    groups = heads // key.shape[1]
    if groups == 1 or attention_mask is None or others.get("position_bias") is not None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **others)
    grouped = query.reshape(batch, key.shape[1], groups * count, width)
    mask = attention_mask.repeat(1, 1, groups, 1) if count > 1 else attention_mask
    out = torch.nn.functional.scaled_dot_product_attention(grouped, key, value, attn_mask=mask, scale=scaling)
    return out.reshape(batch, heads, count, value.shape[3]).transpose(1, 2).contiguous(), None


AttentionInterface.register(_GROUPED, _attend)  # without a mask function, since `forward` passes complete masks

# A row: its request's `number` and `seed`; the tokens `drawn` so far, at most `limit`; the `kind`, which names its
# sampling parameters; the tokens of its prompt that were `cached`; the `shift` of positions by its images.
ROW = np.dtype(
    [
        (name, "u8" if name == "seed" else "i8")
        for name in ("number", "seed", "limit", "drawn", "kind", "cached", "shift")
    ]
)
# Sampled results of a step.
_STEP = np.dtype([("token", "i4"), ("logprob", "f4"), ("entropy", "f4")])
# Initial capacity in tokens, doubled when a row needs more.
_FIRST_ROOM = 64


class Decoder:
    """Rows that are decoded together, one token each per step.

    Token i of a row is drawn with `uniform(seed, i)`, independent of other rows.

    Args:
        model: a causal model of Hugging Face.
        cache: keys and values of each row's prompt.
        logits: logits of the first token of each row, [B, V].
        rows: one entry of type `ROW` for each row.
        samplings: the sampling parameters of each `kind` of row.
        never: tokens that are never sampled.

    Attributes:
        cache: keys and values of each row, except those of the last sampled token.
        rows: one entry of type `ROW` for each row.
        steps: `token`, `logprob` and `entropy` of each row and step.
        top: for each row the most likely tokens of each step, if requested.
    """

    def __init__(
        self,
        model: Any,
        cache: KVCache,
        logits: torch.Tensor,
        rows: NDArray[Any],
        samplings: dict[int, Sampling],
        never: list[int],
    ) -> None:
        self._model = model
        self.cache = cache
        self._first_logits: torch.Tensor | None = logits
        self.rows = rows
        self._samplings = samplings
        self._never = never
        self._token = torch.empty(0)
        self.steps = np.empty((len(rows), min(int(rows["limit"].max()), _FIRST_ROOM)), _STEP)
        self.top: list[list[tuple[NDArray[np.int32], NDArray[np.float32]]]] = [[] for _ in rows]

    def run(self, continues: Callable[[], bool] | None) -> NDArray[np.bool_]:
        """Sample a token for each row, and more while no row ends and `continues()` is true; return which rows ended.

        With `continues=None` it samples one token for each row.
        """
        rows = self.rows
        kinds = np.unique(rows["kind"]).tolist()
        members = [np.arange(len(rows)) if len(kinds) == 1 else np.flatnonzero(rows["kind"] == kind) for kind in kinds]
        while True:
            logits, self._first_logits = self._first_logits, None
            if logits is None:
                logits = self.cache.forward(self._model, self._token[:, None], shift=rows["shift"]).logits[:, -1]
            if self._never:
                logits[:, self._never] = -torch.inf
            if int(rows["drawn"].max()) == self.steps.shape[1]:
                self._make_room(len(rows), 2 * self.steps.shape[1])
            numbers = np.empty(len(rows))
            for count in np.unique(rows["drawn"]).tolist():  # rows that started together have the same count
                subset = rows["drawn"] == count
                numbers[subset] = _core.rng.uniform(rows["seed"][subset], count)
            uniform = torch.from_numpy(numbers).to(logits.device)
            ended: NDArray[np.bool_] = rows["drawn"] + 1 == rows["limit"]
            self._token = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
            for kind, subset in zip(kinds, members, strict=True):
                sampling = self._samplings[kind]
                if len(kinds) == 1:
                    sampled = sample_tokens(logits, uniform, sampling)
                    self._token = sampled.token
                else:
                    place = torch.from_numpy(subset).to(logits.device)
                    sampled = sample_tokens(logits[place], uniform[place], sampling)
                    self._token[place] = sampled.token
                tokens = self._write(subset, sampled)
                if sampling.stop_token_ids:
                    ended[subset] |= (tokens[:, None] == sampling.stop_token_ids).any(axis=1)
            rows["drawn"] += 1
            if continues is None or ended.any() or not continues():
                return ended

    def join(self, other: Decoder) -> None:
        """Append the rows of another decoder, which have their first token."""
        before = len(self.rows)
        self.cache.join(other.cache, np.arange(len(other.rows)))
        self.rows = np.concatenate([self.rows, other.rows])
        self._make_room(len(self.rows), max(self.steps.shape[1], other.steps.shape[1]))
        self.steps[before : len(self.rows), : other.steps.shape[1]] = other.steps[: len(other.rows)]
        self._token = torch.cat([self._token, other._token])
        self._samplings |= other._samplings
        self.top += other.top

    def keep(self, rows: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Keep only the given rows, and return the old index of each remaining row."""
        order = self.cache.keep(rows)
        moved = np.flatnonzero(order != np.arange(len(order)))
        self.steps[moved] = self.steps[order[moved]]
        self.rows = self.rows[order]
        self._token = self._token[torch.from_numpy(order).to(self._token.device)]
        self.top = [self.top[row] for row in order]
        return order

    def _write(self, rows: NDArray[np.int64], sampled: SampledTokens) -> NDArray[np.int64]:
        """Store the sampled results of some rows; return the tokens."""
        place = (rows, self.rows["drawn"][rows])
        tokens: NDArray[np.int64] = sampled.token.cpu().numpy()
        self.steps["token"][place] = tokens
        self.steps["logprob"][place] = sampled.logprob.float().cpu().numpy()
        self.steps["entropy"][place] = sampled.entropy.float().cpu().numpy()
        if sampled.top is not None:
            ids, logprobs = sampled.top[0].int().cpu().numpy(), sampled.top[1].float().cpu().numpy()
            for index, row in enumerate(rows.tolist()):
                self.top[row].append((ids[index], logprobs[index]))
        return tokens

    def _make_room(self, rows: int, room: int) -> None:
        """Ensure room for `room` steps of `rows` rows."""
        steps = self.steps
        if rows <= len(steps) and room == steps.shape[1]:
            return
        new_rows = len(steps) if rows <= len(steps) else max(rows, len(steps) * 3 // 2)
        self.steps = np.empty((new_rows, room), steps.dtype)
        self.steps[: len(steps), : steps.shape[1]] = steps


class SampledTokens(NamedTuple):
    """Sampled tokens int64 [B], their log-probs and entropies [B], and ids and log-probs of the likeliest if requested.

    `top` has the c = `sampling.top` most likely tokens, int64 [B, c], and their log-probabilities [B, c]; None if c is
    0.
    """

    token: torch.Tensor
    logprob: torch.Tensor
    entropy: torch.Tensor
    top: tuple[torch.Tensor, torch.Tensor] | None = None


def sample_tokens(logits: torch.Tensor, uniform: torch.Tensor, sampling: Sampling) -> SampledTokens:
    """Sample by inverse CDF: the first token whose cumulative probability exceeds `uniform`.

        x = z / temperature, -inf outside top_k and top_p;  log p = x - logsumexp(x);  H = -sum p log p  (0 log 0 = 0)

    With `sampling.by_entropy`, each row has its own temperature, and H is the entropy that determined it.

    `logits` [B, V] (converted to float32 unless float64), `uniform` float64 [B] in [0, 1). A row's result only depends
    on its own logits and uniform number. A token with probability 0 is never sampled. At temperature 0, `top` is
    computed from softmax(z).
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
    """Return the log-probs from which `sample_tokens` samples, [B, V], at a temperature above 0."""
    return _truncated(_at_temperature(logits, sampling)[0], sampling)


def temperature_factor(log_p: torch.Tensor, rule: EntropyTemperature) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the factor by which each row's entropy changes its temperature, [B], and the entropy [B]."""
    entropy = torch.special.entr(log_p.exp()).sum(dim=-1)
    height = entropy.clamp(min=LEAST).log() - rule.zero
    above, below = (max(width, LEAST) for width in (rule.above, rule.below))
    height = torch.where(height > 0, height / above, height / below).clamp(-1.0, 1.0)
    return 1.0 + rule.change * height, entropy


def _at_temperature(logits: torch.Tensor, sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return logits divided by each row's temperature, and the entropies that determined it, or None."""
    x = logits if logits.dtype == torch.float64 else logits.float()
    if sampling.temperature != 1.0:
        x = x / sampling.temperature
    if sampling.by_entropy is None:
        return x, None
    by, entropy = temperature_factor(torch.log_softmax(x, dim=-1), sampling.by_entropy)
    return x / by[:, None], entropy


def _truncated(x: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Return the log-probs of logits, -inf outside top_k and top_p."""
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
