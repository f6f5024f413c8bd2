"""Worked examples of the paper of xrpo, computed by the recipe."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from arithmetic import Value
from common_examples import given_advantages, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed
from riddles import RIGHT, WRONG, Riddle, Riddles, rows_of, script

import agentrl_core as arl
from agentrl_core import Batch, recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.engine import Request
from agentrl_core.env import Task

EXAMPLES = PaperExamples("xrpo")
XRPO = recipes.XRPO
PLAIN, NOVELTY = XRPO.chain("advantage")
LOSSES = given_advantages(XRPO)


@EXAMPLES.by("priorities of four prompts")
def priorities(example: Example) -> Found:
    right, total = (2, 1, 0, 4), int(example.values["T"])
    scores = [np.repeat([1.0, 0.0], [won, int(n) - won]) for won, n in zip(right, example.values["n"], strict=True)]
    assert XRPO.rollout.coefficient == example.values["lam"]
    still = replace(XRPO.rollout, coefficient=0.0)
    reduction = np.array([still.priority(known, total) for known in scores])
    task_priorities = np.array([XRPO.rollout.priority(known, total) for known in scores])
    return {"priority": task_priorities, "reduction": reduction, "exploration": task_priorities - reduction}


class Named(Riddles):
    """Riddles whose question is their own name."""

    def reset(self, task: Task, seed: int) -> Riddle:
        del seed
        return Riddle(replace(task, question=task.task_id))


def collected(folder: Path, *right: Sequence[int]) -> list[Batch]:
    """Return batches of a store, with these numbers of successes among the first four rollouts of each task."""
    batches = []
    with arl.Store.open(folder) as store:
        for counts in right:
            request_counts: dict[str, int] = {}

            def speak(
                context: str,
                request: Request,
                counts: Sequence[int] = counts,
                request_counts: dict[str, int] = request_counts,
            ) -> str:
                del request
                name = re.findall(r"(train \d+)<\|im_end\|>", context)[-1]
                request_counts[name] = request_counts.get(name, 0) + 1
                return RIGHT if request_counts[name] <= counts[list(request_counts).index(name)] else WRONG

            recipe = XRPO.replace(rollout=replace(XRPO.rollout, budget=5, per_round=3))
            collect = arl.Collector(script(speak), Named(), recipe, store=store, task_pool=64)
            batches.append(collect(tasks=len(counts), group_size=4))
            collect.end_iteration(recipes.GRPO.credit(batches[-1]), {})
    return batches


def fifth_is_seeded(batch: Batch) -> Value:
    """Return whether the fifth rollout of each task was seeded, given the successes of its first four."""
    groups, seeded, score = (batch.column(name, "draw") for name in ("group_id", "seeded", "success"))
    results = {}
    for group in np.unique(groups):
        in_group = groups == group
        assert in_group.sum() == 5
        assert not seeded[in_group][:4].any()
        results[int(score[in_group][:4].sum())] = seeded[in_group][4]
    return np.array([results[count] for count in sorted(results)])


@EXAMPLES.by("which prompts are seeded")
def seeded(example: Example) -> Found:
    """The third prompt is from an iteration before any success; the others have three to choose from."""
    del example
    with TemporaryDirectory() as folder:
        first, _, last = collected(Path(folder) / "run", [0, 0, 0], [4, 4, 4], [0, 2, 4])
    assert max(row.prompt.count(RIGHT) for row in rows_of(last)) == 2
    none, some, every = fifth_is_seeded(last)
    return {"seeded": np.array([none, some, fifth_is_seeded(first)[0], every])}


def sharpened(rewards: Sequence[float], logprobs: Sequence[Sequence[float]], plain: GroupRelative = PLAIN) -> Value:
    """Return advantages of rollouts whose tokens had these log-probs; one without a score has `nan`."""
    members = [
        {
            "path": f"1 | 3*{len(each)}",
            "logprobs": list(each),
            **({} if np.isnan(reward) else {"reward": float(reward)}),
        }
        for reward, each in zip(rewards, logprobs, strict=True)
    ]
    advantages = computed(XRPO.replace(advantage=(plain, NOVELTY)), ["token.advantage"], members=members)[
        "token.advantage"
    ]
    firsts = np.cumsum([0, *map(len, logprobs[:-1])])
    return np.where(np.isnan(rewards), np.nan, advantages[firsts])


@EXAMPLES.by("novelty of a group of five")
def novelty(example: Example) -> Found:
    given = example.values
    logprobs = [[float(total / n)] * int(n) for total, n in zip(given["lp_sum"], given["len"], strict=True)]
    result = sharpened(given["R"].tolist(), logprobs)
    equal = sharpened(given["R"].tolist(), [[-1.0]] * len(given["R"]))
    return {"advantage": equal, "bonus": result - equal, "advantage_sharpened": result}


@EXAMPLES.by("one rollout of four has no score (convention)")
def unscored(example: Example) -> Found:
    given = example.values
    logprobs = [*given["s"][:, None].tolist(), [-6.0]]
    return {"advantage": sharpened([*given["R"].tolist(), np.nan], logprobs)}


@EXAMPLES.by("score of a response with tool tokens")
def tool_tokens(example: Example) -> Found:
    """The bonus of the response next to a failure of score -0.2: 2.5 (1 - exp((s + 0.2) / 2))."""
    own_tokens = example.values["mask"] > 0
    members = [
        {"path": "1 | 3 3 ~ 9 | 3", "logprobs": example.values["lp"][own_tokens].tolist(), "reward": 1.0},
        {"path": "1 | 3", "logprobs": [-0.2], "reward": 0.0},
    ]
    with_bonus, plain = (
        computed(XRPO.replace(advantage=chain), ["draw.advantage"], members=members)["draw.advantage"][0]
        for chain in ((PLAIN, NOVELTY), PLAIN)
    )
    return {"score": 2 * np.log(1 - (with_bonus - plain) / 2.5) - 0.2}


@EXAMPLES.by("tokens that another policy sampled")
def off_policy(example: Example) -> Found:
    advantages, old = example.values["A"], np.full(len(example.values["A"]), -1.0)
    new = old + np.log(example.values["ratio"])
    alone = [single_tokens(LOSSES, *(each[[at]] for each in (old, new, advantages)))["loss"] for at in range(len(old))]
    return {"objective": -np.concatenate(alone)}


@EXAMPLES.by("a second step keeps the sharpened advantage")
def second_step(example: Example) -> Found:
    """Novelty uses the log-probs at sampling; the rewards are the advantages before it."""
    given = example.values
    result = sharpened(
        [0.0, float(given["A"])], given["s_first"][:, None].tolist(), GroupRelative(center="none", scale="none")
    )
    return {"advantage_of_second_response": result[1:]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
