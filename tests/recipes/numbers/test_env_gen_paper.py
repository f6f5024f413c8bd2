"""Worked examples of the paper of env_gen, computed by the recipe."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from common_examples import CommonExamples
from paper_files import Example
from paper_numbers import Found, PaperExamples

from agentrl_core import recipes
from agentrl_core.recipes.env_gen import DesignedEnvironments
from agentrl_core.rollout import Group

EXAMPLES = PaperExamples("env_gen")
COMMON = CommonExamples(EXAMPLES, recipes.ENV_GEN)
EXAMPLES.by("old actions and a second optimizer step")(COMMON.second_step)
PROGRAM = recipes.ENV_GEN.rollout
assert isinstance(PROGRAM, DesignedEnvironments)


def feedback(example: Example, *skills: str) -> Found:
    feedbacks = np.array([PROGRAM.feedback(np.atleast_1d(example.values[skill]).tolist()) for skill in skills])
    return {"percent_before_rounding": feedbacks[:, 0], "error_before_rounding": feedbacks[:, 1]}


@EXAMPLES.by("feedback of three evaluations")
def three(example: Example) -> Found:
    names = ("coal", "diamond", "wood")
    sent = PROGRAM.skill_lines({"skills": {name: example.values[name].tolist() for name in names}})
    assert sent == "coal: 43 % +/- 2 %\ndiamond: 0 % +/- 0 %\nwood: 99 % +/- 1 %"
    return feedback(example, *names)


@EXAMPLES.by("an unequal number of evaluations")
def unequal(example: Example) -> Found:
    return feedback(example, "a", "b")


@EXAMPLES.by("iterations of a second cycle of ten")
def cycle(example: Example) -> Found:
    assert (PROGRAM.share, PROGRAM.every) == (example.values["share"], example.values["every"])
    groups = [SimpleNamespace(iteration=int(number)) for number in example.values["iteration"]]
    return {"generated": [PROGRAM.on_designed(cast("Group", group)) for group in groups]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
