"""ROME: rollouts that begin after an expert's chunks, by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from riddles import RIGHT, WRONG, Riddles, Row, check_resumes, rows_of, script, solve, step
from sampled import RecordingEngine, check_sampled

import agentrl_core as arl
from agentrl_core import recipes
from agentrl_core.component import IterationRecord
from agentrl_core.engine import Request
from agentrl_core.recipe import Recipe
from agentrl_core.recipes.rome import FromChunks

EXPERT = ("look", "listen", "think", RIGHT)


def wrong(context: str, request: Request) -> str:
    del context, request
    return WRONG


def near_the_end(context: str, request: Request) -> str:
    """Return a speaker that is right only after the third chunk."""
    del request
    return RIGHT if "think" in context else WRONG


def test_members_start_after_anchors_and_the_expert_joins_a_failed_group() -> None:
    recipe = recipes.ROME.replace(rollout=FromChunks(anchors=2))
    run = solve(recipe, wrong, world=Riddles(EXPERT), group_size=3)
    # Four chunks and two anchors: none of them, two, and none again.
    assert run.fact("given") == [0.0, 2.0, 0.0, 0.0]
    assert run.fact("expert") == [0.0, 0.0, 0.0, 1.0]
    actions = [[action for action in row.actions if action] for row in run.drawn]
    assert actions == [[WRONG], ["look", "listen", WRONG], [WRONG], list(EXPERT)]
    trained = [row.trained for row in run.drawn]
    assert trained[1] == WRONG + "<|im_end|>", "what was given is not trained"
    assert trained[3] == "".join(action + "<|im_end|>" for action in EXPERT), "what is imitated is"
    assert run.fact("reward") == [0.0, 0.0, 0.0, 1.0]
    # The expert's chunks weight their returns, and nothing filters them.
    batch = run.batch.with_columns(
        "token", recomputed_logprob=np.nan_to_num(run.batch.column("behaviour_logprob", "token"), nan=-3.0)
    )
    credited = recipe.credit(batch)
    expert = np.repeat(run.fact("expert"), np.diff(batch.offsets("token")[batch.offsets("step")])) == 1.0
    is_trained = credited.column("trainable", "token").astype(bool) & expert
    assert is_trained.sum() == len(trained[3].replace("<|im_end|>", "."))
    assert set(credited.column("advantage", "token")[is_trained].tolist()) == {1.0}
    assert set(credited.column("weight", "token")[is_trained].tolist()) == {1.0}


def test_no_expert_joins_after_a_success_or_without_a_solution() -> None:
    run = solve(recipes.ROME, near_the_end, world=Riddles(EXPERT), group_size=4)
    assert run.fact("given") == [0.0, 1.0, 2.0, 3.0]
    assert run.fact("reward") == [0.0, 0.0, 0.0, 1.0], "the last begins where it knows the rest"
    alone = solve(recipes.ROME, wrong, world=Riddles(()), group_size=2)
    assert alone.fact("given") == [0.0, 0.0]
    quiet = solve(FromChunks(imitate=False), wrong, world=Riddles(EXPERT), group_size=2)
    assert quiet.fact("expert") == [0.0, 0.0]


def runs(recipe: Recipe, folder: Path, world: Riddles, iterations: int) -> list[tuple[list[float], list[Row]]]:
    """Return the start of each iteration, and its draws."""
    results = []
    with arl.Store.open(folder, sync="never") as store:
        for _ in range(iterations):
            recorder = RecordingEngine(script(near_the_end))
            collect = arl.Collector(recorder, world, recipe, store=store, task_pool=1)
            batch = collect(tasks=1, group_size=2)
            check_sampled(batch, recorder)
            chunks = batch.column("given", "draw")[batch.column("expert", "draw") == 0]
            results.append((chunks.tolist(), [row for row in rows_of(batch) if row.drawn]))
            collect.end_iteration(batch, {})
    return results


def test_a_task_is_rolled_back_while_it_is_learned(tmp_path: Path) -> None:
    recipe = recipes.ROME.replace(rollout=FromChunks(kind="rollback", learned=1.0))
    results = runs(recipe, tmp_path, Riddles(EXPERT), 4)
    # K - 1 = 3 chunks are given, then two, after which no rollout succeeds: the third chunk decides.
    assert [chunks for chunks, _ in results] == [[3.0, 3.0], [2.0, 2.0], [2.0, 2.0], [2.0, 2.0]]
    assert [len(draws) for _, draws in results] == [2, 3, 3, 3], "the expert is imitated there"
    program = FromChunks(kind="rollback")
    state = program.initial_state()
    batch = solve(program, near_the_end, world=Riddles(EXPERT), group_size=2).batch
    for num_chunks in (2, 2):  # the batch reports three given chunks, whatever happened meanwhile
        state = program.next(state, IterationRecord(0, batch))
        assert list(state["given"].values()) == [num_chunks]


def test_an_earlier_success_of_the_run_serves_as_the_expert(tmp_path: Path) -> None:
    """A task without a solution starts from its latest success."""
    remaining = [2]

    def speak(context: str, request: Request) -> str:
        del request
        if "look" not in context.split("riddle?")[1]:
            return "look"
        remaining[0] -= 1
        return RIGHT if remaining[0] >= 0 else WRONG

    recipe = recipes.ROME.replace(rollout=FromChunks(anchors=2, imitate=False))
    with arl.Store.open(tmp_path, sync="never") as store:
        for iteration in range(2):
            recorder = RecordingEngine(script(speak))
            collect = arl.Collector(recorder, Riddles(()), recipe, store=store, task_pool=1)
            batch = collect(tasks=1, group_size=2)
            check_sampled(batch, recorder)
            assert batch.column("given", "draw").tolist() == [[0.0, 0.0], [0.0, 1.0]][iteration]
            collect.end_iteration(batch, {})
    first, second = (row for row in rows_of(batch) if row.drawn)
    assert [action for action in first.actions if action] == ["look", WRONG]
    assert [action for action in second.actions if action] == ["look", WRONG]
    assert (first.trained, second.trained) == ("look<|im_end|>" + WRONG + "<|im_end|>", WRONG + "<|im_end|>")


@pytest.mark.parametrize("kind", ["parallel", "rollback"])
def test_the_recipe_resumes_and_takes_an_optimizer_step(kind: str) -> None:
    recipe = recipes.ROME.replace(rollout=FromChunks(kind=kind))
    assert check_resumes(recipe, near_the_end, world=Riddles(EXPERT)) >= 2
    assert step(recipe, solve(recipe, near_the_end, world=Riddles(EXPERT), tasks=2).batch) >= 1
