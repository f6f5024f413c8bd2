"""Worked examples of the paper of arpo_gui, computed by the recipe."""

from __future__ import annotations

import numpy as np
import pytest
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.reward import OutcomeScore

EXAMPLES = PaperExamples("arpo_gui")
PAID = recipes.ARPO_GUI.replace(reward=OutcomeScore())
"""With scores that the environment pays."""
WEIGHTED = PAID.replace(advantage=GroupRelative(center="none", scale="none"))
"""With the advantages of an example as scores."""


def recomputed(count: int) -> dict[str, object]:
    return {"token": {"recomputed_logprob": [-1.0] * count}}


@EXAMPLES.by("a failed group takes a stored success at its first place")
def replaced(example: Example) -> Found:
    inject = recipes.ARPO_GUI.replay
    assert inject.when.of(example.values["before"])
    assert inject.replaces == "first"
    rewards = [float(example.values["stored"]), *example.values["before"][1:].tolist()]
    found = computed(PAID, ["draw.score", "draw.advantage"], members=answers([1] * 4, rewards))
    return {"rewards": found["draw.score"], "advantage": found["draw.advantage"]}


@EXAMPLES.by("a group that is not failed stays")
def stays(example: Example) -> Found:
    return {"failed": float(recipes.ARPO_GUI.replay.when.of(example.values["eval"]))}


@EXAMPLES.by("what the queue holds")
def stored(example: Example) -> Found:
    rewards = example.values["evals"].tolist()
    return {"stored": [float(reward > recipes.ARPO_GUI.replay.memory.where.above) for reward in rewards]}


@EXAMPLES.by("rewards with an unreadable output")
def formatted(example: Example) -> Found:
    members = [
        {**answer, "rewards": {"format": of}}
        for answer, of in zip(answers([1] * 3, example.values["eval"].tolist()), example.values["f"], strict=True)
    ]
    return {"reward": computed(recipes.ARPO_GUI, ["draw.score"], members=members)["draw.score"]}


@EXAMPLES.by("one rollout of four has no score (convention)")
def unscored(example: Example) -> Found:
    members = answers([1] * 4, [*example.values["R"].tolist(), float("nan")])
    found = computed(PAID, ["draw.advantage"], members=members)["draw.advantage"]
    return {"advantage": [*found[:3], float("nan") if found[3] == 0 else found[3]]}  # 0: it has no loss


@EXAMPLES.by("two rollouts of two turns with tool tokens")
def token_mean(example: Example) -> Found:
    members = [
        {"path": "1 | 3*6", "reward": reward, "trainable": example.values[mask].astype(int).tolist()}
        for reward, mask in zip(example.values["A"].tolist(), ("mask_a", "mask_b"), strict=True)
    ]
    found = computed(WEIGHTED, ["loss", "gradient.logprob"], members=members, columns=recomputed(12))
    weights = -found["gradient.logprob"][[0, 6]] / example.values["A"]
    return {"loss": found["loss"], "token_weight_a": weights[0], "token_weight_b": weights[1]}


@EXAMPLES.by("the dual clip")
def dual_clip(example: Example) -> Found:
    found = computed(
        WEIGHTED,
        ["loss"],
        members=answers([1] * 5, example.values["A"].tolist()),
        columns={"token": {"recomputed_logprob": example.values["old"].tolist()}},
        policy={"logprob": example.values["new"].tolist()},
    )
    return {"loss": found["loss"]}


@EXAMPLES.by("the second optimizer step of a batch clips")
def later_step(example: Example) -> Found:
    members = answers([1] * 3, example.values["A"].tolist())
    found = {
        step: computed(
            WEIGHTED,
            ["loss", "gradient.logprob"],
            members=members,
            columns=recomputed(3),
            policy={"logprob": example.values[step].tolist()},
        )
        for step in ("first", "second")
    }
    return {
        "first_loss": found["first"]["loss"],
        "second_loss": found["second"]["loss"],
        "second_has_gradient": np.abs(found["second"]["gradient.logprob"]) > 1e-6,
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
