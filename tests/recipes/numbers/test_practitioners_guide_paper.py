"""Worked examples of the paper of practitioners_guide, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples, advantages, given_advantages, one_rollout, path_of
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes
from agentrl_core.advantage import Gae, GroupRelative
from agentrl_core.recipe import Recipe
from agentrl_core.recipes.practitioners_guide import SharedTurns
from agentrl_core.reward import OutcomeScore

EXAMPLES = PaperExamples("practitioners_guide")
GUIDE = recipes.PRACTITIONERS_GUIDE
SINGLE = given_advantages(GUIDE)
RLOO = GUIDE.replace(
    reward=OutcomeScore(), advantage=GroupRelative(center="leave_one_out", scale="none", singleton="raw")
)
OFF_POLICY = "tokens that another policy sampled"
CommonExamples(EXAMPLES, RLOO, but=[OFF_POLICY], losses=SINGLE)


def turns(scores: Value, *, won: bool, reward: float = 0.0) -> dict[str, Any]:
    """Return an episode of turns of one token."""
    path = "1 " + " ~ 9 ".join(["| 3"] * len(scores))
    return {"path": path, "success": won, "reward": reward, "steps": [{"reward": float(score)} for score in scores]}


def dense(scores: Value, *, won: bool, most: int = 10, reward: float = 0.0) -> Value:
    """Return the rewards of the turns."""
    recipe = GUIDE.replace(reward=(SharedTurns(count=most), *GUIDE.chain("reward")[1:]))
    names = ["token.turn_reward", "draw.score"]
    zeros = {"token": {"value": [0.0] * len(scores), "reference_logprob": [-1.0] * len(scores)}}
    result = computed(recipe, names, members=[turns(scores, won=won, reward=reward)], columns=zeros)
    np.testing.assert_allclose(result["draw.score"], result["token.turn_reward"].sum(), rtol=1e-6)
    return result["token.turn_reward"]


@EXAMPLES.by("a won and a lost episode with dense rewards")
def two_episodes(example: Example) -> Found:
    given = example.values
    won = dense(given["won"], won=True)
    lost = dense(given["lost"], won=False, most=int(given["most"]))
    return {"reward_won": won, "reward_lost": lost, "total_won": won.sum(), "total_lost": lost.sum()}


@EXAMPLES.by("won without intermediate reward, and the sparse reward of the same episode")
def sparse(example: Example) -> Found:
    """The sparse rewards are the differences of the returns."""
    given = example.values
    recipe = GUIDE.replace(reward=OutcomeScore(), advantage=Gae(kl_coefficient=0.01))
    zeros = {"token": {"value": [0.0] * len(given["s"]), "reference_logprob": [-1.0] * len(given["s"])}}
    member = turns(given["s"], won=True, reward=float(given["final"]))
    returns = computed(recipe, ["token.return"], members=[member], columns=zeros)["token.return"]
    return {
        "dense": dense(given["s"], won=True, reward=float(given["final"])),
        "sparse": returns - np.append(returns[1:], 0.0),
    }


@EXAMPLES.by("positive scores of different size are divided by their count")
def by_count(example: Example) -> Found:
    result = dense(example.values["s"], won=True, reward=float(example.values["final"]))
    return {"reward": result, "total": result.sum()}


@EXAMPLES.by("GAE over two turns with an observation between")
def gae(example: Example) -> Found:
    given = example.values
    own_tokens = given["m"] > 0
    first, whitening = GUIDE.chain("advantage")
    assert isinstance(first, Gae)
    short = GUIDE.replace(reward=OutcomeScore(), advantage=replace(first, column="paid", lam=0.9))
    columns = {"paid": given["score"], "value": given["V"], "reference_logprob": given["ref"]}
    members = [{"path": path_of(given["m"]), "reward": 0, "logprobs": given["old"][own_tokens].tolist()}]

    def compute(recipe: Recipe, names: list[str]) -> Found:
        tokens = {name: values[own_tokens].tolist() for name, values in columns.items()}
        return dict(computed(recipe, names, members=members, columns={"token": tokens}))

    plain = compute(short, ["token.advantage", "token.return"])
    whitened = short.replace(advantage=(*short.chain("advantage"), whitening))
    return {
        "advantage_of_policy_tokens": plain["token.advantage"],
        "value_target": plain["token.return"],
        "whitened": compute(whitened, ["token.advantage"])["token.advantage"],
    }


@EXAMPLES.by("RLOO over groups of three and of two, and a rollout alone")
def rloo(example: Example) -> Found:
    given = example.values
    three, two, one = advantages(RLOO, given["R"], given["S"], given["T"])
    return {"three": three, "two": two, "one": one}


@EXAMPLES.by(OFF_POLICY)
def off_policy(example: Example) -> Found:
    given, old = example.values, -np.ones(len(example.values["m"]))
    new = np.log(given["ratio"]) - 1.0
    alone = [one_rollout(SINGLE, *(each[[at]] for each in (old, new, given["A"])))["loss"] for at in range(len(old))]
    return {
        "token_loss": np.ravel(alone),
        "loss": one_rollout(SINGLE, old, new, given["A"], given["m"])["loss"],
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
