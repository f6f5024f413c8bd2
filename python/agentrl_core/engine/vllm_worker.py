"""Load new weights of the policy inside vLLM's worker."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl_core.engine.weight_layout import shapes_of_folder

if TYPE_CHECKING:
    import torch


class VllmWorker:
    r"""Worker extension with which a vLLM server loads weights from a folder.

    Start the server with the full name of this class:
        VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --logprobs-mode processed_logprobs --enable-scale-out \
            --worker-extension-cls agentrl_core.engine.vllm_worker.VllmWorker

    vLLM adds the class to its own worker, where `VllmServer.update_weights` calls it. It uses vLLM's `reload_weights`,
    with two additions. A folder that the server cannot read, or that has other names or shapes than the served model,
    is refused before anything changes. A head tied to the embedding is updated too: on a CPU, vLLM computes with a
    packed copy of it, which `reload_weights` does not update (in vLLM 0.32, log-probabilities were off by 0.9).

    Example:
        >>> from agentrl_core.engine.vllm_worker import VllmWorker
        >>> VllmWorker().load_policy("/nowhere")  # as the server does
        'sees no checkpoint at /nowhere'
    """

    def load_policy(self, folder: str) -> str | None:
        """Load a checkpoint in Hugging Face's format; return an error as text, since an exception ends the server."""
        if not Path(folder, "config.json").is_file():
            return f"sees no checkpoint at {folder}"
        served = Path(str(getattr(getattr(self, "model_config", None), "model", "")))
        before, now = (shapes_of_folder(path) if path.is_dir() else None for path in (served, Path(folder)))
        if before is not None and now is not None and before != now:
            name = min(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
            return f"serves {name!r} of shape {before.get(name)}, and the checkpoint at {folder} has {now.get(name)}"
        replace_weights(self, weights_path=folder)
        return None


def replace_weights(
    worker: Any, weights: Iterable[tuple[str, torch.Tensor]] | None = None, *, weights_path: str | None = None
) -> None:
    """Replace a worker's weights by weights with a checkpoint's names and shapes, or by those of a folder.

    The worker's adapters are removed.
    """
    worker.reload_weights(weights_iterator=weights, weights_path=weights_path, is_checkpoint_format=True)
    model = worker.get_model()
    for module in model.modules():
        # On a CPU, the head would apply the remains of a removed adapter to requests without one.
        stacked = getattr(module, "lora_b_stacked", ())
        for part in stacked if isinstance(stacked, (tuple, list)) else (stacked,):
            part.zero_()
        # On a CPU, experts compute with packed copies, which still have the old weights.
        experts: Any = getattr(
            getattr(getattr(module, "quant_method", None), "moe_kernel", None), "fused_experts", None
        )
        if type(experts).__module__.endswith("cpu_moe"):
            experts.process_weights_after_loading(module)
    if model.config.tie_word_embeddings:
        # The head shares the embedding's memory, but on a CPU it computes with a packed copy of the old weights.
        model.lm_head.quant_method.process_weights_after_loading(model.lm_head)
