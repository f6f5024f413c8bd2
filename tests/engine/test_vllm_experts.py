"""The real vLLM takes the weights of experts, whose names in memory differ from those of a checkpoint."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from checked_segments import check

from agentrl_core import engine
from agentrl_core.engine import Sampling

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
pytest.importorskip("vllm")


def experts(tokenizer: Any, seed: int) -> Any:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(seed)
    config: Any = Qwen3MoeConfig(
        hidden_size=64,
        head_dim=32,
        intermediate_size=64,
        moe_intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_experts=4,
        num_experts_per_tok=2,
        vocab_size=len(tokenizer),
        max_position_embeddings=256,
        initializer_range=0.1,
    )
    return Qwen3MoeForCausalLM(config).eval()


def test_updated_experts_are_the_ones_sampled_from(tokenizer, own_words) -> None:
    first, second = experts(tokenizer, 0), experts(tokenizer, 1)
    generate = engine.Vllm(first, tokenizer, max_model_len=128, block_size=32)
    sampling = Sampling(temperature=0.7, max_tokens=6)
    check(generate, first, own_words, sampling, version=0)
    generate.update_weights(second, version=1)
    check(generate, second, own_words, sampling, version=1)
    generate.update_weights(first.state_dict(), version=2)
    check(generate, first, own_words, sampling, version=2)
    generate.close()
