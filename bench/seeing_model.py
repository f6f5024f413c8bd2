"""A tiny vision-language model, its processor, and its warm start by imitation of clicks on recorded screens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from screens import CELLS, QUESTION, SIDE, RecordedScreens
from torch import nn

from agentrl_core import engine
from agentrl_core.model.images import ImageInputs, arguments, features

_SPECIAL = ("<pad>", "<end>", "<user>", "<assistant>", "<image>", "<fake_token_around_image>", "<global-img>")
_UNUSED = ("<video>", "<end_of_utterance>")
WORDS = (QUESTION, *map(str, range(CELLS)))
"""Maximal length of questions and clicks, in tokens."""
_TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'user' %}<user>{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}"
    "{% endif %}{% else %}<assistant>{{ m.content }}<end>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
_PATCH = 10
# A page is nearly white, so it is normalised by its own mean and spread.
_MEAN, _SPREAD = [0.97] * 3, [0.15] * 3
_RAMP_STEPS = 30


def build(words: Sequence[str], seed: int) -> tuple[Any, Any]:
    """Return a SmolVLM of 0.18 M random parameters, and its processor, with 64 image tokens: one per cell of the grid.

    Args:
        words: of prompts and actions; each is a token.
        seed: of the parameters.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import (
        PreTrainedTokenizerFast,
        SmolVLMConfig,
        SmolVLMForConditionalGeneration,
        SmolVLMImageProcessor,
        SmolVLMProcessor,
        SmolVLMVideoProcessor,
    )

    numbers = {word: number for number, word in enumerate((*_SPECIAL, *_UNUSED, *words))}
    core = Tokenizer(models.WordLevel(numbers, unk_token="<pad>"))  # noqa: S106 -- a word, no secret
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<end>", pad_token="<pad>")  # noqa: S106
    tokenizer.add_special_tokens({"additional_special_tokens": list(_SPECIAL[2:])})
    tokenizer.chat_template = _TEMPLATE
    for name, token in (("fake_image_token", "<fake_token_around_image>"), ("image_token", "<image>")):
        setattr(tokenizer, name, token)
        setattr(tokenizer, f"{name}_id", numbers[token])
    tokenizer.global_image_token = "<global-img>"  # noqa: S105 -- a word, no secret
    size = {"longest_edge": SIDE}
    image_processor = SmolVLMImageProcessor(
        do_resize=False,
        do_image_splitting=False,
        size=size,
        max_image_size=size,
        image_mean=_MEAN,
        image_std=_SPREAD,
    )
    tokens = (SIDE // _PATCH) ** 2
    processor = SmolVLMProcessor(
        image_processor, tokenizer, SmolVLMVideoProcessor(), image_seq_len=tokens, chat_template=_TEMPLATE
    )
    width: dict[str, Any] = {"hidden_size": 64, "num_attention_heads": 4}
    config = SmolVLMConfig(
        vision_config={
            **width,
            "intermediate_size": 128,
            "num_hidden_layers": 1,
            "image_size": SIDE,
            "patch_size": _PATCH,
        },
        text_config={
            **width,
            "model_type": "llama",
            "vocab_size": len(tokenizer),
            "intermediate_size": 192,
            "num_hidden_layers": 2,
            "num_key_value_heads": 4,
            "max_position_embeddings": 128,
            "initializer_range": 0.06,
            "tie_word_embeddings": False,
            "bos_token_id": 0,
            "eos_token_id": numbers["<end>"],
            "pad_token_id": 0,
        },
        scale_factor=1,
        image_token_id=numbers["<image>"],
        pad_token_id=0,
        tie_word_embeddings=False,
    )
    torch.manual_seed(seed)
    return SmolVLMForConditionalGeneration(config).eval(), processor


def warm_start(
    model: Any, processor: Any, world: RecordedScreens, *, seed: int, steps: int, rows: int = 32, rate: float = 2e-3
) -> list[float]:
    """Imitate clicks on a random cell of the button, and return the loss of each step: mean nats of an answer's token.

    Args:
        model: from `build`.
        processor: from `build`.
        world: the screens; the training ones are used.
        seed: of the order of screens.
        steps: optimizer steps.
        rows: screens a step.
        rate: learning rate after the ramp.
    """
    chat, inputs = engine.Chat(processor), ImageInputs(processor)
    sees = world.shows != "nothing"
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
    rng, losses = np.random.default_rng(seed), []
    usable = np.flatnonzero(world.hits[: world.train].any((1, 2)))
    model.train()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / _RAMP_STEPS)
        chosen = rng.choice(usable, rows, replace=False)
        answers = [rng.choice(np.argwhere(world.hits[place])) for place in chosen]
        texts = [chat.action(f"{column} {row}") for column, row in answers]
        prompts = [chat.prompt(world.prompt(place)) for place in chosen]
        ids = torch.tensor(np.array([np.concatenate(pair) for pair in zip(prompts, texts, strict=True)])).long()
        extra = {}
        if sees:
            image_features = features(model, [inputs.of(world.prompt(place)["content"][0]) for place in chosen])  # type: ignore[index, call-overload, arg-type]
            extra = arguments(
                model, image_features, ids, torch.ones_like(ids).bool(), [[place] for place in range(rows)]
            )
        length = len(texts[0])
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, **extra).logits
        loss = nn.functional.cross_entropy(logits[:, -length - 1 : -1].flatten(0, 1), ids[:, -length:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
    model.eval()
    return losses
