"""Environments that a designer writes for the policy's weak skills, traced by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from riddles import RIGHT, WRONG, Riddle, Riddles, check_resumes, rows_of, script

import agentrl_core as arl
from agentrl_core import recipes
from agentrl_core.engine import Request, Sampling
from agentrl_core.env import Task
from agentrl_core.recipes.env_gen import DesignedEnvironments, configurations
from agentrl_core.rollout import read_notes

TWO = 'One: {"question": "dig here"}, another: {"question": "dig there", "payload": {"depth": 2}}. {"no": 1} {'
DESIGNED = '{"question": "dig here"}\n{"question": "dig there", "payload": {"depth": 2}}'
"""The environments of a cycle, as in the designer's prompt."""
LONG = Sampling(max_tokens=512)


class Skilled(Riddles):
    """Tasks of two skills, whose questions name them."""

    def tasks(self, count: int, *, split: str = "train", start: int = 0) -> list[Task]:
        tasks = super().tasks(count, split=split, start=start)
        skills = [("dig", "cut")[place % 2] for place in range(count)]
        return [replace(task, question=skill, domain=skill) for task, skill in zip(tasks, skills, strict=True)]

    def reset(self, task: Task, seed: int) -> Riddle:
        if "/designed" in task.task_id:
            assert task.question in ("dig here", "dig there")
            assert task.payload == ({"depth": 2} if task.question == "dig there" else None)
        return super().reset(task, seed)


def speak(context: str, request: Request) -> str:
    """Return actions: cut always succeeds, and dig only in an environment for it."""
    del request
    if "Write 4 environments" in context:
        assert "dig: 0 %" in context
        assert "cut: 100 % +/- 0 %" in context
        shown_environments = context.partition("these environments:\n")[2].partition("\n\n")[0]
        assert shown_environments in ("", DESIGNED, DESIGNED.splitlines()[0])
        return TWO
    return RIGHT if "cut" in context or "dig here" in context else WRONG


def test_a_cycle_measures_skills_and_trains_on_designed_environments(tmp_path: Path) -> None:
    program = DesignedEnvironments(every=2, share=0.5, mixture="groups")
    recipe = recipes.ENV_GEN.replace(rollout=program)
    iterations: list[Any] = []
    for _ in range(4):
        with arl.Store.open(tmp_path, sync="never") as store:
            engine = script(speak)
            collect = arl.Collector(engine, Skilled(), recipe, store=store, task_pool=64, seed=1, sampling=LONG)
            batch = collect(tasks=12, group_size=2)
            state = store.state.get("components", {}).get("rollout[0].DesignedEnvironments", program.initial_state())
            collect.end_iteration(batch, {})
        iterations.append((batch, state, rows_of(batch)))
    for batch, state, _ in iterations[:2]:
        assert state["made"] == []
        assert not batch.column("designed", "draw").any()
    first = iterations[1][1]["skills"]
    assert first == {"dig": [0], "cut": [100]}, "one iteration"
    assert sum(row.role == "helper" for row in iterations[1][2]) == 1, "the designer is asked once a cycle"
    assert [len(read_notes(batch, "environment")) for batch, _, _ in iterations] == [0, 2, 0, 2]
    batch, state, _ = iterations[2]
    assert state["skills"] == {}, "every cycle measures anew"
    assert state["made"] == [{"question": "dig here"}, {"question": "dig there", "payload": {"depth": 2}}]
    designed = batch.column("designed", "draw")
    assert 0 < designed.sum() < len(designed)
    assert len(designed) == 24
    measured = read_notes(batch, "solved")
    assert sum(tried for _, _, tried in measured) == int((designed == 0).sum()), "on the original tasks alone"
    keys = batch.keys("group_id", "draw")
    assert all(len(np.unique(designed[keys == group])) == 1 for group in np.unique(keys))


def test_a_cycle_starts_with_designed_tasks_and_continues_with_original_ones(tmp_path: Path) -> None:
    """A cycle is three iterations, and a share of 0.4 is one of them; the first cycle has no written environments."""
    recipe = recipes.ENV_GEN.replace(rollout=DesignedEnvironments(every=3, share=0.4))
    designed, measured = [], []
    with arl.Store.open(tmp_path, sync="never") as store:
        collect = arl.Collector(script(speak), Skilled(), recipe, store=store, task_pool=64, seed=1, sampling=LONG)
        for _ in range(7):
            batch = collect(tasks=4, group_size=2)
            collect.end_iteration(batch, {})
            designed.append(batch.column("designed", "draw").mean())
            measured.append(sum(tried for _, _, tried in read_notes(batch, "solved")))
    assert designed == [0, 0, 0, 1, 0, 0, 1]
    assert measured == [8, 8, 8, 0, 8, 8, 0], "on the original tasks alone"


def test_half_of_the_groups_are_on_environments_that_were_written() -> None:
    """400 groups: 4 standard deviations of a fair coin are 40."""
    program = DesignedEnvironments(every=1, share=0.5, mixture="groups")
    state = program.initial_state() | {"made": [{"question": "dig here"}]}
    collect = arl.Collector(script(speak), Skilled(), recipes.ENV_GEN.replace(rollout=program), task_pool=512)
    collect._head = replace(collect._head, components={"rollout[0].DesignedEnvironments": state})
    batch = collect(tasks=400, group_size=1)
    assert 160 <= batch.column("designed", "draw").sum() <= 240


def test_invalid_configurations_are_left_out() -> None:
    assert configurations('{"question": 3} {"payload": null} [{"question": "a {b}"}] {"question": "c"') == [
        {"payload": None},
        {"question": "a {b}"},
    ]
    task = Task("train 3", "?", "dig", {"depth": 1}, ("look",))
    changed = DesignedEnvironments().changed(task, 1, {"payload": None})
    assert changed == Task("train 3/designed 1", "?", "dig", None, ())


def test_env_gen_resumes_after_interruptions() -> None:
    assert check_resumes(
        recipes.ENV_GEN.replace(rollout=DesignedEnvironments(every=1)), speak, world=Skilled(), tasks=8
    )
