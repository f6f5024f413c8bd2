"""Worked examples of the paper of hapo, computed by the recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from arithmetic import Value
from common_examples import given_advantages, path_of, plain_reward
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed
from rollouts import small

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import IterationRecord
from agentrl_core.engine import EntropyTemperature
from agentrl_core.loss import Policy, Tokens
from agentrl_core.recipe import Recipe
from agentrl_core.recipes.hapo import SampledByEntropy, normalised_entropy

EXAMPLES = PaperExamples("hapo")
HAPO = plain_reward(recipes.HAPO).replace(minibatches=1, old_logprob="behaviour")
GIVEN = given_advantages(HAPO).replace(
    advantage=GroupRelative(column="given", level="token", center="none", scale="none")
)
(POLICY,) = given_advantages(HAPO).chain("loss")
assert isinstance(POLICY, Policy)


def advantages(rewards: Value, lengths: Sequence[int], recipe: Recipe = HAPO) -> Value:
    """Return advantages of a group of rollouts of these lengths; an unscored one has reward `nan`."""
    members = [
        {"path": f"1 | 3*{length}", **({} if np.isnan(reward) else {"reward": float(reward)})}
        for reward, length in zip(rewards, lengths, strict=True)
    ]
    return computed(recipe, ["draw.advantage"], members=members)["draw.advantage"]


@EXAMPLES.by("score of five tokens, as written and signed")
def signed(example: Example) -> Found:
    entropy = torch.tensor(example.values["H"])
    tokens = Tokens(torch.zeros(len(entropy)), entropy, {"weight_kl": torch.ones(len(entropy))})
    quantile = POLICY.mask.quantile
    assert quantile == POLICY.clip.quantile
    return {"score_signed": normalised_entropy(tokens, quantile, POLICY.clip.scope).numpy()}


@EXAMPLES.by("overlong penalties, and which groups stay")
def settings(example: Example) -> Found:
    lengths, right = (example.values[name].astype(int) for name in ("l", "right"))
    members = answers(lengths.tolist(), [1.0] * len(lengths))
    outcomes = np.concatenate([np.arange(16) < count for count in right]).astype(float)
    return {
        "reward": computed(
            recipes.HAPO.replace(minibatches=1, old_logprob="behaviour"), ["draw.score"], members=members
        )["draw.score"],
        "keep": recipes.HAPO.admit(outcomes, np.repeat(np.arange(len(right), dtype=np.uint32), 16)),
    }


@EXAMPLES.by("temperature from the statistics of the step before")
def temperature(example: Example) -> Found:
    """The previous step has the entropies of the example of the score, which have these statistics."""
    program = recipes.HAPO.rollout
    assert isinstance(program, SampledByEntropy)
    before = small([(0, [5])], draw_score=[1.0]).with_columns("token", entropy=np.array([2.0, 0.5, 0.1, 1.0, 1.5]))
    state = program.next(program.initial_state(), IterationRecord.of(before))
    rule = EntropyTemperature(**state, change=program.change)
    results = [1.0 + rule.change * rule.height(float(np.log(entropy))) for entropy in example.values["H"]]
    return {"temperature_signed": np.array(results)}


@EXAMPLES.by("a group of three responses of one, three and four tokens")
def three(example: Example) -> Found:
    return {"advantage": advantages(example.values["r"], [1, 3, 4])}


@EXAMPLES.by("a value of 5 or more sends the whole group back to GRPO")
def fallback(example: Example) -> Found:
    lengths = example.values["n"].astype(int).tolist()
    never = HAPO.replace(advantage=GroupRelative(voter="token", ddof=0))
    return {
        "token_level": advantages(example.values["r"], lengths, never),
        "advantage": advantages(example.values["r"], lengths),
    }


@EXAMPLES.by("a group of one")
def alone(example: Example) -> Found:
    return {"advantage": advantages(example.values["r"], [3])}


@EXAMPLES.by("one rollout of four has no score (convention)")
def unscored(example: Example) -> Found:
    group_advantages = advantages(np.array([*example.values["r"], np.nan]), [2, 2, 1, 9])
    assert not group_advantages[-1]
    return {"advantage": np.array([*group_advantages[:-1], np.nan])}


def log_entropies(scores: Sequence[float]) -> Value:
    """Return log-entropies that give the first tokens these scores, by adding tokens of score 1, -1 and 0."""
    known = [*scores, 1.0, -1.0]
    above, zeros = sum(score > 0 for score in known), 0
    while round(0.8 * (len(known) + zeros - 1)) != len(known) + zeros - 1 - above or not zeros:
        zeros += 1
    return np.array([*known, *[0.0] * zeros])


def scored(scores: Sequence[float], ratio: Value, advantage_values: Value, *, own_tokens: Value | None = None) -> Found:
    """Return loss and gradient of a rollout of tokens with these scores; added tokens have ratio 1 and advantage 0.

    The denominator is the number of the tokens that were not added.
    """
    mask = np.ones(len(scores)) if own_tokens is None else own_tokens
    counted = np.array(scores)[mask > 0]
    heights = log_entropies(counted.tolist())
    added = len(heights) - len(counted)
    policy = replace(POLICY, aggregate="constant", constant=float(len(counted)))
    new = np.concatenate([np.log(ratio[mask > 0]), np.zeros(added)]) - 1.0
    return dict(
        computed(
            GIVEN.replace(loss=policy),
            ["loss", "gradient.logprob"],
            members=[{"path": f"{path_of(mask)} 3*{added}", "reward": 1}],
            columns={"token": {"given": [*advantage_values[mask > 0], *[0.0] * added]}},
            policy={"logprob": new.tolist(), "entropy": np.exp(heights).tolist()},
        )
    )


@EXAMPLES.by("clip ranges and advantages of five tokens, signed scores")
def ranges(example: Example) -> Found:
    given = example.values
    heights = torch.tensor(log_entropies(given["score"].tolist()))
    ratio = torch.ones(len(heights), dtype=torch.float64)
    ratio[:5] = torch.tensor(given["ratio"])
    tokens = Tokens(torch.zeros(len(heights)), heights.exp(), {"weight_kl": torch.ones(len(heights))})
    bounds = POLICY.clip(tokens, ratio.log())
    factor = POLICY.mask(tokens, ratio.log(), bounds)[0][:5].numpy()
    return {
        "low": 1.0 - bounds.lower[:5].numpy(),
        "high": bounds.upper[:5].numpy() - 1.0,
        "advantage": factor * given["A"],
        "loss": scored(given["score"].tolist(), given["ratio"], given["A"])["loss"],
    }


@EXAMPLES.by("a turn's response of the environment has no score and no vote")
def environment(example: Example) -> Found:
    given = example.values
    return {"loss": scored([0.0] * 3, np.ones(3), -given["loss_of_tokens"], own_tokens=given["m"])["loss"]}


@EXAMPLES.by("the second optimizer step: score and neutral range are taken anew")
def second_step(example: Example) -> Found:
    given = {name: float(value) for name, value in example.values.items()}
    results = {
        place: scored([given[f"score_{place}"]], np.array([given[step]]), np.array([given["A"]]))
        for place, step in ((1, "first"), (2, "second"))
    }
    return {f"objective_{place}": -each["loss"] for place, each in results.items()}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
