"""Worked examples of the paper of a_star_po, computed by the recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed
from pools import Story

from agentrl_core import recipes
from agentrl_core.recipes.a_star_po import LogMeanExp

EXAMPLES = PaperExamples("a_star_po")
ONE_STEP = recipes.A_STAR_PO.replace(minibatches=1)


def regression(log_ratios: Sequence[Value], values: Value, rewards: Value) -> Mapping[str, Value]:
    """Return the numbers of A*-PO for responses with these log-ratios to the reference."""
    ratios = np.concatenate(log_ratios)
    paths = [f"1 | 3*{len(each)}" for each in log_ratios]
    return computed(
        ONE_STEP,
        ["draw.advantage", "loss", "gradient.logprob"],
        members=[{"path": path, "reward": reward} for path, reward in zip(paths, rewards.tolist(), strict=True)],
        columns={
            "draw": {"task_value_star": values.tolist()},
            "token": {"reference_logprob": [-1.0] * len(ratios)},
        },
        policy={"logprob": (ratios - 1.0).tolist()},
    )


@EXAMPLES.by("values of three prompts")
def optimal_values(example: Example) -> Found:
    story, tracker = Story(), LogMeanExp()
    rewards = {place: example.values[f"r_{name}"].tolist() for place, name in enumerate("abc")}
    state = tracker.next(tracker.initial_state(), story.visits(0, rewards, survey=True))
    estimates = tracker.estimate(state, story.candidates([0, 1, 2], 1))
    return {"value_a": estimates[:1], "value_b": estimates[1:2], "value_c": estimates[2:]}


@EXAMPLES.by("the loss of two responses")
def regression_loss(example: Example) -> Found:
    log_ratios = [example.values["d_a"], example.values["d_b"]]
    result = regression(log_ratios, example.values["V"], example.values["r"])
    totals = np.array([each.sum() for each in log_ratios])
    return {
        "residual": 0.001 * totals - result["draw.advantage"],
        "loss": result["loss"],
        "gradient_by_logprob_of_each_token": result["gradient.logprob"][[0, -1]],
    }


@EXAMPLES.by("no token of a tool enters the sum")
def regression_tools(example: Example) -> Found:
    d, mask = example.values["d"], example.values["mask"] == 1
    result = computed(
        ONE_STEP,
        ["loss"],
        members=[{"path": "1 | 3*3", "reward": float(example.values["r"]), "trainable": mask.astype(int).tolist()}],
        columns={
            "draw": {"task_value_star": [float(example.values["V"])]},
            "token": {"reference_logprob": [-1.0] * 3},
        },
        policy={"logprob": (d - 1.0).tolist()},
    )
    return {"loss": result["loss"]}


@EXAMPLES.by("two optimizer steps without a clip")
def regression_steps(example: Example) -> Found:
    value, reward = (np.atleast_1d(example.values[name]) for name in ("V", "r"))
    halves = [np.repeat(example.values[name] / 2, 2) for name in ("first", "second")]  # for two tokens
    losses = [regression([each], value, reward)["loss"] for each in halves]
    return {"first_loss": losses[0], "second_loss": losses[1]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
