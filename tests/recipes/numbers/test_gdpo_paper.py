"""Worked examples of the paper of gdpo, computed by the recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples, given_advantages, path_of, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.recipe import Recipe
from agentrl_core.reward import CombineReward, OutcomeScore

EXAMPLES = PaperExamples("gdpo")
COMMON = CommonExamples(EXAMPLES, recipes.GDPO, but=["one rollout of four has no score (convention)"])
CORRECT, FORMAT, WHITENING = recipes.GDPO.chain("advantage")
BEFORE = recipes.GDPO.replace(advantage=(CORRECT, FORMAT))
LOSSES = given_advantages(recipes.GDPO, kl=None)
BY_TOKEN = replace(WHITENING, voter="token", eps=0.0, variance_eps=1e-8)


def compared(
    recipe: Recipe, *groups: tuple[Sequence[float] | Value, Sequence[float] | Value], lengths: Sequence[int] = ()
) -> Value:
    """Return advantages of rollouts with two rewards each, group by group."""
    members = [
        {"group": f"{place}", "reward": 0.0, "rewards": {"correct": float(correct), "format": float(form)}}
        for place, rewards in enumerate(groups)
        for correct, form in zip(*map(np.atleast_1d, rewards), strict=True)
    ]
    paths = [f"1 | 3*{length}" for length in lengths or [1] * len(members)]
    for member, path in zip(members, paths, strict=True):
        member["path"] = path
    return computed(recipe, ["draw.advantage"], members=members)["draw.advantage"]


@EXAMPLES.by("two prompts, two rewards, unequal lengths")
def two_prompts(example: Example) -> Found:
    given = example.values
    groups = [(given[f"acc_{name}"], given[f"fmt_{name}"]) for name in "ab"]
    by_token = recipes.GDPO.replace(advantage=(CORRECT, FORMAT, BY_TOKEN))
    return {
        "before_batch": compared(BEFORE, *groups),
        "advantage_by_rows": compared(recipes.GDPO, *groups),
        "advantage_by_tokens": compared(by_token, *groups, lengths=given["len"].astype(int).tolist()),
    }


@EXAMPLES.by("the two rollouts of Figure 2")
def figure(example: Example) -> Found:
    given = example.values
    return {
        "totals_0_and_2": compared(BEFORE, (given["r1"], given["r2"])),
        "totals_0_and_1": compared(BEFORE, (given["r1"], given["none"])),
    }


@EXAMPLES.by("a sum of equal rewards, apart in GDPO")
def equal_sums(example: Example) -> Found:
    given = example.values
    links = [replace(link, coefficient=float(w)) for link, w in zip((CORRECT, FORMAT), given["w"], strict=True)]
    return {
        "before_batch": compared(BEFORE, (given["r1"], given["r2"])),
        "before_batch_weighted": compared(recipes.GDPO.replace(advantage=tuple(links)), (given["r1"], given["r2"])),
    }


@EXAMPLES.by("one reward is the same for the group")
def one_differs(example: Example) -> Found:
    return {"before_batch": compared(BEFORE, (example.values["acc"], example.values["fmt"]))}


@EXAMPLES.by("a group of one")
def alone(example: Example) -> Found:
    raw = recipes.GDPO.replace(advantage=(replace(CORRECT, singleton="raw"), replace(FORMAT, singleton="raw")))
    return {"before_batch": compared(raw, (example.values["acc"], example.values["fmt"]))}


@EXAMPLES.by("one rollout of four has no score (convention)")
def unscored(example: Example) -> Found:
    members = [
        {**answer, "rewards": {"correct": correct, "format": form}}
        for answer, correct, form in zip(
            answers([1] * 3, [0.0] * 3), example.values["acc"].tolist(), example.values["fmt"].tolist(), strict=True
        )
    ]
    advantages = computed(BEFORE, ["draw.advantage"], members=[*members, {"path": "1 | 3"}])["draw.advantage"]
    assert advantages[3] == 0
    return {"before_batch": [*advantages[:3], np.nan]}


@EXAMPLES.by("the easy reward is conditioned")
def conditioned(example: Example) -> Found:
    """Use the option that the recipe's page names: the easy reward is the environment's."""
    recipe = BEFORE.replace(
        reward=(OutcomeScore(), CombineReward(column="reward.correct", kind="require")),
        advantage=(CORRECT, replace(FORMAT, column="score")),
    )
    members = [
        {**answer, "rewards": {"correct": hard}}
        for answer, hard in zip(
            answers([1] * 4, example.values["easy"].tolist()), example.values["hard"].tolist(), strict=True
        )
    ]
    result = computed(recipe, ["draw.score", "draw.advantage"], members=members)
    return {"easy_reward": result["draw.score"], "before_batch": result["draw.advantage"]}


@EXAMPLES.by("two rollouts with tool tokens share one mean")
def tool_tokens(example: Example) -> Found:
    """Whiten over tokens, as in verl: tokens of a tool have no vote."""
    whitened = LOSSES.replace(advantage=(*LOSSES.chain("advantage"), BY_TOKEN))
    members = [
        {"path": path_of(example.values[f"mask_{name}"]), "reward": reward}
        for name, reward in zip("ab", example.values["a"].tolist(), strict=True)
    ]
    result = computed(whitened, ["draw.advantage", "loss", "gradient.logprob"], members=members)
    return {
        "advantage": result["draw.advantage"],
        "loss": result["loss"],
        "token_weight_a": -result["gradient.logprob"][:1] / result["draw.advantage"][:1],
        "token_weight_b": -result["gradient.logprob"][-1:] / result["draw.advantage"][-1:],
    }


@EXAMPLES.by("tokens that another policy sampled")
def off_policy(example: Example) -> Found:
    given = [example.values[name] for name in ("old", "new", "A")]
    alone = [single_tokens(LOSSES, *(each[[at]] for each in given))["loss"] for at in range(len(given[0]))]
    return {"terms": np.concatenate(alone), "loss": single_tokens(LOSSES, *given)["loss"]}


@EXAMPLES.by("the second of four optimizer steps clips")
def later_step(example: Example) -> Found:
    assert recipes.GDPO.minibatches == 4
    return COMMON.second_step(example)


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
