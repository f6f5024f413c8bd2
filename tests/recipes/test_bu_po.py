"""The internal policy of BuPO: a middle layer of the model with the model's output head."""

from __future__ import annotations

import pytest
import torch
from hand_made import tiny_model

from agentrl_core.exceptions import InvalidInputError
from agentrl_core.recipes.bu_po import internal_policy

IDS = torch.tensor([[3, 7, 11, 5]])


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [False, True])
def test_its_logits_are_the_head_on_the_states_after_the_layer(family: str, tied: bool) -> None:
    model = tiny_model(family, torch.float32, num_hidden_layers=4, tie_word_embeddings=tied).eval()
    internal = internal_policy(model, 1)
    states = model(IDS, output_hidden_states=True).hidden_states
    torch.testing.assert_close(internal(IDS).logits, model.lm_head(states[2]), rtol=1e-5, atol=1e-6)


def test_the_layer_of_the_script_is_the_sixth() -> None:
    model = tiny_model("qwen3", torch.float32, num_hidden_layers=8).eval()
    states = model(IDS, output_hidden_states=True).hidden_states
    torch.testing.assert_close(internal_policy(model)(IDS).logits, model.lm_head(states[6]), rtol=1e-5, atol=1e-6)


def test_training_it_moves_the_lower_layers_the_embedding_and_the_head_of_the_model() -> None:
    model = tiny_model("qwen3", num_hidden_layers=4)
    internal_policy(model, 1)(IDS).logits.logsumexp(-1).sum().backward()
    moved = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    prefixes = ("model.layers.0.", "model.layers.1.", "model.embed_tokens.", "lm_head.")
    assert moved == {name for name, _ in model.named_parameters() if name.startswith(prefixes)}


def test_it_shares_all_its_parameters_with_the_model() -> None:
    model = tiny_model("qwen3", num_hidden_layers=4, tie_word_embeddings=True)
    model_parameters = {id(parameter) for parameter in model.parameters()}
    assert {id(parameter) for parameter in internal_policy(model, 1).parameters()} < model_parameters


def test_the_whole_model_stays_as_it_is() -> None:
    model = tiny_model("qwen3", num_hidden_layers=4).eval()
    before = model(IDS).logits
    assert not internal_policy(model, 1).training
    assert model.config.num_hidden_layers == len(model.model.layers) == 4
    torch.testing.assert_close(model(IDS).logits, before, rtol=0, atol=0)


@pytest.mark.parametrize("layer", [-1, 4])
def test_a_layer_that_the_model_lacks_is_refused(layer: int) -> None:
    with pytest.raises(InvalidInputError, match=rf"layer: the model has no layer {layer}; give one of 0 to 3"):
        internal_policy(tiny_model("qwen3", num_hidden_layers=4), layer)
