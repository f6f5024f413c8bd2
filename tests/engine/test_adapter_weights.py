"""Policies with adapters: engines get merged copies, equal to the policy's forward, and the policy stays unchanged."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest
import torch
from adapted import ALONE, MERGED, adapted, shaken
from safetensors import safe_open
from torch import Tensor, nn

from agentrl_core import engine
from agentrl_core.engine import Request, Sampling, lora
from agentrl_core.engine.base import generate_all
from agentrl_core.engine.checkpoint_folder import write_checkpoint
from agentrl_core.engine.policy_weights import PolicyWeights
from agentrl_core.engine.vllm_lora import can_send_adapter, write_adapter
from agentrl_core.engine.weight_layout import weights_to_load
from agentrl_core.exceptions import EngineError, InvalidInputError

peft = pytest.importorskip("peft")


def logits(model: nn.Module) -> Tensor:
    with torch.no_grad():
        output: Tensor = model(input_ids=torch.arange(1, 20)[None]).logits[0]
    return output.log_softmax(-1)


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("name", [*ALONE, *MERGED])
def test_a_merged_copy_equals_the_policy_and_leaves_it_unchanged(name, make_model, tokenizer) -> None:
    policy = adapted(make_model, name)
    before, expected = state(policy), logits(policy)
    generate = engine.Transformers(
        make_model("qwen2" if name == "bias" else "qwen3", seed=3, tie_word_embeddings=False), tokenizer, copy=True
    )
    if name == "bias":  # a bias of the adapter on a layer with a bias
        assert policy.get_base_model().model.layers[0].self_attn.q_proj.bias is not None
    generate.update_weights(policy, version=1)
    torch.testing.assert_close(logits(generate.model), expected, rtol=0, atol=2e-5)
    assert all(torch.equal(tensor, before[key]) for key, tensor in policy.state_dict().items())
    with policy.disable_adapter():
        assert (logits(policy) - expected).abs().max() > 0.01, "the adapters act"


def test_adapters_that_are_merged_or_disabled_already(make_model, tokenizer) -> None:
    policy = adapted(make_model, "all")
    generate = engine.Transformers(make_model("qwen3", seed=3, tie_word_embeddings=False), tokenizer, copy=True)
    policy.merge_adapter()
    generate.update_weights(policy, version=1)
    torch.testing.assert_close(logits(generate.model), logits(policy), rtol=0, atol=2e-5)
    policy.unmerge_adapter()
    with policy.disable_adapter():
        expected = logits(policy)
        generate.update_weights(policy, version=2)
    torch.testing.assert_close(logits(generate.model), expected, rtol=0, atol=2e-5)
    policy.add_adapter("other", peft.LoraConfig(r=2, target_modules=["k_proj"]))
    policy.set_adapter("other")
    shaken(policy)
    generate.update_weights(policy, version=3)
    torch.testing.assert_close(logits(generate.model), logits(policy), rtol=0, atol=2e-5)


def test_half_precision_is_rounded_once(make_model) -> None:
    policy = adapted(make_model, "all").to(torch.bfloat16)
    weights = dict(PolicyWeights(policy).read())
    layer = policy.get_base_model().model.layers[0].self_attn.q_proj
    exact = layer.base_layer.weight.double() + 3.0 * (
        layer.lora_B["default"].weight.double() @ layer.lora_A["default"].weight.double()
    )
    rounded = weights["model.layers.0.self_attn.q_proj.weight"]
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.double(), exact, rtol=2**-8, atol=1e-6)


def test_an_adapter_on_one_of_two_tied_weights_does_not_fit_a_tied_engine(make_model, tokenizer) -> None:
    base = make_model("qwen3", tie_word_embeddings=True)
    with pytest.warns(UserWarning, match="tie_word_embeddings"):
        policy = shaken(peft.get_peft_model(base, peft.LoraConfig(r=4, target_modules=["lm_head"])))
    tied = engine.Transformers(make_model("qwen3", seed=3, tie_word_embeddings=True), tokenizer, copy=True)
    before = logits(tied.model)
    with pytest.raises(InvalidInputError, match=r"ties 'lm_head.weight' to 'model.embed_tokens.weight'.*nothing was"):
        tied.update_weights(policy, version=1)
    assert torch.equal(logits(tied.model), before)
    untied = engine.Transformers(make_model("qwen3", seed=3, tie_word_embeddings=False), tokenizer, copy=True)
    untied.update_weights(policy, version=1)
    torch.testing.assert_close(logits(untied.model), logits(policy), rtol=0, atol=2e-5)
    tied.update_weights(make_model("qwen3", seed=5, tie_word_embeddings=True), version=2)
    assert torch.equal(logits(tied.model), logits(make_model("qwen3", seed=5, tie_word_embeddings=True)))


@pytest.mark.parametrize("name", ALONE)
def test_an_adapter_alone_is_written_as_peft_reads_it(name, make_model, tmp_path) -> None:
    policy = adapted(make_model, name)
    weights = PolicyWeights(policy)
    assert can_send_adapter(weights, 4)
    assert not can_send_adapter(weights, 3)
    write_adapter(tmp_path, weights)
    base = make_model("qwen3", seed=3, tie_word_embeddings=False)
    with torch.no_grad():
        for key, weight in weights.read("base"):
            base.get_parameter(key).copy_(weight)
    loaded = peft.PeftModel.from_pretrained(base, tmp_path).eval()
    torch.testing.assert_close(logits(loaded), logits(policy), rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", MERGED)
def test_adapters_that_must_be_merged_are_not_sent_alone(name, make_model) -> None:
    assert not can_send_adapter(PolicyWeights(adapted(make_model, name)), 64)


def test_the_stamp_follows_the_base_weights_alone(make_model) -> None:
    policy = adapted(make_model, "all")
    stamp = PolicyWeights(policy).stamp()
    assert PolicyWeights(shaken(policy)).stamp() == stamp, "adapters may change"
    policy.get_base_model().model.layers[0].self_attn.q_proj.base_layer.weight.data += 1e-3  # like PEFT's merge
    assert PolicyWeights(policy).stamp() != stamp


@pytest.mark.parametrize("tied", [False, True])
def test_a_written_checkpoint_is_complete_and_loads_with_equal_logits(
    tied, make_model, tokenizer, tmp_path, monkeypatch
):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    monkeypatch.setattr("agentrl_core.engine.checkpoint_folder.FILE_BYTES", 40_000)
    policy = make_model("qwen3", tie_word_embeddings=tied)
    policy.generation_config.temperature, policy.generation_config.do_sample = 0.3, True
    policy.value_head = nn.Linear(64, 1)
    if not tied:
        config = peft.LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False)
        policy = peft.get_peft_model(policy, config).eval()
    weights = PolicyWeights(torch.compile(policy, backend="eager"))
    write_checkpoint(tmp_path, weights.model, weights_to_load(weights, None), tokenizer)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 3
    assert ("lm_head.weight" in index["weight_map"]) == (not tied)
    for name, file in index["weight_map"].items():
        with safe_open(tmp_path / file, "pt") as opened:
            assert name in opened.keys()  # noqa: SIM118 - it is no mapping
    assert not list(tmp_path.glob("*.part"))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, local_files_only=True)
    torch.testing.assert_close(logits(loaded.eval()), logits(policy), rtol=0, atol=2e-5)
    assert loaded.generation_config.temperature == 0.3
    assert loaded.config.architectures == ["Qwen3ForCausalLM"]
    loaded_tokenizer = AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    assert loaded_tokenizer.chat_template == tokenizer.chat_template


@pytest.mark.parametrize(
    "write",
    [
        lambda folder, weights, tokenizer: write_checkpoint(
            folder, weights.model, weights_to_load(weights, None), tokenizer
        ),
        lambda folder, weights, _: write_adapter(folder, weights),
    ],
    ids=["checkpoint", "adapter"],
)
def test_a_full_disk_is_an_error_with_a_remedy(write, make_model, tokenizer, tmp_path) -> None:
    config = peft.LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False)
    weights = PolicyWeights(peft.get_peft_model(make_model("qwen3"), config))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, hard))  # Python has its signal ignored: the write fails
    try:
        with pytest.raises(
            EngineError, match=r"weights: the folder .* cannot be written \(.*\); free space on its disk, permit"
        ):
            write(tmp_path, weights, tokenizer)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(
    ("name", "belongs"),
    [
        ("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", True),
        ("model.layers.0.mlp.up_proj.base_layer.weight", True),
        ("model.layers.0.mlp.up_proj.ia3_l.default", True),
        ("model.layers.0.mlp.up_proj.waveft_spectrum.default", True),  # of PEFT's registry alone
        ("lm_head.modules_to_save.default.weight", True),
        ("model.layers.0.mlp.up_proj.weight", False),
        ("model.loras.weight", False),
    ],
)
def test_names_of_adapters_are_those_of_pefts_registry(name: str, belongs: bool) -> None:
    assert lora.names_adapter(name) == belongs


def test_experts_are_written_under_the_names_of_the_checkpoint(tokenizer, tmp_path: Path) -> None:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 16, "moe_intermediate_size": 8, "num_hidden_layers": 2}
    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM(
        Qwen3MoeConfig(**sizes, vocab_size=len(tokenizer), num_attention_heads=2, num_key_value_heads=2, num_experts=3)
    )
    model.save_pretrained(tmp_path / "theirs")
    (tmp_path / "ours").mkdir()
    write_checkpoint(tmp_path / "ours", model, weights_to_load(PolicyWeights(model), None), tokenizer)
    files = [safe_open(tmp_path / name / "model.safetensors", "pt") for name in ("theirs", "ours")]
    theirs, ours = ({name: file.get_tensor(name) for name in file.keys()} for file in files)  # noqa: SIM118
    assert theirs.keys() == ours.keys()
    assert any(".experts.2." in name for name in ours)
    assert all(torch.equal(theirs[name], ours[name]) for name in ours)


def test_a_state_dict_is_as_good_as_its_model(make_model, tokenizer) -> None:
    policy = make_model("qwen3", seed=1, tie_word_embeddings=True)
    generate = engine.Transformers(make_model("qwen3", tie_word_embeddings=True), tokenizer, copy=True)
    wrapped = {f"module.{name}": tensor for name, tensor in policy.state_dict().items()}
    generate.update_weights(wrapped, version=1)
    assert torch.equal(logits(generate.model), logits(policy))
    other = make_model("qwen3", seed=2, tie_word_embeddings=True)
    generate.update_weights({name: tensor.detach() for name, tensor in other.named_parameters()}, version=2)
    assert torch.equal(logits(generate.model), logits(other))
    untied = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    generate.update_weights(untied, version=3)
    assert torch.equal(logits(generate.model), logits(policy))
    untied["lm_head.weight"] += 1.0
    adapters = adapted(make_model, "all").state_dict()
    integers = {name: tensor.long() for name, tensor in policy.state_dict().items()}
    for wrong, message in {
        "is empty": {},
        "has the key 'a' with a value of type int": {"a": 1},
        "ties 'lm_head.weight'": untied,
        "has adapters": adapters,
        "lacks 'model.embed_tokens.weight'": {"model.norm.weight": torch.ones(64)},
        "is torch.int64, but the engine's is floating point; give the model": integers,
        "two keys of the state dict are 'model.norm.weight'": {
            "model.norm.weight": torch.ones(1),
            "module.model.norm.weight": torch.ones(1),
        },
    }.items():
        with pytest.raises(InvalidInputError, match=f"update_weights: .*{wrong}"):
            generate.update_weights(message, version=4)
    assert torch.equal(logits(generate.model), logits(policy))
    assert generate.policy_version == 3
    assert (
        len(generate_all(generate, [Request(torch.arange(3).int().numpy(), 1, Sampling(max_tokens=2))])[0].tokens) == 2
    )


def test_weights_for_an_actor_are_merged_and_tied_ones_are_sent_once(make_model, tokenizer) -> None:
    from agentrl_core.engine.ray_actor import _packed, _unpacked

    policy = make_model("qwen3", seed=1, tie_word_embeddings=True).to(torch.bfloat16)
    with PolicyWeights(peft.get_peft_model(policy, peft.LoraConfig(r=4, target_modules=["q_proj"]))) as weights:
        packed, expected = _packed(weights), dict(weights.read())
    received = _unpacked(packed)
    assert received.keys() == expected.keys()
    assert all(torch.equal(received[name], expected[name]) for name in received)
    assert received["lm_head.weight"] is received["model.embed_tokens.weight"]
    assert received["lm_head.weight"].dtype == torch.bfloat16
    generate = engine.Transformers(make_model("qwen3", tie_word_embeddings=True), tokenizer, copy=True)
    generate.update_weights(received, version=1)
    assert torch.equal(generate.model.model.norm.weight, received["model.norm.weight"].float())
