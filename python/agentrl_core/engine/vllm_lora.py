"""Write adapters for vLLM's LoRA requests."""

from __future__ import annotations

import json
import re
from pathlib import Path

from torch import nn

from agentrl_core.engine import lora
from agentrl_core.engine.checkpoint_folder import disk_errors
from agentrl_core.engine.policy_weights import PolicyWeights, plain_name


def can_send_adapter(weights: PolicyWeights, largest_rank: int) -> bool:
    """Return whether an engine with LoRA up to a rank can hold a policy's adapter separately from its base weights.

    Other adapters must be merged: DoRA, trained copies of modules, trained tokens, several adapters at once, and so on.
    """
    if weights.model is None or not weights.is_adapted or lora.reason_to_merge(weights.model) is not None:
        return False
    return max(_ranks_of(weights.model).values()) <= largest_rank


def write_adapter(folder: Path, weights: PolicyWeights) -> None:
    """Write the adapter of a policy in PEFT's format, with its scaling multiplied into B.

    Raises:
        EngineError: the disk is full, or the folder cannot be written.
    """
    from safetensors.torch import save_file

    tensors = {
        f"base_model.model.{name}": weight.contiguous().cpu().clone() for name, weight in weights.read("adapter")
    }
    ranks = _ranks_of(weights.model)
    largest_rank = max(ranks.values())
    others = {re.escape(name): rank for name, rank in ranks.items() if rank != largest_rank}
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "bias": "none",
        "inference_mode": True,
        "init_lora_weights": True,
        "r": largest_rank,
        "lora_alpha": largest_rank,
        "lora_dropout": 0.0,
        "rank_pattern": others,
        "alpha_pattern": others,
        "target_modules": sorted({name.rpartition(".")[2] for name in ranks}),
    }
    with disk_errors(folder):
        save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
        (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _ranks_of(model: nn.Module) -> dict[str, int]:
    """Return the rank of the active adapter of each LoRA layer, by the layer's name."""
    layers = ((plain_name(name), lora.adapter_layer(part)) for name, part in model.named_modules())
    return {name: int(layer.r[layer.active_adapters[0]]) for name, layer in layers if layer is not None}
