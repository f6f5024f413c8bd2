"""Policies of PEFT whose adapters are not the identity."""

from __future__ import annotations

from typing import Any

import torch

ALONE: dict[str, dict[str, Any]] = {
    "attention": {"target_modules": ["q_proj", "v_proj"]},
    "all": {"target_modules": "all-linear"},
    "ranks": {"target_modules": "all-linear", "rank_pattern": {"q_proj": 2}, "alpha_pattern": {"v_proj": 32}},
    "stabilised": {"target_modules": ["down_proj"], "use_rslora": True},
    "head": {"target_modules": ["lm_head", "q_proj"]},
    "embedding": {"target_modules": ["embed_tokens", "o_proj"]},
}
MERGED: dict[str, dict[str, Any]] = {
    "dora": {"target_modules": "all-linear", "use_dora": True},
    "saved head": {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
    "saved norm": {"target_modules": ["q_proj"], "modules_to_save": ["norm"]},
    "tokens": {"target_modules": ["q_proj"], "trainable_token_indices": [3, 5]},
    "bias": {"target_modules": ["q_proj"], "lora_bias": True, "bias": "none"},
}


def adapted(make_model: Any, name: str, **options: Any) -> Any:
    """Return a policy whose adapters are not the identity."""
    import peft

    base = make_model("qwen2" if name == "bias" else "qwen3", tie_word_embeddings=False, **options)
    config = peft.LoraConfig(r=4, lora_alpha=12, **(ALONE | MERGED)[name])
    return shaken(peft.get_peft_model(base, config))


def shaken(model: Any, size: float = 0.05) -> Any:
    """Return the same policy with every trained parameter changed."""
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(size * torch.randn(parameter.shape, generator=generator))
    return model.eval()
