"""Worked examples of the paper of inspo, computed by the recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from case_files import rollouts
from common_examples import CommonExamples, advantages, given_advantages, one_rollout, single_tokens
from free_place import FreePlace
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers
from riddles import PaidRiddles, solve

from agentrl_core import recipes
from agentrl_core.component import IterationRecord
from agentrl_core.engine import Request
from agentrl_core.rollout import read_notes

EXAMPLES = PaperExamples("inspo")
PROGRAM = recipes.INSPO.rollout
LOSSES = given_advantages(recipes.INSPO).replace(rollout=recipes.GRPO.rollout)
CommonExamples(EXAMPLES, recipes.INSPO, losses=LOSSES)
UNDER = {"facts": {"instruction": 0}}


def population(weights: Sequence[float], rollouts: int = 32) -> dict[str, Any]:
    """Return a state of instructions, all of which have been tried equally often."""
    count = len(weights)
    return {"texts": [*"abcdefgh"[:count]], "weights": list(weights), "rollouts": [rollouts] * count}


def rewarded_iteration(iteration: int, rewards: dict[int, Sequence[float]], **options: Any) -> IterationRecord:
    """Return an iteration whose groups under these instructions got these rewards."""
    members = [
        {**member, "group": str(place), "facts": {"instruction": place}}
        for place, group_rewards in rewards.items()
        for member in answers([1] * len(group_rewards), group_rewards)
    ]
    return IterationRecord.of(rollouts(members, iteration), iteration=iteration, **options)


@EXAMPLES.by("probabilities of four instructions")
def probabilities(example: Example) -> Found:
    state = population(example.values["w"])
    return {
        "probability": PROGRAM.probabilities(state),
        "nearly_uniform": replace(PROGRAM, temperature=10.0).probabilities(state),
    }


@EXAMPLES.by("groups of the same question under two instructions")
def groups(example: Example) -> Found:
    first, second = advantages(recipes.INSPO, example.values["under_1"], example.values["under_2"], **UNDER)
    return {"first": first, "second": second}


@EXAMPLES.by("one trajectory moves its instruction's weight but not the policy")
def alone(example: Example) -> Found:
    state = PROGRAM.next(
        population([0.1, float(example.values["w"])]), rewarded_iteration(0, {1: example.values["R"].tolist()})
    )
    assert state["weights"][0] == 0.1
    return {
        "advantage": advantages(recipes.INSPO, example.values["R"], **UNDER)[0],
        "weight": np.array(state["weights"][1]),
    }


@EXAMPLES.by("trajectory with a search, after a step")
def search(example: Example) -> Found:
    given = example.values
    new, old, mask = given["lp"], given["lp_old"], given["m"]
    gain = np.full(len(new), given["A"])
    alone = [single_tokens(LOSSES, old[[at]], new[[at]], gain[[at]])["loss"] for at in np.flatnonzero(mask)]
    surrogate = np.zeros(len(mask))
    surrogate[mask > 0] = -np.concatenate(alone)
    return {"surrogate": surrogate, "objective": -one_rollout(LOSSES, old, new, gain, mask)["loss"]}


def candidate(proxies: Value) -> Any:
    """Run with an empty place, a failing policy and candidates with these rewards; return the stored instruction."""
    proposed = iter([f"candidate {place}" for place in range(len(proxies))])

    def speak(context: str, request: Request) -> str:
        del request
        if "Write a better instruction" in context:
            return next(proposed)
        return next((str(proxy) for place, proxy in enumerate(proxies) if f"candidate {place}" in context), "0")

    program = FreePlace(begin=("a", "b"), every=1, candidates=len(proxies))
    batch = solve(program, speak, world=PaidRiddles(), tasks=3, group_size=2).batch
    [text] = read_notes(batch, "instruction")
    return batch, int(text.split()[1])


@EXAMPLES.by("weights after two rounds, then the lower half is dropped and one joins")
def two_rounds(example: Example) -> Found:
    given = example.values
    drawn = np.flatnonzero(given["drawn"]).tolist()
    batch, joined = candidate(given["proxy"])

    def after(every: int) -> dict[str, Any]:
        """Return the state after both rounds.

        A group has one reward, which is its mean, and the run above ends with these.
        """
        state = population(given["w"])
        for iteration, name in enumerate(("first", "second")):
            closed = rewarded_iteration(
                iteration, {place: [float(given[name][place])] for place in drawn}, finished=batch
            )
            state = replace(PROGRAM, every=every).next(state, closed)
        return state

    state = after(every=2)
    stays = np.array([bool(text) and text in "abcd" for text in state["texts"]])
    new = state["texts"].index(f"candidate {joined}")
    return {
        "weights": np.array(after(every=3)["weights"]),
        "stays": stays,
        "candidate_joins": np.arange(len(given["proxy"])) == joined,
        "probability": PROGRAM.probabilities(state)[[*np.flatnonzero(stays), new]],
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
