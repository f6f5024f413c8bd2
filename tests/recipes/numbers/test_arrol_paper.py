"""Worked examples of the paper of arrol, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from case_files import rollouts
from common_examples import CommonExamples, advantages
from paper_files import Example
from paper_numbers import Found, PaperExamples
from riddles import in_turn, solve

from agentrl_core import recipes
from agentrl_core.component import IterationRecord
from agentrl_core.recipes.arrol import PruneRunning

EXAMPLES = PaperExamples("arrol")
COMMON = CommonExamples(EXAMPLES, recipes.ARROL)
EXAMPLES.by("tokens that another policy sampled; a second step")(COMMON.second_step)
PROGRAM = recipes.ARROL.rollout
assert isinstance(PROGRAM, PruneRunning)


@EXAMPLES.by("survival of eight rollouts")
def survival(example: Example) -> Found:
    """The recipe's number of survivors of a group with these predicted probabilities, and their chances."""
    given = example.values
    program = replace(PROGRAM, tokens=4, begin=0, head="quality")
    run = solve(
        recipes.ARROL.replace(rollout=program),
        in_turn("<answer>right</answer>"),
        group_size=int(given["G"]),
        models={"quality": lambda paths: given["p"][: len(paths)].tolist()},
    )
    chances = PROGRAM.survival(given["p"], len(run.drawn))
    return {
        "survival_before_the_cap": chances,
        "expected_kept": len(run.drawn),
        "expected_right": chances @ given["p"],
    }


@EXAMPLES.by("bins of the calibration over two iterations")
def calibration(example: Example) -> Found:
    """Finished rollouts whose scores lie in three bins, and the probabilities of three new ones."""
    given, program, results = example.values, replace(PROGRAM, bins=3), {}
    state, scores = program.initial_state(), np.array([0.1, 0.5, 1.0])
    for iteration, name in enumerate(("", "_next")):
        right, finished = (given[f"{kind}{name}"].astype(int) for kind in ("right", "seen"))
        members = [
            {"path": "1 | 3", "reward": 7, "success": bool(at < right[place]), "facts": {"quality": scores[place]}}
            for place in range(3)
            for at in range(finished[place])
        ]
        unknown = [{"path": "1 | 3", "reward": 7, "success": True}]
        state = program.next(state, IterationRecord.of(rollouts(members + unknown, iteration)))
        results[f"posterior{name}"] = program.posterior(state, scores)
    return results


@EXAMPLES.by("advantages of what stayed")
def stayed(example: Example) -> Found:
    one, other = advantages(
        recipes.ARROL, example.values["R"], np.insert(example.values["S"].astype(float), [1, 2], np.nan)
    )
    return {"advantage_a": one, "advantage_b_with_pruned": other}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
