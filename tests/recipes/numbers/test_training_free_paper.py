"""Worked examples of the paper of training_free, computed by the recipe."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples
from riddles import PaidRiddles, solve

from agentrl_core import recipes
from agentrl_core.engine import Request
from agentrl_core.recipes.training_free import Experiences
from agentrl_core.rollout import read_notes

EXAMPLES = PaperExamples("training_free")
EXPERIENCES = recipes.TRAINING_FREE.rollout
assert isinstance(EXPERIENCES, Experiences)
OF_CODE = replace(EXPERIENCES, taught="between")
ADD = json.dumps({"operation": "ADD", "id": None, "text": "Say right."})


def compare_group(
    scores: Value, *, without: Sequence[int] = (), plans: Sequence[str] = (ADD,), program: Experiences = EXPERIENCES
) -> tuple[list[str], list[str]]:
    """Return the prompts of the agent `experience` for a group with these scores, and the experiences after its plan.

    Args:
        scores: scores of the rollouts.
        without: rollouts whose summary is empty.
        plans: answers to the request for a plan, try after try.
        program: the program that compares the group.
    """
    summaries, requests, tries = [str(score) for score in scores], [], list(plans)
    empty = {str(scores[row]) for row in without}

    def speak(context: str, request: Request) -> str:
        del request
        for word in ("Sum up", "What did the better", "How should the list", "Make one list"):
            if word in context:
                requests.append(word)
                break
        else:
            return summaries.pop(0)
        if requests[-1] == "Sum up":
            score = re.search(r"which scored ([\d.]+)", context)
            assert score is not None
            return "" if str(float(score[1])) in empty else "summary"
        return tries.pop(0) if requests[-1] == "Make one list" else ADD

    run = solve(recipes.TRAINING_FREE.replace(rollout=program), speak, world=PaidRiddles(), group_size=len(scores))
    plans_made = read_notes(run.batch, "plan")
    return requests, EXPERIENCES.applied([], plans_made[0]) if plans_made else []


def teaches(scores: Value, *, program: Experiences = EXPERIENCES) -> bool:
    requests = compare_group(scores, program=program)[0]
    assert not requests or requests.count("Sum up") == len(scores)
    return bool(requests)


@EXAMPLES.by("groups of five, three and four: which teach")
def which(example: Example) -> Found:
    for program in (EXPERIENCES, OF_CODE):
        is_compared = np.array([teaches(example.values[name], program=program) for name in "abc"])
        np.testing.assert_array_equal(is_compared, example.expect["teaches"])
    return {"teaches": is_compared}


@EXAMPLES.by("a graded reward of which all are the same and in between teaches too")
def graded(example: Example) -> Found:
    scores = example.values["a"]
    return {"teaches": np.array(teaches(scores, program=OF_CODE)), "teaches_paper": np.array(teaches(scores))}


@EXAMPLES.by("rewards above 1 that differ")
def above(example: Example) -> Found:
    groups = [example.values[name] for name in "ab"]
    return {
        "teaches": np.array([teaches(scores) for scores in groups]),
        "teaches_code": np.array([teaches(scores, program=OF_CODE) for scores in groups]),
    }


@EXAMPLES.by("the only wrong rollout could not be summarised: the second filter drops the group")
def second_filter(example: Example) -> Found:
    given = example.values
    requests = compare_group(given["a"], without=np.flatnonzero(given["summarised"] == 0).tolist())[0]
    return {
        "first_filter": np.array("Sum up" in requests),
        "second_filter": np.array("What did the better" in requests),
    }


@EXAMPLES.by("a group of one never teaches with a reward of 0 or 1")
def alone(example: Example) -> Found:
    return {"teaches": np.array([teaches(example.values["r"][[at]]) for at in range(2)])}


@EXAMPLES.by("a plan of six operations on three experiences")
def plan(example: Example) -> Found:
    before = [f"known {number}" for number in range(int(example.values["before"]))]
    edits = [("ADD", None, "first"), ("UPDATE", 1, "other"), ("UPDATE", 9, "ninth"), ("DELETE", 0, "known 0")]
    edits += [("DELETE", 2, ""), ("ADD", None, "second")]
    experiences = EXPERIENCES.applied(
        before, [dict(zip(("operation", "id", "text"), edit, strict=True)) for edit in edits]
    )
    assert experiences == ["other", "known 2", "first", "ninth", "second"]
    return {"number_of_experiences": np.array(len(experiences))}


@EXAMPLES.by("three failed tries to read the plan leave the experiences")
def failed(example: Example) -> Found:
    """A fourth answer could be read, but is not requested."""
    requests, added = compare_group(np.array([1.0, 0.0]), plans=["none", "{", "no plan", ADD])
    assert requests.count("Make one list") == 3
    return {"number_of_experiences": example.values["before"] + len(added)}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
