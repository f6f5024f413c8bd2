"""Worked examples of the paper of scope, computed by the recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from common_examples import advantages
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed
from riddles import RIGHT, WRONG, Run, solve

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.engine import Request
from agentrl_core.rollout import Group, Repair, Rollout

EXAMPLES = PaperExamples("scope")
RECIPE = recipes.SCOPE
GIVEN = RECIPE.replace(advantage=GroupRelative(center="none", scale="none"))


@dataclass
class Solvers:
    """A policy whose rollouts succeed or fail in this order, a judge with these marks, and a teacher."""

    rewards: Sequence[float]
    marks: Sequence[float]
    teacher: str = RIGHT
    places: dict[int, int] = field(default_factory=dict)

    def __call__(self, context: str, request: Request) -> str:
        message = context.partition("<|im_end|>")[0]
        if "Judge each step" in message:
            return "\n".join(f"{number}: {mark}" for number, mark in enumerate(self.marks, 1))
        if "Go on with this solution" in message:
            return f"mended {self.teacher}"
        place = self.places.setdefault(request.seed, len(self.places))
        steps = [f"step {number}" for number in range(1, len(self.marks))]
        return "\n\n".join([*steps, RIGHT if self.rewards[place] else WRONG])


def mended(run: Run) -> int:
    return sum("mended" in row.text for row in run.drawn)


@EXAMPLES.by("first error of four failures")
def first_error(example: Example) -> Found:
    rollout, results = RECIPE.rollout, []
    assert isinstance(rollout, Repair)

    class Locate(Rollout):
        async def group(self, group: Group) -> None:
            [branch] = await group.run(group.start_many(1))
            fault = await rollout.locator.locate(group, branch)
            results.append(None if fault is None else fault.step.number + 1)

    takes = []
    for name in "abcd":
        solvers = Solvers([0.0], example.values[name].tolist())
        solve(Locate(), solvers)
        takes.append(mended(solve(RECIPE, Solvers([0.0], solvers.marks), group_size=1)))
    assert results[1:3] == [None, None], "a bad first step is left alone, as if there were none"
    expected = example.expect["first_error"]
    assert [results[0], results[3]] == expected[[0, 3]].tolist()
    return {"candidate": takes}


def repaired(rewards: Value, *, teacher: str = RIGHT) -> tuple[int, Mapping[float, float]]:
    """Return how many rollouts of a group are repaired, and the advantage of each reward."""
    run = solve(RECIPE, Solvers(rewards.tolist(), [0.9, 0.9, 0.1], teacher), group_size=len(rewards))
    tokens = len(run.batch.column("token", "token"))
    batch = RECIPE.credit(run.batch.with_columns("token", recomputed_logprob=np.full(tokens, -1.0)))
    pairs = zip(batch.column("score", "draw").tolist(), batch.column("advantage", "draw").tolist(), strict=True)
    return mended(run), dict(pairs)


@EXAMPLES.by("a repair in place of the failure and beside it")
def in_place(example: Example) -> Found:
    count, advantage_by_reward = repaired(example.values["r"])
    assert count == 1
    return {
        "advantage_unrepaired_n_minus_1": advantages(RECIPE, example.values["r"])[0],
        "advantage_in_place_n_minus_1": np.array(
            [advantage_by_reward[float(reward)] for reward in example.values["place"]]
        ),
    }


@EXAMPLES.by("repair fails, or the group passes too often")
def no_repair(example: Example) -> Found:
    given = example.values
    (first, one), (second, other) = repaired(given["r"], teacher=WRONG), repaired(given["other"])
    return {
        "take_first": first,
        "take_second": second,
        "advantage_n_minus_1": np.array([one[float(reward)] for reward in given["r"]]),
        "advantage_other_n_minus_1": np.array([other[float(reward)] for reward in given["other"]]),
    }


@EXAMPLES.by("token weights of a repaired rollout, at the first and the second step")
def weights(example: Example) -> Found:
    given = example.values
    reward = float(given["A"])

    def compute(ratios: Value, probabilities: Value) -> Any:
        """Return the policy's tokens with these ratios, then a teacher's with these probabilities."""
        counts = [count for count in (len(ratios), len(probabilities)) if count]
        path = "1 | " + " ~ 9 | ".join(f"3*{count}" for count in counts)
        foreign = [len(counts) - 1] if len(probabilities) else []
        tokens = sum(counts)
        return computed(
            GIVEN,
            ["loss"],
            members=[{"path": path, "reward": reward, "unsampled": foreign}],
            columns={"token": {"recomputed_logprob": [-2.0] * tokens}},
            policy={"logprob": [*(np.log(ratios) - 2.0).tolist(), *np.log(probabilities).tolist()]},
        )["loss"]

    none = np.zeros(0)
    return {
        "own_second_step": np.ravel([-compute(each, none) for each in given["r_2"][:, None]]),
        "foreign_first_step": np.ravel([-compute(none, each) / reward for each in given["p_1"][:, None]]),
        "foreign_second_step": np.ravel([-compute(none, each) / reward for each in given["p_2"][:, None]]),
        "objective_first_step": -compute(given["r_1"], given["p_1"]),
        "objective_second_step": -compute(given["r_2"], given["p_2"]),
    }


@EXAMPLES.by("a group of one failure with its repair")
def alone(example: Example) -> Found:
    del example
    count, advantage_by_reward = repaired(np.zeros(1))
    assert count == 1
    return {"centred_in_place": advantage_by_reward[1.0]}


@EXAMPLES.by("the verifier gives the repair no score (convention)")
def unscored(example: Example) -> Found:
    return {"advantage_n_minus_1": advantages(RECIPE, [*example.values["r"].tolist(), np.nan])[0]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
