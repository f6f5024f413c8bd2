"""Worked examples of the paper of ares, computed by the recipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import KL, Clip, Policy
from agentrl_core.recipes.ares import ExplorationEffort, RelaxedPenalty, _Exploration
from agentrl_core.reward import OutcomeScore

EXAMPLES = PaperExamples("ares")
EASY, MEDIUM, HARD = range(3)
WEIGHTED = recipes.ARES.replace(
    reward=OutcomeScore(),
    advantage=GroupRelative(center="none", scale="none"),
    weight=None,
    minibatches=1,
    loss=Policy("sequence_mean", clip=Clip(0.2, 0.28), kl=KL(0.01)),
)
"""The recipe with the advantages of an example as scores."""


def exploration_bonus(counts: Any, difficulty: Any, won: Any, target: float, kind: Any = "paper") -> Value:
    """Return the bonus of draws with these amounts of exploration, against a target of each difficulty."""
    counts, difficulty = np.asarray(counts, np.float64), np.asarray(difficulty, np.int64)
    means, spreads = (
        np.array(
            [statistic(counts[difficulty == level]) if (difficulty == level).any() else np.nan for level in range(3)]
        )
        for statistic in (np.mean, np.var)
    )
    now = _Exploration(
        explores=np.zeros(0, np.bool_),
        counts=counts,
        known=np.ones(len(counts), np.bool_),
        difficulty=difficulty,
        won=np.asarray(won, np.bool_),
        means=means,
        spreads=np.nan_to_num(spreads),
        aims=np.full(3, target),
        threshold=None,
    )
    return ExplorationEffort(kind=kind)._bonus(now, np.full(3, 0.5))


@EXAMPLES.by("targets, multiplier and rewards of one bucket")
def bucket(example: Example) -> Found:
    right, target = example.values["right"], float(example.values["target"])
    bonus = exploration_bonus(example.values["N"], [EASY] * 3, right, target)
    all_wrong = exploration_bonus(example.values["N"], [EASY] * 3, [0, 0, 0], target)
    return {"multiplier": all_wrong[1] / -5.0, "reward": right + bonus}


@EXAMPLES.by("the target of the same batch makes the multiplier zero")
def same_batch(example: Example) -> Found:
    counts = example.values["N"]
    return {"multiplier": -exploration_bonus(counts, [EASY] * 3, [0, 0, 0], float(counts.mean())).min()}


@EXAMPLES.by("deviation by difficulty")
def deviations(example: Example) -> Found:
    """A second draw lies far above the target, so that the multiplier is not 0."""
    results = {}
    for name, level in (("easy", EASY), ("medium", MEDIUM), ("hard", HARD)):
        counts = np.array([*(example.values["D"] + 10.0), 30.0])
        multiplier = (counts.mean() - 10.0) / (counts.var() + 1e-6)
        results[name] = -exploration_bonus(counts, [level] * 3, [0, 0, 1], 10.0)[:2] / multiplier
    return results


@EXAMPLES.by("the code's rewards at target 10, alpha 0.5")
def code(example: Example) -> Found:
    del example
    won = [1, 1, 1, 0, 0]
    bonus = exploration_bonus([16, 10, 2, 10, 20], [EASY, HARD, HARD, EASY, HARD], won, 10.0, "code")
    names = ("easy_right", "hard_right", "hard_right_short", "easy_wrong", "hard_wrong")
    return dict(zip(names, np.array(won) + bonus, strict=True))


@EXAMPLES.by("windows of two tokens")
def counted(example: Example) -> Found:
    """Count with the recipe's threshold and windows of two; a rollout without a score does not vote."""
    effort = recipes.ARES.chain("reward")[1]
    assert isinstance(effort, ExplorationEffort)
    recipe = WEIGHTED.replace(reward=(OutcomeScore(), replace(effort, width=2)))
    entropies = [example.values[name].tolist() for name in "ab"] + [[9.0, 9.0]]
    members = [
        {**answer, "success": bool(won), "entropies": member_entropies}
        for won, member_entropies, answer in zip(
            (1, 0, 0), entropies, answers([5, 3, 2], [1.0, 0.0, float("nan")]), strict=True
        )
    ]
    for member in members[2:]:
        del member["reward"]
    tokens = {"reference_logprob": [-1.0] * 10}
    result = computed(recipe, ["draw.exploring_tokens"], members=members, columns={"token": tokens})
    counts = result["draw.exploring_tokens"]
    assert np.isnan(counts[2])
    return {"count_a": counts[0], "count_b": counts[1]}


@EXAMPLES.by("KL relaxed inside a window")
def relaxed(example: Example) -> Found:
    """The ratio is 1, and the reference gives the k3 of the example."""
    values = example.values
    gaps = []
    for kl in values["kl"]:
        low, high = 0.0, 5.0
        for _ in range(60):
            gap = (low + high) / 2
            low, high = (low, gap) if np.exp(gap) - gap - 1 > kl else (gap, high)
        gaps.append(low)
    recipe = WEIGHTED.replace(weight=RelaxedPenalty(inside=float(values["rho"])))
    result = computed(
        recipe,
        ["token.kl_weight", "loss"],
        members=[{**answers([3], [float(values["A"])])[0], "success": True}],
        columns={
            "token": {"exploring": values["inside"].tolist(), "reference_logprob": (np.array(gaps) - 1.0).tolist()}
        },
    )
    return {"weights": values["beta"] * result["token.kl_weight"], "objective": -result["loss"]}


def clipped(advantages: Value, log_probs: Value) -> Mapping[str, Value]:
    """Return the loss and its gradient, of tokens at the reference."""
    return computed(
        WEIGHTED,
        ["loss", "gradient.logprob"],
        members=answers([1] * len(advantages), advantages.tolist()),
        columns={"token": {"reference_logprob": log_probs.tolist()}},
        policy={"logprob": log_probs.tolist()},
    )


@EXAMPLES.by("clipping at 0.2 and 0.28, since the paper gives no numbers")
def off_policy(example: Example) -> Found:
    return {"loss": clipped(example.values["A"], example.values["new"])["loss"]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)


def test_a_batch_of_512_prompts_is_four_steps_of_128() -> None:
    assert recipes.ARES.minibatches == 512 // 128
