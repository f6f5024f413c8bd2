"""Worked examples of the paper of rac, computed by the recipe."""

from __future__ import annotations

import numpy as np
import pytest
from arithmetic import Value
from common_examples import path_of
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed
from riddles import RIGHT, WRONG, Run, in_turn, solve

from agentrl_core import recipes
from agentrl_core.engine import Sampling

EXAMPLES = PaperExamples("rac")
RECIPE = recipes.RAC.replace(replay=None)
"""The recipe without stored recoveries."""
SAMPLING = Sampling(max_tokens=200)
UNDO = len(f"{RECIPE.rollout.undo}.")
"""Tokens of the recovery, including its end."""


def imitation_loss(logprobs: Value, mask: Value) -> tuple[Value, Value]:
    """Return the loss of a recovery of these tokens, and the weight of each."""
    member = {"path": path_of(np.ones(len(mask))), "reward": 1.0, "facts": {"recovered": 1}, "unsampled": True}
    member["trainable"] = mask.astype(int).tolist()
    policy = {"logprob": logprobs.tolist()}
    result = computed(RECIPE, ["loss", "gradient.logprob"], members=[member], policy=policy)
    return result["loss"], -result["gradient.logprob"]


def trained(run: Run) -> int:
    """Return how many tokens of a batch the recipe trains."""
    updates = RECIPE.updates(RECIPE.credit(run.batch))
    return sum(
        int((pack.streams["weight_kl"] > 0).sum()) for update in updates for pack in update.pack(max_tokens=9999)
    )


@EXAMPLES.by("a record of ten frames")
def record(example: Example) -> Found:
    is_kept = example.values["kind"] > 0
    loss, weights = imitation_loss(example.values["logp"], is_kept)
    return {"loss": loss, "mask": weights > 0, "frame_weight": np.unique(weights[is_kept])}


@EXAMPLES.by("an episode that succeeds without help")
def without_help(example: Example) -> Found:
    reply = "x" * (int(example.values["frames"]) - len(RIGHT) - 1) + RIGHT
    run = solve(RECIPE, in_turn(reply), group_size=1, sampling=SAMPLING)
    assert len(run.batch.column("token", "token")) == example.values["frames"]
    return {"by_the_notes": trained(run)}


@EXAMPLES.by("an episode that is recorded again (convention)")
def recorded_again(example: Example) -> Found:
    total = 0
    for frames, is_kept in zip(example.values["frames"].astype(int), example.values["kept"], strict=True):
        answer = RIGHT if is_kept else WRONG
        reply = "x" * (frames - UNDO - len(answer) - 1) + answer
        total += trained(solve(RECIPE, in_turn("<bad>", WRONG, reply), group_size=1, sampling=SAMPLING))
    return {"frames_kept": total}


@EXAMPLES.by("actions of a person")
def of_a_person(example: Example) -> Found:
    logprobs = example.values["logp"]
    return {"loss": imitation_loss(logprobs, np.ones(len(logprobs)))[0]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
