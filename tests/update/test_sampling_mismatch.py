"""What a batch was sampled with and what the trainer does with it: refused or warned of where they differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from small_world import SmallWorld
from transformers import LlamaConfig, LlamaForCausalLM

import agentrl_core as arl
from agentrl_core import recipes, weight
from agentrl_core.exceptions import AgentRLWarning, UnsupportedError
from agentrl_core.model.probe import Probe
from agentrl_core.recipes.t_ppo import LatestVersionOnly

SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 32}


def tiny() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(num_attention_heads=2, num_key_value_heads=2, **SIZES))


def sampled(versions: tuple[int, ...] = (0, 0), **options: Any) -> arl.Batch:
    """Two draws of two turns; `options` describe the sampling of the first turn of the second draw."""
    forest = arl.Forest()
    forest.add_group(0, "task")
    for member in range(2):
        trajectory = forest.start(0, member)
        forest.append(trajectory, [1, 2], kind="prompt")
        for turn, version in enumerate(versions):
            given = options if (member, turn) == (1, 0) else {"temperature": 1.0}
            forest.append(
                trajectory, [3, 4 + member], kind="action", logprobs=[-0.5, -0.5], policy_version=version, **given
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
def test_ratios_to_another_distribution_are_warned_of(options: dict[str, Any], message: str) -> None:
    batch = sampled(**options)
    with pytest.warns(AgentRLWarning, match=message):
        updates(batch)
    recomputed = recipes.GRPO.replace(old_logprob="recomputed")
    updates(arl.annotate(batch, "recomputed_logprob", tiny()), recomputed)


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
    with pytest.warns(AgentRLWarning, match=r"begin at 1 however old a token is"):
        arl.Collector(world, world, recipe, staleness=1)
    arl.Collector(world, world, recipe)
    arl.Collector(world, world, recipes.GRPO, staleness=1)
    arl.Collector(world, world, recipe.replace(weight=weight.ImportanceWeight()), staleness=1)


def with_images(*, later: bool = False) -> arl.Batch:
    """The first of two draws sees an image, in the prompt or in the observation before its second action."""
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


@pytest.mark.parametrize("layout", ["sequence", "tree"])
@pytest.mark.parametrize("later", [False, True])
def test_packs_of_rollouts_with_images_are_not_run_without(layout: Any, later: bool) -> None:
    (update,) = updates(with_images(later=later))
    packs = list(update.pack(max_tokens=6, layout=layout)) if layout == "sequence" else []
    packs += list(update.pack(max_tokens=64, layout=layout))
    assert any(pack.shows_images for pack in packs)
    model = tiny()
    for pack in packs:
        if pack.shows_images:
            with pytest.raises(UnsupportedError, match="show images, and a pack gives the model token ids alone"):
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
