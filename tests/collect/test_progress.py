"""Counts during a collection, and the metrics derived from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from small_world import SmallWorld

import agentrl_core as arl
from agentrl_core import recipes, rollout
from agentrl_core.cli import main
from agentrl_core.collect import Progress
from agentrl_core.rollout import Branch, Group


def last(collect: arl.Collector, **sizes: int) -> Progress:
    """Return the final counts."""
    reports: list[Progress] = []
    collect.progress = reports.append
    collect(**sizes)
    return reports[-1]


class Forking(rollout.Rollout):
    """One branch, a fork of it before its second turn, and a third that rolls back once."""

    async def group(self, group: Group) -> None:
        first, third = group.start_many(2)
        turn = await first.turn()
        second = first.fork(turn.end)
        await group.run([first, second, third], self.once_back)

    async def once_back(self, branch: Branch) -> None:
        turn = await branch.turn()
        if branch.key == (0, 1):
            branch.rollback(turn.begin)
        while not branch.over:
            await branch.turn()


def test_sharing_is_tokens_of_paths_over_tokens_stored() -> None:
    """A prompt of three tokens, two turns of four, and an answer of two tokens between them: 13 of each path."""
    world = SmallWorld()
    progress = last(arl.Collector(world, world, recipes.GRPO, task_pool=4), tasks=2, group_size=4)
    assert (progress.path_tokens, progress.stored_tokens) == (2 * 4 * 13, 2 * (3 + 4 * 10))
    assert progress.sharing == pytest.approx(104 / 86)
    assert (progress.running, progress.ended, progress.failed) == (0, 8, 0)
    assert (progress.turns, progress.tokens) == (16, 64)
    assert str(progress).endswith("8 ended, sharing 1.21")


def test_forks_and_rollbacks_share() -> None:
    """First: 3 + 10. Its fork after 9 tokens: 9 shared, 4 more. Third: prompt shared, 6; back to it: 3 shared, 10."""
    world = SmallWorld()
    recipe = recipes.GRPO.replace(rollout=Forking())
    collect = arl.Collector(world, world, recipe, task_pool=4)
    reports: list[Progress] = []
    collect.progress = reports.append
    batch = collect(tasks=1, group_size=2)
    progress = reports[-1]
    assert progress.stored_tokens == 13 + 4 + 6 + 10
    assert progress.path_tokens == 13 + 13 + 3 + 6 + 3 + 10
    stored = int(pl.DataFrame(batch.nodes)["tokens"].list.len().sum())
    assert stored == progress.stored_tokens, "as the tables have it"
    assert (progress.running, progress.ended) == (0, 3)


def test_a_run_without_anything_shares_nothing() -> None:
    assert Progress().sharing == 1.0
    assert "sharing" not in str(Progress())


def test_success_of_domains_is_a_row_of_the_metrics_and_a_column_of_stats(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world, expected = SmallWorld(), []
    with arl.Store.open(tmp_path / "run") as store:
        collect = arl.Collector(world, world, recipes.GRPO, store=store, task_pool=8)
        received: list[Any] = []
        collect.on_iteration(lambda _, metrics: received.append(metrics))
        for _ in range(2):
            batch = collect(tasks=4, group_size=3)
            tasks, solved = batch.texts("task_id", "draw"), np.asarray(batch.column("success", "draw"))
            odd = np.array([int(task.split()[1]) % 2 for task in tasks], bool)
            success_rates = {"success": solved.mean()}
            success_rates |= {
                f"success@{name}": solved[of].mean() for name, of in (("even", ~odd), ("odd", odd)) if of.any()
            }
            expected.append(success_rates)
            collect.end_iteration(recipes.GRPO.credit(batch), {"loss": 0.5})
        rows = pl.DataFrame(store.metrics)
        assert len(rows) == sum(len(each) for each in expected) + 2 * 13
        for iteration, each in enumerate(expected):
            assert {name: received[iteration][name] for name in each} == pytest.approx(each)
            here = dict(rows.filter(iteration=iteration).select("name", "value").iter_rows())
            assert {name: here[name] for name in each} == pytest.approx(each)
        assert any(len(each) == 3 for each in expected), "both domains were seen"
    assert main(["stats", str(tmp_path / "run")]) == 0
    printed = capsys.readouterr().out
    assert "success@even" in printed
    assert "success@odd" in printed
