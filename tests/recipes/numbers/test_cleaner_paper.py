"""Worked examples of the paper of cleaner, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples, advantages, given_advantages
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed
from riddles import RIGHT, Row, in_turn, solve

from agentrl_core import recipes
from agentrl_core.recipes.cleaner import Purify

EXAMPLES = PaperExamples("cleaner")
CommonExamples(EXAMPLES, recipes.CLEANER)
PROGRAM = recipes.CLEANER.rollout
assert isinstance(PROGRAM, Purify)
UNIT = 6
"""Letters that stand for a token of an example."""
END = "<|im_end|>"


def text(reasoning: int, call: int, *, begin: str = "<call><bad>", letter: str = "x") -> str:
    """Return a turn with a number of tokens, as letters; a call of `<bad>` fails."""
    return "r" * UNIT * reasoning + begin + letter * (UNIT * call - len(begin))


def record(program: Purify, *turns: str) -> tuple[Row, int]:
    """Return the record of a rollout that makes these turns, and the number of turns that the engine generated."""
    replies = [*turns, "s" * UNIT + RIGHT]
    run = solve(program, in_turn(*replies), group_size=1)
    return run.drawn[0], run.num_requests


@EXAMPLES.by("a call with a typo and a call that is another approach")
def alike(example: Example) -> Found:
    """Calls of these lengths, with `<call>` and other letters in common as the example requires."""
    given = example.values

    def call(length: float, same: float, rest: str) -> str:
        common = "<call>" + "abcdefghijklmnopqr"[: int(same) - 6]
        return common + rest[: int(length) - len(common)]

    keeps_old = []
    for old, new, same in zip(given["length_old"], given["length_new"], given["matching"], strict=True):
        one, other = call(old, same, "ABCDEFGHIJKLMNOPQR"), call(new, same, "0123456789!@#$%^&*()")
        assert (len(one), len(other)) == (old, new)
        merged = PROGRAM.merged(f"old: {one}", f"new: {other}")
        assert merged.endswith(other)
        keeps_old.append(merged.startswith("old: "))
    return {"keep_old_reasoning": np.array(keeps_old)}


@EXAMPLES.by("records of both cases")
def records(example: Example) -> Found:
    del example
    old = text(3, 2)
    similar, dissimilar = text(5, 3, begin="<call><odd>"), text(5, 3, begin="<call>", letter="y")
    results = []
    for program, new in ((PROGRAM, similar), (PROGRAM, dissimilar), (replace(PROGRAM, probability=0.0), similar)):
        row, _ = record(program, old, new)
        results.append(len(row.trained.replace(END, "").replace(RIGHT, "s" * UNIT)) / UNIT)
    return {"trained_tokens": np.array(results)}


@EXAMPLES.by("retries that all fail")
def all_fail(example: Example) -> Found:
    del example
    row, requests = record(PROGRAM, *(text(3 if not tries else 5, 2 + tries) for tries in range(4)))
    first, last = row.actions
    assert last.endswith(RIGHT)
    return {
        "retries": np.array(requests - 2.0),  # besides the first call and the answer
        "length_of_the_call_in_the_record": np.array(len(first) / UNIT - 3),
    }


@EXAMPLES.by("advantages of groups of four and of three")
def groups(example: Example) -> Found:
    first, second = advantages(recipes.CLEANER, example.values["R"], example.values["S"])
    return {"first": first, "second": second}


@EXAMPLES.by("overlong penalty")
def overlong(example: Example) -> Found:
    lengths = example.values["L"].astype(int).tolist()
    columns = {"token": {"recomputed_logprob": [-1.0] * sum(lengths)}}
    members = answers(lengths, example.values["r"].tolist())
    return {"reward": computed(recipes.CLEANER, ["draw.score"], members=members, columns=columns)["draw.score"]}


@EXAMPLES.by("ratio against the record's own context, two optimizer steps")
def recomputed(example: Example) -> Found:
    given = example.values
    recipe = given_advantages(recipes.CLEANER).replace(old_logprob=recipes.CLEANER.old_logprob)
    members = [
        {**member, "logprobs": [logprob]}
        for member, logprob in zip(answers([1] * 3, given["A"].tolist()), given["engine"].tolist(), strict=True)
    ]

    def loss(new: Value) -> Value:
        columns = {"token": {"recomputed_logprob": given["old"].tolist()}}
        return computed(recipe, ["loss"], members=members, columns=columns, policy={"logprob": new.tolist()})["loss"]

    return {"first_loss": loss(given["old"]), "second_loss": loss(given["second"])}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
