"""Worked examples of the paper of search_gym, computed by the recipe."""

from __future__ import annotations

import numpy as np
import pytest
from common_examples import advantages, given_advantages, one_rollout, ratios_of_one_token, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples
from pools import Story, pool, selection_request

import agentrl_core as arl
from agentrl_core import recipes
from agentrl_core.component import IterationRecord

EXAMPLES = PaperExamples("search_gym")
SEARCH_GYM = recipes.SEARCH_GYM
LOSSES = given_advantages(SEARCH_GYM)


@EXAMPLES.by("group of four trajectories")
def four(example: Example) -> Found:
    return {"advantage": advantages(SEARCH_GYM, example.values["right"])[0]}


@EXAMPLES.by("own and result tokens")
def tokens(example: Example) -> Found:
    given = example.values
    old, same = np.full(len(given["u"]), -1.0), np.full(len(given["u"]), float(given["A"]))
    new = old + np.log(given["u"])
    alone = [single_tokens(LOSSES, old[[at]], new[[at]], same[[at]])["loss"] for at in range(len(old))]
    return {"token": np.concatenate(alone), "loss": one_rollout(LOSSES, old, new, same, given["own"])["loss"]}


@EXAMPLES.by("two steps on one token")
def two_steps(example: Example) -> Found:
    return ratios_of_one_token(LOSSES, example)


@EXAMPLES.by("stages over five iterations")
def stages(example: Example) -> Found:
    """Stage 1 has only questions of one hop."""
    select, task_pool = SEARCH_GYM.select, pool(40)
    task_pool.column("attempts")
    task_pool._columns["hops"] = hops = np.arange(40) % 4 + 1
    state, story, empty, results = select.initial_state(), Story(), arl.Forest().freeze(), []
    for iteration, success in enumerate(example.values["success"].tolist()):
        chosen = hops[select.choose(task_pool, state, selection_request(40), iteration).rows]
        results.append(1 + int((chosen > 1).any()))
        solved = round(20 * success)
        row = int(np.flatnonzero(hops > 1)[0]) if results[-1] > 1 else 0
        visits = story.visits(iteration, {row: [1.0] * solved + [0.0] * (20 - solved)})
        state["stage"] = select.stage.next(state["stage"], visits, IterationRecord(iteration, empty, pool=task_pool))
    return {"stage": np.array(results)}


@EXAMPLES.by("one trajectory")
def alone(example: Example) -> Found:
    return {"deviation": advantages(SEARCH_GYM, example.values["r"])[0]}


@EXAMPLES.by("a trajectory without a verdict (convention)")
def unscored(example: Example) -> Found:
    return {"advantage": advantages(SEARCH_GYM, [*example.values["r"], np.nan])[0]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
