"""Worked examples of the paper of at_grpo, computed by the recipe."""

from __future__ import annotations

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples, given_advantages
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes
from agentrl_core.loss import Clip

EXAMPLES = PaperExamples("at_grpo")
UNSCORED = "one rollout of four has no score (convention)"
DUAL = given_advantages(recipes.AT_GRPO, clip=Clip(0.2, 0.2, dual=3.0))
CommonExamples(EXAMPLES, recipes.AT_GRPO, but=[UNSCORED], losses=DUAL)


def candidates(*agents: Value) -> list[Value]:
    """Return advantages of the candidates of each agent at a turn."""
    members = [
        {
            "path": "1 | 3",
            "agent": agent,
            "facts": {"instance": "i", "turn": "0"},
            **({} if np.isnan(reward) else {"reward": float(reward)}),
        }
        for agent, rewards in enumerate(agents)
        for reward in rewards
    ]
    advantages = computed(recipes.AT_GRPO, ["draw.advantage"], members=members)["draw.advantage"]
    return np.split(advantages, np.cumsum([len(rewards) for rewards in agents])[:-1])


@EXAMPLES.by("two agents at a turn")
def two(example: Example) -> Found:
    given = example.values
    one, other = candidates(given["team"] + given["local_a"], given["local_b"])
    return {"advantage_a": one, "advantage_b": other}


@EXAMPLES.by(UNSCORED)
def unscored(example: Example) -> Found:
    advantages = candidates(np.array([*example.values["R"], np.nan]))[0]
    assert advantages[-1] == 0
    return {"advantage": np.array([*advantages[:-1], np.nan])}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
