"""Worked examples of the paper of mars, computed by the recipe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from common_examples import given_advantages, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.recipe import Recipe
from agentrl_core.recipes.mars import DistinctCentred, WhitenedReturns

EXAMPLES = PaperExamples("mars")
RECIPE = recipes.MARS
CODE = RECIPE.replace(
    advantage=(
        GroupRelative(column="step_score", level="step", group_by="env_tag,agent", scale="none"),
        WhitenedReturns(),
        DistinctCentred(),
        GroupRelative(column="advantage", level="token", group_by="batch", eps=0.0, variance_eps=1e-8),
    )
)
"""The recipe with the advantage of the public code."""
CENTRING, RETURNS, DISTINCT, WHITENING = CODE.chain("advantage")
LOSSES = given_advantages(RECIPE)
GIVEN = GroupRelative(column="given", level="token", center="none", scale="none")
"""The recipe with advantages of tokens from an example."""


def turns(rewards: Sequence[float], lengths: Sequence[int] | None = None, **member: Any) -> dict[str, Any]:
    """Return a trajectory of turns with these rewards; of one token each if no lengths are given."""
    lengths = [1] * len(rewards) if lengths is None else lengths
    return {
        "path": "1 " + " ~ 9 ".join(f"| 3*{length}" for length in lengths),
        "steps": [{} if np.isnan(reward) else {"reward": reward} for reward in rewards],
        "reward": 0.0,
        "facts": {"env_tag": "poker"},
        **member,
    }


def centred(*members: dict[str, Any]) -> Value:
    """Return the centred rewards of turns; nan if the reward is unknown."""
    names = ["step.step_score", "step.advantage"]
    result = computed(CODE.replace(advantage=CENTRING), names, members=members)
    return np.where(np.isnan(result["step.step_score"]), np.nan, result["step.advantage"])


@EXAMPLES.by("returns first, then the mean of a player")
def returns(example: Example) -> Found:
    names, given = ["first_a", "first_b", "second"], example.values
    members = [
        turns(given[name].tolist(), group=name, agent=int(name == "second"))  # one seat
        for name in names
    ]
    advantages = computed(RECIPE, ["step.advantage"], members=members)["step.advantage"]
    parts = np.split(advantages, np.cumsum([len(given[name]) for name in names])[:-1])
    return dict(zip(names, parts, strict=True))


@EXAMPLES.by("rewards of turns")
def rewards(example: Example) -> Found:
    step_rewards, lengths = example.values["game"] + example.values["format"], example.values["n"].astype(int).tolist()

    def scores(of_turns: Value) -> Value:
        return computed(RECIPE, ["step.step_score"], members=[turns(of_turns.tolist(), lengths)])["step.step_score"]

    return {"length": scores(np.zeros(len(step_rewards))), "reward": scores(step_rewards)}


@EXAMPLES.by("centring for each player, unequal turns")
def players(example: Example) -> Found:
    first, second = (example.values[name].tolist() for name in ("first", "second"))
    turn_advantages = centred(turns(first, group="a", agent=0), turns(second, group="b", agent=1))
    return {"first": turn_advantages[: len(first)], "second": turn_advantages[len(first) :]}


@EXAMPLES.by("whitening and return over tokens of two turns")
def whitened_returns(example: Example) -> Found:
    member = turns(example.values["r"][1::2].tolist(), [2, 2])
    recipe = CODE.replace(advantage=(CENTRING, RETURNS))
    advantages = computed(recipe, ["token.advantage"], members=[member])["token.advantage"]
    return {"advantage": advantages, "whitened": advantages - np.append(advantages[1:], 0.0)}


@EXAMPLES.by("distinct values, then whitening")
def distinct(example: Example) -> Found:
    values_by_player = [example.values[f"A_{name}"] for name in ("first", "second")]
    members = [turns([0.0], [len(each)], group=str(place), agent=place) for place, each in enumerate(values_by_player)]
    columns = {"token": {"given": np.concatenate(values_by_player).tolist()}}

    def compute(recipe: Recipe) -> Value:
        return computed(recipe, ["token.advantage"], members=members, columns=columns)["token.advantage"]

    one, other = np.split(compute(CODE.replace(advantage=(GIVEN, DISTINCT))), [len(values_by_player[0])])
    white = compute(CODE.replace(advantage=(GIVEN, DISTINCT, WHITENING)))
    return {"centred_first": one, "centred_second": other, "whitened": white}


def losses_of(ratios: Value, given: Value) -> tuple[Value, Value]:
    """Return the loss of each token alone, without divergence, and its gradient by log-prob."""
    old, new = np.full(len(given), -1.0), np.log(ratios) - 1.0
    alone = [single_tokens(LOSSES, *(each[[at]] for each in (old, new, given))) for at in range(len(given))]
    return tuple(np.concatenate([each[name] for each in alone]) for name in ("loss", "gradient.logprob"))


@EXAMPLES.by("loss of two trajectories")
def two_trajectories(example: Example) -> Found:
    one, other = ({name: example.values[f"{name}_{end}"] for name in ("u", "A")} for end in "12")
    new = np.log(np.concatenate([one["u"], other["u"]])) - 1.0
    away = np.append(np.zeros(len(one["u"])), example.values["d_2"])
    members = [{"path": "1 | 3 ~ 9 | 4 5", "reward": one["A"][0]}, {"path": "1 | 3", "reward": other["A"][0]}]
    results = {
        name: computed(
            LOSSES,
            ["loss"],
            members=members,
            columns={"token": {"reference_logprob": reference.tolist()}},
            policy={"logprob": new.tolist()},
        )["loss"]
        for name, reference in (("policy", new), ("loss", new + away))
    }
    return {
        "first": losses_of(**dict(zip(("ratios", "given"), one.values(), strict=True)))[0],
        "second": losses_of(**dict(zip(("ratios", "given"), other.values(), strict=True)))[0],
        "policy": results["policy"],
        "kl": (results["loss"] - results["policy"]) / RECIPE.loss.kl.coefficient,
        "loss": results["loss"],
    }


@EXAMPLES.by("a role with one turn in its environment")
def one_turn(example: Example) -> Found:
    return {"centred": centred(turns(np.ravel(example.values["r"]).tolist()))}


@EXAMPLES.by("second batch, nothing carried over")
def second_batch(example: Example) -> Found:
    return {
        name: centred(turns(example.values[source].tolist()))
        for name, source in (("first", "batch_1"), ("second", "batch_2"))
    }


@EXAMPLES.by("two steps in one batch")
def two_steps(example: Example) -> Found:
    losses, gradients = losses_of(example.values["u"], example.values["A"])
    return {"loss": losses, "minus_derivative_by_log_pi": -gradients}


@EXAMPLES.by("a game without a result (convention)")
def without_result(example: Example) -> Found:
    return {"centred": centred(turns([*example.values["r"].tolist(), np.nan]))}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
