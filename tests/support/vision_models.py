"""Tiny vision-language models of transformers' families with their real processors; nothing is downloaded."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image as Picture
from templates import SEEING, bytes_tokenizer

from agentrl_core.env import Image

START, END = "<|im_start|>", "<|im_end|>"
TEXT: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "initializer_range": 0.08,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
SIGLIP = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}

QWEN = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 4,
    "patch_size": 14,
    "window_size": 56,
    "fullatt_block_indexes": [1],
}
"""The vision tower of Qwen2.5-VL."""


def screenshot(seed: int, width: int = 56, height: int = 56) -> Image:
    """Return a PNG of random colours."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    buffer = io.BytesIO()
    Picture.fromarray(pixels).save(buffer, "PNG")
    return Image(buffer.getvalue())


def build(family: str, seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """Return a model of random weights in eval mode, and its processor with a chat template."""
    torch.manual_seed(seed)
    model, processor = FAMILIES[family]()
    for name, parameter in model.named_parameters():  # some projections are initialised with zeros
        if not parameter.any() and not name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.2)
    return model.to(dtype).eval(), processor


def _tokenizer(image: str, placeholder: str, special: list[str], **names: str) -> Any:
    """Return a tokenizer of bytes and special tokens; its template writes `image`, which the processor replaces."""
    tokens = ["<s>", START, END, placeholder, *special]
    tokenizer = bytes_tokenizer(SEEING.replace("<image>", image), tokens, END)
    tokenizer.pad_token = "<s>"
    for name, token in names.items():
        setattr(tokenizer, name, token)
        setattr(tokenizer, f"{name}_id", tokenizer.convert_tokens_to_ids(token))
    return tokenizer


def _qwen(name: str, vision: dict[str, Any], text: dict[str, Any], patch: int) -> tuple[Any, Any]:
    tokens = ["<|vision_start|>", "<|vision_end|>", "<|video_pad|>"]
    names = {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"}
    tokenizer = _tokenizer("<|vision_start|><|image_pad|><|vision_end|>", "<|image_pad|>", tokens, **names)
    ids = {
        f"{each}_token_id": tokenizer.convert_tokens_to_ids(token)
        for each, token in [
            ("image", "<|image_pad|>"),
            ("video", "<|video_pad|>"),
            ("vision_start", tokens[0]),
            ("vision_end", tokens[1]),
        ]
    }
    config = getattr(transformers, f"{name}Config")(
        vision_config=vision, text_config={**TEXT, "vocab_size": len(tokenizer), **text}, **ids
    )
    pixels = {"size": {"shortest_edge": 28 * 28, "longest_edge": 112 * 112}, "patch_size": patch}
    processor = getattr(transformers, f"{name}Processor")(
        transformers.Qwen2VLImageProcessor(**pixels),
        tokenizer,
        getattr(transformers, "Qwen3VLVideoProcessor" if "3" in name else "Qwen2VLVideoProcessor")(),
        chat_template=tokenizer.chat_template,
    )
    return getattr(transformers, f"{name}ForConditionalGeneration")(config), processor


def _qwen2_5_vl() -> tuple[Any, Any]:
    part = TEXT["hidden_size"] // TEXT["num_attention_heads"] // 8
    rope = {"rope_type": "default", "mrope_section": [part, part, 2 * part], "rope_theta": 1e4}
    vision = {**QWEN, "out_hidden_size": TEXT["hidden_size"]}
    return _qwen("Qwen2_5_VL", vision, {"rope_parameters": rope}, 14)


def _qwen3_vl() -> tuple[Any, Any]:
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_heads": 4,
        "patch_size": 14,
        "out_hidden_size": 32,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0],
    }
    rope = {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 1e4}
    return _qwen("Qwen3VL", vision, {"rope_parameters": rope, "head_dim": 8}, 14)


def _idefics(name: str) -> tuple[Any, Any]:
    tokens = ["<fake_token_around_image>", "<global-img>", "<end_of_utterance>", "<video>"]
    tokens += [f"<row_{row}_col_{column}>" for row in range(1, 4) for column in range(1, 4)]
    tokenizer = _tokenizer("<image>", "<image>", tokens)
    config = getattr(transformers, f"{name}Config")(
        vision_config={**SIGLIP, "image_size": 32, "patch_size": 8},
        text_config={**TEXT, "vocab_size": len(tokenizer), "model_type": "llama"},
        scale_factor=2,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        pad_token_id=0,
    )
    pixels = {"size": {"longest_edge": 64}, "max_image_size": {"longest_edge": 32}}
    image_processor = getattr(transformers, f"{name}ImageProcessor")(**pixels)
    parts = [image_processor, tokenizer]
    if name == "SmolVLM":
        parts.append(transformers.SmolVLMVideoProcessor())
    processor = getattr(transformers, f"{name}Processor")(
        *parts, image_seq_len=4, chat_template=tokenizer.chat_template
    )
    return getattr(transformers, f"{name}ForConditionalGeneration")(config), processor


def _gemma3() -> tuple[Any, Any]:
    tokens = ["<start_of_image>", "<end_of_image>"]
    names = {"image_token": "<image_soft_token>", "boi_token": tokens[0], "eoi_token": tokens[1]}
    tokenizer = _tokenizer(tokens[0], "<image_soft_token>", tokens, **names)
    config = transformers.Gemma3Config(
        vision_config={**SIGLIP, "image_size": 32, "patch_size": 8, "vision_use_head": False},
        text_config={
            **TEXT,
            "vocab_size": len(tokenizer),
            "head_dim": 8,
            "sliding_window": 16,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        mm_tokens_per_image=4,
        image_token_id=tokenizer.convert_tokens_to_ids("<image_soft_token>"),
        boi_token_index=tokenizer.convert_tokens_to_ids(tokens[0]),
        eoi_token_index=tokenizer.convert_tokens_to_ids(tokens[1]),
    )
    processor = transformers.Gemma3Processor(
        transformers.Gemma3ImageProcessor(size={"height": 32, "width": 32}),
        tokenizer,
        chat_template=tokenizer.chat_template,
        image_seq_length=4,
    )
    return transformers.Gemma3ForConditionalGeneration(config), processor


def _llava_onevision() -> tuple[Any, Any]:
    tokenizer = _tokenizer("<image>", "<image>", ["<video>"])
    pinpoints = [[28, 56], [56, 28], [56, 56]]
    config = transformers.LlavaOnevisionConfig(
        vision_config={
            **SIGLIP,
            "model_type": "siglip_vision_model",
            "image_size": 28,
            "patch_size": 14,
            "vision_use_head": False,
        },
        text_config={**TEXT, "vocab_size": len(tokenizer), "model_type": "qwen2"},
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        video_token_id=tokenizer.convert_tokens_to_ids("<video>"),
        image_grid_pinpoints=pinpoints,
        vision_feature_select_strategy="full",
        vision_feature_layer=-1,
    )
    pixels = {"size": {"height": 28, "width": 28}, "image_grid_pinpoints": pinpoints}
    processor = transformers.LlavaOnevisionProcessor(
        transformers.LlavaOnevisionImageProcessor(**pixels),
        tokenizer,
        transformers.LlavaOnevisionVideoProcessor(size={"height": 28, "width": 28}),
        num_image_tokens=4,
        vision_feature_select_strategy="full",
        chat_template=tokenizer.chat_template,
    )
    return transformers.LlavaOnevisionForConditionalGeneration(config), processor


def _internvl() -> tuple[Any, Any]:
    tokens = ["<img>", "</img>", "<video>"]
    names = {"context_image_token": "<IMG_CONTEXT>", "start_image_token": "<img>", "end_image_token": "</img>"}
    tokenizer = _tokenizer("<IMG_CONTEXT>", "<IMG_CONTEXT>", tokens, **names, video_token="<video>")
    config = transformers.InternVLConfig(
        vision_config={**SIGLIP, "image_size": [28, 28], "patch_size": [7, 7]},
        text_config={**TEXT, "vocab_size": len(tokenizer), "model_type": "qwen2"},
        image_token_id=tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>"),
        image_seq_length=4,
    )
    processor = transformers.InternVLProcessor(
        transformers.GotOcr2ImageProcessor(size={"height": 28, "width": 28}, max_patches=4),
        tokenizer,
        transformers.InternVLVideoProcessor(size={"height": 28, "width": 28}),
        image_seq_length=4,
        chat_template=tokenizer.chat_template,
    )
    return transformers.InternVLForConditionalGeneration(config), processor


FAMILIES: dict[str, Callable[[], tuple[Any, Any]]] = {
    "qwen2_5_vl": _qwen2_5_vl,
    "smolvlm": lambda: _idefics("SmolVLM"),
    "idefics3": lambda: _idefics("Idefics3"),
    "gemma3": _gemma3,
    "qwen3_vl": _qwen3_vl,
    "llava_onevision": _llava_onevision,
    "internvl": _internvl,
}
