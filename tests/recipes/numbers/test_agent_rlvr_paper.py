"""Worked examples of the paper of agent_rlvr, computed by the recipe."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed
from riddles import RIGHT, WRONG, solve

from agentrl_core import recipes
from agentrl_core.engine import Request

EXAMPLES = PaperExamples("agent_rlvr")
RLVR = recipes.AGENT_RLVR


def attempts(
    task: int, won: list[int], lengths: list[int] | None = None, numbers: list[int] | None = None
) -> list[dict[str, Any]]:
    """Return rollouts of a task; they are first attempts unless numbered otherwise."""
    members = answers(lengths or [1] * len(won), [float(each) for each in won], group=f"{task}")
    return [
        {**member, "success": bool(each), "facts": {"attempt": number}}
        for member, each, number in zip(members, won, numbers or range(1, len(won) + 1), strict=True)
    ]


def repeated(first: list[int], second: list[int]) -> list[int]:
    """Return the numbers of the rollouts that the program makes of a group whose attempts end in these outcomes."""
    of_first, of_second = iter(first), iter([later for won, later in zip(first, second, strict=True) if not won])

    def speak(context: str, request: Request) -> str:
        del request
        if "Give guidance" in context:
            return "look closely"
        return RIGHT if next(of_second if "look closely" in context else of_first) else WRONG

    return [int(number) for number in solve(RLVR, speak, group_size=len(first)).fact("attempt")]


def dpo(success: tuple[Value, Value], failure: tuple[Value, Value]) -> tuple[Value, Value]:
    """Return loss and gradient of a pair, from its log-probs and those of the reference."""
    result = computed(
        RLVR,
        ["loss", "gradient.logprob"],
        members=attempts(0, [1, 0], [len(success[0]), len(failure[0])]),
        columns={"token": {"reference_logprob": [*success[1].tolist(), *failure[1].tolist()]}},
        policy={"logprob": [*success[0].tolist(), *failure[0].tolist()]},
    )
    return result["loss"], result["gradient.logprob"]


@EXAMPLES.by("three tasks: solved at once, solved with guidance, never solved")
def tasks(example: Example) -> Found:
    first, second = (example.values[name].astype(int).tolist() for name in ("first", "second"))
    numbers = [repeated([one], [other]) for one, other in zip(first, second, strict=True)]
    members = [
        member
        for task, (one, other, task_numbers) in enumerate(zip(first, second, numbers, strict=True))
        for member in attempts(task, [one, other][: len(task_numbers)], numbers=task_numbers)
    ]
    pairs = computed(RLVR, ["draw.pair"], members=members)["draw.pair"]
    owners = np.array([int(member["group"]) for member in members])
    return {
        "needs_guidance": np.array([len(task_numbers) - 1 for task_numbers in numbers]),
        "pairs": np.array([len(np.unique(pairs[(owners == task) & (pairs >= 0)])) for task in range(3)]),
    }


@EXAMPLES.by("five attempts of a task, of which three fail and are repeated")
def five(example: Example) -> Found:
    first, second = (example.values[name].astype(int).tolist() for name in ("first", "second"))
    numbers = repeated(first, second)
    won = [first[number - 1] if number > 0 else second[-number - 1] for number in numbers]
    pairs = computed(RLVR, ["draw.pair"], members=attempts(0, won, numbers=numbers))["draw.pair"]
    partner = dict(zip(numbers, pairs.tolist(), strict=True))
    places = range(1, len(first) + 1)
    return {
        "repeated": np.array([float(-place in partner) for place in places]),
        "paired_with_its_repetition": np.array([partner.get(-place, -1) == partner[place] >= 0 for place in places]),
        "pairs": len(np.unique(pairs[pairs >= 0])),
    }


@EXAMPLES.by("a trajectory without a score joins no pair (convention)")
def unscored(example: Example) -> Found:
    """The first attempt has no score."""
    members = attempts(0, [0, *example.values["R"].astype(int).tolist()])
    members[0] = {name: value for name, value in members[0].items() if name not in ("reward", "success")}
    pairs = computed(RLVR, ["draw.pair"], members=members)["draw.pair"]
    assert pairs[0] == -1
    return {"pairs": len(np.unique(pairs[pairs >= 0]))}


@EXAMPLES.by("one pair, observations out")
def pair(example: Example) -> Found:
    given = example.values
    loss, gradient = dpo((given["pos"], given["pos_ref"]), (given["neg"], given["neg_ref"]))
    return {"loss": loss, "slope_in_log_pi_of_success": gradient[:1]}


@EXAMPLES.by("log-probabilities without the guidance differ from those of the sampler")
def without_guidance(example: Example) -> Found:
    given = example.values
    failure = (np.atleast_1d(given["v"]) - 1.0, np.array([-1.0]))
    return {
        "loss": dpo((given["bare"], given["ref"]), failure)[0],
        "loss_if_the_guidance_stayed": dpo((given["guided"], given["ref"]), failure)[0],
    }


@EXAMPLES.by("two optimizer steps on the same pair")
def steps(example: Example) -> Found:
    reference = np.array([-2.0])
    results = [
        dpo((reference + u, reference), (reference + v, reference))
        for u, v in zip(example.values["u"], example.values["v"], strict=True)
    ]
    return {
        "loss": np.concatenate([loss for loss, _ in results]),
        "slope_in_log_pi_of_success": np.array([gradient[0] for _, gradient in results]),
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
