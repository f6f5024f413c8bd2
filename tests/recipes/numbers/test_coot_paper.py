"""Worked examples of the paper of coot, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples

from agentrl_core import recipes
from agentrl_core.recipes.coot import Monitored

EXAMPLES = PaperExamples("coot")
MONITORED = recipes.COOT.rollout
assert isinstance(MONITORED, Monitored)


def interventions(program: Monitored, *laws: Value) -> Value:
    """Return the monitor's answers at which the text would be cut; every answer has the state of three laws."""
    count, results = 0, []
    for numbers in zip(*laws, strict=True):
        answer = "STATE: " + " ".join(f"{number:g}" for number in numbers)
        count = program.counted(count, program.state(answer))
        results.append(float(count >= program.patience))
    return np.array(results)


@EXAMPLES.by("three violations in a row, default and strict")
def in_a_row(example: Example) -> Found:
    given = example.values
    laws = given["safety"], given["altruism"], np.zeros(len(given["safety"]))
    return {
        "intervenes": interventions(MONITORED, *laws),
        "strict_intervenes_at_third": interventions(replace(MONITORED, strict=True), *laws)[2:3],
    }


@EXAMPLES.by("no peak: three steps back; escalation: wider")
def no_peak(example: Example) -> Found:
    return {"fallback": float(MONITORED.fallback(int(example.values["step"])))}


def test_a_state_that_cannot_be_read_breaks_nothing() -> None:
    assert MONITORED.state("OK") == MONITORED.state("STATE: -1 and bad") == (0, 0, 0)
    assert not MONITORED.breaks((0, 0, 0))


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
