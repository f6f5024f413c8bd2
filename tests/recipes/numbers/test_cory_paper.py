"""Worked examples of the paper of cory, computed by the recipe."""

from __future__ import annotations

import numpy as np
import pytest
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes

EXAMPLES = PaperExamples("cory")


@EXAMPLES.by("shared rewards of three queries")
def cory_rewards(example: Example) -> Found:
    pairs = [(float(example.values[name][pair]), f"{pair}") for name in ("r1", "r2") for pair in range(3)]
    scores = computed(
        recipes.CORY,
        ["draw.score"],
        members=[{"path": "1 | 3", "reward": reward, "facts": {"pair": pair, "copy": 0}} for reward, pair in pairs],
        columns={"token": {"value": [0.0] * 6, "reference_logprob": [-1.0] * 6}},
    )["draw.score"]
    return {"reward_of_pioneer": scores[:3], "reward_of_observer": scores[3:]}


@EXAMPLES.by("GAE of the observer's tokens")
def cory_advantages(example: Example) -> Found:
    # The penalty for leaving the reference is 0.04, 0.08 and 0.02 of a shared reward of 1.5.
    kl = np.array([0.1, 0.2, 0.05])
    result = computed(
        recipes.CORY.replace(advantage=recipes.CORY.advantage[0]),
        ["token.advantage", "token.return"],
        members=[{"path": "1 | 3*3", "reward": 1.5, "facts": {"pair": "0"}}],
        columns={"token": {"value": example.values["V"].tolist(), "reference_logprob": (-1.0 - kl).tolist()}},
    )
    return {"advantage_before_whitening": result["token.advantage"], "value_target": result["token.return"]}


@EXAMPLES.by("each copy is optimised by itself")
def cory_copies(example: Example) -> Found:
    given = example.values
    members = [
        {"path": "1 | 3", "reward": reward, "facts": {"pair": f"{agent}{place}", "copy": agent}, "agent": agent}
        for agent, name in enumerate(("pioneer", "observer"))
        for place, reward in enumerate(given[name].tolist())
    ]
    ratios = np.concatenate([given["pioneer_ratio"], given["observer_ratio"]])
    zero = [0.0] * len(members)
    result = computed(
        recipes.CORY.replace(epochs=1),
        ["token.advantage", "loss.policy", "loss.second"],
        members=members,
        columns={"token": {"value": zero, "old_value": zero, "reference_logprob": [-1.0] * len(members)}},
        **{name: {"logprob": (np.log(ratios) - 1.0).tolist()} for name in ("policy", "second")},
        **{name: {"value": zero} for name in ("critic", "second_critic")},
    )
    one, other = np.split(result["token.advantage"], [len(given["pioneer"])])
    return {
        "advantage_of_pioneer": one,
        "advantage_of_observer": other,
        "loss_of_pioneer": result["loss.policy"],
        "loss_of_observer": result["loss.second"],
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
