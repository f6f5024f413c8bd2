"""Packs through adapters, on attention, on all linear layers and on the head, equal the plain forward."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from agentrl_core import loss
from agentrl_core.exceptions import UnsupportedError
from agentrl_core.model import output_layer, pack_forward

peft = pytest.importorskip("peft")
sys.path.append(str(Path(__file__).parents[2] / "bench"))
import causal_types  # noqa: E402 - found by the line above

ADAPTERS: dict[str, dict[str, Any]] = {
    "attention": {"target_modules": ["q_proj", "v_proj"]},
    "all": {"target_modules": "all-linear"},
    "head": {"target_modules": ["lm_head", "q_proj"]},
    "dora": {"target_modules": "all-linear", "use_dora": True},
    "saved head": {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
}


pytestmark = pytest.mark.usefixtures("one_thread")


def adapted(name: str) -> Any:
    model = peft.get_peft_model(causal_types.build("llama"), peft.LoraConfig(r=4, **ADAPTERS[name])).eval()
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "lora_B" in parameter_name:
                parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model


def plain(model: nn.Module, rows: list[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    logits = [model(input_ids=row[None]).logits[0, :-1].log_softmax(-1) for row in rows]
    logprob = torch.cat([each.gather(1, row[1:, None])[:, 0] for each, row in zip(logits, rows, strict=True)])
    entropy = torch.cat([-(each.exp() * each).sum(-1) for each in logits])
    return logprob.detach(), gradients(model, logprob, entropy)


def gradients(model: nn.Module, logprob: Tensor, entropy: Tensor) -> dict[str, Tensor]:
    by_logprob, by_entropy = causal_types.weights_of(len(logprob))
    (by_logprob @ logprob + by_entropy @ entropy).backward()
    result = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
    model.zero_grad()
    return result


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("name", ADAPTERS)
def test_adapters_are_run_and_trained(name: str, chunked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = adapted(name), causal_types.sequences()
    expected = plain(model, rows)
    assert expected[1]
    if chunked:
        for module in (pack_forward, output_layer):
            monkeypatch.setattr(module, "LOGITS_AT_ONCE", 7 * 64)
    for layout in causal_types.LAYOUTS:
        pack = causal_types.pack_of(rows, layout)
        output = pack.run(model)
        logprob, entropy = (causal_types.in_token_order(pack, each) for each in (output.logprob, output.entropy))
        torch.testing.assert_close(logprob.detach(), expected[0], rtol=0, atol=1e-5)
        result = gradients(model, logprob, entropy)
        assert result.keys() == expected[1].keys()
        for parameter, gradient in expected[1].items():
            torch.testing.assert_close(result[parameter], gradient, rtol=1e-4, atol=1e-6, msg=parameter)


def test_a_loss_is_not_fused_with_an_adapted_head() -> None:
    model, rows = adapted("head"), causal_types.sequences()
    with pytest.raises(UnsupportedError, match=r"but a fused loss needs an unmodified .*; use pack\.run"):
        loss.run_fused(model, causal_types.pack_of(rows, "sequence"), loss.Imitation("token_mean"))


@pytest.mark.parametrize("kind", ["PromptTuningConfig", "PrefixTuningConfig"])
def test_tuned_prompts_are_refused(kind: str) -> None:
    config = getattr(peft, kind)(num_virtual_tokens=3, task_type="CAUSAL_LM")
    model, rows = peft.get_peft_model(causal_types.build("llama"), config), causal_types.sequences()
    for layout in causal_types.LAYOUTS:
        with pytest.raises(UnsupportedError, match=r"prompt tuning|prefix tuning"):
            causal_types.pack_of(rows, layout).run(model)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's own, as it compiles
def test_a_compiled_model_runs_compiled() -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    model, rows = causal_types.build("llama"), causal_types.sequences()
    expected = {layout: causal_types.pack_of(rows, layout).run(model).logprob for layout in causal_types.LAYOUTS}
    counter = CompileCounterWithBackend("eager")
    for layer in model.model.layers:
        layer.compile(backend=counter)
    for layout in causal_types.LAYOUTS:
        output = causal_types.pack_of(rows, layout).run(model)
        torch.testing.assert_close(output.logprob, expected[layout], rtol=0, atol=1e-5)
        assert counter.frame_count > 0
        counter.clear()


def test_autocast_of_the_caller_is_that_of_the_plain_forward() -> None:
    model, rows = causal_types.build("llama"), causal_types.sequences()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(input_ids=rows[0][None]).logits[0, :-1].float().log_softmax(-1)
        outputs = [causal_types.pack_of(rows, layout).run(model) for layout in ("sequence", "padded")]
    expected = logits.gather(1, rows[0][1:, None])[:, 0]
    for output in outputs:
        assert output.logprob.dtype == torch.float32
        torch.testing.assert_close(output.logprob[: len(expected)], expected, rtol=0, atol=0.1)
