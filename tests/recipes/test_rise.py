"""RISE: which solutions are rated, and the reward of a rating, by hand."""

from __future__ import annotations

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st
from riddles import RIGHT, WRONG, check_resumes, solve, step

from agentrl_core import recipes
from agentrl_core.engine import Request
from agentrl_core.recipes.rise import SelfVerification


def speak(context: str, request: Request) -> str:
    """Return solutions by their seeds; a rating is 1, 0 or none, in the order of the seeds."""
    if "A solution:" in context:
        return ("it is \\boxed{1}", "it is \\boxed{0}", "who knows")[request.seed % 3]
    return RIGHT if request.seed % 2 else WRONG


def test_ratings_are_rewarded_by_the_scores_of_the_solutions() -> None:
    program = SelfVerification(verifications=5)
    run = solve(program, speak, tasks=2, group_size=3)
    # 2 groups of 3 solutions; 5 of them are rated 3 times each: 3 of the first group, 2 of the second.
    assert run.num_requests == 6 + 5 * 3
    assert sum(run.fact("verifies")) == 15
    scores = dict(zip(run.batch.column("trajectory_id", "draw").tolist(), run.fact("reward"), strict=True))
    trajectories = pl.DataFrame(run.batch.trajectories)
    parents = dict(zip(trajectories["trajectory_id"], trajectories["parent_trajectory"], strict=True))
    cases = set()
    for row, verifies in zip(scores, run.fact("verifies"), strict=True):
        if verifies:
            reply = run.rows[row].actions[0]
            truth = scores[parents[row]]
            rating = {"it is \\boxed{1}": 1.0, "it is \\boxed{0}": 0.0}.get(reply)
            assert scores[row] == (-1.0 if rating is None else 1.0 if rating == truth else -0.5)
            cases.add((reply, scores[row]))
    assert len(cases) >= 4, "each case comes up"
    groups = run.batch.keys("group_id", "draw").tolist()
    assert len(set(groups)) == 2 + 5, "each verification task is a group"
    rated = sorted(parents[row] for row, verifies in zip(scores, run.fact("verifies"), strict=True) if verifies)
    assert len(set(rated)) == 5


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 7), st.integers(1, 3), st.integers(1, 3), st.integers(0, 1000))
def test_no_more_than_v_are_rated(verifications: int, tasks: int, size: int, seed: int) -> None:
    run = solve(SelfVerification(verifications=verifications), speak, tasks=tasks, group_size=size, seed=seed)
    assert sum(run.fact("verifies")) <= verifications * size
    assert sum(run.fact("verifies")) == size * sum(
        min(quota, size) for quota in SelfVerification(verifications=verifications).quotas(tasks)
    )


def test_the_recipe_resumes_and_takes_optimizer_steps() -> None:
    recipe = recipes.RISE.replace(rollout=SelfVerification(verifications=2))
    assert check_resumes(recipe, speak, group_size=2) >= 2
    batch = solve(recipe, speak, group_size=2).batch
    tokens = int(batch.offsets("node_token")[-1])
    assert step(recipe.replace(loss=recipe.loss[1]), batch.with_columns("node_token", value=[-100.0] * tokens)) >= 1
