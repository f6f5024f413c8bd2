"""Worked examples of the paper of gdro_rl, computed by the recipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed
from pools import Story
from rollouts import small

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import IterationRecord
from agentrl_core.model.pack import PackOutput
from agentrl_core.recipes.gdro_rl import DifficultyScaled
from agentrl_core.select import RecentVisits

EXAMPLES = PaperExamples("gdro_rl")
WEIGHTED = recipes.GDRO_RL.replace(advantage=GroupRelative(center="none", scale="none"), weight=None, minibatches=1)
"""The recipe with the advantages of an example as scores, all of one weight, and one optimizer step."""


def visited(losses: Value) -> Any:
    """Return a batch of a task of the upper bin and one of the lower."""
    return small(
        [(0, [1]), (1, [1])],
        draw_score=[1.0, 0.0],
        draw_success=[1, 0],
        draw_task=[0, 1],
        draw_weight=[1.0, 1.0],
        draw_loss=np.asarray(losses, np.float64).tolist(),
    )


def known(component: DifficultyScaled, scores: Value) -> dict[str, Any]:
    """Return a state in which task 0 is in the upper bin and task 1 in the lower, with these scores of both."""
    state = component.next(component.initial_state(), IterationRecord.of(visited([0.0, 0.0]), {}))
    assert state["bins"] == [1, 0]
    return {**state, "scores": np.asarray(scores)[::-1].tolist()}


@EXAMPLES.by("scores over two steps and weights")
def scores(example: Example) -> Found:
    component = DifficultyScaled(key="task", bins=2)
    state = known(component, example.values["S"])
    state = component.next(state, IterationRecord.of(visited(example.values["l1"]), {}))
    state = component.next(state, IterationRecord.of(visited(example.values["l2"]), {}))
    after = visited([0.0, 0.0])
    weights = component.add_columns(state, after).column("weight", "draw")
    shares = DifficultyScaled(key="task", bins=2, kind="probability").add_columns(state, after).column("weight", "draw")
    return {"score_after_two": state["scores"][::-1], "weight": weights, "distribution": shares / 2}


@EXAMPLES.by("advantages by 16 and by the code")
def weighed(example: Example) -> Found:
    results = {}
    component = DifficultyScaled(key="task", bins=2, smoothing=0.0)
    state = known(component, np.log(example.values["w"]) / component.coefficient)
    weights = component.add_columns(state, visited([0.0, 0.0])).column("weight", "draw")
    for name, weight in zip(("hard", "easy"), weights, strict=True):
        results[name] = weight * example.values[f"A_{name}"]
    return results


@EXAMPLES.by("a prompt's pass@k and bin")
def history(example: Example) -> Found:
    story, tracker = Story(), RecentVisits(3, "solved", bins=10, hysteresis=0.03)
    state, rates = tracker.initial_state(), []
    for iteration, solved in enumerate(example.values["c"].tolist()):
        state = tracker.next(state, story.visits(iteration, {0: [solved, 0.0]}))
        rates.append(tracker.estimate(state, story.candidates([0], iteration + 1)))
    return {"pass_at_k": rates[-1], "before": rates[-2]}


@EXAMPLES.by("prompt loss and advantages of an uneven group")
def prompt_loss(example: Example) -> Found:
    away = {0.0: 0.0, 0.1: -0.483183, 0.2: -0.706761}  # the d at which e^-d - 1 + d is the divergence
    advantages, batch = example.values["A"], small([(0, [1])] * 4, draw_score=example.values["A"].tolist())
    batch = batch.with_columns("draw", success=[0] * 4)
    recorded = np.asarray(batch.column("behaviour_logprob", "token"), np.float64)
    reference = recorded + [away[kl] for kl in example.values["kl"].tolist()]
    batch = WEIGHTED.credit(batch.with_columns("token", reference_logprob=reference))
    assert batch.column("advantage", "draw") == pytest.approx(advantages)
    updates = WEIGHTED.updates(batch, draw_losses=True)
    for update in updates:
        for pack in update.pack(max_tokens=100):
            logprob = torch.from_numpy(recorded)[pack.token]
            update.loss(PackOutput(logprob, torch.zeros_like(logprob)), pack)
    return {"prompt_loss": np.mean(updates.with_losses().column("loss", "draw"))}


def clipped(advantages: Value, log_probs: Value) -> Mapping[str, Value]:
    """Return the loss and its gradient, of tokens at the reference."""
    return computed(
        WEIGHTED,
        ["loss", "gradient.logprob"],
        members=answers([1] * len(advantages), advantages.tolist()),
        columns={"token": {"reference_logprob": log_probs.tolist()}},
        policy={"logprob": log_probs.tolist()},
    )


@EXAMPLES.by("tokens that another policy sampled")
def off_policy(example: Example) -> Found:
    return {"loss": clipped(example.values["A"], example.values["new"])["loss"]}


@EXAMPLES.by("the second optimizer step of a batch clips")
def later_step(example: Example) -> Found:
    first, second = (clipped(example.values["A"], example.values[step]) for step in ("first", "second"))
    return {
        "first_loss": first["loss"],
        "second_loss": second["loss"],
        "second_has_gradient": abs(second["gradient.logprob"]) > 1e-6,
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)


def test_a_batch_of_512_is_four_steps_of_128() -> None:
    assert recipes.GDRO_RL.minibatches == 512 // 128
