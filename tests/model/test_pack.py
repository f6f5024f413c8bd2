"""Pack: hidden states, log-probs, entropies and gradients equal those of separate sequences."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch
from hand_made import FAMILIES, SHAPE, WINDOW, Ragged, tiny_model
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertLMHeadModel,
    Cohere2Config,
    Cohere2ForCausalLM,
    CohereConfig,
    CohereForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    GraniteMoeConfig,
    GraniteMoeForCausalLM,
    HyperCLOVAXConfig,
    HyperCLOVAXForCausalLM,
    MptConfig,
    MptForCausalLM,
    PhimoeConfig,
    PhimoeForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    VaultGemmaConfig,
    VaultGemmaForCausalLM,
)

from agentrl_core.exceptions import InvalidInputError, UnsupportedError
from agentrl_core.model import attention as attention_module
from agentrl_core.model import output_layer, pack_forward
from agentrl_core.model.pack import Pack

LENGTHS = [17, 3, 9, 16, 2, 30, 9]


def naive(model: nn.Module, rows: Ragged) -> tuple[Tensor, Tensor]:
    """Return log-probs and entropies of the trained tokens, by the model's own forward on one sequence at a time."""
    logprobs, entropies = [], []
    for tokens, trained, scale in zip(rows.tokens, rows.trained, rows.inverse_temperature, strict=True):
        logits = model(input_ids=torch.from_numpy(tokens)[None]).logits[0, :-1]
        distribution = (logits * torch.from_numpy(scale)[1:, None]).log_softmax(-1)
        target = torch.from_numpy(tokens)[1:, None]
        logprobs.append(distribution.gather(1, target)[trained[1:], 0])
        entropies.append(-(distribution.exp() * distribution).sum(-1)[trained[1:]])
    return torch.cat(logprobs), torch.cat(entropies)


def gradients(model: nn.Module, logprob: Tensor, entropy: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    mix = torch.linspace(-1, 1, len(logprob), dtype=logprob.dtype)
    (mix * logprob + mix.flip(0) * entropy).sum().backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("family", FAMILIES)
def test_equals_separate_sequences(family: str, training: bool) -> None:
    model = tiny_model(family).train(training)
    rows = Ragged.random(LENGTHS)
    before = model.config._attn_implementation
    expected = naive(model, rows)
    expected_gradients = gradients(model, *expected)
    output = rows.pack().run(model)
    assert output.logprob.dtype == output.entropy.dtype == torch.float64
    torch.testing.assert_close(output.logprob, expected[0], rtol=0, atol=1e-10)
    torch.testing.assert_close(output.entropy, expected[1], rtol=0, atol=1e-10)
    result = gradients(model, output.logprob, output.entropy)
    for name, gradient in expected_gradients.items():
        torch.testing.assert_close(result[name], gradient, rtol=0, atol=1e-9, msg=lambda text, at=name: f"{at}: {text}")
    assert model.config._attn_implementation == before


@pytest.mark.parametrize("lengths", [[5], [8, 8, 8, 8], [40, 2, 2, 2, 2], [2, 3]], ids=str)
def test_any_mix_of_lengths(lengths: list[int]) -> None:
    model = tiny_model("llama")
    rows = Ragged.random(lengths, seed=3)
    for trained in rows.trained:
        trained[-1] = True
    output = rows.pack().run(model)
    torch.testing.assert_close(output.logprob, naive(model, rows)[0], rtol=0, atol=1e-10)


def test_gradient_checkpointing_recomputes_with_the_same_attention() -> None:
    model = tiny_model("qwen3").train()
    rows = Ragged.random(LENGTHS)
    expected = gradients(model, *naive(model, rows))
    model.gradient_checkpointing_enable()
    output = rows.pack().run(model)
    result = gradients(model, output.logprob, output.entropy)
    for name, gradient in expected.items():
        torch.testing.assert_close(result[name], gradient, rtol=0, atol=1e-9, msg=name)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    with pytest.raises(UnsupportedError, match="use_reentrant"):
        replace(rows.pack(), layout="sequence").run(model)


def test_head_in_chunks_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = tiny_model("llama", tie_word_embeddings=True), Ragged.random(LENGTHS)
    at_once = rows.pack().run(model)
    expected = gradients(model, at_once.logprob, at_once.entropy)
    for module in (pack_forward, output_layer):
        monkeypatch.setattr(module, "LOGITS_AT_ONCE", 3 * model.config.vocab_size)
    parts = rows.pack().run(model)
    result = gradients(model, parts.logprob, parts.entropy)
    torch.testing.assert_close(parts.logprob, at_once.logprob, rtol=0, atol=1e-12)
    for name, gradient in expected.items():
        torch.testing.assert_close(result[name], gradient, rtol=0, atol=1e-12, msg=name)


def test_half_precision_has_fp32_log_probs_under_autocast_too() -> None:
    rows = Ragged.random(LENGTHS)
    exact = rows.pack().run(tiny_model("llama", torch.float64))
    half = rows.pack().run(tiny_model("llama", torch.bfloat16))
    assert half.logprob.dtype == half.entropy.dtype == torch.float32
    torch.testing.assert_close(half.logprob.double(), exact.logprob, rtol=0, atol=0.3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = rows.pack().run(tiny_model("llama", torch.float32))
    assert mixed.logprob.dtype == torch.float32
    torch.testing.assert_close(mixed.logprob.double(), exact.logprob, rtol=0, atol=0.3)


def test_entropy_without_gradient_is_detached() -> None:
    model, rows = tiny_model("llama"), Ragged.random(LENGTHS)
    pack = Pack.from_plan(rows.plan(), rows.streams(rows.weights("token_mean")), entropy_gradient=False)
    output = pack.run(model)
    assert output.logprob.requires_grad
    assert not output.entropy.requires_grad
    torch.testing.assert_close(output.entropy, naive(model, rows)[1], rtol=0, atol=1e-10)


def test_extreme_logits_stay_finite() -> None:
    model, rows = tiny_model("llama", torch.float32), Ragged.random([6, 6])
    with torch.no_grad():
        model.lm_head.weight.mul_(1e4)
    output = rows.pack().run(model)
    (output.logprob.sum() + output.entropy.sum()).backward()
    assert torch.isfinite(output.logprob).all()
    assert (output.entropy >= 0).all()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())


def test_to_copies_once_and_streams_answer_by_name() -> None:
    pack = Ragged.random([4, 5]).pack()
    assert pack.to("cpu") is pack
    meta = pack.to("meta")
    assert meta is pack.to("meta")
    assert meta.input_ids.device.type == meta.streams.old_logprob.device.type == "meta"
    with pytest.raises(AttributeError, match=r"no stream 'value' \(it has: inverse_temperature"):
        _ = pack.streams.value


def test_attention_is_restored_after_an_error() -> None:
    model = tiny_model("llama")
    model.model.layers[1].self_attn.is_causal = False
    before = model.config._attn_implementation
    with pytest.raises(UnsupportedError, match="attention that is not causal"):
        replace(Ragged.random(LENGTHS).pack(), layout="sequence").run(model)
    assert model.config._attn_implementation == before
    assert "forward" not in vars(model)
    assert "forward" not in vars(model.lm_head)


def test_models_that_cannot_run_packs_are_refused_with_the_reason() -> None:
    rows = Ragged.random([5, 6])
    with pytest.raises(UnsupportedError, match="Linear contains no Hugging Face model with an output layer"):
        rows.pack().forward(nn.Linear(2, 2))
    for run in (rows.pack().run, rows.pack().forward):
        with pytest.raises(InvalidInputError, match=r"model is 'tiny'; give a torch\.nn\.Module"):
            run("tiny")
    with pytest.raises(UnsupportedError, match="LlamaModel contains no Hugging Face model with an output layer"):
        rows.pack().run(tiny_model("llama").model)
    with pytest.raises(UnsupportedError, match="contains 2 language models"):
        rows.pack().run(nn.ModuleList([tiny_model("llama"), tiny_model("qwen3")]))
    with pytest.raises(UnsupportedError, match="DataParallel copies the model"):
        rows.pack().run(nn.DataParallel(tiny_model("llama")))
    with pytest.raises(InvalidInputError, match="'flat' is not a layout; use auto, tree, sequence, padded"):
        replace(rows.pack(), layout="flat").run(tiny_model("llama"))
    shape = {"vocab_size": 37, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    with pytest.raises(UnsupportedError, match="sees the tokens after each token; load it with is_decoder=True"):
        rows.pack().forward(BertLMHeadModel(BertConfig(**shape, intermediate_size=8)))


@pytest.mark.parametrize("kind", ["falcon", "mpt"])
def test_models_with_custom_attention_use_the_padded_layout(kind: str) -> None:
    heads = {"vocab_size": 37, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    model, rows = (
        {
            "falcon": lambda: FalconForCausalLM(FalconConfig(**heads, hidden_size=16)),
            "mpt": lambda: MptForCausalLM(MptConfig(vocab_size=37, d_model=16, n_layers=1, n_heads=2)),
        }[kind]().eval(),
        Ragged.random(LENGTHS),
    )
    expected = naive(model, rows)
    output = rows.pack().run(model)
    torch.testing.assert_close(output.logprob.double(), expected[0], rtol=0, atol=1e-5)
    for layout in ("sequence", "tree"):
        with pytest.raises(UnsupportedError, match=r"(Falcon|Mpt)Model computes its attention by itself, not through"):
            replace(rows.pack(), layout=layout).run(model)


def test_a_replaced_forward_that_leaves_the_output_layer_out_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = tiny_model("llama"), Ragged.random(LENGTHS)
    expected = rows.pack().run(model).logprob
    forwards: list[str] = []
    monkeypatch.setattr(model.model, "forward", counted(forwards, "decoder", model.model.forward))

    def without_head(**arguments: object) -> object:  # like TRL's fused losses
        forwards.append("without head")
        return model.model(**{name: value for name, value in arguments.items() if name != "return_dict"})

    monkeypatch.setattr(model, "forward", without_head)
    for _ in range(3):
        assert torch.equal(rows.pack().run(model).logprob, expected)
    assert forwards == ["without head", *4 * ["decoder"]]  # the first pack runs again; later ones skip that forward


def counted(calls: list[str], name: str, function):
    def call(*args, **options):
        calls.append(name)
        return function(*args, **options)

    return call


def test_a_wrapper_that_changes_inputs_or_outputs_of_the_model_is_refused() -> None:
    class Changes(nn.Module):
        def __init__(self, change) -> None:
            super().__init__()
            self.model, self.change = tiny_model("llama"), change

        def forward(self, **inputs):
            return self.change(self.model, inputs)

    rows = Ragged.random(LENGTHS)
    for change, message in (
        (lambda model, inputs: model(**inputs)[0], "changes the form of what its LlamaForCausalLM returns"),
        (lambda model, inputs: model(**inputs).logits, "fails on what its LlamaForCausalLM returns for a pack"),
        (lambda _model, inputs: inputs["input_ids"], "does not call the LlamaForCausalLM inside it"),
        (lambda model, inputs: (model(**inputs), model(**inputs))[1], "calls its LlamaForCausalLM more than once"),
        (
            lambda model, inputs: model(input_ids=inputs["input_ids"][:, 1:]),
            "with other inputs than the tokens of the pack",
        ),
    ):
        with pytest.raises(UnsupportedError, match=message):
            rows.pack().run(Changes(change))
    wrapped = Changes(lambda model, inputs: model(**inputs))
    assert torch.equal(rows.pack().run(wrapped).logprob, rows.pack().run(wrapped.model).logprob)


def test_another_thread_can_run_the_model_meanwhile() -> None:
    model, rows = tiny_model("llama"), replace(Ragged.random(LENGTHS).pack(), layout="padded")
    ids = torch.tensor([[1, 2, 3]])
    expected, results = model(ids).logits, []

    def generate(*_arguments: object) -> None:
        if threading.current_thread() is threading.main_thread():
            results.append(in_a_thread(model, ids))

    handle = model.model.layers[0].register_forward_pre_hook(generate)
    rows.run(model)
    handle.remove()
    assert results
    assert all(torch.equal(each, expected) for each in results)


def in_a_thread(model: nn.Module, ids: Tensor) -> Tensor:
    answers: list[Tensor] = []
    thread = threading.Thread(target=lambda: answers.append(model(ids).logits))
    thread.start()
    thread.join()
    return answers[0]


def test_sliding_windows_that_are_set_only_in_the_mask() -> None:
    """Some models set a window only in the mask: per layer by its type, or in all layers."""
    experts = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
    shared = {"shared_expert_intermediate_size": 16}
    windows = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
    torch.manual_seed(0)
    model = Qwen2MoeForCausalLM(Qwen2MoeConfig(**SHAPE, **experts, **shared, **windows))
    assert model.config.layer_types == ["sliding_attention", "full_attention"]
    rows = Ragged.random(LENGTHS)
    torch.testing.assert_close(rows.pack().run(model).logprob.double(), naive(model, rows)[0], rtol=0, atol=1e-5)
    everywhere = PhimoeForCausalLM(PhimoeConfig(**SHAPE, sliding_window=WINDOW, num_local_experts=2)).eval()
    with pytest.raises(UnsupportedError, match=r"PhimoeAttention: its config has sliding_window=4 but no layer_types"):
        replace(rows.pack(), layout="sequence").run(everywhere)
    padded = rows.pack().run(everywhere)  # auto
    torch.testing.assert_close(padded.logprob.double(), naive(everywhere, rows)[0], rtol=0, atol=1e-5)
    short = Ragged.random([WINDOW, WINDOW])
    torch.testing.assert_close(
        short.pack().run(everywhere).logprob.double(), naive(everywhere, short)[0], rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", ["cohere", "cohere2", "granite", "granitemoe", "hyperclovax", "vaultgemma"])
def test_models_that_scale_or_cap_their_logits(kind: str, tied: bool) -> None:
    capped = {"final_logit_softcapping": 2.0, "attn_logit_softcapping": 1.0, "attn_implementation": "eager"}
    capped |= {"sliding_window": WINDOW, "head_dim": 8}
    config, make, options = {
        "cohere": (CohereConfig, CohereForCausalLM, {"logit_scale": 0.25}),
        "cohere2": (Cohere2Config, Cohere2ForCausalLM, {"logit_scale": 3.0, "sliding_window": WINDOW}),
        "granite": (GraniteConfig, GraniteForCausalLM, {"logits_scaling": 0.25}),
        "granitemoe": (GraniteMoeConfig, GraniteMoeForCausalLM, {"logits_scaling": 0.25, "num_local_experts": 2}),
        "hyperclovax": (HyperCLOVAXConfig, HyperCLOVAXForCausalLM, {"logits_scaling": 0.25}),
        "vaultgemma": (VaultGemmaConfig, VaultGemmaForCausalLM, capped),
    }[kind]
    torch.manual_seed(0)
    model, rows = make(config(**SHAPE, **options, tie_word_embeddings=tied)), Ragged.random(LENGTHS)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(20.0)
    exact = naive(model, rows)
    assert exact[0].std() > 0.1
    output = rows.pack().run(model)
    for result, right in zip((output.logprob, output.entropy), exact, strict=True):
        torch.testing.assert_close(result.double(), right, rtol=0, atol=2e-5)


def test_tokens_of_another_model_are_refused() -> None:
    rows, model = Ragged.random([4, 3], seed=0), tiny_model("llama")
    model.resize_token_embeddings(int(rows.pack().input_ids.max()))
    with pytest.raises(InvalidInputError, match=r"the pack has token \d+, but LlamaForCausalLM knows the tokens 0 to"):
        rows.pack().run(model)


def test_gpt2_runs_too() -> None:
    config = GPT2Config(vocab_size=37, n_embd=32, n_layer=2, n_head=2, n_positions=64)
    model = GPT2LMHeadModel(config).double().eval()
    rows = Ragged.random(LENGTHS)
    torch.testing.assert_close(rows.pack().run(model).logprob, naive(model, rows)[0], rtol=0, atol=1e-10)


def test_buckets_cover_every_row_once() -> None:
    starts = torch.tensor([0, 4, 5, 15, 19], dtype=torch.int32)
    shapes, rows, slots = attention_module.SequenceAttention(starts, 10).buckets
    assert sorted(shapes) == [(1, 1), (1, 10), (2, 4)]
    assert rows[slots].tolist() == list(range(19))
