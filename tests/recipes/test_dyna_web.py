"""DynaWeb: a group of dreams, a real trajectory and an expert's, by hand; dreams resume and reach a step."""

from __future__ import annotations

import asyncio

import polars as pl
import pytest
from gallery import Gallery
from nim import Nim
from riddles import RIGHT, WRONG, Riddles, check_resumes, script, solve, step

import agentrl_core as arl
from agentrl_core import recipes
from agentrl_core.data.table_codes import CODES
from agentrl_core.engine import Request
from agentrl_core.exceptions import UnsupportedError
from agentrl_core.recipes.dyna_web import Dreams
from agentrl_core.rollout import WorldModelEnvironment


def dreamt(context: str, request: Request) -> str:
    """Return a page after the first action and a verdict after the second: success iff the last action was even."""
    del request
    acted = context.split("Action:\n")[1:]
    last = acted[-1].split("\n")[0]
    if len(acted) < 2:
        return f"a page about {last}"
    return "<success>" if last == "look 2" else "<failure>" if last == "look 4" else "a long corridor"


def looks(context: str, request: Request) -> str:
    """Return an action by the seed: a look; in the real world, which replies `go on`, an answer."""
    if "go on" in context:
        return RIGHT if request.seed % 2 else WRONG
    return f"look {request.seed % 3 * 2}"


def worlds() -> dict[str, object]:
    return {"real": Riddles(), "imagined": WorldModelEnvironment(Riddles(), script(dreamt))}


def test_a_group_has_dreams_real_trajectories_and_the_experts() -> None:
    program = Dreams(expert=0.25, real=0.25, horizon=3)
    run = solve(recipes.DYNA_WEB.replace(rollout=program), looks, world=worlds(), tasks=2, group_size=12)
    rows = pl.DataFrame(run.batch.trajectories).with_row_index("row")
    origin = [CODES["origin"][code] for code in rows["origin"]]
    assert {"generated", "imagined", "expert"} == set(origin)
    assert run.batch.column("demonstrated", "draw").tolist() == [float(name == "expert") for name in origin]
    for row, name in zip(run.rows, origin, strict=True):
        if name == "expert":
            assert row.actions == ["0123456789", RIGHT]
            assert row.trained, "what the expert did is imitated"
        elif name == "generated":
            assert row.actions[-1] in (RIGHT, WRONG)
        else:
            first, *others = row.actions
            assert f"a page about {first}" in row.text
            assert 1 <= len(others) <= 2
            # By hand: look 2 succeeds, look 4 fails, look 0 continues to the horizon of three steps.
            ended = [action for action in others if action in ("look 2", "look 4")]
            assert len(ended) == (row.status == "finished")
            assert ("a long corridor" in row.text) == (others[0] == "look 0" and len(others) == 2)
            assert row.status == "finished" or others == ["look 0", "look 0"]
    paid = run.batch.column("reward", "draw").tolist()
    for row, reward, name in zip(run.rows, paid, origin, strict=True):
        assert name != "imagined" or reward == float(row.actions[-1] == "look 2" and len(row.actions) > 1)
    steps = pl.DataFrame(run.batch.steps).join(rows.select("trajectory_id", "origin"), on="trajectory_id")
    confident = steps.filter(pl.col("origin") == CODES["origin"].index("imagined"))["facts"].struct.field("confidence")
    assert len(confident) > 8
    assert confident.is_between(0.0, 1.0).all()


def test_a_task_without_an_expert_trajectory_runs_in_the_world_model() -> None:
    program = Dreams(expert=0.5, real=0.0, horizon=3)
    world = {"real": Riddles(()), "imagined": WorldModelEnvironment(Riddles(()), script(dreamt))}
    run = solve(recipes.DYNA_WEB.replace(rollout=program), looks, world=world, tasks=2, group_size=8)
    origins = {CODES["origin"][code] for code in pl.DataFrame(run.batch.trajectories)["origin"]}
    assert origins == {"imagined"}, "no member runs in the real environment if its share is 0"


def test_the_expert_neither_votes_nor_is_clipped() -> None:
    program = Dreams(expert=0.3, horizon=3)
    recipe = recipes.DYNA_WEB.replace(rollout=program)
    batch = recipe.credit(solve(recipe, looks, world=worlds(), tasks=2, group_size=8).batch)
    expert = batch.column("demonstrated", "draw") == 1
    groups, rewards = batch.keys("group_id", "draw"), batch.column("reward", "draw")
    assert 0 < expert.sum() < len(expert)
    offsets, tokens = batch.offsets("step"), batch.offsets("token")
    stream = batch.column("expert", "token")
    advantages = batch.column("advantage", "draw")
    for place in range(len(expert)):
        span = slice(tokens[offsets[place]], tokens[offsets[place + 1]])
        assert set(stream[span].tolist()) == {float(expert[place])}
        group_rewards = rewards[(groups == groups[place]) & ~expert]
        if not expert[place]:
            # GRPO over the dreams alone: the sample standard deviation.
            expected = (rewards[place] - group_rewards.mean()) / (group_rewards.std(ddof=1) + 1e-6)
            assert advantages[place] == pytest.approx(expected, rel=1e-3, abs=1e-5)
        else:
            assert advantages[place] == 0.0


def test_dreams_resume_and_come_to_a_step() -> None:
    recipe = recipes.DYNA_WEB.replace(rollout=Dreams(expert=0.2, real=0.2, horizon=3))
    assert check_resumes(recipe, looks, world=worlds(), tasks=2, group_size=4) >= 2
    batch = solve(recipe, looks, world=worlds(), tasks=2, group_size=6).batch
    assert step(recipe, batch) >= 1


def test_an_imagined_episode_is_restored_from_a_snapshot_or_by_replay() -> None:
    world = WorldModelEnvironment(Riddles(), script(dreamt))
    [task] = Riddles().tasks(1)
    dream = world.reset(task, 5)
    outcomes = [asyncio.run(dream.step(action)) for action in ("look 0", "look 0")]
    assert [outcome.observation for outcome in outcomes] == ["a page about look 0", "a long corridor"]
    by_snapshot = world.restore(task, 5, ["look 0", "look 0"], dream.snapshot())
    again = asyncio.run(world.restore(task, 5, ["look 0", "look 0"], None))
    assert dream.state_key() == by_snapshot.state_key() == again.state_key()
    assert asyncio.run(again.step("look 2")).success is True


def test_environments_that_cannot_be_imagined_are_rejected() -> None:
    for world, message in ((Gallery(), "Gallery shows images"), (Nim(), "of Nim has several agents")):
        with pytest.raises(UnsupportedError, match=message):
            WorldModelEnvironment(world, script(dreamt)).reset(world.tasks(1)[0], 0)


def test_an_unknown_imagined_environment_is_reported() -> None:
    collect = arl.Collector(script(looks), Riddles(), recipes.DYNA_WEB, task_pool=4)
    with pytest.raises(arl.exceptions.InvalidInputError, match="environment='imagined' is unknown to the collector"):
        collect(tasks=1, group_size=8)
