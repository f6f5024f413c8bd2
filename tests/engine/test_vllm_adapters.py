"""The real vLLM takes adapters beside its weights, and its log-probs equal those of the policy with the adapter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from adapted import adapted, shaken
from checked_segments import check
from vllm_server import ARGUMENTS, serving

from agentrl_core import engine
from agentrl_core.engine import Request, Sampling
from agentrl_core.engine import vllm_server as client
from agentrl_core.engine.base import generate_all
from agentrl_core.exceptions import AgentRLError, InvalidInputError

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
pytest.importorskip("vllm")
peft = pytest.importorskip("peft")
SAMPLING = Sampling(temperature=0.7, max_tokens=6)


@pytest.fixture(scope="module")
def generate(make_model, tokenizer):
    policy = adapted(make_model, "all")  # saved with its adapters merged
    vllm_engine = engine.Vllm(policy, tokenizer, max_model_len=128, block_size=32, enable_lora=True, max_lora_rank=8)
    yield vllm_engine
    vllm_engine.close()


def replaced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return how often whole weights are replaced from now on."""
    from agentrl_core.engine import vllm, vllm_worker

    calls: list[str] = []

    def counted(worker: Any, *arguments: Any, **options: Any) -> None:
        calls.append("whole")
        vllm_worker.replace_weights(worker, *arguments, **options)

    monkeypatch.setattr(vllm, "replace_weights", counted)
    return calls


def test_adapters_go_alone_once_the_base_weights_are_there(generate, make_model, own_words, monkeypatch) -> None:
    calls = replaced(monkeypatch)
    policy = adapted(make_model, "all")
    check(generate, policy, own_words, SAMPLING, version=0)
    for version in range(1, 4):
        generate.update_weights(torch.compile(policy), version=version)
        check(generate, policy, own_words, SAMPLING, version=version)
        assert calls == ["whole"], "of the base"
        shaken(policy, 0.03)
    with torch.no_grad():
        policy.get_base_model().model.norm.weight.mul_(1.1)
    generate.update_weights(policy, version=4)
    check(generate, policy, own_words, SAMPLING, version=4)
    assert len(calls) == 2


@pytest.mark.parametrize("name", ["ranks", "head", "embedding", "dora", "saved head", "tokens"])
def test_each_kind_of_adapter_is_exact(name, generate, make_model, own_words, monkeypatch) -> None:
    policy, calls = adapted(make_model, name, seed=2), replaced(monkeypatch)
    version = generate.policy_version + 1
    for number in (version, version + 1):
        generate.update_weights(policy, version=number)
        check(generate, policy, own_words, SAMPLING, version=number)
    assert len(calls) == (1 if name in ("ranks", "head", "embedding") else 2), "a merged copy is whole each time"
    generate.update_weights(policy.get_base_model(), version=number + 1)
    check(generate, policy, own_words, SAMPLING, version=number + 1)
    plain = make_model("qwen3", seed=4, tie_word_embeddings=False)
    generate.update_weights(plain, version=number + 2)
    check(generate, plain, own_words, SAMPLING, version=number + 2)
    generate.update_weights(plain.state_dict(), version=number + 3)
    check(generate, plain, own_words, SAMPLING, version=number + 3)


def test_adapters_that_do_not_fit_change_nothing(generate, make_model, own_words) -> None:
    policy, version = adapted(make_model, "all"), generate.policy_version + 1
    generate.update_weights(policy, version=version)
    broken = adapted(make_model, "all")
    with torch.no_grad():
        broken.get_base_model().model.layers[1].mlp.up_proj.lora_B["default"].weight[0] = torch.nan
    with pytest.raises(InvalidInputError, match=r"'model.layers.1.mlp.up_proj.lora_B.weight' holds NaN"):
        generate.update_weights(broken, version=99)
    check(generate, policy, own_words, SAMPLING, version=version)
    large = peft.get_peft_model(
        make_model("qwen3", tie_word_embeddings=False), peft.LoraConfig(r=16, target_modules=["q_proj"])
    )
    generate.update_weights(shaken(large), version=version + 1)  # above max_lora_rank, so it goes merged
    check(generate, large, own_words, SAMPLING, version=version + 1)


def test_servers_take_adapters_beside_a_whole_checkpoint(
    make_model, tokenizer, own_words, tmp_path, monkeypatch
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base = make_model("qwen3", tie_word_embeddings=False)
    base.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    monkeypatch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1")
    options = (*ARGUMENTS, "--enable-lora", "--max-lora-rank", "8")
    with serving(tmp_path / "model", tmp_path / "log", *options) as server:
        generate = engine.VllmServer(server.url, tokenizer, folder=tmp_path / "weights")
        check(generate, base, own_words, SAMPLING, version=0)
        policy, folders = adapted(make_model, "all", seed=2), []
        for version in (1, 2):
            generate.update_weights(policy, version=version)
            check(generate, policy, own_words, SAMPLING, version=version)
            folders.append({path.name for path in (tmp_path / "weights").iterdir()})
            shaken(policy, 0.03)
        [base_name] = {name for name in folders[0] if name.startswith("base-1-")}
        assert folders == [{base_name, "version-1"}, {base_name, "version-2"}], "the base weights are not written again"
        assert {path.name for path in (tmp_path / "weights" / "version-2").iterdir()} == {
            "adapter_config.json",
            "adapter_model.safetensors",
        }
        merged = adapted(make_model, "dora", seed=2)
        generate.update_weights(merged, version=3)
        check(generate, merged, own_words, SAMPLING, version=3)
        [path] = (tmp_path / "weights").iterdir()
        assert path.name == "version-3"
        loaded = AutoModelForCausalLM.from_pretrained(path, local_files_only=True).eval()
        check(generate, loaded, own_words, SAMPLING, version=3)
        assert AutoTokenizer.from_pretrained(path).chat_template == tokenizer.chat_template
        assert (path / "generation_config.json").is_file()
        generate.update_weights(base.state_dict(), version=4)
        check(generate, base, own_words, SAMPLING, version=4)
        generate.update_weights(policy, version=5)
        check(generate, policy, own_words, SAMPLING, version=5)
        other = engine.VllmServer(server.url, tokenizer)
        check(other, policy, own_words, SAMPLING, version=5)  # another client finds the adapter
        other.close()
        policy.get_base_model().model.layers[0].self_attn.q_proj.base_layer.weight.data += 1e-3
        with monkeypatch.context() as broken:
            broken.setattr(client, "write_adapter", lambda folder, _: (folder / "empty").touch())
            with pytest.raises(AgentRLError):
                generate.update_weights(policy, version=6)
        with pytest.raises(AgentRLError, match="update_weights"):  # it has the new base weights, without an adapter
            generate_all(generate, [Request(np.array([5, 6], np.int32), 0, Sampling(max_tokens=4))])
        with pytest.raises(AgentRLError, match="incomplete"):
            engine.VllmServer(server.url, tokenizer)
        generate.update_weights(policy, version=6)
        check(generate, policy, own_words, SAMPLING, version=6)
    port = int(server.url.rpartition(":")[2])
    with serving(tmp_path / "model", tmp_path / "log again", *options, port=port):
        check(generate, policy, own_words, SAMPLING, version=6)  # the server gets the weights of the folder again
        generate.update_weights(policy, version=7)
        check(generate, policy, own_words, SAMPLING, version=7)
        generate.close()
