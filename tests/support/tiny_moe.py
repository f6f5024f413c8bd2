"""Tiny mixture-of-experts models, and the experts that their routers choose in a plain forward."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DeepseekV3Config, MixtralConfig, OlmoeConfig, PreTrainedModel, Qwen3MoeConfig
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

VOCABULARY, EXPERTS, TOP = 50, 8, 2
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "num_experts_per_tok": TOP,
    "initializer_range": 0.1,
}
_CONFIGS: dict[str, Any] = {
    "qwen3_moe": (
        Qwen3MoeConfig,
        {
            "head_dim": 8,
            "intermediate_size": 32,
            "moe_intermediate_size": 16,
            "num_experts": EXPERTS,
            "norm_topk_prob": True,
        },
    ),
    "olmoe": (OlmoeConfig, {"intermediate_size": 16, "num_experts": EXPERTS, "norm_topk_prob": False}),
    "mixtral": (
        MixtralConfig,
        {"head_dim": 8, "intermediate_size": 16, "num_local_experts": EXPERTS, "sliding_window": None},
    ),
    "deepseek_v3": (
        DeepseekV3Config,
        {
            "num_key_value_heads": 4,
            "intermediate_size": 32,
            "moe_intermediate_size": 16,
            "n_routed_experts": EXPERTS,
            "n_shared_experts": 1,
            "n_group": 2,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 8,
            "v_head_dim": 8,
        },
    ),
}


def tiny_moe(
    family: str,
    dtype: torch.dtype = torch.float32,
    *,
    experts: int = EXPERTS,
    scale: float = 1.0,
    seed: int = 3,
    **shape: Any,
) -> PreTrainedModel:
    """Return a random model of two layers, in evaluation mode, whose routers choose different experts per token.

    With more experts their logits lie closer together; `scale` multiplies the output of experts; `shape` has other
    fields of the config.
    """
    torch.manual_seed(seed)
    kind, family_options = _CONFIGS[family]
    config = kind(**{**_SHAPE, **family_options, **shape})
    if experts != EXPERTS:
        config.num_experts = experts
    model: Any = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("gate.weight"):
                parameter.normal_(0, 0.3)
            elif name.endswith("down_proj"):
                parameter.mul_(scale)
    return model.to(dtype).eval()


def routers(model: PreTrainedModel) -> list[Any]:
    """Return the routers, found by their location in the model."""
    layers: Any = model.base_model.layers
    return [layer.mlp.gate for layer in layers if hasattr(layer.mlp, "gate")]


def chosen_experts(model: PreTrainedModel, tokens: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the experts of each token in one plain forward, `[tokens, layers * k]`, from the routers' inputs."""
    states: list[torch.Tensor] = []
    handles = [
        router.register_forward_pre_hook(lambda _, arguments: states.append(arguments[0])) for router in routers(model)
    ]
    with torch.no_grad():
        model(torch.from_numpy(tokens.astype(np.int64))[None])
    for handle in handles:
        handle.remove()
    chosen = []
    for router, state in zip(routers(model), states, strict=True):
        logits = state.reshape(-1, state.shape[-1]).float() @ router.weight.float().T
        chosen.append(logits.topk(TOP).indices)
    return torch.cat(chosen, dim=1).numpy()
