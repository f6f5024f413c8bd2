"""Worked examples of the paper of ace_reason, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from common_examples import CommonExamples, advantages, given_advantages
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed
from pools import Story, pool
from riddles import PaidRiddles, in_turn, solve

from agentrl_core import Forest, recipes
from agentrl_core.component import IterationRecord
from agentrl_core.engine import Sampling

EXAMPLES = PaperExamples("ace_reason")
RECIPE = recipes.ACE_REASON
CommonExamples(EXAMPLES, RECIPE, but=["groups of five and of three", "a group of one"])


@EXAMPLES.by("groups of five and of three")
def groups(example: Example) -> Found:
    group_advantages = advantages(RECIPE, example.values["R"], example.values["S"])
    return dict(zip(("five_n_minus_1", "three_n_minus_1"), group_advantages, strict=True))


@EXAMPLES.by("a group of one")
def alone(example: Example) -> Found:
    return {"numerator": advantages(RECIPE, example.values["R"])[0]}


@EXAMPLES.by("token-level loss at ratio 1")
def token_mean(example: Example) -> Found:
    lengths = example.values["n"].astype(int)
    members = answers(lengths, example.values["A"].tolist())
    result = computed(given_advantages(RECIPE), ["loss", "gradient.logprob"], members=members)
    return {"loss": result["loss"], "gradient_of_a_token": -result["gradient.logprob"][[0, lengths[0]]]}


@EXAMPLES.by("prompts that stay at 24K")
def stays(example: Example) -> Found:
    attempts, first = int(example.values["of"]), RECIPE.at(2 * RECIPE.rollout.every - 1).select.pool
    solved = {
        row: [1.0] * int(right) + [0.0] * (attempts - int(right)) for row, right in enumerate(example.values["right"])
    }
    rows = np.arange(len(solved))
    state = first.next(first.initial_state(), Story().visits(0, solved), rows, epoch=0)
    assert not state["out"].any(), "up to 16K every prompt stays"
    third = RECIPE.at(2 * RECIPE.rollout.every).select.pool
    state = third.next(third.initial_state(), Story().visits(0, solved), rows, epoch=0)
    return {"stays": ~state["out"]}


@EXAMPLES.by("a response longer than the stage's limit is right only after the limit grows")
def longer(example: Example) -> Found:
    lengths, program = example.values["length"].astype(int), RECIPE.rollout
    answers = [f"{1:0{length - 1}}" for length in lengths]  # the example states one number; a part of it is 0
    results = {}
    for stage, name in zip((0, 1, 2, 5), ("at_8K", "at_16K", "at_24K", "at_32K"), strict=True):
        limited = replace(program, limits=(program.limit(stage * program.every),))
        run = solve(
            RECIPE.replace(select=recipes.GRPO.select, rollout=limited),
            in_turn(*answers),
            world=PaidRiddles(),
            group_size=len(answers),
            sampling=Sampling(max_tokens=40_000),
            context_tokens=50_000,
        )
        results[name] = run.batch.column("score", "draw")
    return results


def test_stages_of_length_and_of_domain_agree() -> None:
    """The stages are three times mathematics, twice code, then mathematics to the end."""
    every = RECIPE.rollout.every
    limits = [RECIPE.rollout.limit(place * every) for place in range(7)]
    assert limits == [8192, 16384, 24576, 24000, 32768, 32768, 32768]
    rates = [RECIPE.at(place * every).select.pool.at_most for place in range(7)]
    assert rates == [1, 1, 6 / 16, 1, 6 / 16, 6 / 16, 6 / 16]
    tasks, empty = pool(12, ("math", "code")), Forest().freeze()
    state, domains = RECIPE.at(0).select.stage.initial_state(), []
    for iteration in range(7 * every):
        stage = RECIPE.at(iteration).select.stage
        shares = dict.fromkeys(("math", "code"), 0.0)
        for mask, share in stage.parts(state, tasks):
            shares[tasks.domains[int(tasks.column("domain")[mask][0])]] += share
        domains.append(max(shares, key=shares.__getitem__))
        assert max(shares.values()) == 1
        closed = IterationRecord.of(empty, iteration=iteration, pool=tasks)
        state = stage.next(state, Story().visits(iteration, {0: [1.0]}), closed)
    assert domains == ["math"] * 3 * every + ["code"] * 2 * every + ["math"] * 2 * every


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
