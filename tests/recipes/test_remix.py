"""ReMix and delayed M2PO: values by iteration, and runs that train stored groups."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hand_made import tiny_model
from small_world import SmallWorld

import agentrl_core as arl
from agentrl_core import Collector, Store
from agentrl_core.loss import KL, Policy
from agentrl_core.recipe import Recipe
from agentrl_core.recipes.m2po import M2PO_DELAYED
from agentrl_core.recipes.remix import REMIX
from agentrl_core.replay import Memory, Mix


def test_coefficients_and_replay_follow_the_schedule() -> None:
    """lambda by its formula in every iteration: the divergences share 1e-3."""
    assert Recipe.from_toml(REMIX.to_toml()) == REMIX
    for iteration in range(130):
        now = REMIX.at(iteration)
        share = max(1.0 - 0.1 * math.ceil(max(iteration - 50, 0) / 10), 0.5)
        loss = now.loss
        assert isinstance(loss, Policy)
        assert isinstance(loss.kl, KL)
        assert loss.kl.coefficient == pytest.approx(1e-3 * share)
        drift = 0.0 if loss.drift is None else loss.drift.coefficient
        assert drift == pytest.approx(1e-3 * (1.0 - share), abs=1e-15)
        assert (now.replay is None) == (iteration > 50), "stored data is drawn until the policy is born again"


def run(tmp_path: Path, recipe: Recipe, iterations: int) -> list[list[int]]:
    """Return the iterations in which the trained groups were rolled out, for each iteration."""
    world = SmallWorld()
    policy = tiny_model("qwen3", torch.float32)
    optimizer = torch.optim.SGD(policy.parameters(), lr=1e-2)
    ages = []
    with Store.open(tmp_path / "run") as store:
        for _ in range(iterations):
            collect = Collector(world, world, recipe, store=store, seed=2, task_pool=3)  # a new process each time
            batch = collect(tasks=3, group_size=4)
            for column in ("reference_logprob", "proximal_logprob") if recipe.models else ():
                batch = arl.annotate(batch, column, policy)
            batch = recipe.credit(batch)
            table = store.trajectories
            rolled = dict(zip(table.column("trajectory_id"), table.column("iteration"), strict=True))
            ids, groups = batch.column("trajectory_id", "draw"), batch.column("group_id", "draw")
            first = np.unique(groups, return_index=True)[1]
            ages.append(sorted(int(rolled[ids[row]]) for row in first))
            for update in recipe.updates(batch, models={"policy": policy, "reference": policy}):
                for pack in update.pack(max_tokens=256):
                    update.loss(pack.run(policy), pack).backward()
                update.step(optimizer)
            collect.end_iteration(batch, {})
        assert store.verify() == []
    return ages


def test_two_fifths_are_of_the_last_two_iterations(tmp_path: Path) -> None:
    """Of 3 fresh groups share / (1 - share) * 3 = 2 stored ones join, from the last two iterations."""
    ages = run(tmp_path, REMIX, 4)
    assert ages[0] == [0, 0, 0]
    for iteration, iteration_ages in enumerate(ages):
        assert iteration_ages.count(iteration) == 3
        stored = [age for age in iteration_ages if age < iteration]
        assert len(stored) == (2 if iteration else 0)
        assert all(iteration - 2 <= age for age in stored)


def test_a_batch_waits_for_its_time(tmp_path: Path) -> None:
    """With a delay of two iterations instead of 64, iteration k trains exactly the rollouts of k - 2."""
    replay = M2PO_DELAYED.replay
    assert isinstance(replay, Mix)
    assert (replay.memory.min_age, replay.memory.max_age) == (64, 64)
    short = Mix(Memory(min_age=2, max_age=2, unit="group", order="oldest"), share=1.0, replaces=True)
    assert run(tmp_path, M2PO_DELAYED.replace(replay=short), 5) == [[0] * 3, [1] * 3, [0] * 3, [1] * 3, [2] * 3]
