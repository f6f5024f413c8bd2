"""Generation from a Hugging Face model in this process: batched sampling with a KV cache."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import AutoProcessor, AutoTokenizer

from agentrl_core.engine.attention_windows import windows_of
from agentrl_core.engine.base import Request, Segment
from agentrl_core.engine.chat import Chat, ends_of
from agentrl_core.engine.continuous_batching import ContinuousBatching
from agentrl_core.engine.engine_images import EngineImages
from agentrl_core.engine.lora import adapter_states
from agentrl_core.engine.policy_weights import PolicyWeights, plain_name, weight_stamp
from agentrl_core.engine.prefix_cache import PrefixCache
from agentrl_core.engine.running_batch import RunningBatch
from agentrl_core.engine.weight_layout import check_weights, layout_of, weights_to_load
from agentrl_core.exceptions import AgentRLError, InvalidInputError, UnsupportedError
from agentrl_core.model.architecture import causal_model_of
from agentrl_core.model.images import ImageInputs, placeholder_ids, takes_images
from agentrl_core.model.ranks import is_sharded
from agentrl_core.model.routers import RouteTrace

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class Transformers(ContinuousBatching):
    """Samples from a causal Hugging Face model, on the model's device.

    The model is held by reference: if it is the trained policy, sampling always uses its latest weights, and it is in
    evaluation mode only during generation. Such an engine must not generate during optimizer steps
    (`shares_parameters`); an engine with a copy may. A common prefix of concurrent prompts, such as a system prompt, is
    computed once. All rows advance by one token per step, and new requests join between steps. The sampled tokens of a
    row only depend on its seed and its prompt (token i of a segment uses `uniform(seed, i)`), not on other rows, except
    for rounding in matrix products.

    With the processor of a vision-language model the engine `takes_images`: the features of an image are computed once,
    for all requests and turns that show it, until the weights change. Image placeholder tokens are never sampled.

    Log-probabilities and entropies are those of the sampling distribution, after temperature, top_k and top_p, in
    float32 (computed in float64 for a float64 model). `entropy_estimator` is "exact".

    It computes in a separate thread, with the value of `torch.set_num_threads` at the first request, and without the
    autocast of other threads.

    Args:
        model: a decoder whose layers attend to all earlier tokens or to a window of them (Llama, Qwen, Mistral, Gemma
            and their like).
        tokenizer: the model's tokenizer with a chat template, or its processor if it supports images. None: the one
            saved at `model.name_or_path`.
        device: move the model there first. None: keep its device.
        copy: sample from a copy of the model, which only `update_weights` changes: for a trainer that steps while this
            engine generates.
        batch_invariant: compute each row alone, so that a segment does not depend on other requests, bit for bit. Slow:
            for tests, and for runs that must be repeated exactly.
        prefix_cache_bytes: most bytes of cached keys and values of ended segments, for turns and forks that begin with
            their tokens; the default is 1 GiB. A token takes 2 x layers x KV heads x head width x bytes of a number:
            46 kB in SmolLM2-135M with fp32. 0: no cache.
        chat_template_kwargs: options of the chat template, such as `{"enable_thinking": False}`.
        routed_experts: report the experts of a mixture-of-experts model (`Segment.routed_experts`).

    Raises:
        InvalidInputError: no tokenizer is given and none is found; the tokenizer has no chat template;
            prefix_cache_bytes is negative.
        UnsupportedError: the model has layers of another kind, or an attention implementation other than sdpa and
            eager, or caps attention scores in sdpa, which leaves them out; or its weights lie on several ranks; or
            `routed_experts` without a known router.

    Example:
        >>> from agentrl_core import engine, env, warm_start
        >>> model, tokenizer = warm_start.build(env.ReasoningGym(["chain_sum"]), seed=0)
        >>> generate = engine.Transformers(model, tokenizer)
        >>> request = engine.Request(generate.chat.prompt("2 + 2 ="), seed=1, sampling=engine.Sampling(max_tokens=4))
        >>> [segment] = engine.complete(generate, [request])
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
        copy: bool = False,
        batch_invariant: bool = False,
        prefix_cache_bytes: int = 1 << 30,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        routed_experts: bool = False,
    ) -> None:
        super().__init__()
        if prefix_cache_bytes < 0:
            raise InvalidInputError(
                f"Transformers: prefix_cache_bytes is {prefix_cache_bytes}; give 0 (none) or a positive integer"
            )
        if is_sharded(model):
            raise UnsupportedError(
                f"Transformers: {type(model).__name__} has its weights on several ranks, so it cannot "
                "generate on one; load a model from the checkpoint, and give the engine weights by update_weights"
            )
        own_model: Any = deepcopy(model) if copy else model
        self.model: Any = own_model if device is None else own_model.to(device)
        sees = takes_images(self.model)
        processor_or_tokenizer: Any = tokenizer if tokenizer is not None else _tokenizer_of(model, sees=sees)
        self.tokenizer: Any = getattr(processor_or_tokenizer, "tokenizer", processor_or_tokenizer)
        configured = getattr(self.model, "generation_config", None)
        stops = ends_of(self.tokenizer, getattr(configured, "eos_token_id", None))
        self.chat = Chat(processor_or_tokenizer, chat_template_kwargs, stop_token_ids=stops)
        self.takes_images = sees and hasattr(processor_or_tokenizer, "image_processor")
        """True if the model takes images and its processor was given."""
        self.vocabulary_size = int(self.model.get_output_embeddings().weight.shape[0])
        self.batch_invariant = batch_invariant
        self.shares_parameters = not copy
        """True if the model may be the trained one, until weights of another model are loaded."""
        self._batches: list[RunningBatch] = []
        self._kept = PrefixCache(prefix_cache_bytes) if prefix_cache_bytes and not batch_invariant else None
        self._routes = RouteTrace(self.model) if routed_experts else None
        self._stamp: object = None
        """Key of the weights by which cached keys, values and features were computed."""
        self._never = placeholder_ids(self.model)
        """Placeholder tokens, such as those of images; training also gives them probability 0."""
        inputs = ImageInputs(processor_or_tokenizer) if self.takes_images else None
        self._images = None if inputs is None else EngineImages(self.model, inputs, alone=batch_invariant)
        self._windows = windows_of(self.model)

    @property
    def precision(self) -> int | None:
        """Bits per weight; None for a quantised model, which mixes several precisions."""
        quantised = getattr(self.model.config, "quantization_config", None) is not None
        return None if quantised else 8 * self.model.dtype.itemsize

    def _check(self, request: Request) -> None:
        if request.sampling.top > self.vocabulary_size:
            raise InvalidInputError(
                f"generate: top is {request.sampling.top}, but the vocabulary has {self.vocabulary_size} tokens; give "
                f"at most {self.vocabulary_size}"
            )
        placeholders = np.isin(request.tokens, self._never) if self._never and self._images is None else None
        if placeholders is not None and placeholders.any():
            raise InvalidInputError(
                f"generate: the request holds token {request.tokens[placeholders][0]}, a placeholder of images; "
                f"make the engine with the processor of {type(self.model).__name__}, not a tokenizer"
            )

    @contextmanager
    def _working(self) -> Iterator[None]:
        with _evaluating(self.model):
            self._drop_stale_prefixes()
            yield

    @torch.inference_mode()
    def _begin(self, newcomers: Mapping[int, Request]) -> dict[int, Segment | AgentRLError]:
        refused = {} if self._images is None else self._images.refused(newcomers)
        accepted = {number: request for number, request in newcomers.items() if number not in refused}
        per_batch = [{number: request} for number, request in accepted.items()] if self.batch_invariant else [accepted]
        batches = [
            RunningBatch(self.model, requests, self._windows, self._kept, self._images, self._never, self._routes)
            for requests in per_batch
            if requests
        ]
        ended = refused | self._of_each(batches)
        self._batches += batches
        if not self.batch_invariant:
            while len(self._batches) > 1:
                self._batches[0].join(self._batches.pop())
        return ended

    @torch.inference_mode()
    def _step(self) -> dict[int, Segment]:
        return self._of_each(self._batches, None if self.batch_invariant else self._mail.empty)

    @torch.inference_mode()
    def _end(self, numbers: Sequence[int]) -> dict[int, Segment]:
        ended: dict[int, Segment] = {}
        for rows in self._batches:
            ended |= rows.end(numbers, self.policy_version)
        self._batches = [rows for rows in self._batches if len(rows)]
        return ended

    def _drop_all(self) -> None:
        self._batches = []

    def _check_weights(self, weights: PolicyWeights) -> None:
        if not self._shares(weights):
            check_weights(weights, layout_of(self.model))

    def _replace(self, weights: PolicyWeights) -> None:
        self._stamp = None
        if not self._shares(weights):
            tensors = {plain_name(name): tensor for name, tensor in self.model.state_dict().items()}
            self.shares_parameters = False
            for name, weight in weights_to_load(weights, layout_of(self.model)):
                self._is_torn = True
                tensors[name].copy_(weight)
        self._clear_computed()

    def _drop_stale_prefixes(self) -> None:
        """Clear cached keys, values and features if the weights have changed since they were computed."""
        if self._kept is None and self._images is None:
            return
        stamp = _stamp(self.model)
        if self._stamp != stamp:
            self._clear_computed()
            self._stamp = stamp

    def _clear_computed(self) -> None:
        """Clear cached keys, values and features."""
        for cache in (self._kept, self._images):
            if cache is not None:
                cache.clear()

    def _shares(self, weights: PolicyWeights) -> bool:
        """Return whether these weights are those of the engine's own model."""
        return weights.model is not None and weights.model is causal_model_of(self.model)

    def _release(self) -> None:
        self._batches = []
        self._kept = self._images = None

    def _of_each(self, batches: list[RunningBatch], continues: Callable[[], bool] | None = None) -> dict[int, Segment]:
        """Run each batch as `RunningBatch.run` does; return ended segments by number, and remove empty batches."""
        ended: dict[int, Segment] = {}
        for rows in batches:
            ended |= rows.run(self.policy_version, continues)
        if ended:
            batches[:] = [rows for rows in batches if len(rows)]
        return ended


def _stamp(model: nn.Module) -> object:
    """Return a key that changes when an optimizer step changes the model, or its adapters are switched."""
    stamp = weight_stamp(chain(model.parameters(), model.buffers()))
    return (stamp, adapter_states(model)) if "peft" in sys.modules else stamp


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Set evaluation mode inside the block, and restore the mode of each module afterwards."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _tokenizer_of(model: PreTrainedModel, *, sees: bool) -> Any:
    """Return the tokenizer saved with a model, or its processor if the model supports images."""
    path = model.name_or_path
    kind: Any = AutoProcessor if sees else AutoTokenizer
    try:
        return kind.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError) as error:
        raise InvalidInputError(
            f"Transformers: no tokenizer is given and none is found at model.name_or_path {path!r}; "
            f"pass tokenizer= or load the model from a directory that holds one"
        ) from error
