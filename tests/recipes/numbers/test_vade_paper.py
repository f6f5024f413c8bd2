"""Worked examples of the paper of vade, computed by the recipe."""

from __future__ import annotations

import numpy as np
import pytest
from arithmetic import Value
from common_examples import advantages
from paper_files import Example
from paper_numbers import Found, PaperExamples
from pools import Story

from agentrl_core import recipes

EXAMPLES = PaperExamples("vade")
TRACK, SCORE, SAMPLE = recipes.VADE.select.track, recipes.VADE.select.score, recipes.VADE.select.sample


def outcomes(right: float, wrong: float) -> list[float]:
    return [1.0] * int(right) + [0.0] * int(wrong)


class Posterior:
    """The counters of tasks that were sampled in iteration 0 with these outcomes."""

    def __init__(self, *tasks: list[float]) -> None:
        self._story = Story()
        self._state = TRACK.next(TRACK.initial_state(), self._story.visits(0, dict(enumerate(tasks))))

    def sample(self, iteration: int, visits: dict[int, list[float]]) -> None:
        self._state = TRACK.next(self._state, self._story.visits(iteration, visits))

    def counters(self, iteration: int) -> tuple[Value, Value]:
        """Return alpha and beta before an iteration, without the even prior."""
        alpha, beta = TRACK.evidence(self._state, self._story.candidates(self._story.tracked, iteration))
        return alpha - 1.0, beta - 1.0

    def mean(self, iteration: int) -> Value:
        return TRACK.estimate(self._state, self._story.candidates(self._story.tracked, iteration))


@EXAMPLES.by("information gain")
def gain(example: Example) -> Found:
    scores = SCORE(example.values["p"])
    chosen = np.zeros(len(scores))
    chosen[SAMPLE.choose(scores, np.arange(len(scores)), 3, key=0)[0]] = 1
    return {"gain": scores, "chosen": chosen}


@EXAMPLES.by("one update: sampled with failures, and not sampled")
def update(example: Example) -> Found:
    given = example.values
    tasks = Posterior(*(outcomes(*each) for each in zip(given["alpha"], given["beta"], strict=True)))
    tasks.sample(1, {task: outcomes(given["correct"][task], given["wrong"][task]) for task in (0, 1)})
    alpha, beta = tasks.counters(2)
    return {"alpha": alpha, "beta": beta}


@EXAMPLES.by("two iterations without the prompt forget slowly")
def idle(example: Example) -> Found:
    given = {name: float(value) for name, value in example.values.items()}
    task = Posterior(outcomes(given["alpha"], given["beta"]))
    before = task.counters(3)
    task.sample(3, {0: outcomes(given["correct"], given["wrong"])})
    after = task.counters(4)
    return {
        "alpha_2": before[0],
        "beta_2": before[1],
        "alpha_3": after[0],
        "beta_3": after[1],
        "mean": task.mean(4),
    }


@EXAMPLES.by("a group of one")
def alone(example: Example) -> Found:
    task = Posterior(outcomes(example.values["alpha"], example.values["beta"]))
    task.sample(1, {0: [1.0]})
    alpha, beta = task.counters(2)
    return {"alpha": alpha, "beta": beta}


@EXAMPLES.by("one rollout of four has no score (convention)")
def unscored(example: Example) -> Found:
    rewards = [*example.values["R"].tolist(), np.nan]
    task = Posterior(outcomes(example.values["alpha"], example.values["beta"]))
    task.sample(1, {0: rewards})
    alpha, beta = task.counters(2)
    return {"alpha": alpha, "beta": beta, "advantage_n_minus_1": advantages(recipes.VADE, rewards)[0]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
