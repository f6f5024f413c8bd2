"""Worked examples of the paper of ad_hint, computed by the recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from arithmetic import Value
from common_examples import advantages
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed
from riddles import RIGHT, WRONG, Riddles, Row, in_turn, solve

from agentrl_core import recipes
from agentrl_core.rollout import Rollout

EXAMPLES = PaperExamples("ad_hint")
COMPARED = recipes.AD_HINT.replace(weight=None)
PLAIN = COMPARED.replace(advantage=COMPARED.chain("advantage")[0])
"""The recipe without the factors of the difficulties."""
NOISELESS = replace(recipes.AD_HINT.rollout, noise=0.0)


def rounds(program: Rollout, right: int, trace: int, size: int = 5) -> list[Row]:
    """Return rollouts of a group with a number of right answers in its first round, and a trace of given length."""
    speak = in_turn(*[RIGHT] * right, *[WRONG] * (size - right), WRONG)
    return solve(program, speak, world=Riddles(("x" * trace,)), group_size=size).rows


@EXAMPLES.by("hint lengths of an easy, a middling and a hard sample")
def lengths(example: Example) -> Found:
    """The easy sample has no second round; its hint comes from a recipe with w_max = w_min."""
    given = example.values
    trace, right = int(given["trace"]), (5 * given["mean_reward"]).astype(int).tolist()
    assert len(rounds(NOISELESS, right[0], trace)) == 5
    shortest = replace(NOISELESS, at_most=NOISELESS.at_least)
    attempts = [rounds(shortest, 0, trace), *(rounds(NOISELESS, count, trace) for count in right[1:])]
    hint_ratios = np.array([NOISELESS.share(difficulty, 0.5) for difficulty in (1 - given["mean_reward"]).tolist()])
    return {
        "ratio": hint_ratios,
        "before_the_floor": hint_ratios * trace,
        "hint_tokens": np.array([rows[-1].actions[0].count("x") for rows in attempts]),
    }


@EXAMPLES.by("weights of hint tokens for a success and for a failure")
def weights(example: Example) -> Found:
    given, count = example.values, len(example.values["H"])
    members = [
        {"path": f"1 | 8*{count} | 3 3", "reward": reward, "unsampled": [0], "facts": {"hinted": 1}}
        for reward in (1, 0)
    ]
    response_entropies = [float(given["cont"]) - 0.3, float(given["cont"]) + 0.3]
    token_weights = computed(
        recipes.AD_HINT,
        ["token.weight"],
        members=members,
        columns={"token": {"current_entropy": [*given["H"].tolist(), *response_entropies] * 2}},
    )["token.weight"].reshape(2, -1)
    assert (token_weights[:, count:] == 1).all()
    return {
        "weight_if_advantage_positive": token_weights[0, :count],
        "weight_if_advantage_negative": token_weights[1, :count],
    }


def both_advantages(plain: Sequence[float], hinted: Sequence[float]) -> tuple[Value, Value]:
    """Return advantages of the plain and the hinted rollouts of a group, without and with the factors, as rows."""
    members = [
        {"path": "1 | 3", "reward": float(reward), "facts": {"hinted": kind}}
        for kind, rewards in enumerate((plain, hinted))
        for reward in rewards
    ]
    results = [computed(recipe, ["draw.advantage"], members=members)["draw.advantage"] for recipe in (PLAIN, COMPARED)]
    one, other = np.split(np.array(results), [len(plain)], axis=1)
    return one, other


@EXAMPLES.by("advantages of four rollouts without and three with a hint")
def factors(example: Example) -> Found:
    plain, hinted = both_advantages(example.values["plain"], example.values["hinted"])
    return {
        "difficulty": plain[1, :1] / plain[0, :1] - 1.0,
        "difficulty_hinted": 2.0 - hinted[1, -1:] / hinted[0, -1:],
        "advantage_plain_n_minus_1": plain[1],
        "advantage_hinted_n_minus_1": hinted[1],
    }


@EXAMPLES.by("a group of one of each kind")
def alone(example: Example) -> Found:
    plain, hinted = both_advantages(example.values["plain"], example.values["hinted"])
    return {"centred_plain": plain[1], "centred_hinted": hinted[1]}


@EXAMPLES.by("one rollout of four has no score (convention)")
def unscored(example: Example) -> Found:
    rewards = [*example.values["plain"], np.nan]
    compared_advantages, before = (advantages(recipe, rewards, facts={"hinted": 0})[0] for recipe in (COMPARED, PLAIN))
    return {"difficulty": compared_advantages[:1] / before[:1] - 1.0, "advantage_n_minus_1": compared_advantages}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
