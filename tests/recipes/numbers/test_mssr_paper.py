"""Worked examples of the paper of mssr, computed by the recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples, given_advantages
from paper_files import Example
from paper_numbers import Found, PaperExamples
from rollouts import small

from agentrl_core import Batch, recipes
from agentrl_core.advantage import TrackedBaseline
from agentrl_core.component import BatchComponent, IterationRecord

EXAMPLES = PaperExamples("mssr")
COMMON = CommonExamples(EXAMPLES, recipes.MSSR, losses=given_advantages(recipes.MSSR, kl=None))
TRACKED, *REST = recipes.MSSR.chain("advantage")
assert isinstance(TRACKED, TrackedBaseline)
WHITENED, SHAPED = (link for link in REST if isinstance(link, BatchComponent))
Evidence = Sequence[Sequence[float]]


def batch_with_baselines(
    evidence: Evidence, rewards: Sequence[float], lengths: Sequence[int] = (), **columns: Any
) -> Batch:
    """Return one rollout of each prompt with these numbers of known successes and failures, and its advantage."""
    lengths = lengths or [1] * len(rewards)
    columns |= {"draw_score": rewards, "draw_policy_kl": [0.0] * len(rewards)}
    batch = small([(place, [length]) for place, length in enumerate(lengths)], **columns)
    return TRACKED.add_columns(_state(evidence), batch)


def evidence_after(
    link: TrackedBaseline, evidence: Evidence, rewards: Sequence[float], distance: Sequence[float]
) -> Evidence:
    """Return evidence of each prompt after a visit at which the policy has moved by this amount."""
    batch = small([(place, [1]) for place in range(len(rewards))], draw_score=rewards, draw_policy_kl=distance)
    return list(link.next(_state(evidence), IterationRecord.of(batch))["keys"].values())


def _state(evidence: Evidence) -> dict[str, Any]:
    return {"keys": {f"task {place}": list(each) for place, each in enumerate(evidence)}, "kl": []}


@EXAMPLES.by("a batch of four prompts")
def four(example: Example) -> Found:
    given = example.values
    evidence, rewards = list(zip(given["alpha"], given["beta"], strict=True)), given["R"].tolist()
    first, third = (-np.exp(given[name]) * given[name] for name in ("logp_first", "logp_third"))
    lengths = [len(first), 1, len(third), 1]
    entropies = [*first, 0.0, *third, 0.0]
    alone = batch_with_baselines(evidence, rewards)
    shaped = SHAPED(WHITENED(batch_with_baselines(evidence, rewards, lengths, token_entropy=entropies))).column(
        "advantage", "token"
    )
    return {
        "baseline": rewards - alone.column("advantage", "draw"),
        "advantage": WHITENED(alone).column("advantage", "draw"),
        "advantage_of_tokens_of_first": shaped[: len(first)],
        "advantage_of_tokens_of_third": shaped[len(first) + 1 : -1],
    }


@EXAMPLES.by("the cap acts")
def cap(example: Example) -> Found:
    logprobs = example.values["logp"]
    entropies = -np.exp(logprobs) * logprobs

    def shaped(advantage: Value) -> Value:
        columns = {"token_entropy": entropies, "draw_advantage": [advantage], "draw_score": [0.0]}
        return SHAPED(small([(0, [len(logprobs)])], **columns)).column("advantage", "token")

    advantages = example.values["A"]
    result = shaped(advantages)
    return {"advantage": result, "shaping": result - advantages, "advantage_if_negative": shaped(-advantages)}


@EXAMPLES.by("start and two visits")
def visits(example: Example) -> Found:
    """The initial evidence is given: the recipe has no pass over the data set before training."""
    start = float(example.values["v0"])
    evidence: Evidence = [[8.0 * start, 8.0 * (1.0 - start)]]
    baselines = []
    for reward in (0.0, 1.0, 0.0):
        baselines.append(reward - batch_with_baselines(evidence, [reward]).column("advantage", "draw")[0])
        evidence = evidence_after(TRACKED, evidence, [reward], [TRACKED.kl_target / 2.0])  # the middle of its range
    return {"baseline_at_each_visit": np.array(baselines)}


@EXAMPLES.by("forgetting")
def forgetting(example: Example) -> Found:
    link = replace(TRACKED, adapt="since_visit", kl_target=0.06)
    moved = example.values["D"].tolist()
    posterior_counts = evidence_after(link, [[1.0, 0.0]] * len(moved), [0.0] * len(moved), moved)
    given = example.values
    at = [
        evidence_after(TRACKED, [[1.0, 0.0]], [0.0], [kl])[0][0]
        for kl in [*given["KL"].tolist(), float(given["above"])]
    ]
    return {"rho_by_prompt": [successes for successes, _ in posterior_counts], "rho": at[:-1], "rho_above": at[-1]}


@EXAMPLES.by("one prompt of four has no score (convention)")
def unscored(example: Example) -> Found:
    given = example.values
    evidence = [[value, 1.0 - value] for value in (*given["v"], 0.5)]
    result = WHITENED(batch_with_baselines(evidence, [*given["R"], np.nan])).column("advantage", "draw")
    return {"advantage": np.where([False, False, False, True], np.nan, result)}


@EXAMPLES.by("two responses of unequal length")
def unequal(example: Example) -> Found:
    return COMMON.tool_tokens(example)


@EXAMPLES.by("the second of sixteen optimizer steps")
def later_step(example: Example) -> Found:
    values = {"second": example.values["d"], "A": example.values["A"]}
    return COMMON.second_step(replace(example, values=values))


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
