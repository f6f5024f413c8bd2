"""Worked examples of the paper of ppo, computed by the recipe."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from common_examples import CommonExamples, given_advantages
from compared import column
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed
from rollouts import small

from agentrl_core import recipes
from agentrl_core.loss import Clip

EXAMPLES = PaperExamples("ppo")
COMMON = CommonExamples(EXAMPLES, recipes.PPO)
GAE, WHITENING = recipes.PPO.chain("advantage")


@EXAMPLES.by("GAE of three tokens at gamma 1, lambda 0.95")
def gae(example: Example) -> Found:
    given = example.values
    tokens = {
        "value": given["V"].tolist(),
        "reference_logprob": (-1.0 - given["kl"]).tolist(),
    }
    priced = recipes.PPO.replace(advantage=replace(GAE, kl_coefficient=float(given["beta"])))
    members = answers([3], [float(given["score"])])
    result = computed(priced, ["token.advantage", "token.return"], members=members, columns={"token": tokens})
    return {"advantage": result["token.advantage"], "return": result["token.return"]}


@EXAMPLES.by("GAE bridges two tool tokens")
def bridge(example: Example) -> Found:
    values = example.values["V"]
    advantages = computed(
        recipes.PPO.replace(advantage=GAE),
        ["token.advantage"],
        members=[{"path": "1 | 3 ~ 9 9 | 4", "reward": 1}],
        columns={"token": {"value": values[[0, 3]].tolist()}},
    )["token.advantage"]
    return {"advantage_first": advantages[:1], "advantage_last": advantages[1:]}


@EXAMPLES.by("whitening of uneven responses")
def whitening(example: Example) -> Found:
    batch = small([(0, [1]), (0, [2]), (0, [1])], draw_score=[1, 1, 0], token_advantage=example.values["A"])
    return {"whitened": np.array(column(WHITENING(batch), level="token"))}


@EXAMPLES.by("value loss with a clip")
def values(example: Example) -> Found:
    given = example.values
    old = given["V_old"].tolist()
    result = computed(
        recipes.PPO.replace(epochs=1),
        ["loss.critic"],
        members=answers([1, 1], given["R"].tolist()),
        columns={"token": {"value": old, "old_value": old}},
        critic={"value": given["V"].tolist()},
    )
    return {"value_loss": result["loss.critic"]}


@EXAMPLES.by("the dual clip of verl")
def dual(example: Example) -> Found:
    return COMMON.off_policy(example, given_advantages(recipes.PPO, clip=Clip(0.2, 0.2, dual=3.0)))


def test_a_batch_makes_four_steps_of_each_model() -> None:
    batch = small([(0, [1]), (0, [2])], draw_score=[1, 0], token_value=[0.5] * 3, token_old_value=[0.5] * 3)
    models = [update.model for update in recipes.PPO.updates(recipes.PPO.credit(batch))]
    assert Counter(models) == {"policy": 4, "critic": 4}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
