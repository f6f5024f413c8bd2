"""CORY: pairs by hand, the change of roles, and both policies' tokens."""

from __future__ import annotations

import polars as pl
from riddles import RIGHT, WRONG, Riddles, check_resumes, script, solve, step
from sampled import RecordingEngine, check_sampled

import agentrl_core as arl
from agentrl_core import recipes
from agentrl_core.engine import Request
from agentrl_core.recipes.cory import PioneerObserver


def observers_know(context: str, request: Request) -> str:
    """Return an answer: pioneers are right or wrong by their seeds; observers give the other answer."""
    if "Another answer" in context:
        return WRONG if RIGHT in context else RIGHT
    return RIGHT if request.seed % 2 else WRONG


def test_both_of_a_pair_get_the_sum() -> None:
    run = solve(recipes.CORY, observers_know, group_size=4)
    assert len(run.drawn) == 8
    pairs, observers = run.fact("pair"), run.fact("observer")
    assert sorted(zip(pairs, observers, strict=True)) == [(pair, side) for pair in range(4) for side in (0, 1)]
    # One of each pair is right, either one: 1 + 0 for both.
    assert run.fact("reward").count(1.0) == 4
    assert run.fact("score") == [1.0] * 8
    trajectories = pl.DataFrame(run.batch.trajectories)
    parents = dict(zip(trajectories["trajectory_id"], trajectories["parent_trajectory"], strict=True))
    for row, side in zip(run.batch.column("trajectory_id", "draw").tolist(), observers, strict=True):
        assert (parents[row] is None) == (side == 0)
    for row, side in zip(run.rows, observers, strict=True):
        assert ("Another answer:" in row.prompt) == (side == 1)
        assert "Another" not in row.trained, "the pioneer's answer is prompt"


def test_each_agent_samples_from_its_own_engine_and_roles_swap() -> None:
    engines = {name: RecordingEngine(script(observers_know)) for name in ("first", "second")}
    world = Riddles()
    batch = arl.Collector(engines, world, recipes.CORY, task_pool=4)(tasks=1, group_size=2)
    assert check_sampled(batch, *engines.values()) > 0
    assert [len(engine.exchanges) for engine in engines.values()] == [2, 2]
    assert sorted(batch.keys("agent", "draw").tolist()) == [0, 0, 1, 1]
    assert [PioneerObserver(swap_every=2).roles(iteration)[0] for iteration in range(5)] == [
        "first",
        "first",
        "second",
        "second",
        "first",
    ]


def test_the_recipe_resumes_and_takes_optimizer_steps() -> None:
    assert check_resumes(recipes.CORY, observers_know) >= 2
    engines = {name: script(observers_know) for name in ("first", "second")}
    batch = arl.Collector(engines, Riddles(), recipes.CORY, task_pool=4)(tasks=1, group_size=2)
    # Ratios to the tiny model, under which the script is unlikely; without whitening, which makes equal advantages 0.
    tokens = int(batch.offsets("node_token")[-1])
    batch = batch.with_columns("node_token", value=[-100.0] * tokens)
    for policy in recipes.CORY.loss[2:]:  # for either copy
        recipe = recipes.CORY.replace(advantage=recipes.CORY.advantage[0], loss=policy, old_logprob="recomputed")
        assert step(recipe, batch) == 4
