"""SPEAR: the burst by hand, and a run in which a separate pass trains stored rollouts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from hand_made import tiny_model
from replayed import grow, keep, scored
from small_world import SmallWorld

from agentrl_core import Batch, Collector, Store
from agentrl_core.env import ExtraColumn, StepResult, Task
from agentrl_core.recipes.spear import FRESH, SPEAR, STORED, RecalibratedBurst
from agentrl_core.replay.base import draw_reasons


def closed(store: Store, iteration: int, scores: list[float], tools: list[float]) -> object:
    """Return a group whose advantages are its scores minus their mean."""
    advantage = (np.array(scores) - np.mean(scores)).tolist()
    return keep(store, grow(iteration, {"t": scores}), advantage=advantage, tool_calls=tools)


def test_a_burst_by_hand(tmp_path: Path) -> None:
    """Means of groups 5/4 and 3/2, their median 11/8. Kept: R = 3, 2, 2, 2 (1 is not above; one used no tool)."""
    burst = RecalibratedBurst(size=2, coefficient=0.5)
    with Store.open(tmp_path / "run") as store:
        assert burst.mix(burst.initial_state(), grow(0, {"t": [1.0]}), 0) is None, "nothing is remembered"
        state = burst.next(burst.initial_state(), closed(store, 0, [0.0, 1.0, 1.0, 3.0], [1, 1, 0, 2]))  # type: ignore[arg-type]
        assert state["means"].tolist() == [1.25]
        assert state["memory"]["trajectory_id"].tolist() == [3], "-1/4 is no positive advantage"
        fresh = grow(1, {"t": [2.0, 2.0, 2.0, 0.0]})
        assert burst.mix(state, fresh, 0) is None, "one is not more than 1.5 times 2"
        state = burst.next(state, closed(store, 1, [2.0, 2.0, 2.0, 0.0], [1, 1, 1, 1]))  # type: ignore[arg-type]
        batch = grow(2, {"t": [1.0, 0.0]})
        drawn_ids = set()
        for key in range(60):
            draws = burst.mix(state, batch, key)
            assert draws is not None
            assert len(draws) == 2, "4 is a power of two of 4, and the buffer holds 2"
            drawn_ids |= set(draws.trajectory_ids.tolist())
            scores = {3: 3.0, 4: 2.0, 5: 2.0, 6: 2.0}
            expected = [0.5 * (scores[row] - 1.375) for row in draws.trajectory_ids.tolist()]
            assert draws.columns["recalibrated"].tolist() == expected
            assert draws.probability is not None
            assert draws.probability.tolist() == [0.5, 0.5]
        assert drawn_ids == {3, 4, 5, 6}
        assert RecalibratedBurst(size=3).mix(state, batch, 0) is None, "4 is not more than 4.5"
        joined = scored(batch.with_stored_draws(store.trajectory_batch(np.unique(draws.trajectory_ids)), draws))
        assert joined.column("votes", "draw").tolist() == [1, 1, 0, 0]
        advantages = SPEAR.replace(reward=SPEAR.chain("reward")[0], weight=None).credit(joined)
        # Fresh: 1 and 0 minus their mean 1/2.
        assert advantages.column("advantage", "draw").tolist() == [0.5, -0.5, *draws.columns["recalibrated"].tolist()]
        metrics = keep(store, joined, advantage=[0.5, -0.5, 1.0, 1.0], tool_calls=[1, 1, 1, 1])
    after = burst.next(state, metrics)
    assert after["memory"]["trajectory_id"].tolist() == [8], "what was there is forgotten, its own success comes"
    assert after["means"].tolist() == [1.25, 1.5, 0.5], "stored rollouts are in no mean"


def test_old_means_go_iteration_by_iteration(tmp_path: Path) -> None:
    """There is room for two: if 1 and 2 are remembered, iteration 0 is removed before 3 is added."""
    burst = RecalibratedBurst(baseline=2)
    state = burst.initial_state()
    with Store.open(tmp_path / "run") as store:
        for iteration, score in enumerate([1.0, 2.0, 3.0, 4.0]):
            state = burst.next(state, closed(store, iteration, [score, score], [0, 0]))  # type: ignore[arg-type]
            assert state["means"].tolist() == [[1.0], [1.0, 2.0], [1.0, 2.0, 3.0], [2.0, 3.0, 4.0]][iteration]


class Tools(SmallWorld):
    """Reports the number of tool calls, and pays half of the members."""

    facts = {"tool_calls": ExtraColumn("trajectory")}  # noqa: RUF012 - as an author writes it

    def __init__(self) -> None:
        super().__init__(self.outcome)

    def outcome(self, task: Task, seed: int, actions: list[str]) -> StepResult:
        del task, actions
        return StepResult(reward=float(seed % 2), terminated=True, success=bool(seed % 2), facts={"tool_calls": 2.0})


def test_a_run_trains_bursts_in_a_separate_pass(tmp_path: Path) -> None:
    world = Tools()
    recipe = SPEAR.replace(replay=RecalibratedBurst(size=2))
    policy = tiny_model("qwen3", torch.float32)
    optimizer = torch.optim.SGD(policy.parameters(), lr=1e-2)
    bursts = []
    with Store.open(tmp_path / "run") as store:
        for iteration in range(4):
            collect = Collector(world, world, recipe, store=store, seed=1, task_pool=2)  # a new process each time
            assert collect.iteration == iteration
            batch = recipe.credit(collect(tasks=2, group_size=4))
            stored = STORED.holds(batch)
            bursts.append(int(stored.sum()))
            passes = []
            updates = recipe.updates(batch)
            for update in updates:
                passes.append(set(stored[update.draws].tolist()))
                for pack in update.pack(max_tokens=256):
                    update.loss(pack.run(policy), pack).backward()
                optimizer.step()
                optimizer.zero_grad()
            assert passes == [{False}, {True}] if stored.any() else [{False}]
            advantages = np.asarray(batch.column("advantage", "draw"))
            assert (advantages[stored] > 0).all()
            assert (~stored == FRESH.holds(batch)).all()
            reasons = [reason for reason in draw_reasons(batch) if reason]
            assert len(reasons) == stored.sum()
            assert all("better than the median of the groups" in reason for reason in reasons)
            collect.end_iteration(batch, updates.metrics)
        assert store.verify() == []
    assert bursts[0] == 0
    assert max(bursts) == 2, "there was a burst"


def test_the_values_of_the_recipe_change_with_the_iteration() -> None:
    """The tool bonus is 0.1 and imitation 0 at first, half of each after 100 of 200 iterations, finally 0 and 1."""
    for iteration, bonus, imitation in ((0, 0.1, 0.0), (100, 0.05, 0.5), (200, 0.0, 1.0)):
        now = SPEAR.at(iteration)
        assert abs(now.chain("reward")[1].coefficient - bonus) < 1e-12  # type: ignore[attr-defined]
        assert abs(now.chain("replay")[0].coefficient - imitation) < 1e-12  # type: ignore[attr-defined]
    assert isinstance(SPEAR.chain("replay")[0], RecalibratedBurst)


def test_a_batch_without_stored_draws_has_no_stored_advantage() -> None:
    batch = grow(0, {"t": [1.0, 0.0]})
    assert isinstance(batch, Batch)
    credited = SPEAR.replace(reward=SPEAR.chain("reward")[0], weight=None).credit(batch)
    assert credited.column("advantage", "draw").tolist() == [0.5, -0.5]
