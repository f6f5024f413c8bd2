"""A Qwen2.5-VL of 0.1 M random parameters and its processor, for `vision.py`: it needs no download and no GPU."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

SPECIAL = ("<pad>", "<end>", "<user>", "<assistant>", "<begin>", "<image>", "<close>", "<video>")
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'image' %}<begin><image><close>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}{% if m.role == 'assistant' %}<end>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
SIDE = 56
"""Pixels of a picture. It becomes 16 tokens, of 14 x 14 pixels each."""


def build(words: tuple[str, ...], seed: int) -> tuple[Any, Any]:
    """Return a model with a small vocabulary, and its processor."""
    ids = {word: number for number, word in enumerate((*SPECIAL, *words))}
    core = Tokenizer(models.WordLevel(ids, unk_token="<pad>"))  # noqa: S106 -- a word, no secret
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer: Any = transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token=SPECIAL[1], pad_token=SPECIAL[0]
    )
    tokenizer.add_special_tokens({"additional_special_tokens": list(SPECIAL[2:])})
    marks = {"vision_start_token_id": ids["<begin>"], "vision_end_token_id": ids["<close>"]}
    for kind in ("image", "video"):
        setattr(tokenizer, f"{kind}_token", f"<{kind}>")
        setattr(tokenizer, f"{kind}_token_id", ids[f"<{kind}>"])
        marks[f"{kind}_token_id"] = ids[f"<{kind}>"]
    width: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128}
    vision = {**width, "depth": 1, "num_heads": 4, "patch_size": 7, "out_hidden_size": 64, "fullatt_block_indexes": [0]}
    text = {**width, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": len(ids)}
    text["rope_parameters"] = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 1e4}
    text |= {"initializer_range": 0.08, "bos_token_id": None, "eos_token_id": ids["<end>"]}
    processor = transformers.Qwen2_5_VLProcessor(
        transformers.Qwen2VLImageProcessor(
            patch_size=7, size={"shortest_edge": SIDE * SIDE, "longest_edge": SIDE * SIDE}
        ),
        tokenizer,
        transformers.Qwen2VLVideoProcessor(),
        chat_template=TEMPLATE,
    )
    torch.manual_seed(seed)
    config = transformers.Qwen2_5_VLConfig(vision_config=vision, text_config=text, **marks)
    return transformers.Qwen2_5_VLForConditionalGeneration(config).eval(), processor
