"""Worked examples of the paper of v05, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from common_examples import given_advantages, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed
from riddles import RIGHT, in_turn, solve

from agentrl_core import recipes
from agentrl_core.recipes.v05 import CostAwareSampling
from agentrl_core.rollout import RolloutSpec

EXAMPLES = PaperExamples("v05")
LOSSES = given_advantages(recipes.V05)
PROGRAM = recipes.V05.rollout
assert isinstance(PROGRAM, CostAwareSampling)


def advantages(*groups: tuple[Value, float]) -> list[Value]:
    """Return advantages of groups, from rewards of -1 and 1 and the prior."""
    members: list[dict[str, Any]] = []
    for place, (rewards, _) in enumerate(groups):
        tasks = answers([1] * len(rewards), [7.0] * len(rewards), group=str(place))
        members += [{**each, "success": bool(reward > 0)} for each, reward in zip(tasks, rewards, strict=True)]
    priors = [float(prior) for rewards, prior in groups for _ in rewards]
    result = computed(recipes.V05, ["draw.advantage"], members=members, columns={"draw": {"prior": priors}})
    return np.split(result["draw.advantage"], np.cumsum([len(rewards) for rewards, _ in groups])[:-1])


def baselines(*groups: tuple[Value, float]) -> Value:
    group_advantages = advantages(*groups)
    return np.array([(rewards - each)[0] for (rewards, _), each in zip(groups, group_advantages, strict=True)])


def weights(*groups: tuple[Value, float]) -> Value:
    """Return the weights of the means in the baselines."""
    means, priors = np.array([[rewards.mean(), prior] for rewards, prior in groups]).T
    return (baselines(*groups) - priors) / (means - priors)


@EXAMPLES.by("prior within the noise and far from it, four rollouts")
def four(example: Example) -> Found:
    groups = [(example.values["r"], float(prior)) for prior in example.values["V"]]
    first, second = advantages(*groups)
    return {"weight": weights(*groups), "baseline": baselines(*groups), "first": first, "second": second}


@EXAMPLES.by("all fail: the advantage is not 0")
def failed(example: Example) -> Found:
    groups = [(example.values["r"], float(prior)) for prior in example.values["V"]]
    return {
        "weight": weights(*groups),
        "baseline": baselines(*groups),
        "advantage_of_each": [each[0] for each in advantages(*groups)],
    }


@EXAMPLES.by("best weight and its error")
def error(example: Example) -> Found:
    return {"error": [PROGRAM.error(float(each), int(example.values["k"])) for each in example.values["D"]]}


@EXAMPLES.by("worth one more rollout")
def one_more(example: Example) -> Found:
    """A group of k right answers, and a value model as far from their mean as in the example."""
    errors, gains, more = [], [], []
    for distance, count in zip(example.values["D"].tolist(), example.values["k"].astype(int).tolist(), strict=True):
        prior = 1.0 - np.sqrt(distance + 1.0 / count) * (distance > 0.0)
        program = replace(PROGRAM, members=RolloutSpec(count), model="value")
        run = solve(
            recipes.V05.replace(rollout=program),
            in_turn(RIGHT),
            models={"value": lambda paths, prior=prior: [prior] * len(paths)},
        )
        np.testing.assert_allclose(run.fact("prior"), prior, rtol=1e-6)
        errors.append(PROGRAM.error(distance, count))
        gains.append(PROGRAM.gain(1.0, prior, count))
        more.append(run.num_requests > count)
    return {"error": errors, "gain": gains, "one_more": more}


@EXAMPLES.by("groups of four and of six in one batch")
def groups(example: Example) -> Found:
    given = example.values
    group_advantages = advantages((given["four"], float(given["V_four"])), (given["six"], float(given["V_six"])))
    return dict(zip(("four", "six"), group_advantages, strict=True))


@EXAMPLES.by("one rollout still has an advantage")
def alone(example: Example) -> Found:
    groups = [(example.values["r"], float(prior)) for prior in example.values["V"]]
    return {"weight": weights(*groups), "advantage": advantages(*groups)}


@EXAMPLES.by("policy gets better, the value model does not move")
def later(example: Example) -> Found:
    prior = float(example.values["V"])
    return {"baseline": [baselines((example.values[name], prior))[0] for name in ("first", "later")]}


@EXAMPLES.by("objective after a step")
def objective(example: Example) -> Found:
    old, new, advantage_values = np.full(3, -1.0), np.log(example.values["rho"]) - 1.0, example.values["A"]
    alone = [single_tokens(LOSSES, old[[at]], new[[at]], advantage_values[[at]])["loss"] for at in range(3)]
    return {
        "surrogate": -np.concatenate(alone),
        "objective": -single_tokens(LOSSES, old, new, advantage_values)["loss"],
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
