"""Baselines vote and are not trained, helpers are kept and not drawn: by hand, from the forest to the denominators."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from agentrl_core import Batch, Forest, Store, loss
from agentrl_core.advantage import GroupRelative
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.recipe import Recipe


def rollouts(roles: list[str], *, length: int = 2) -> Batch:
    """Return one group: member k was paid k, and its role is the k-th."""
    forest = Forest()
    forest.add_group(0, "task")
    for member, role in enumerate(roles):
        trajectory = forest.start(0, member, role=role)
        forest.append(trajectory, [1, 2], kind="prompt")
        tokens = [3 + member] * (length + member)
        forest.append(trajectory, tokens, kind="action", logprobs=[-1.0] * len(tokens), policy_version=0)
        forest.finish(trajectory, reward=float(member), success=member > 1)
    return forest.freeze()


ROLES = ["member", "baseline", "helper", "member"]


def test_the_tables_hold_the_role_of_each_trajectory() -> None:
    batch = rollouts(ROLES)
    assert pl.DataFrame(batch.trajectories)["role"].to_list() == [0, 1, 2, 0]
    draws = pl.DataFrame(batch.draws)
    assert draws["trajectory_id"].to_list() == [0, 1, 3]
    assert draws["trained"].to_list() == [1, 0, 1]
    assert batch.column("trained", "draw").tolist() == [1, 0, 1]
    assert batch.column("trainable", "token").tolist() == [1, 1, 0, 0, 0, 1, 1, 1, 1, 1]


def test_a_baseline_votes_and_dilutes_nothing() -> None:
    recipe = Recipe(name="mine", advantage=GroupRelative(scale="none"), loss=loss.Policy(aggregate="sequence_mean"))
    batch = recipe.credit(rollouts(ROLES))
    # The mean of the three scores 0, 1 and 3.
    np.testing.assert_allclose(batch.column("advantage", "draw"), np.array([0.0, 1.0, 3.0]) - 4.0 / 3.0, rtol=1e-6)
    for denominator in ("token_mean", "sequence_mean", "turn_mean", "step_mean", "episode_mean"):
        alone = recipe.credit(rollouts(ROLES)).select_draws([0, 2]).token_weights([0, 1], denominator=denominator)
        weights = batch.token_weights([0, 1, 2], denominator=denominator)
        np.testing.assert_array_equal(weights[[0, 1, *range(5, 10)]], alone)
        assert weights[2:5].tolist() == [0.0] * 3
        assert weights.sum() == pytest.approx(1.0)
    weights = batch.token_weights([0, 1, 2], denominator="constant", constant=10.0)
    assert weights.tolist() == [1 / 20] * 2 + [0.0] * 3 + [1 / 20] * 5


def test_a_baseline_is_in_no_minibatch_and_no_pack() -> None:
    recipe = Recipe(name="mine", advantage=GroupRelative(), loss=loss.Policy(), minibatches=2)
    batch = recipe.credit(rollouts(ROLES))
    updates = list(recipe.updates(batch))
    assert sorted(draw for update in updates for draw in update.draws.tolist()) == [0, 2]
    assert all(len(update.draws) == 1 for update in updates)
    plan = batch.plan([0, 1, 2], 64)
    trained = np.concatenate([plan.pack(place).token for place in range(len(plan))])
    assert sorted(trained.tolist()) == [0, 1, 5, 6, 7, 8, 9]
    only = recipe.credit(rollouts(["baseline", "baseline"]))
    assert len(recipe.updates(only)) == 0
    assert only.token_weights([0, 1]).sum() == 0.0


def test_forks_have_the_role_of_their_parent() -> None:
    forest = Forest()
    forest.add_group(0, "task")
    trunk = forest.start(0, 0, role="baseline")
    forest.append(trunk, [1], kind="prompt")
    branch = forest.fork(trunk)
    for trajectory in (trunk, branch):
        forest.append(trajectory, [2], kind="action", logprobs=[-1.0])
        forest.finish(trajectory)
    assert rollouts(["member"]).column("trained", "draw").tolist() == [1]
    assert forest.freeze().column("trained", "draw").tolist() == [0, 0]
    with pytest.raises(InvalidInputError, match='role is "judge"; use "member", "baseline" or "helper"'):
        forest.start(0, 1, role="judge")


def test_a_baseline_stays_untrained_if_it_is_drawn_again_or_adopted(tmp_path: Path) -> None:
    batch = rollouts(ROLES)
    again = batch.with_draws([1, 0, 2])
    assert again.column("trained", "draw").tolist() == [1, 0, 1, 0, 1, 1]
    with Store.open(tmp_path / "run") as store:
        store.append(store.rebase(batch), iteration=0)
        store.close_iteration(store.batch(0), {})
        forest = Forest(iteration=1)
        forest.add_group(0, "task")
        for trajectory in range(2):
            forest.adopt(0, store.batch(0), trajectory, source="replay")
        adopted = forest.freeze()
        assert adopted.column("trained", "draw").tolist() == [1, 0]
        assert store.batch(0).column("trained", "draw").tolist() == [1, 0, 1]
        assert store.verify() == []


def test_only_members_are_attempts_at_a_task() -> None:
    changed, _ = rollouts(ROLES)._core.advance_tasks(Batch.concat([])._core, {})
    tasks = pl.DataFrame(Batch(changed).tasks)
    assert tasks.select("attempts", "successes").rows() == [(2, 1)]
