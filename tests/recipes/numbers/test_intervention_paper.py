"""Worked examples of the paper of intervention, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed
from riddles import RIGHT, WRONG, Run, solve

from agentrl_core import recipes
from agentrl_core.engine import Request, Sampling
from agentrl_core.model.pack import PackOutput
from agentrl_core.recipe import Recipe

EXAMPLES = PaperExamples("intervention")
INTERVENTION = recipes.INTERVENTION


def proposed(attempt: str, proposal: str, *, right: int = 1, recipe: Recipe = INTERVENTION) -> Run:
    """Return a failed attempt, a proposed intervention, and a number of right continuations of it."""
    advice = proposal.partition(": ")[2]
    tried = iter(range(100))

    def speak(context: str, request: Request) -> str:
        del request
        if "Compare it with the solution" in context:
            return proposal
        if advice in context.rpartition("assistant\n")[2]:
            return RIGHT if next(tried) < right else WRONG
        return attempt

    return solve(recipe, speak, group_size=1, sampling=Sampling(max_tokens=512))


def imitation_loss(run: Run, logprobs: Value) -> Value:
    """Return the loss of a batch whose target has these log-probs now; those of untrained tokens are far away."""
    batch = INTERVENTION.credit(run.batch)
    trained = batch.column("trainable", "token") > 0
    now = np.full(len(trained), -50.0)
    now[trained] = logprobs
    total = np.zeros(1)
    for update in INTERVENTION.updates(batch):
        for pack in update.pack(max_tokens=1 << 20):
            loss = update.loss(PackOutput(torch.from_numpy(now)[pack.token], torch.zeros(len(pack.token))), pack)
            total += loss.detach().numpy()
    return total


@EXAMPLES.by("a target of two steps and an intervention")
def target(example: Example) -> Found:
    """Bytes are tokens: a prefix of three, a bad step of two with an answer after it, an intervention of two."""
    given = example.values
    run = proposed(f"p\n\nxx\n\n{WRONG}", "2: ii")
    assert [row.trained for row in run.drawn] == ["", "p\n\nii"]
    logprobs = np.concatenate([given["logp_prefix"], given["logp_intervention"]])
    return {"loss": imitation_loss(run, logprobs), "tokens_dropped": np.array(float("xx" not in run.drawn[1].text) * 2)}


@EXAMPLES.by("error in the first step")
def first_step(example: Example) -> Found:
    run = proposed(f"xx\n\n{WRONG}", "1: ii")
    assert [row.trained for row in run.drawn] == ["", "ii"]
    return {"loss": imitation_loss(run, example.values["logp"])}


@EXAMPLES.by("which targets are kept")
def kept(example: Example) -> Found:
    given = example.values
    recipe = INTERVENTION.replace(rollout=replace(INTERVENTION.rollout, reveals="tell"))
    results = []
    for right, length, reveals in zip(given["right"], given["length"], given["tells_answer"], strict=True):
        advice = ("tell" * int(reveals)).ljust(int(length), "i")
        run = proposed(f"xx\n\n{WRONG}", f"1: {advice}", right=int(right), recipe=recipe)
        request_count = 2 if reveals or length >= 200 else 34  # the attempt, the proposal, 32 continuations
        assert run.num_requests == request_count
        results.append(float(any(row.trained for row in run.drawn)))
    return {"kept": np.array(results)}


@EXAMPLES.by("the rollout as data of an older policy")
def older(example: Example) -> Found:
    members = [{**answers([2], [1.0])[0], "logprobs": example.values["old"].tolist()}]
    return {
        "loss": computed(INTERVENTION, ["loss"], members=members, policy={"logprob": example.values["new"].tolist()})[
            "loss"
        ]
    }


@EXAMPLES.by("two steps on one token")
def two_steps(example: Example) -> Found:
    logits, losses = [float(example.values["z"])], []
    for _ in range(3):
        likely = 1 / (1 + np.exp(-logits[-1]))
        result = computed(
            INTERVENTION,
            ["loss", "gradient.logprob"],
            members=answers([1], [1.0]),
            policy={"logprob": [float(np.log(likely))]},
        )
        losses.append(result["loss"])
        logits.append(logits[-1] - float(result["gradient.logprob"][0]) * (1 - likely))
    return {
        "logit_after_first": np.array(logits[1]),
        "logit_after_second": np.array(logits[2]),
        "loss": np.concatenate(losses),
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
