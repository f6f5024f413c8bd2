"""ARPO-GUI: the rule by hand, and a run from rollouts to optimizer steps that trains stored successes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from hand_made import tiny_model
from replayed import grow, keep, scored
from small_world import SmallWorld

import agentrl_core as arl
from agentrl_core import Collector, Store
from agentrl_core.component import IterationRecord
from agentrl_core.env import StepResult, Task
from agentrl_core.recipes.arpo_gui import ARPO_GUI
from agentrl_core.replay import Inject
from agentrl_core.replay.base import draw_reasons
from agentrl_core.select import DynamicSampling


def test_a_stored_success_takes_the_place_of_the_first_member(tmp_path: Path) -> None:
    inject = ARPO_GUI.replay
    assert isinstance(inject, Inject)
    with Store.open(tmp_path / "run") as store:
        # Of iteration 0 trajectories 1 and 2 lie above 0.1.
        state = inject.next(inject.initial_state(), keep(store, grow(0, {"t": [0.05, 1.0, 0.4, 0.0]})))
        assert state["memory"]["trajectory_id"].tolist() == [1, 2]
        failed = grow(1, {"t": [0.0, 0.0, 0.0, 0.0]})
        injected = {int(inject.inject(state, failed, key).trajectory_ids[0]) for key in range(40)}  # type: ignore[union-attr]
        assert injected == {1, 2}, "either, by the key"
        for nearly in ([0.2] * 4, [0.0, 0.0, 0.0, 0.15]):
            # mean 0.2 is not below 0.2; mean 0.0375, but std sqrt(3) / 4 * 0.15 = 0.065 is not below 0.05
            assert inject.inject(state, grow(1, {"t": nearly}), key=0) is None
        draws = inject.inject(
            state, failed, key=next(key for key in range(40) if only(inject, state, failed, key) == 1)
        )
        assert draws is not None
        batch = scored(failed.with_stored_draws(store.trajectory_batch([1]), draws))
    # Scores 1, 0, 0, 0: mean 1/4, sample std 1/2.
    advantages = ARPO_GUI.advantage(batch).column("advantage", "draw")  # type: ignore[operator]
    assert advantages.tolist() == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-4)
    assert batch.column("old_logprob", "draw").tolist() == [1, 0, 0, 0]


def only(inject: Inject, state: dict[str, object], group: arl.Batch, key: int) -> int:
    draws = inject.inject(state, group, key)
    assert draws is not None
    return int(draws.trajectory_ids[0])


class Forgetting(SmallWorld):
    """Solves its tasks in iteration 0 occasionally, and never again."""

    def __init__(self) -> None:
        super().__init__(self.outcome)
        self.forgotten = False

    def outcome(self, task: Task, seed: int, actions: list[str]) -> StepResult:
        del task, actions
        won = not self.forgotten and seed % 2 == 0
        return StepResult(reward=float(won), terminated=True, success=won)


@pytest.mark.parametrize("layout", ["sequence", "tree"])
def test_a_run_trains_stored_successes(tmp_path: Path, layout: str) -> None:
    world = Forgetting()
    # A group that failed is not admitted unless a stored success has joined it before. One optimizer step, at ratio 1.
    reward = ARPO_GUI.chain("reward")[0]
    recipe = ARPO_GUI.replace(reward=reward, admit=DynamicSampling(), minibatches=1)
    policy = tiny_model("qwen3", torch.float32)
    optimizer = torch.optim.SGD(policy.parameters(), lr=1e-2)
    with Store.open(tmp_path / "run") as store:
        for iteration in range(3):
            collect = Collector(world, world, recipe, store=store, seed=3, task_pool=2)  # a new process each time
            assert collect.iteration == iteration
            batch = collect(tasks=2, group_size=4)
            sources = batch.column("source", "draw")
            if iteration:
                groups = batch.keys("group_id", "draw")
                assert len(groups) == 8, "both groups were admitted"
                assert [sources[groups == group].tolist() for group in range(2)] == [[1, 0, 0, 0]] * 2
                assert np.asarray(batch.column("score", "draw"))[sources == 1].tolist() == [1.0, 1.0]
                assert sum(reason is not None for reason in draw_reasons(batch)) == 2
            batch = arl.annotate(batch, "recomputed_logprob", policy)
            batch = recipe.credit(batch)
            before = [parameter.detach().clone() for parameter in policy.parameters()]
            updates = recipe.updates(batch)
            for update in updates:
                for pack in update.pack(max_tokens=64, layout=layout):  # type: ignore[arg-type]
                    update.loss(pack.run(policy), pack).backward()
                optimizer.step()
                optimizer.zero_grad()
            after = [parameter.detach() for parameter in policy.parameters()]
            assert any(not torch.equal(new, old) for new, old in zip(after, before, strict=True))
            assert updates.metrics["ratio"] == pytest.approx(1.0, abs=1e-5), "old log-probs are those of this policy"
            collect.end_iteration(batch, updates.metrics)
            world.forgotten = True
        assert store.verify() == []
        uses = store.arrays["replay[0].Inject/memory/uses"]
        assert uses.sum() == 4, "two in each of two iterations"
        draws = pl.DataFrame(store.draws)
        assert set(draws.filter(pl.col("source") == 1)["old_logprob"]) == {1}
        state = ARPO_GUI.replay.next(ARPO_GUI.replay.initial_state(), IterationRecord.of(store.batch(0)))  # type: ignore[union-attr]
        assert len(state["memory"]["trajectory_id"]), "the first iteration had successes"


def test_tasks_that_the_first_model_never_solves_leave_the_pool(tmp_path: Path) -> None:
    attempts: Counter[str] = Counter()

    def graded(task: Task, seed: int, actions: list[str]) -> StepResult:
        """Task 0 is never solved, task 1 once and never again, task 2 always."""
        del seed, actions
        attempts[task.task_id] += 1
        success = task.task_id == "train 2" or (task.task_id == "train 1" and attempts[task.task_id] == 1)
        return StepResult(reward=float(success), terminated=True, success=success)

    recipe = ARPO_GUI.replace(reward=ARPO_GUI.chain("reward")[0])
    world = SmallWorld(graded)
    with Store.open(tmp_path / "run") as store:
        collect = Collector(world, world, recipe, store=store, seed=2, task_pool=3)
        first = collect(tasks=1, group_size=2)
        assert sum(attempts.values()) == 3 * 16 + 2, "a survey of each task and one group"
        assert first.num_draws == 2, "surveys are not trained"
        collect.end_iteration(first, {})
        for _ in range(2):
            batch = collect(tasks=2, group_size=2)
            assert set(batch.texts("task_id", "draw")) == {"train 1", "train 2"}
            collect.end_iteration(batch, {})
    assert attempts["train 0"] <= 18
