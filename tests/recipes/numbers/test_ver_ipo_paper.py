"""Worked examples of the paper of ver_ipo, computed by the recipe."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from case_files import rollouts
from common_examples import advantages
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed
from pools import Story

from agentrl_core import recipes
from agentrl_core.component import Rows
from agentrl_core.recipes.ver_ipo import VerifiedPairs

EXAMPLES = PaperExamples("ver_ipo")
RECIPE = recipes.VER_IPO
POOL = RECIPE.select.pool


def judged(correct: Value, consistent: Value, repetitive: Value, lengths: Value) -> list[dict[str, Any]]:
    """Return rollouts with the verdicts of a judge."""
    return [
        {
            **member,
            "success": bool(member["reward"]),
            "facts": {"consistent": float(consistent[place]), "repetitive": float(repetitive[place])},
        }
        for place, member in enumerate(answers(lengths.astype(int).tolist(), correct.tolist()))
    ]


def paired(members: list[dict[str, Any]]) -> Value:
    """Return pairs of rollouts: the rows of each, the chosen one first."""
    batch = VerifiedPairs()(rollouts(members, 0))
    pair, sign = batch.column("pair", "draw"), batch.column("advantage", "draw")
    assert not sign[pair < 0].any()
    return np.array(
        [
            [np.flatnonzero((pair == pair_id) & (sign == side))[0] for side in (1, -1)]
            for pair_id in range(int(pair.max()) + 1)
        ]
    )


@EXAMPLES.by("pairs from a group of eight")
def eight(example: Example) -> Found:
    members = judged(*(example.values[name] for name in ("correct", "consistent", "repetitive", "length")))
    chosen, rejected = VerifiedPairs.verdicts(Rows(rollouts(members, 0), "draw"))
    pairs = paired(members)
    assert chosen[pairs[:, 0]].all()
    assert rejected[pairs[:, 1]].all()
    assert len(np.unique(pairs)) == 2 * min(chosen.sum(), rejected.sum()), "as many as there can be"
    return {
        "chosen": chosen,
        "rejected": rejected,
        "in_no_pair": ~(chosen | rejected),
        "possible_pairs": chosen.sum() * rejected.sum(),
    }


def test_the_stage_trains_the_pairs_alone() -> None:
    right, lengths = np.array([1, 1, 0]), np.array([5, 3, 2])
    batch = VerifiedPairs()(rollouts(judged(right, np.ones(3), np.zeros(3), lengths), 0))
    batch = batch.with_columns("token", reference_logprob=np.full(10, -1.0))
    [update] = RECIPE.updates(batch, stage="pairs")
    trained = sum(int((pack.streams["weight_kl"] > 0).sum()) for pack in update.pack(max_tokens=100))
    assert trained == 5 + 2, "the second is right and short"


@EXAMPLES.by("groups that give no pair")
def no_pair(example: Example) -> Found:
    results = []
    for name in "abc":
        flags = np.ravel(example.values[name])
        ones, none = np.ones(len(flags)), np.zeros(len(flags))
        results.append(len(paired(judged(flags, ones, none, ones))))
    return {"pairs": results}


@EXAMPLES.by("preference loss at the first and the second step")
def preferences(example: Example) -> Found:
    given, results = example.values, {}
    lengths = [len(given["c_ref"]), len(given["r_ref"])]
    reference = np.concatenate([given["c_ref"], given["r_ref"]])
    for name, logprobs in (("first", reference), ("second", np.concatenate([given["c_new"], given["r_new"]]))):
        results[name] = computed(
            RECIPE,
            ["loss", "gradient.logprob"],
            stage="pairs",
            members=answers(lengths, [1.0, 1.0]),
            columns={"draw": {"advantage": [1.0, -1.0]}, "token": {"reference_logprob": reference.tolist()}},
            policy={"logprob": logprobs.tolist()},
        )
    return {
        "loss_first_step": results["first"]["loss"],
        "loss_second_step": results["second"]["loss"],
        "slope_in_the_chosen_log_probability": results["second"]["gradient.logprob"][:1],
    }


@EXAMPLES.by("which prompts enter the next round")
def next_round(example: Example) -> Found:
    """The simple prompts: those that leave or are skipped."""
    rates = example.values["mean_accuracy"]
    outcomes = {row: [1.0] * round(8 * rate) + [0.0] * round(8 * (1 - rate)) for row, rate in enumerate(rates.tolist())}
    leave = POOL.next(POOL.initial_state(), Story().visits(0, outcomes), np.arange(len(rates)), 0)["out"]
    assert not leave[rates < 1].any()
    many = 10_000
    all_simple = Story().visits(0, {row: [1.0] for row in range(many)})
    share = POOL.next(POOL.initial_state(), all_simple, np.arange(many), 0)["out"].mean()
    assert share == pytest.approx(float(example.values["share"]), abs=0.02)
    sometimes = np.zeros(len(rates), np.bool_)
    for shift in range(0, 100 * len(rates), len(rates)):  # other tasks with the same outcomes
        moved = {row + shift: outcome for row, outcome in outcomes.items()}
        visits = Story().visits(0, moved)
        sometimes |= POOL.next(POOL.initial_state(), visits, np.arange(len(rates)) + shift, 0)["out"]
    return {"simple": sometimes}


@EXAMPLES.by("group advantages before the loop goes on")
def groups(example: Example) -> Found:
    return {"advantage_n_minus_1": advantages(RECIPE, example.values["r"])[0]}


@EXAMPLES.by("the judge gives one rollout no verdict (convention)")
def without_verdict(example: Example) -> Found:
    right = example.values["r"]
    ones, none = np.ones(len(right)), np.zeros(len(right))
    members = [*judged(right, ones, none, ones), {"path": "1 | 3"}]
    chosen, rejected = VerifiedPairs.verdicts(Rows(rollouts(members, 0), "draw"))
    return {
        "advantage_n_minus_1": advantages(RECIPE, [*right, np.nan])[0],
        "possible_pairs": chosen.sum() * rejected.sum(),
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
