"""Rollouts with images: packs equal the plain forward of each row alone; images that would be lost are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pages import run
from shown_rollouts import SHOTS, plain_logits, plain_logprobs, rollouts, rows_of
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM
from vision_models import FAMILIES, build, screenshot

import agentrl_core as arl
from agentrl_core import loss, recipes
from agentrl_core.engine import Chat
from agentrl_core.exceptions import InvalidInputError, UnsupportedError
from agentrl_core.model.images import ImageInputs, image_token, placeholder_ids, takes_images

pytestmark = pytest.mark.usefixtures("one_thread")
WHOLE = ["qwen2_5_vl", "smolvlm", "gemma3"]
ALL_ROWS = recipes.GRPO.replace(loss=loss.Policy(entropy=0.01))
FAMILY = pytest.mark.parametrize("family", FAMILIES)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    result = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
    model.zero_grad()
    return result


def assert_equal(result: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Assert that gradients agree to 1e-5 of the largest one of each parameter, or of all."""
    assert result.keys() == expected.keys()
    largest = max(float(each.abs().max()) for each in expected.values())
    for name, each in expected.items():
        assert float((result[name] - each).abs().max()) < 1e-5 * largest, name


def packed(model: Any, processor: Any, batch: arl.Batch, **options: Any) -> tuple[dict[str, Tensor], NDArray[Any]]:
    """Return gradients of the sum of log p + entropy / 7 over all trained tokens, and the log-probs."""
    column, total = np.full(int(batch.offsets("token")[-1]), np.nan, np.float32), 0
    (update,) = ALL_ROWS.updates(batch)
    for pack in update.pack(max_tokens=options.pop("max_tokens", 4096), model=model, processor=processor, **options):
        output = pack.run(model)
        (output.logprob.sum() + output.entropy.sum() / 7).backward()
        pack.to_tokens(output.logprob, column)
        total += len(pack.target)
    assert total == len(column)
    return gradients(model), column


def prepared(model: Any, way: str) -> Any:
    """Return the model with its vision tower trained, frozen, or with adapters on all linear layers."""
    if way == "frozen":
        text = {id(each) for part in (model.get_decoder(), model.get_output_embeddings()) for each in part.parameters()}
        for each in model.parameters():
            each.requires_grad_(id(each) in text)
    elif way == "lora":
        from peft import LoraConfig, get_peft_model

        torch.manual_seed(5)
        return get_peft_model(
            model, LoraConfig(target_modules="all-linear", init_lora_weights=False, r=2, lora_alpha=1)
        ).eval()
    elif way == "checkpointed":
        model.gradient_checkpointing_enable()
        return model.train()
    return model


@pytest.mark.parametrize(
    ("family", "way"),
    [(family, "trained") for family in FAMILIES]
    + [(family, way) for family in WHOLE for way in ("frozen", "lora", "checkpointed")],
)
def test_packs_equal_the_plain_forward_of_each_row(family: str, way: str) -> None:
    model, processor = build(family)
    batch, model = rollouts(processor), prepared(model, way)
    logprob, entropy = plain_logprobs(model, processor, batch)
    (logprob.sum() + entropy.sum() / 7).backward()
    expected = gradients(model)
    result, column = packed(model, processor, batch)
    assert np.abs(column - logprob.detach().numpy()).max() < 1e-5
    assert_equal(result, expected)
    towers = [name for name in expected if "vis" in name]
    assert bool(towers) == (way != "frozen")


@pytest.mark.parametrize("family", WHOLE)
def test_small_packs_and_the_losses_of_one_are_the_same(family: str) -> None:
    model, processor = build(family)
    batch = rollouts(processor)
    single, _ = packed(model, processor, batch)
    most = max(len(row.tokens) for row in rows_of(batch))
    many, _ = packed(model, processor, batch, max_tokens=most)
    assert_equal(many, single)


def test_the_vision_tower_runs_once_on_the_distinct_images_of_a_pack() -> None:
    model, processor = build("qwen2_5_vl")
    batch, calls = rollouts(processor), []
    model.model.visual.register_forward_pre_hook(lambda _, args, kwargs: calls.append((args, kwargs)), with_kwargs=True)
    (update,) = ALL_ROWS.updates(batch)
    (pack,) = update.pack(max_tokens=4096, model=model, processor=processor)
    pack.run(model)
    assert len(calls) == 1
    pixels = sum(ImageInputs(processor).of(shot)["pixel_values"].shape[0] for shot in SHOTS)
    assert calls[0][0][0].shape[0] == pixels
    uses = sum(len(row.images) for row in rows_of(batch))
    assert pack.images is not None
    assert len(pack.images.image) == uses == 11
    assert len(pack.images.hashes) == len(SHOTS)


@FAMILY
def test_an_image_has_the_tokens_that_it_has_alone(family: str) -> None:
    """An image also works next to others, in one message or in several."""
    model, processor = build(family)
    chat, token = Chat(processor), image_token(model)

    def count(*messages: Any) -> int:
        return int(chat.prompt([{"role": "user", "content": list(each)} for each in messages]).tolist().count(token))

    alone = [count(["a", shot]) for shot in SHOTS]
    assert count(["a", *SHOTS]) == count(*(["a", shot] for shot in SHOTS)) == sum(alone)


@FAMILY
def test_another_image_is_another_gradient(family: str) -> None:
    model, processor = build(family)
    original, column = packed(model, processor, rollouts(processor))
    swapped, other = packed(model, processor, rollouts(processor, swapped=True))
    if len(column) == len(other):
        assert np.abs(column - other).max() > 1e-3
    assert max(float((original[name] - swapped[name]).abs().max()) for name in original) > 1e-2


@pytest.mark.parametrize("family", WHOLE)
def test_fused_losses_and_gradient_caching_equal_a_plain_run(family: str) -> None:
    model, processor = build(family)
    batch = rollouts(processor)
    by_way = {}
    for way in ("run", "fused", "cached"):
        (update,) = ALL_ROWS.updates(batch)
        most = max(len(row.tokens) for row in rows_of(batch))
        options: Any = {"max_tokens": 4096 if way != "cached" else most, "processor": processor}
        if way == "cached":
            for value in update.gradient_cached(model, **options):
                value.backward()
        else:
            for pack in update.pack(model=model, **options):
                output = pack.run(model) if way == "run" else loss.run_fused(model, pack, ALL_ROWS.loss)
                update.loss(output, pack).backward()
        by_way[way] = gradients(model)
    for way in ("fused", "cached"):
        assert_equal(by_way[way], by_way["run"])


@pytest.mark.parametrize("family", WHOLE)
def test_placeholders_have_probability_zero(family: str) -> None:
    """The same holds for rows without images, and for all other outputs."""
    model, processor = build(family)
    batch = rollouts(processor)
    never = placeholder_ids(model)
    assert processor.tokenizer.convert_tokens_to_ids(processor.tokenizer.convert_ids_to_tokens(never[0])) == never[0]
    (update,) = ALL_ROWS.updates(batch)
    (pack,) = update.pack(max_tokens=4096, model=model, processor=processor)
    output = pack.run(model, outputs=("mean_logprob", "sum_probability_squared", "likeliest", "max_logprob"))
    logprob, entropy = plain_logprobs(model, processor, batch)
    torch.testing.assert_close(output.logprob, logprob, rtol=0, atol=1e-5)
    torch.testing.assert_close(output.entropy, entropy, rtol=0, atol=1e-5)
    rows = rows_of(batch)
    scale = torch.tensor(np.array(batch.column("inverse_temperature", "token")))
    row_logits = [plain_logits(model, processor, row.tokens, row.images)[[p - 1 for p in row.actions]] for row in rows]
    logits = torch.cat(row_logits)
    expected = (logits * scale[:, None]).log_softmax(-1)
    finite = expected.isfinite()
    assert int((~finite).sum()) == len(never) * len(expected)
    mean = expected.where(finite, 0).sum(-1) / finite.sum(-1)
    torch.testing.assert_close(output.mean_logprob, mean, rtol=0, atol=1e-4)
    torch.testing.assert_close(output.sum_probability_squared, expected.exp().square().sum(-1), rtol=0, atol=1e-5)
    assert torch.equal(output.likeliest, expected.argmax(-1))


@pytest.mark.parametrize("family", WHOLE)
def test_columns_of_a_reference_and_norms_of_gradients(family: str) -> None:
    model, processor = build(family)
    batch = rollouts(processor)
    expected, _ = plain_logprobs(model, processor, batch)
    annotated = arl.annotate(batch, "reference_logprob", model, processor=processor)
    assert np.abs(annotated.column("reference_logprob", "token") - expected.detach().numpy()).max() < 1e-5
    batch = arl.annotate(batch, "gradient_norm", model, level="draw", processor=processor)
    norms = batch.column("gradient_norm", "draw")
    ends = batch.offsets("token")[batch.offsets("step")]
    for draw in (0, 1):
        model.zero_grad()
        plain_logprobs(model, processor, batch)[0][ends[draw] : ends[draw + 1]].sum().backward()
        parameter_norms = [each.grad.norm() for each in model.parameters() if each.grad is not None]
        assert norms[draw] == pytest.approx(float(torch.stack(parameter_norms).norm()), rel=1e-4)


def test_values_of_states_that_see() -> None:
    model, processor = build("gemma3")
    model.value_head = nn.Linear(32, 1)
    batch = arl.annotate(rollouts(processor), "old_value", model, processor=processor)
    (values,) = [batch.column("old_value", "token")]
    row = rows_of(batch)[0]
    states: list[Tensor] = []
    hook = model.lm_head.register_forward_pre_hook(lambda _, args: states.append(args[0]))
    plain_logits(model, processor, row.tokens, row.images)
    hook.remove()
    expected = model.value_head(states[0][0])[[place - 1 for place in row.actions], 0]
    assert np.abs(values[: len(row.actions)] - expected.detach().numpy()).max() < 1e-5


def test_a_batch_of_a_store_has_its_images(tmp_path: Path) -> None:
    model, processor = build("smolvlm")
    with arl.Store.open(tmp_path) as store:
        fresh = recipes.GRPO.credit(rollouts(processor, store=store))
        expected, column = packed(model, processor, fresh)
        stored = store.batch(0)
        again = arl.Batch.concat([store.trajectory_batch([0])])
    assert {stored.blob(shot.sha256) for shot in SHOTS} == {shot.content for shot in SHOTS}
    assert again.blob(SHOTS[0].sha256) == SHOTS[0].content
    result, other = packed(model, processor, recipes.GRPO.credit(stored))
    assert np.array_equal(column, other)
    assert_equal(result, expected)


def test_images_that_would_be_lost_are_refused(tmp_path: Path) -> None:
    model, processor = build("gemma3")
    batch = rollouts(processor)
    (update,) = recipes.GRPO.updates(batch)
    with pytest.raises(UnsupportedError, match=r"no processor of Gemma3.* update\.pack\(\.\.\., processor=processor\)"):
        next(update.pack(max_tokens=4096, model=model)).run(model)
    text = LlamaForCausalLM(LlamaConfig(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2))
    assert takes_images(model)
    assert not takes_images(text)
    with pytest.raises(UnsupportedError, match="LlamaForCausalLM takes none; give the vision-language model"):
        next(update.pack(max_tokens=4096, model=text, processor=processor)).run(text)
    for layout in ("tree", "sequence"):
        with pytest.raises(UnsupportedError, match=f"layout: '{layout}' cannot run images"):
            update.pack(max_tokens=4096, model=model, processor=processor, layout=layout)  # type: ignore[call-overload]
        with pytest.raises(UnsupportedError, match=f"layout: '{layout}' cannot run images"):
            arl.annotate(batch, "reference_logprob", model, processor=processor, layout=layout)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match=r"processor is \w+, which takes no images"):
        next(update.pack(max_tokens=4096, model=model, processor=processor.tokenizer)).run(model)
    with arl.Store.open(tmp_path) as store:
        stored = rollouts(processor, store=store)
        for file in (tmp_path / "blobs").rglob("*"):
            if file.is_file():
                file.unlink()
        (update,) = recipes.GRPO.updates(recipes.GRPO.credit(store.batch(0)))
    assert stored.num_draws == batch.num_draws
    with pytest.raises(InvalidInputError, match="whose content is missing"):
        next(update.pack(max_tokens=4096, model=model, processor=processor)).run(model)


def test_placeholders_without_images_and_the_other_way_round_are_refused() -> None:
    model, processor = build("qwen2_5_vl")
    token = placeholder_ids(model)[0]

    def batch(prompt: list[int], images: int, action: list[int]) -> arl.Batch:
        forest = arl.Forest()
        forest.add_group(0, "task")
        for member in range(2):
            trajectory = forest.start(0, member)
            blobs = [forest.add_blob(screenshot(3).content)] * images
            forest.append(trajectory, prompt, kind="prompt", blobs=blobs or None)
            forest.append(trajectory, action, kind="action", logprobs=[-1.0] * len(action))
            forest.finish(trajectory, reward=float(member))
        return recipes.GRPO.credit(forest.freeze())

    def run(prompt: list[int], images: int, action: list[int]) -> None:
        (update,) = recipes.GRPO.updates(batch(prompt, images, action))
        next(update.pack(max_tokens=64, model=model, processor=processor)).run(model)

    run([4, *[token] * 4, 5], 1, [7, 8])
    with pytest.raises(
        InvalidInputError, match=r"row 0 has 3 image tokens, but Qwen2_5_VL.* makes 4 features of the 1"
    ):
        run([4, *[token] * 3, 5], 1, [7, 8])
    with pytest.raises(InvalidInputError, match=r"has image tokens .* but its nodes name no images"):
        run([4, *[token] * 4, 5], 0, [7, 8])
    with pytest.raises(InvalidInputError, match="an image placeholder, which has probability 0"):
        run([4, *[token] * 4, 5], 1, [7, token])


def test_pixels_are_made_once_and_bounded() -> None:
    _, processor = build("gemma3")
    inputs = ImageInputs(processor, most_bytes=2 * 3 * 32 * 32 * 4)
    first = inputs.of(SHOTS[0].content)
    assert inputs.of(SHOTS[0]) is first
    inputs.of(SHOTS[1])
    inputs.of(SHOTS[2])
    assert inputs.of(SHOTS[0]) is not first
    with pytest.raises(InvalidInputError, match="cannot be read"):
        inputs.of(b"no picture")


def test_the_loop_of_the_page_trains_a_saved_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's model is a tiny one in a folder of its name; `name_or_path` leads to its processor."""
    monkeypatch.chdir(tmp_path)
    name = Path("Qwen", "Qwen2.5-VL-3B-Instruct")
    model, processor = build("qwen2_5_vl")
    for each in (model, processor):
        each.save_pretrained(name)
    batch, before = rollouts(processor), {key: each.clone() for key, each in model.state_dict().items()}
    names: dict[str, Any] = {"recipe": ALL_ROWS, "batch": batch, "optimizer": _NoStep()}
    loaded = run("howto/vision", names, only=1)["model"]
    assert all(torch.equal(each, before[key]) for key, each in loaded.state_dict().items())
    expected = gradients(loaded)
    (update,) = ALL_ROWS.updates(batch)
    for pack in update.pack(max_tokens=4096, model=loaded):
        update.loss(pack.run(loaded), pack).backward()
    assert_equal(gradients(loaded), expected)


class _NoStep:
    """An optimizer that leaves gradients unchanged."""

    def step(self) -> None:
        """Do nothing."""

    def zero_grad(self) -> None:
        """Do nothing."""
