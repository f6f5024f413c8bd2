"""Worked examples of the paper of gui_libra, computed by the recipe."""

from __future__ import annotations

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples, given_advantages, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes

EXAMPLES = PaperExamples("gui_libra")
CommonExamples(EXAMPLES, recipes.GUI_LIBRA, but={"one rollout of four has no score (convention)"})
LOSSES = given_advantages(recipes.GUI_LIBRA)


def scaled(rewards: Value) -> tuple[Value, Value]:
    """Return the weight of the negative draws of a group, and its weighted advantages."""
    known = np.isfinite(rewards)
    members = [
        member if score else {"path": member["path"]}
        for member, score in zip(answers([1] * len(rewards), rewards.tolist()), known, strict=True)
    ]
    columns = {"token": {"reference_logprob": [-1.0] * len(members)}}
    result = computed(recipes.GUI_LIBRA, ["draw.advantage", "draw.weight"], members=members, columns=columns)
    advantages, weights = result["draw.advantage"], result["draw.weight"]
    assert np.all(weights[advantages > 0] == 1.0)
    weight = weights[advantages < 0]
    np.testing.assert_allclose(weight, weight[0])
    return weight[:1], np.where(known, advantages * weights, np.nan)


@EXAMPLES.by("groups of four and of five: a hard and an easy state")
def groups(example: Example) -> Found:
    (hard, one), (easy, other) = (scaled(example.values[name]) for name in "RS")
    return {"weight_a": hard, "advantage_a": one, "weight_b": easy, "advantage_b": other}


@EXAMPLES.by("weight over the mean reward")
def means(example: Example) -> Found:
    return {"weight": np.concatenate([scaled(np.array([mean + 0.5, mean - 0.5]))[0] for mean in example.values["m"]])}


@EXAMPLES.by("a group without any success")
def failed(example: Example) -> Found:
    weight, weighted_advantages = scaled(example.values["R"])
    return {"weight": weight, "advantage": weighted_advantages}


@EXAMPLES.by("one rollout of four has no score (convention)")
def unscored(example: Example) -> Found:
    return {"advantage": scaled(np.append(example.values["R"], np.nan))[1]}


@EXAMPLES.by("policy loss with KL over response tokens")
def policy(example: Example) -> Found:
    new, advantages, reference = (example.values[name] for name in ("logp", "A", "ref"))
    old = new - example.values["d"]

    def each(other: Value) -> Value:
        rows = zip(*(array[:, None] for array in (old, new, advantages, other)), strict=True)
        return np.concatenate(
            [single_tokens(LOSSES, *row, reference_logprob=reference)["loss"] for *row, reference in rows]
        )

    alone = each(new)
    return {
        "token_loss": alone,
        "policy_loss": single_tokens(LOSSES, old, new, advantages)["loss"],
        "kl": (each(reference) - alone) / 0.001,
        "loss": single_tokens(LOSSES, old, new, advantages, reference_logprob=reference)["loss"],
    }


@EXAMPLES.by("second optimizer step")
def steps(example: Example) -> Found:
    given, old = example.values, np.full(len(example.values["A"]), -1.0)
    losses = [single_tokens(LOSSES, old, old + given[name], given["A"])["loss"] for name in ("first", "second")]
    return {"loss_1": losses[0], "loss_2": losses[1]}


@EXAMPLES.by("weighted supervised loss")
def supervised(example: Example) -> Found:
    logprobs = (-example.values["ce"]).tolist()
    results = [
        computed(
            recipes.GUI_LIBRA,
            ["loss"],
            members=answers([len(logprobs)], [1.0], origin="expert", unsampled=True),
            columns={"token": {"imitation": weights.tolist()}},
            policy={"logprob": logprobs},
            stage="warm_start",
        )["loss"]
        for weights in (example.values["w"], np.ones(len(logprobs)))
    ]
    return {"loss": results[0], "plain": results[1]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
