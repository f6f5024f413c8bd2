"""C-MORL: weights rise if an objective falls; numbers by hand."""

from __future__ import annotations

import json
import math

import pytest
from compared import close, column
from rollouts import small

from agentrl_core.advantage import Normalisation
from agentrl_core.component import IterationRecord
from agentrl_core.exceptions import RecipeError
from agentrl_core.recipes.c_morl import ConstrainedSum


def test_an_objective_that_falls_gets_a_weight() -> None:
    batches = [
        small([(0, [1])] * 2, draw_answer=[1.0, 0.0], draw_style=style, draw_score=[1.0, 1.0])
        for style in ([0.5, 1.5], [0.0, 0.4], [math.nan, math.nan], [9.0, 3.0])
    ]
    plain_difference = Normalisation(scale="none")
    component = ConstrainedSum(
        columns="answer,style", slack=0.1, step_size=0.5, at_most=0.3, normalisation=plain_difference
    )
    state, credited = component.initial_state(), []
    for batch in batches:
        credited.append(component.add_columns(state, batch))
        state = json.loads(json.dumps(component.next(state, IterationRecord.of(credited[-1]))))
    # Floor 0.9: weights 0, then 0 (clipped from -0.05), then 0.5 * (0.9 - 0.2) cut to 0.3, and unchanged after that.
    assert column(credited[0], "advantage") == [0.5, -0.5]
    assert column(credited[1], "advantage") == [0.5, -0.5]
    close(column(credited[2], "advantage"), [0.5, -0.5])
    close(column(credited[3], "advantage"), [0.5 + 0.3 * 3.0, -0.5 - 0.3 * 3.0])
    assert state["floors"] == {"style": 0.9}
    assert state["weights"] == {"style": 0.0}


def test_constraints_need_two_columns() -> None:
    with pytest.raises(RecipeError, match="name two columns or more"):
        ConstrainedSum(columns="answer")
    with pytest.raises(RecipeError, match=r"option initial=2.0 is not possible; give a number from 0 to at_most=1.0"):
        ConstrainedSum(columns="a,b", initial=2.0, at_most=1.0)
