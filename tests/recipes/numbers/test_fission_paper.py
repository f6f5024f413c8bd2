"""Worked examples of the paper of fission, computed by the recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from common_examples import advantages, given_advantages, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed
from riddles import Riddle, Riddles, Run, solve

from agentrl_core import recipes
from agentrl_core.engine import Request
from agentrl_core.env import StepFlag, StepResult, Task

EXAMPLES = PaperExamples("fission")
FISSION = recipes.FISSION
LOSSES = given_advantages(FISSION)
END = "<|im_end|>"


class Calls(Riddle):
    """An episode of a call, which may fail, and an answer, which pays its number; 1 is a success."""

    def step(self, action: str) -> StepResult:
        if action == "<bad>":
            return StepResult("error", flags=StepFlag.TOOL_ERROR)
        if action == "<call>":
            return StepResult("result", flags=StepFlag.TOOL_RESULT)
        return StepResult(reward=float(action), terminated=True, success=float(action) >= 1.0)


class CallRiddles(Riddles):
    """Riddles of such episodes."""

    def reset(self, task: Task, seed: int) -> Riddle:
        del seed
        return Calls(task)


def recovered(first: Sequence[float], second: Sequence[float]) -> Run:
    """Return a group whose members all fail a call, and the recoveries from the first of them, with these rewards."""
    failures, recoveries = ([f"{reward:.7f}" for reward in rewards] for rewards in (first, second))
    of_first, of_second = iter(failures), iter(recoveries)

    def speak(context: str, request: Request) -> str:
        del request
        if "Say what is wrong" in context:
            return "no such call"
        if "no such call" in context:
            return next(of_second) if "result" in context else "<call>"
        return next(of_first) if "error" in context else "<bad>"

    program = replace(FISSION.rollout, at_most=1, size=len(second))
    run = solve(FISSION.replace(rollout=program), speak, world=CallRiddles(), group_size=len(first))
    expected_actions = [*(["<bad>", each] for each in failures), *(["<bad>", "<call>", each] for each in recoveries)]
    assert [row.actions for row in run.drawn] == expected_actions
    return run


@EXAMPLES.by("a group of which all fail gives nothing, its fission group does")
def both_groups(example: Example) -> Found:
    first, second = (example.values[name].tolist() for name in ("first", "fission"))
    draw_advantages = FISSION.credit(recovered(first, second).batch).column("advantage", "draw")
    return {"first": draw_advantages[: len(first)], "fission": draw_advantages[len(first) :]}


@EXAMPLES.by("one recovery per context has no advantage")
def alone(example: Example) -> Found:
    return {"advantage": advantages(FISSION, example.values["R"])[0]}


@EXAMPLES.by("only the recovery's own tokens count, though the context holds a model's text")
def own_tokens(example: Example) -> Found:
    run = recovered([0.0], [1.0])
    assert run.drawn[1].trained == f"<call>{END}1.0000000{END}"
    assert "<bad>" in run.drawn[1].text
    assert "no such call" in run.drawn[1].text
    members = [{"path": "1 1 | 8 8 ~ 9 | 3 3 ~ 9 | 3", "reward": float(example.values["A"])}]
    members[0]["trainable"] = [0, 0, 1, 1, 1]
    gradient = -computed(LOSSES, ["gradient.logprob"], members=members)["gradient.logprob"]
    weights = np.zeros(len(example.values["m"]))
    weights[[2, 3, 5, 6, 8]] = gradient
    return {"own_tokens": np.array(float(np.count_nonzero(gradient))), "weight_of_a_token": weights}


@EXAMPLES.by("ratios after a step on the same groups")
def later_step(example: Example) -> Found:
    old, advantage_values = np.full(len(example.values["A"]), -1.0), example.values["A"]
    new = old + np.log(example.values["rho"])
    alone = [
        single_tokens(LOSSES, *(each[[at]] for each in (old, new, advantage_values)))["loss"] for at in range(len(old))
    ]
    return {
        "surrogate": -np.concatenate(alone),
        "objective": -single_tokens(LOSSES, old, new, advantage_values)["loss"],
    }


def test_each_answer_has_the_same_weight_at_any_length() -> None:
    members = [{"path": f"1 | 3*{length}", "reward": reward} for length, reward in ((4, 1.0), (1, -1.0))]
    assert computed(LOSSES, ["loss"], members=members)["loss"] == pytest.approx(0.0)


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
