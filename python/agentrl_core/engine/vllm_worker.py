"""Load new weights of the policy inside vLLM's worker."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl_core.engine.weights import shapes_of_folder

if TYPE_CHECKING:
    import torch


class VllmWorker:
    r"""Lets a vLLM server take the weights of a folder: start it with this class's full name, as below.

        VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --logprobs-mode processed_logprobs --enable-scale-out \
            --worker-extension-cls agentrl_core.engine.vllm_worker.VllmWorker

    vLLM mixes it into its own worker; `VllmServer.update_weights` calls it there. vLLM's own `reload_weights` does the
    work. This adds a check: a folder that the server does not see, or that holds other names or shapes than the
    one it was started with, is refused before anything is touched, and that a head tied to the embedding is taken too:
    on a CPU vLLM computes with a packed copy of it, which `reload_weights` forgets (seen in vLLM 0.32:
    log-probabilities off by 0.9).

    Example:
        >>> from agentrl_core.engine.vllm_worker import VllmWorker
        >>> VllmWorker().load_policy("/nowhere")  # as the server does
        'sees no checkpoint at /nowhere'
    """

    def load_policy(self, folder: str) -> str | None:
        """Load a checkpoint in Hugging Face's format; return what is wrong with it, since an error ends the server."""
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
    """Put weights, of a checkpoint's names and shapes or of a folder, in the place of those that a worker has.

    Its adapters are dropped.
    """
    worker.reload_weights(weights_iterator=weights, weights_path=weights_path, is_checkpoint_format=True)
    model = worker.get_model()
    for module in model.modules():
        # On a CPU the head applies what is left of a dropped adapter to requests that have none.
        stacked = getattr(module, "lora_b_stacked", ())
        for part in stacked if isinstance(stacked, (tuple, list)) else (stacked,):
            part.zero_()
        # Experts on a CPU work from packed copies, which are still the old ones.
        experts: Any = getattr(
            getattr(getattr(module, "quant_method", None), "moe_kernel", None), "fused_experts", None
        )
        if type(experts).__module__.endswith("cpu_moe"):
            experts.process_weights_after_loading(module)
    if model.config.tie_word_embeddings:
        # The head shares the embedding's memory, but on a CPU it works from a packed copy, which is still the old one.
        model.lm_head.quant_method.process_weights_after_loading(model.lm_head)
