"""Rollouts whose prompts show an image."""

import pytest
import torch
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

import agentrl_core as arl
from agentrl_core import recipes
from agentrl_core.exceptions import UnsupportedError

IMAGE = 3  # the token that stands for the image


@pytest.fixture
def batch():
    forest = arl.Forest()
    forest.add_group(0, "what is on the picture?")
    picture = forest.add_blob(b"bytes of a picture")
    for member in range(2):
        trajectory = forest.start(0, member)
        forest.append(trajectory, [1, IMAGE, IMAGE, IMAGE, IMAGE, 2], kind="prompt", blobs=[picture])
        forest.append(trajectory, [5, 6 + member], kind="action", logprobs=[-0.5, -0.5])
        forest.finish(trajectory, reward=float(member))
    return recipes.GRPO.credit(forest.freeze())


@pytest.fixture
def model():
    vision = CLIPVisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14
    )
    text = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    torch.manual_seed(0)
    return LlavaForConditionalGeneration(LlavaConfig(vision_config=vision, text_config=text, image_token_index=IMAGE))


def test_images_reach_the_model_or_are_rejected(batch, model):
    """agent-lightning#559: rollouts that saw images were trained without them, without an error."""
    rejected = 0
    (update,) = recipes.GRPO.updates(batch)
    for pack in update.pack(max_tokens=64):
        try:
            update.loss(pack.run(model), pack).backward()
        except UnsupportedError:
            rejected += 1
    used = any(p.grad is not None for name, p in model.named_parameters() if "vision" in name)
    assert rejected or used
