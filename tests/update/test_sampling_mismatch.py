"""Compare the sampling settings of a batch with those of the trainer: refuse or warn if they differ."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from small_world import SmallWorld
from transformers import LlamaConfig, LlamaForCausalLM

import agentrl_core as arl
from agentrl_core import loss, recipes, reward, weight
from agentrl_core.collect import evaluate
from agentrl_core.engine import EntropyTemperature, Sampling
from agentrl_core.engine.base import generate_all
from agentrl_core.exceptions import AgentRLWarning, InvalidInputError, UnsupportedError
from agentrl_core.model.token_probe import Probe
from agentrl_core.recipes.t_ppo import LatestVersionOnly
from agentrl_core.update.check_sampling import EFFECTS

SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 32}


def tiny() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(num_attention_heads=2, num_key_value_heads=2, **SIZES))


def sampled(versions: tuple[int, ...] = (0, 0), **options: Any) -> arl.Batch:
    """Return two draws of two turns; `options` describe the sampling of the first turn of the second draw."""
    forest = arl.Forest()
    forest.add_group(0, "task")
    for member in range(2):
        trajectory = forest.start(0, member)
        forest.append(trajectory, [1, 2], kind="prompt")
        for turn, version in enumerate(versions):
            applied = options if (member, turn) == (1, 0) else {"temperature": 1.0}
            forest.append(
                trajectory, [3, 4 + member], kind="action", logprobs=[-0.5, -0.5], policy_version=version, **applied
            )
            forest.step(trajectory)
            forest.append(trajectory, [7], kind="observation")
        forest.finish(trajectory, reward=float(member))
    return forest.freeze()


def updates(batch: arl.Batch, recipe: arl.Recipe = recipes.GRPO) -> Any:
    return recipe.updates(recipe.credit(batch))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 1.0, "top_p": 0.9}, r"top_p=0.9, .*Sampling\(top_p=1.0\)"),
        ({"temperature": 1.0, "top_k": 20}, r"top_k=20, .*Sampling\(top_k=0\)"),
        ({"temperature": 0.0}, r"temperature=0, .*Sampling\(temperature=1.0\)"),
    ],
)
def test_ratios_to_another_distribution_are_refused(options: dict[str, Any], message: str) -> None:
    batch = sampled(**options)
    with pytest.raises(InvalidInputError, match=message + r".*old_logprob=\"recomputed\""):
        updates(batch)
    recomputed, annotated = (
        recipes.GRPO.replace(old_logprob="recomputed"),
        arl.annotate(batch, "recomputed_logprob", tiny()),
    )
    updates(annotated, recomputed)
    with pytest.raises(InvalidInputError, match=message):
        updates(annotated, recomputed.replace(weight=weight.ImportanceWeight()))
    updates(batch, FILTERED)


def test_a_temperature_that_is_not_the_trainers_is_refused() -> None:
    recipe = recipes.GRPO.replace(reward=(reward.OutcomeScore(), reward.UnitTemperature()))
    updates(sampled(), recipe)
    with pytest.raises(InvalidInputError, match=r"with temperature=0.6, but column 'inverse_temperature' is 1"):
        updates(sampled(temperature=0.6), recipe)


FILTERED = recipes.GRPO.replace(loss=loss.Imitation("token_mean"))
OTHERS: dict[str, Any] = {
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 5,
    "max_tokens": 3,
    "stop_token_ids": (4,),
    "top": 2,
    "by_entropy": EntropyTemperature(0.0, 1.0, 1.0),
}
RATIOS = {"top_p", "top_k", "by_entropy"}
CASES = {
    "ratios": (recipes.GRPO, RATIOS),
    "recomputed": (recipes.GRPO.replace(old_logprob="recomputed"), set()),
    "weights": (
        recipes.GRPO.replace(old_logprob="recomputed", weight=weight.ImportanceWeight()),
        {"top_p", "top_k"},
    ),
    "no ratio": (FILTERED, set()),
}


@pytest.mark.parametrize("case", CASES)
def test_every_field_of_sampling_is_applied_or_refused(case: str) -> None:
    assert OTHERS.keys() == EFFECTS.keys() == {field.name for field in dataclasses.fields(Sampling)}
    world = SmallWorld()
    recipe, refused = CASES[case]
    for name, value in OTHERS.items():
        sampling = Sampling(**{name: value})
        if name in refused:
            with pytest.raises(
                InvalidInputError, match=rf"Collector: sampling has {name}=.*sample with Sampling\({name}"
            ):
                arl.Collector(world, world, recipe, sampling=sampling)
        else:
            arl.Collector(world, world, recipe, sampling=sampling)
    greedy = pytest.raises(InvalidInputError, match="has temperature=0") if refused else nullcontext()
    with greedy:
        arl.Collector(world, world, recipe, sampling=Sampling(temperature=0.0))


def test_an_evaluation_may_sample_as_it_likes() -> None:
    world = SmallWorld()
    for name, value in OTHERS.items():
        sampling = Sampling(**{"max_tokens": 4, name: value})
        assert evaluate(world, world, tasks=2, sampling=sampling).samples.tolist() == [1, 1]


def test_an_unclassified_sampling_option_is_refused() -> None:
    @dataclasses.dataclass(frozen=True)
    class Penalised(Sampling):
        penalty: float = 0.0

    world = SmallWorld()
    arl.Collector(world, world, recipes.GRPO, sampling=Penalised())
    with pytest.raises(InvalidInputError, match=r"Collector: sampling has penalty=1.5"):
        arl.Collector(world, world, recipes.GRPO, sampling=Penalised(penalty=1.5))


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, v in OTHERS.items() if n not in (*RATIOS, "top")])
def test_applied_sampling_options_reproduce_the_recorded_log_probs(name: str, value: Any) -> None:
    from agentrl_core import engine, env, warm_start

    model, tokenizer = warm_start.build(env.ReasoningGym(["chain_sum"], held_out=8), seed=0)
    generate = engine.Transformers(model, tokenizer)
    sampling = Sampling(**{"max_tokens": 6, name: value})
    forest = arl.Forest()
    forest.add_group(0, "task")
    for member, prompt in enumerate(([5, 6, 7], [8, 9])):
        tokens = np.array(prompt, np.int32)
        (segment,) = generate_all(generate, [engine.Request(tokens, member, sampling)])
        trajectory = forest.start(0, member)
        forest.append(trajectory, prompt, kind="prompt")
        forest.append(
            trajectory,
            segment.tokens,
            kind="action",
            logprobs=segment.logprobs,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
        )
        forest.finish(trajectory, reward=float(member))
    batch = arl.annotate(forest.freeze(), "recomputed_logprob", model)
    recorded, recomputed = (batch.column(column, "token") for column in ("behaviour_logprob", "recomputed_logprob"))
    np.testing.assert_allclose(recomputed, recorded, atol=1e-5)
    updates(batch)


def test_other_temperatures_are_those_that_the_model_is_run_at() -> None:
    updates(sampled(temperature=0.6))
    updates(sampled())


def test_masked_tokens_may_be_of_any_distribution() -> None:
    updates(sampled(temperature=0.0, top_p=0.5, trainable=[0, 0]))


def test_stale_tokens_at_ratio_one_are_warned_of() -> None:
    recipe = recipes.GRPO.replace(old_logprob="recomputed")
    stale = arl.annotate(sampled((3, 4)), "recomputed_logprob", tiny())
    with pytest.warns(AgentRLWarning, match=r"versions 3 to 4, .*add weight.ImportanceWeight\(\)"):
        updates(stale, recipe)
    updates(stale, recipe.replace(weight=weight.ImportanceWeight()))
    updates(stale, recipe.replace(weight=LatestVersionOnly()))
    updates(sampled((3, 4)))
    updates(arl.annotate(sampled((3, 3)), "recomputed_logprob", tiny()), recipe)


def test_a_run_ahead_with_recomputed_ratios_is_warned_of() -> None:
    world, recipe = SmallWorld(), recipes.GRPO.replace(old_logprob="recomputed")
    with pytest.warns(AgentRLWarning, match=r"start at 1 whatever the staleness"):
        arl.Collector(world, world, recipe, staleness=1)
    arl.Collector(world, world, recipe)
    arl.Collector(world, world, recipes.GRPO, staleness=1)
    arl.Collector(world, world, recipe.replace(weight=weight.ImportanceWeight()), staleness=1)


def with_images(*, later: bool = False) -> arl.Batch:
    """Return two draws; the first has an image, in the prompt or in the observation before its second action."""
    forest = arl.Forest()
    forest.add_group(0, "task")
    picture = forest.add_blob(b"a picture")
    for member in range(2):
        trajectory = forest.start(0, member)
        shown = {"blobs": [picture]} if member == 0 else {}
        forest.append(trajectory, [1, 2], kind="prompt", **({} if later else shown))
        forest.append(trajectory, [3], kind="action", logprobs=[-0.5])
        forest.step(trajectory)
        forest.append(trajectory, [5, 5], kind="observation", **(shown if later else {}))
        forest.append(trajectory, [6], kind="action", logprobs=[-0.5])
        forest.finish(trajectory, reward=float(member))
    return forest.freeze()


@pytest.mark.parametrize("later", [False, True])
def test_packs_of_rollouts_with_images_are_not_run_without(later: bool) -> None:
    (update,) = updates(with_images(later=later))
    for layout in ("sequence", "tree"):
        with pytest.raises(UnsupportedError, match=f"layout: '{layout}' cannot run images"):
            update.pack(max_tokens=64, layout=layout)  # type: ignore[call-overload]
    packs = [*update.pack(max_tokens=6), *update.pack(max_tokens=64)]
    shown = [pack.images is not None and bool(pack.images.hashes) for pack in packs]
    assert sorted(shown) == [False, True, True]
    model = tiny()
    for pack, shows in zip(packs, shown, strict=True):
        if shows:
            with pytest.raises(UnsupportedError, match="show images, and LlamaForCausalLM takes none"):
                pack.run(model)
        else:
            pack.run(model)
    with pytest.raises(UnsupportedError, match="show images"):
        list(update.gradient_cached(model, max_tokens=64))


def test_annotations_do_not_run_rollouts_with_images_without() -> None:
    batch, model = with_images(), tiny()
    with pytest.raises(UnsupportedError, match="show images"):
        arl.annotate(batch, "reference_logprob", model)
    annotated = arl.annotate(batch, "reference_logprob", model, draws=[False, True])
    assert np.isfinite(annotated.column("reference_logprob", "token")).tolist() == [False, False, True, True]
    assert arl.annotate(batch, "half", lambda pack: pack.target / 2).has("half", "token")
    with pytest.raises(UnsupportedError, match="show images"):
        arl.annotate(batch, "answer_logprob", model, probe=Probe([[3, 4, 5]] * 2, start=1))
