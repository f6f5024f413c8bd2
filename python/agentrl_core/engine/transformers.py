"""Generation from a Hugging Face model in this process: batched sampling with a cache of keys and values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import AutoTokenizer, Cache, DynamicCache

from agentrl_core.engine.base import Request, Sampling, Segment, check_requests
from agentrl_core.engine.chat import Chat
from agentrl_core.engine.draw import draw
from agentrl_core.exceptions import InvalidInputError, UnsupportedError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import nn
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# Padded prompt tokens of one forward pass before the first draw: bounds its memory, and its padding, since the prompts
# of a part have like lengths.
_PREFILL_TOKENS = 2048
# The cache grows by this many positions at a time.
_GROWTH = 32
# Finished rows are dropped when at most this share of the rows is still being generated: dropping copies the cache.
_KEEP_SHARE = 0.8


class Transformers:
    """Samples from a causal language model of Hugging Face, on the model's own device.

    The model is held by reference: when it is the policy that is being trained, its latest weights are always the ones
    sampled from. Identical prompts are computed once. All rows advance together, one token a step; a row's draws depend
    on its seed and its tokens alone (token i of a segment uses `uniform(seed, i)`), not on the rows beside it, but for
    the rounding of matrix products.

    Log-probabilities and entropies are those of the distribution sampled from, after temperature, top_k and top_p, in
    float32 (computed in float64 for a float64 model). `entropy_estimator` is "exact".

    Args:
        model: a decoder with full attention in every layer (Llama, Qwen2, Qwen3 and their like).
        tokenizer: its tokenizer with a chat template. None: the one saved at `model.name_or_path`.
        device: move the model there first. None: leave it where it is.

    Raises:
        InvalidInputError: no tokenizer is given and none is found; the tokenizer has no chat template.
        UnsupportedError: the model attends through a sliding window, or by an attention implementation other than sdpa
            and eager.

    Example:
        >>> from agentrl_core import engine, env, warm_start
        >>> model, tokenizer = warm_start.build(env.ReasoningGym(["chain_sum"]), seed=0)
        >>> generate = engine.Transformers(model, tokenizer)
        >>> request = engine.Request(generate.chat.prompt("2 + 2 ="), seed=1)
        >>> [segment] = generate.generate([request], engine.Sampling(max_tokens=4))
        >>> len(segment.tokens) <= 4 and segment.logprobs.dtype.name
        'float32'
    """

    entropy_estimator = "exact"

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        device: str | torch.device | None = None,
    ) -> None:
        self.model: Any = model if device is None else model.to(device)  # type: ignore[arg-type]
        self.tokenizer: Any = tokenizer if tokenizer is not None else _tokenizer_of(model)
        self.chat = Chat(self.tokenizer)
        self.policy_version = 0
        self.vocabulary_size = int(self.model.get_output_embeddings().weight.shape[0])
        _check_attention(self.model)

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Segment]:
        """One segment for each request, in their order.

        Raises:
            InvalidInputError: a token id outside the vocabulary.
        """
        if not requests:
            return []
        check_requests(requests, self.vocabulary_size)
        with torch.inference_mode(), _evaluating(self.model):
            return self._generate(requests, sampling)

    def update_weights(self, model: nn.Module, version: int) -> None:
        """Stamp segments with `version` from now on; copy the weights if `model` is not the very model of this engine.

        Raises:
            InvalidInputError: the models' parameters differ in name or shape.
        """
        if model is not self.model:
            try:
                self.model.load_state_dict(model.state_dict())
            except RuntimeError as error:
                raise InvalidInputError(f"update_weights: the model does not fit this engine's: {error}") from error
        self.policy_version = version

    def _generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Segment]:
        from agentrl_core._core.rng import uniform

        device = self.model.device
        prompts, prompt_of_row = _distinct([request.tokens for request in requests])
        limits = torch.tensor([request.max_tokens or sampling.max_tokens for request in requests], device=device)
        stops = torch.tensor(sampling.stop_token_ids, dtype=torch.int64, device=device)
        seeds = np.array([request.seed for request in requests], dtype=np.uint64)
        rows, most = len(requests), int(limits.max())
        tokens = torch.zeros(rows, most, dtype=torch.int64, device=device)
        logprobs = torch.zeros(rows, most, device=device)
        entropies = torch.zeros(rows, most, device=device)
        lengths = torch.zeros(rows, dtype=torch.int64, device=device)

        # The last token of each prompt is the first one fed below: the head runs only where a token is drawn.
        cache = self._prefill([prompt[:-1] for prompt in prompts])
        token = torch.tensor([int(prompt[-1]) for prompt in prompts], device=device)
        active = torch.arange(rows, device=device)
        expand = torch.tensor(prompt_of_row, device=device)
        for step in range(most):
            logits = self._next_logits(token, cache)
            if step == 0 and len(prompts) < rows:
                logits = logits[expand]
                cache.select(expand)
            numbers = torch.from_numpy(uniform(seeds, step)).to(device)
            drawn = draw(logits, numbers, sampling)
            token = drawn.token
            tokens[active, step] = token
            logprobs[active, step] = drawn.logprob.float()
            entropies[active, step] = drawn.entropy.float()
            ended = torch.isin(token, stops) | (limits[active] == step + 1)
            going = (lengths[active] == 0) & ~ended
            lengths[active[(lengths[active] == 0) & ended]] = step + 1
            count = int(going.sum())
            if count == 0:
                break
            if count <= _KEEP_SHARE * len(active):
                kept = going.nonzero()[:, 0]
                cache.select(kept)
                active, token, seeds = active[kept], token[kept], seeds[kept.cpu().numpy()]
        return _segments(requests, sampling, self.policy_version, tokens, logprobs, entropies, lengths)

    def _next_logits(self, token: torch.Tensor, cache: _RowCache) -> torch.Tensor:
        """Logits [B, V] behind one more token for each row."""
        mask = cache.begin_step()
        outputs = self.model(
            input_ids=token[:, None],
            position_ids=cache.position[:, None],
            attention_mask=mask,
            past_key_values=cache,
            use_cache=True,
        )
        cache.end_step()
        logits: torch.Tensor = outputs.logits
        return logits[:, -1]

    def _prefill(self, prompts: list[NDArray[np.int32]]) -> _RowCache:
        """The keys and values of each prompt; padding is on the right, where a causal model never looks."""
        device = self.model.device
        lengths = np.array([len(prompt) for prompt in prompts])
        cache = _RowCache(torch.from_numpy(lengths).to(device), self.model.dtype)
        order = np.argsort(lengths, kind="stable")
        for chunk in _chunks(order[lengths[order] > 0], lengths):
            ids = np.zeros((len(chunk), lengths[chunk[-1]]), dtype=np.int64)
            for row, prompt in enumerate(chunk):
                ids[row, : lengths[prompt]] = prompts[prompt]
            computed = DynamicCache()
            self.model.base_model(torch.from_numpy(ids).to(device), past_key_values=computed, use_cache=True)
            cache.fill(torch.from_numpy(chunk).to(device), computed)
        return cache


class _RowCache(Cache):
    """Keys and values [B, heads, capacity, width] of every layer; row b has tokens at positions 0 .. position[b] - 1.

    During a step every row writes at its own position, and sees through the mask what it has written.
    """

    def __init__(self, position: torch.Tensor, dtype: torch.dtype) -> None:
        super().__init__(layers=[])
        self.position = position
        self._longest = int(position.max())
        self._capacity = self._longest + _GROWTH
        self._dtype = dtype
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        self._row = torch.arange(len(position), device=position.device)

    def fill(self, rows: torch.Tensor, computed: DynamicCache) -> None:
        """Take the keys and values of a prefill for some rows."""
        layers: list[Any] = computed.layers
        for layer, source in enumerate(layers):
            for store, value in ((self._keys, source.keys), (self._values, source.values)):
                if layer == len(store):
                    store.append(self._room(value, len(self.position), self._capacity))
                store[layer][rows, :, : value.shape[2]] = value

    def select(self, rows: torch.Tensor) -> None:
        """Keep these rows, in this order; a row may be named more than once."""
        self.position = self.position[rows]
        self._row = torch.arange(len(rows), device=rows.device)
        for store in (self._keys, self._values):
            for layer, old in enumerate(store):
                new = self._room(old, len(rows), self._capacity)
                new[:, :, : self._longest] = old[:, :, : self._longest].index_select(0, rows)
                store[layer] = new

    def begin_step(self) -> torch.Tensor:
        """Make room for one more token a row; what each row may see: additive mask [B, 1, 1, longest]."""
        self._longest += 1
        if self._longest > self._capacity:
            self._capacity += _GROWTH
            for store in (self._keys, self._values):
                for layer, old in enumerate(store):
                    new = self._room(old, len(self.position), self._capacity)
                    new[:, :, : old.shape[2]] = old
                    store[layer] = new
        slots = torch.arange(self._longest, device=self.position.device)
        unseen = slots > self.position[:, None]
        mask = torch.zeros(unseen.shape, dtype=self._dtype, device=unseen.device)
        return mask.masked_fill_(unseen, torch.finfo(self._dtype).min)[:, None, None]

    def end_step(self) -> None:
        """Every row has written its token."""
        self.position = self.position + 1

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *args: object,  # noqa: ARG002 -- what other caches need
        **kwargs: object,  # noqa: ARG002
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Called by the model's attention: write one token a row, give back all."""
        if layer_idx == len(self._keys):  # no prompt had more than one token
            self._keys.append(self._room(key_states, len(self.position), self._capacity))
            self._values.append(self._room(value_states, len(self.position), self._capacity))
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        keys[self._row, :, self.position] = key_states[:, :, 0]
        values[self._row, :, self.position] = value_states[:, :, 0]
        return keys[:, :, : self._longest], values[:, :, : self._longest]

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002 -- all layers are alike
        """Tokens of the longest row."""
        return self._longest

    @staticmethod
    def _room(like: torch.Tensor, rows: int, capacity: int) -> torch.Tensor:
        # Zeros and not uninitialised memory: a masked slot has weight 0, and 0 times NaN is NaN.
        return like.new_zeros(rows, like.shape[1], capacity, like.shape[3])


def _segments(
    requests: Sequence[Request],
    sampling: Sampling,
    version: int,
    tokens: torch.Tensor,
    logprobs: torch.Tensor,
    entropies: torch.Tensor,
    lengths: torch.Tensor,
) -> list[Segment]:
    ids, chosen, entropy = (
        tokens.to(torch.int32).cpu().numpy(),
        logprobs.cpu().numpy(),
        entropies.cpu().numpy(),
    )
    segments = []
    for row, length in enumerate(lengths.tolist()):
        stopped = int(ids[row, length - 1]) in sampling.stop_token_ids
        segments.append(
            Segment(
                tokens=ids[row, :length].copy(),
                logprobs=chosen[row, :length].copy(),
                entropies=entropy[row, :length].copy(),
                finish_reason="stop" if stopped else "length",
                policy_version=version,
                seed=requests[row].seed,
            )
        )
    return segments


def _distinct(prompts: list[NDArray[np.int32]]) -> tuple[list[NDArray[np.int32]], list[int]]:
    """The different prompts, and for each row which of them it has."""
    index: dict[bytes, int] = {}
    distinct: list[NDArray[np.int32]] = []
    of_row: list[int] = []
    for prompt in prompts:
        key = prompt.astype(np.int32, copy=False).tobytes()
        if key not in index:
            index[key] = len(distinct)
            distinct.append(prompt)
        of_row.append(index[key])
    return distinct, of_row


def _chunks(order: NDArray[np.int64], lengths: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Cut rows, sorted by length, so that each part holds at most _PREFILL_TOKENS padded tokens (or one row)."""
    first = 0
    for last in range(1, len(order) + 1):
        if last == len(order) or (last + 1 - first) * lengths[order[last]] > _PREFILL_TOKENS:
            yield order[first:last]
            first = last


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode while inside; every module's own mode is restored."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _tokenizer_of(model: PreTrainedModel) -> Any:
    path = model.name_or_path
    try:
        return AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError) as error:
        raise InvalidInputError(
            f"Transformers: no tokenizer is given and none is found at model.name_or_path {path!r}; "
            f"pass tokenizer= or load the model from a directory that holds one"
        ) from error


def _check_attention(model: Any) -> None:
    config = model.config.get_text_config()
    layer_types = getattr(config, "layer_types", None)
    windowed = set(layer_types or ()) - {"full_attention"}
    if windowed or (layer_types is None and getattr(config, "sliding_window", None)):
        raise UnsupportedError(
            f"Transformers: {type(model).__name__} has layers without full attention "
            f"({sorted(windowed) or 'a sliding window'}); generate with engine.Vllm"
        )
    implementation = config._attn_implementation  # noqa: SLF001 -- transformers has no public name for it
    if implementation not in ("sdpa", "eager"):
        raise UnsupportedError(
            f"Transformers: the model's attention implementation is {implementation!r}; "
            f"load it with attn_implementation='sdpa'"
        )
