"""Worked examples of the paper of teach_my_agent, computed by the recipe."""

from __future__ import annotations

import numpy as np
import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples
from pools import Story, pool, selection_request

from agentrl_core.recipes import TEACH_MY_AGENT
from agentrl_core.select import ComposedSelector

EXAMPLES = PaperExamples("teach_my_agent")
SELECT = TEACH_MY_AGENT.select
assert isinstance(SELECT, ComposedSelector)


def select_tasks(progress: Value) -> tuple[Value, Value]:
    """Return chances and progress of tasks.

    The return of each goes from 1/2 to 1/2 less this progress; `nan`: the second episode has no return.
    """
    story, rows = Story(), range(len(progress))
    track = SELECT.track.next(SELECT.initial_state()["track"], story.visits(0, {row: [0.5, 0.5] for row in rows}))
    track = SELECT.track.next(track, story.visits(1, {row: [0.5 - progress[row]] for row in rows}))
    state = SELECT.initial_state() | {"rows": np.array(story.tracked), "track": track}
    chosen = SELECT.choose(pool(len(progress)), state, selection_request(len(progress), iteration=2), 3)
    assert chosen.probabilities is not None
    return chosen.probabilities[np.argsort(chosen.rows)], SELECT.track.estimate(track, story.candidates([*rows], 2))


@EXAMPLES.by("chances of three Gaussians")
def chances(example: Example) -> Found:
    """Each task also gets its uniform part, which is the chance of a task without progress."""
    progress = example.values["alp"]
    task_chances = select_tasks(progress)[0]
    uniform = task_chances[progress == 0][0]
    return {"chance": task_chances - uniform, "uniform_task": uniform * len(progress)}


@EXAMPLES.by("no progress anywhere: Gaussians are drawn alike")
def alike(example: Example) -> Found:
    """A fifth of each chance is that of a uniform task."""
    count = int(example.values["k"])
    uniform = select_tasks(np.array([0.1, 0.0]))[0][1] * 2
    return {"chance": select_tasks(np.zeros(count))[0] - uniform / count}


@EXAMPLES.by("an episode without a return changes nothing (convention)")
def unscored(example: Example) -> Found:
    """The second task's progress stays 0, because the episode with a return was its first."""
    progress = example.values["alp"]
    chance, task_progress = select_tasks(np.array([*progress, np.nan]))
    uniform = chance[-1]
    assert task_progress[-1] == 0
    return {
        "chance_before_exploration": (chance - uniform)[:2] / (1.0 - 3.0 * uniform),
        "progress": np.array([*task_progress[:2], np.nan]),
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
