"""Worked examples of the paper of dots, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from arithmetic import Value
from case_files import rollouts
from common_examples import CommonExamples, advantages, given_advantages
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed
from pools import Story, pool

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import IterationRecord
from agentrl_core.loss import Clip, Policy
from agentrl_core.recipe import Recipe
from agentrl_core.select.tracker import Candidates

EXAMPLES = PaperExamples("dots")
CommonExamples(EXAMPLES, recipes.DOTS, but=["one rollout of four has no score (convention)"])
SELECT = recipes.DOTS.select
LOSSES = given_advantages(recipes.DOTS)
CODE = recipes.DOTS.replace(advantage=GroupRelative(), loss=Policy(clip=Clip(center="proximal")))
CODE_LOSSES = given_advantages(CODE)


def rate(rewards: list[float]) -> Value:
    """Return the success rate of a surveyed task."""
    visits = Story().visits(0, {0: rewards}, survey=True)
    return SELECT.track.next(SELECT.track.initial_state(), visits)["rates"]


def loss(example: Example, new: str, old: str, losses: Recipe = LOSSES) -> Value:
    """Return the loss of answers of one token."""
    given = {name: example.values[name].tolist() for name in ("mu", old, new, "A")}
    members = [
        {**member, "logprobs": [logprob]}
        for member, logprob in zip(answers([1] * len(given["A"]), given["A"]), given["mu"], strict=True)
    ]
    columns = {"token": {"proximal_logprob": given[old]}}
    return computed(losses, ["loss"], members=members, columns=columns, policy={"logprob": given[new]})["loss"]


@EXAMPLES.by("difficulty of a reference question with a failed rollout")
def difficulty(example: Example) -> Found:
    result = rate(example.values["r"].tolist())
    return {"difficulty": 1 - result, "label_of_the_code": result}


@EXAMPLES.by("one rollout of four has no score (convention)")
def unscored(example: Example) -> Found:
    rewards = [*example.values["r"].tolist(), np.nan]
    return {"difficulty": 1 - rate(rewards), "advantage": advantages(recipes.DOTS, rewards)[0]}


@EXAMPLES.by("prediction from three references")
def prediction(example: Example) -> Found:
    given, tasks = example.values, pool(4)
    tasks.column("attempts")
    tasks._columns["embedding"] = np.stack([given[name] for name in ("z1", "z2", "z3", "zq")])
    state = {"rows": np.arange(3), "rates": 1 - given["d"]}
    return {"prediction": 1 - SELECT.track.estimate(state, Candidates(tasks, np.array([3]), np.array([-1]), 1))}


@EXAMPLES.by("probabilities of choice, and of a second draw without replacement")
def choice(example: Example) -> Found:
    sample = replace(SELECT.sample, temperature=float(example.values["tau"]))
    scores = SELECT.score(1 - example.values["d"])
    others = sample.probabilities(scores[1:])
    return {
        "probability": sample.probabilities(scores),
        "second_draw_if_the_first_was_question_0": np.append(0.0, others),
    }


@EXAMPLES.by("clip around 1 in the paper, around the policy of the step in the code")
def off_policy(example: Example) -> Found:
    return {"loss": loss(example, "new", "old"), "loss_of_the_code": loss(example, "new", "old", CODE_LOSSES)}


@EXAMPLES.by("a mean over tokens and then over rollouts")
def uneven(example: Example) -> Found:
    counts = example.values["n"].astype(int)
    members = answers(counts.tolist(), example.values["A"].tolist())
    columns = {"token": {"proximal_logprob": [-1.0] * int(counts.sum())}}
    paper, code = (
        computed(losses, ["loss", "gradient.logprob"], members=members, columns=columns)
        for losses in (LOSSES, CODE_LOSSES)
    )
    return {
        "loss": paper["loss"],
        "loss_of_the_code": code["loss"],
        "gradient_of_a_token": paper["gradient.logprob"][[0, -1]],
    }


@EXAMPLES.by("which groups are stored")
def stored(example: Example) -> Found:
    """Groups of eight with these success rates, in the memory after their iteration."""
    rates, size = example.values["rate"], 8
    members = [
        {"group": f"{place}", "path": "1 | 3", "reward": float(at < size * rate)}
        for place, rate in enumerate(rates)
        for at in range(size)
    ]
    batch = recipes.DOTS.credit(rollouts(members, 0))
    state = recipes.DOTS.replay.next(recipes.DOTS.replay.initial_state(), IterationRecord.of(batch))
    stored_ids = state["memory"]["trajectory_id"]
    return {"stored": np.isin(np.arange(len(rates)) * size, np.asarray(stored_ids))}


@EXAMPLES.by("second optimizer step of a fresh batch")
def later_step(example: Example) -> Found:
    return {"first_loss": loss(example, "mu", "mu"), "second_loss": loss(example, "second", "mu")}


@EXAMPLES.by("advantages of groups of five and of three")
def groups(example: Example) -> Found:
    one, other = advantages(recipes.DOTS, example.values["R"], example.values["S"])
    code = advantages(CODE, example.values["R"], example.values["S"])
    return {
        "advantage_a": one,
        "advantage_b": other,
        "advantage_a_of_the_code": code[0],
        "advantage_b_of_the_code": code[1],
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
