"""A model of two layers and width 64, and a tokenizer with one token for each word of a world."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_SPECIAL = ("<pad>", "<end>", "<user>", "<assistant>")
_TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'user' %}<user>{{ message.content }}"
    "{% else %}<assistant>{{ message.content }}<end>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
LONGEST = 512


def build(words: Sequence[str], seed: int) -> tuple[Any, Any]:
    """Return a Qwen3 of 0.1 M random parameters in evaluation mode, and its tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    make: Any = Qwen3ForCausalLM
    wrap: Any = PreTrainedTokenizerFast
    numbers = {word: number for number, word in enumerate((*_SPECIAL, *words))}
    core = Tokenizer(models.WordLevel(numbers, unk_token="<pad>"))  # noqa: S106 -- a word, no secret
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = wrap(tokenizer_object=core, eos_token="<end>", pad_token="<pad>")  # noqa: S106
    tokenizer.add_special_tokens({"additional_special_tokens": list(_SPECIAL[2:])})
    tokenizer.chat_template = _TEMPLATE
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=16,
        intermediate_size=192,
        max_position_embeddings=LONGEST,
        # Contexts are short: with the usual base most dimensions hardly rotate, and the model learns to copy later.
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=numbers["<end>"],
        pad_token_id=numbers["<pad>"],
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make(config)
    return model.eval(), tokenizer
