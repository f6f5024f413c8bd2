"""Weights that do not fit change nothing; those in wrappers fit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from agentrl_core import engine
from agentrl_core.engine import Request, Sampling, policy_weights
from agentrl_core.engine.base import generate_all
from agentrl_core.engine.policy_weights import PolicyWeights, plain_name, weight_stamp
from agentrl_core.engine.weight_layout import model_of_config, shapes_of_folder
from agentrl_core.exceptions import EngineError, InvalidInputError, UnsupportedError


class Wrapper(nn.Module):
    """Names under data parallelism and torch.compile."""

    def __init__(self, module: nn.Module, name: str) -> None:
        super().__init__()
        setattr(self, name, module)


def tokens_of(generate: engine.Transformers) -> list[int]:
    request = Request(np.arange(5, dtype=np.int32), 1, Sampling(temperature=0.0, max_tokens=6))
    return generate_all(generate, [request])[0].tokens.tolist()


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("model.norm.weight", "model.norm.weight"),
        ("module.module._orig_mod.model.norm.weight", "model.norm.weight"),
        ("model.layers.0._orig_mod.mlp.up.weight", "model.layers.0.mlp.up.weight"),
        ("_fsdp_wrapped_module.model.layers.1._checkpoint_wrapped_module.x", "model.layers.1.x"),
        ("base_model.model.model.layers.0.q.base_layer.weight", "model.layers.0.q.base_layer.weight"),
    ],
)
def test_names_lose_the_prefixes_of_wrappers(name: str, plain: str) -> None:
    assert plain_name(name) == plain


@pytest.mark.parametrize("names", [["module"], ["_orig_mod"], ["_orig_mod", "module"]])
def test_a_wrapped_policy_is_taken(names: list[str], make_model, tokenizer) -> None:
    policy = make_model("qwen3", seed=1)
    generate = engine.Transformers(make_model("qwen3"), tokenizer, copy=True)
    expected = tokens_of(engine.Transformers(policy, tokenizer))
    assert tokens_of(generate) != expected
    model = policy
    for name in names:
        model = Wrapper(model, name)
    generate.update_weights(model, version=1)
    assert (tokens_of(generate), generate.policy_version) == (expected, 1)


def test_compiled_and_checkpointed_layers_are_taken(make_model, tokenizer) -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing

    policy, plain = make_model("qwen3", seed=1), make_model("qwen3", seed=1)
    kind = type(policy.model.layers[0])
    policy.model.layers[1] = torch.compile(policy.model.layers[1], backend="eager")
    apply_activation_checkpointing(policy, check_fn=lambda module: isinstance(module, kind))
    assert any("_checkpoint_wrapped_module" in name for name, _ in policy.named_parameters())
    generate = engine.Transformers(make_model("qwen3"), tokenizer, copy=True)
    generate.update_weights(policy, version=1)
    assert tokens_of(generate) == tokens_of(engine.Transformers(plain, tokenizer))


def test_a_wrapper_of_the_shared_model_is_the_shared_model(make_model, tokenizer) -> None:
    policy = make_model("qwen3")
    generate = engine.Transformers(policy, tokenizer)
    generate.update_weights(torch.compile(policy), version=3)
    assert generate.shares_parameters
    assert generate.policy_version == 3


def test_an_engine_ignores_the_value_head_of_a_policy(make_model, tokenizer) -> None:
    policy = make_model("qwen3", seed=1)
    policy.value_head = nn.Linear(64, 1)
    generate = engine.Transformers(make_model("qwen3"), tokenizer, copy=True)
    generate.update_weights(policy, version=1)
    assert tokens_of(generate) == tokens_of(engine.Transformers(policy, tokenizer))


def with_nan(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        model.model.norm.weight[0] = torch.nan
    return model


def test_weights_that_do_not_fit_change_nothing(make_model, tokenizer) -> None:
    generate = engine.Transformers(make_model("qwen3"), tokenizer, copy=True)
    before = {name: tensor.clone() for name, tensor in generate.model.state_dict().items()}
    tokens = tokens_of(generate)
    wrong = {
        "does not fit .* lacks 'model.layers": make_model("llama", seed=1),
        "has shape .*, and the engine's has": make_model("qwen3", seed=1, intermediate_size=128),
        "'model.norm.weight' holds NaN or infinity": with_nan(make_model("qwen3", seed=1)),
        "does not fit .* has 'lm_head.extra'": make_model("qwen3", seed=1),
    }
    wrong["does not fit .* has 'lm_head.extra'"].lm_head.register_parameter("extra", nn.Parameter(torch.ones(1)))
    for message, model in wrong.items():
        with pytest.raises(InvalidInputError, match=rf"update_weights: .*{message}.*nothing was changed"):
            generate.update_weights(model, version=5)
        assert generate.policy_version == 0
        assert tokens_of(generate) == tokens
        assert all(torch.equal(tensor, before[name]) for name, tensor in generate.model.state_dict().items())
    for version in (-1, 1.5, None, True):
        with pytest.raises(InvalidInputError, match=r"update_weights: version is .*; give a whole number"):
            generate.update_weights(make_model("qwen3"), version=version)


def test_a_failed_weight_update_is_an_engine_error(make_model, tokenizer, monkeypatch) -> None:
    generate = engine.Transformers(make_model("qwen3"), tokenizer, copy=True)
    tokens, full_tensor, reads = tokens_of(generate), policy_weights.full_tensor, []

    def breaks_off(tensor: torch.Tensor, allowed: int) -> torch.Tensor:
        reads.append(tensor)
        if len(reads) > allowed:
            raise ZeroDivisionError
        return full_tensor(tensor)

    other = make_model("qwen3", seed=1)
    count = len(PolicyWeights(other).names())
    monkeypatch.setattr(policy_weights, "full_tensor", lambda tensor: breaks_off(tensor, count))
    with pytest.raises(EngineError, match=r"could not load the weights \(ZeroDivisionError.*version is still 0"):
        generate.update_weights(other, version=1)
    assert tokens_of(generate) == tokens
    reads.clear()
    monkeypatch.setattr(policy_weights, "full_tensor", lambda tensor: breaks_off(tensor, count + 3))
    with pytest.raises(
        EngineError, match=r"could not load the weights \(ZeroDivisionError.*a part of its weights is replaced"
    ):
        generate.update_weights(other, version=1)
    with pytest.raises(EngineError, match=r"generate: the last update_weights of this Transformers failed half-way"):
        tokens_of(generate)
    monkeypatch.undo()
    generate.update_weights(other, version=1)
    assert tokens_of(generate) == tokens_of(engine.Transformers(other, tokenizer))


def test_an_engine_with_adapters_takes_adapters(make_model, tokenizer) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    adapted = peft.get_peft_model(make_model("qwen3"), config)
    generate = engine.Transformers(adapted, tokenizer, copy=True)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.mul_(3.0)
    generate.update_weights(Wrapper(adapted, "module"), version=1)
    assert tokens_of(generate) == tokens_of(engine.Transformers(adapted, tokenizer))


def test_a_checkpoint_has_the_layout_of_its_files(make_model, tmp_path) -> None:
    model = make_model("qwen3")
    model.save_pretrained(tmp_path)
    weights = PolicyWeights(model)
    shapes = {name: tuple(weight.shape) for name, weight in weights.read() if name not in weights.tied}
    assert shapes_of_folder(tmp_path) == shapes
    assert shapes_of_folder(tmp_path / "nowhere") is None


def test_a_config_that_transformers_cannot_build_is_reported(tmp_path) -> None:
    with pytest.raises(UnsupportedError, match=r"transformers builds no model from the config of '.*' \("):
        model_of_config(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "nothing_known"}')
    with pytest.raises(UnsupportedError, match=r"\(.*nothing_known.*\)"):
        model_of_config(tmp_path)


def test_a_scripted_engine_checks_the_version(tokenizer) -> None:
    with pytest.raises(InvalidInputError, match="version is 'new'"):
        engine.Scripted(tokenizer, lambda _: "ok").update_weights(None, version="new")


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.uint8, torch.bfloat16, torch.float32, torch.float64])
def test_a_stamp_differs_after_any_bit_was_written(dtype) -> None:
    for count, begin in itertools.product((1, 3, 8, 11), (0, 1)):
        weight = torch.arange(begin + count).to(dtype)[begin:]  # from 1 on it starts between two words
        before = weight_stamp([weight])
        assert weight_stamp([weight.clone()]) == before
        for place in range(count):
            weight.data.view(torch.uint8)[place * weight.element_size()] ^= 1
            assert weight_stamp([weight]) != before
            weight.data.view(torch.uint8)[place * weight.element_size()] ^= 1
        assert weight_stamp([weight]) == before
    assert weight_stamp([torch.tensor(1.0), torch.empty(2, device="meta")])[1] == 0
