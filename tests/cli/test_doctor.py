"""`agentrl doctor` on an engine of Transformers: what it prints, and its exit status."""

from __future__ import annotations

import json

import pytest
from hand_made import tiny_model

from agentrl_core.cli import main

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    from agentrl_core import env, warm_start

    tokenizer = warm_start.build(env.ReasoningGym(["chain_sum"], held_out=8), seed=0)[1]
    folder = tmp_path_factory.mktemp("doctor")
    shape = {"hidden_size": 64, "head_dim": 32, "intermediate_size": 96, "max_position_embeddings": 256}
    tiny_model("qwen3", torch.float32, vocab_size=len(tokenizer), **shape).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def doctor(saved, capsys, monkeypatch):
    def call(*arguments, status=0, columns=120):
        monkeypatch.setenv("COLUMNS", str(columns))
        words = ["doctor", str(saved), "--engine", "transformers", *arguments]
        assert main(words) == status
        captured = capsys.readouterr()
        return captured.err if status and not captured.out else captured.out

    return call


def test_an_engine_that_agrees(doctor):
    printed = doctor()
    header, first, second, _, said = printed.splitlines()
    assert header.split()[:5] == ["temperature", "top_p", "top_k", "tokens", "cached"]
    assert header.split()[5:] == ["mean", "largest", "position", "cause"]
    assert first.split()[:4] == ["1", "1", "0", "384"], "12 requests and 12 second turns of 16 tokens"
    assert second.split()[0] == "0.7"
    assert first.split()[-1] == second.split()[-1] == "none"
    assert said == "engine and model agree"


def test_json_and_the_options(doctor):
    arguments = ("--temperature", "0.5", "--top-k", "7", "--top-p", "0.9", "--tokens", "4", "--prompt", "2 + 2 =")
    document = json.loads(doctor("--json", *arguments))
    assert document["agree"] is True
    [finding] = document["findings"]
    assert (finding["cause"], finding["tokens"]) == ("none", 8), "a prompt and its second turn"
    wanted = {"temperature": 0.5, "top_k": 7, "top_p": 0.9, "max_tokens": 4, "stop_token_ids": [], "top": 0}
    wanted["by_entropy"] = None
    assert finding["sampling"] == wanted
    assert 0 <= finding["mean"] <= finding["largest"] < 1e-3
    assert finding["cached_tokens"] > 0


def test_another_version_is_said_and_exits_with_1(doctor):
    printed = doctor("--version", "4", status=1)
    assert "version" in printed.splitlines()[1].split()
    assert "weights of version 0, and the model's are of version 4" in " ".join(printed.split())
    document = json.loads(doctor("--version", "4", "--json", status=1))
    assert document["agree"] is False
    assert {finding["cause"] for finding in document["findings"]} == {"version"}


def test_wrong_calls(doctor, tmp_path, capsys):
    assert "does not sample" in doctor("--temperature", "0", status=1)
    assert "--tolerance 0" in doctor("--tolerance", "0", status=1)
    assert main(["doctor", str(tmp_path)]) == 1
    assert "has no model" in capsys.readouterr().err
    assert "--engine sglang: give vllm, transformers, or addresses" in doctor("--engine", "sglang", status=1)
    assert "http://127.0.0.1:9 does not answer" in doctor("--engine", "http://127.0.0.1:9", status=1)
