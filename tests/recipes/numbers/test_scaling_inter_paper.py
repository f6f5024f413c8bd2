"""Worked examples of the paper of scaling_inter, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from common_examples import CommonExamples, advantages, given_advantages, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples
from riddles import in_turn, solve

from agentrl_core import recipes

EXAMPLES = PaperExamples("scaling_inter")
CommonExamples(EXAMPLES, recipes.SCALING_INTER)
HORIZON = recipes.SCALING_INTER.rollout
LOSSES = given_advantages(recipes.SCALING_INTER)


@EXAMPLES.by("limit at the borders of the stages")
def limits(example: Example) -> Found:
    horizon = replace(HORIZON, stages=tuple(example.values["h"].astype(int).tolist()))
    return {"limit": np.array([horizon.limit(int(step) - 1) for step in example.values["n"]])}


@EXAMPLES.by("four episodes under a limit of three turns")
def cut(example: Example) -> Found:
    horizon = replace(HORIZON, stages=(int(example.values["limit"]),))
    runs = [
        solve(horizon, in_turn(*["look"] * (int(turns) - 1), "<answer>right</answer>"), group_size=1)
        for turns in example.values["needs"]
    ]
    return {
        "turns": np.array([run.num_requests for run in runs]),
        "cut": np.array([run.rows[0].status == "truncated" for run in runs]),
    }


@EXAMPLES.by("advantages of groups of four, three and one")
def groups(example: Example) -> Found:
    reward_groups = [np.atleast_1d(example.values[name]) for name in "RST"]
    group_advantages = advantages(recipes.SCALING_INTER, *reward_groups)
    return dict(zip(("advantage_a", "advantage_b", "advantage_c"), group_advantages, strict=True))


@EXAMPLES.by("one episode of four has no score (convention)")
def unscored(example: Example) -> Found:
    return {"advantage": advantages(recipes.SCALING_INTER, [*example.values["R"], np.nan])[0]}


@EXAMPLES.by("loss at the first and at a later step of a batch")
def steps(example: Example) -> Found:
    old, second, reference, advantage_values = (example.values[name] for name in ("old", "second", "ref", "A"))
    entropy = [float(example.values["entropy"])] * len(advantage_values)
    alone = given_advantages(recipes.SCALING_INTER, kl=None, entropy=0.0)
    return {
        "loss_1": single_tokens(
            LOSSES, old, old, advantage_values, reference_logprob=reference, outputs={"entropy": entropy}
        )["loss"],
        "policy_loss_2": single_tokens(alone, old, second, advantage_values)["loss"],
        "loss_2": single_tokens(
            LOSSES, old, second, advantage_values, reference_logprob=reference, outputs={"entropy": entropy}
        )["loss"],
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
