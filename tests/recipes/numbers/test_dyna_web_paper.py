"""Worked examples of the paper of dyna_web, computed by the recipe."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import Where
from agentrl_core.loss import Policy, Ratio

EXAMPLES = PaperExamples("dyna_web")
DREAMT = Where(column="demonstrated", at_most=0.5)


def weighted(recipe: Any = recipes.DYNA_WEB) -> Any:
    """Return the recipe with the advantages of an example as scores."""
    return recipe.replace(
        advantage=(GroupRelative(center="none", scale="none", where=DREAMT), recipes.DYNA_WEB.advantage[1])
    )


@EXAMPLES.by("only the agent's tokens have a loss")
def tokens(example: Example) -> Found:
    assert example.values["mask"].tolist() == [1, 1, 0, 0, 0, 1, 1]
    member = {"path": "1 | 3 3 ~ 9 9 9 | 4 4", "reward": 1.0, "facts": {"demonstrated": 0}}
    result = computed(weighted(), ["loss", "gradient.logprob"], members=[member])
    return {"loss": result["loss"], "token_weight": -result["gradient.logprob"][:1]}


@EXAMPLES.by("a sum of losses, each over its own rows (reading, not stated)")
def summed(example: Example) -> Found:
    rewards, lengths = example.values["A"].tolist(), example.values["n"].astype(int).tolist()
    dreams = answers(lengths, rewards, facts={"demonstrated": 0})
    expert = answers([2], [1.0], facts={"demonstrated": 1})
    policy = {"logprob": [*[-1.0] * sum(lengths), *example.values["expert"].tolist()]}
    both = computed(weighted(), ["loss"], members=[*dreams, *expert], policy=policy)["loss"]
    alone = computed(weighted(), ["loss"], members=dreams)["loss"]
    return {"rl_loss": alone, "expert_loss": both - alone}


@EXAMPLES.by("one ratio a rollout (second-hand; the range 0.2 is an example)")
def sequence_ratio(example: Example) -> Found:
    new, old = (example.values[name][[0, 1, 3]].tolist() for name in ("new", "old"))
    recipe = recipes.DYNA_WEB.replace(
        loss=Policy("sequence_mean", ratio=Ratio("sequence")), advantage=GroupRelative(ddof=0, eps=0.0)
    )
    members = [
        {"path": "1 | 3 3 ~ 9 | 4", "reward": 1.0, "logprobs": old},
        *answers([1, 1], example.values["rewards"][1:].tolist()),
    ]
    policy = {"logprob": [*new, -1.0, -1.0]}
    result = computed(recipe, ["draw.advantage", "loss"], members=members, policy=policy)
    advantages = result["draw.advantage"]
    return {"advantage": advantages[:1], "term": -3 * result["loss"] - np.sum(advantages[1:])}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
