"""Stores that older versions wrote are read for ever. Their files are never written again."""

from __future__ import annotations

import shutil
from pathlib import Path

import polars as pl
import pytest
from forests import frames, grow, same
from golden import expected_columns

from agentrl_core import Store

V1 = Path(__file__).parent / "v1"


@pytest.mark.parametrize("writes", [False, True])
def test_the_store_of_format_v1_is_read(tmp_path: Path, writes: bool) -> None:
    shutil.copytree(V1, tmp_path / "run")
    with Store.open(tmp_path / "run", read_only=not writes) as store:
        assert (store.iteration, store.sequence, store.state) == (3, 7, {"iteration": 2})
        assert [store.has_batch(iteration) for iteration in range(4)] == [True, True, True, False]
        nodes = 0
        for iteration in range(3):
            batch = store.batch(iteration)
            assert batch.column("advantage", "draw").tolist() == expected_columns(iteration, batch)["advantage"]
            assert batch.column("weight", "token").sum() == pytest.approx(1.0)
            fresh, _ = grow(iteration, groups=2, members=2, turns=2, iteration=iteration)
            count = len(fresh.column("token", "token"))
            assert batch.column("token", "token").tolist()[:count] == fresh.column("token", "token").tolist()
            if iteration < 2:
                assert (
                    frames(batch)["steps"]
                    .drop("trajectory_id", "first_node_id", "node_id", "origin_trajectory_id")
                    .equals(
                        frames(fresh)["steps"].drop(
                            "trajectory_id", "first_node_id", "node_id", "origin_trajectory_id"
                        ),
                        null_equal=True,
                    )
                )
            nodes += len(fresh.nodes)
        draws = pl.DataFrame(store.batch(2).draws).tail(2)
        assert draws["trajectory_id"].to_list() == [1, 0]
        assert draws["reason"].to_list() == ["golden", "golden"]
        assert len(store.nodes) == nodes + len(grow(3, groups=1, members=2, turns=2, iteration=3)[0].nodes)
        assert store.verify() == []


def test_a_store_of_format_v1_goes_on(tmp_path: Path) -> None:
    shutil.copytree(V1, tmp_path / "run")
    old = {path.name for path in (tmp_path / "run").rglob("*.arrow")}
    with Store.open(tmp_path / "run", read_only=True) as store:
        before = [store.batch(iteration) for iteration in range(3)]
    with Store.open(tmp_path / "run") as store:
        for iteration in range(3, 15):
            batch = store.rebase(grow(iteration, groups=2, members=2, turns=2, iteration=iteration)[0])
            store.append(batch, iteration=iteration)
            store.close_iteration(batch.with_columns("draw", **expected_columns(iteration, batch)), {"new": iteration})
        store.compact()
    assert not old & {path.name for path in (tmp_path / "run").rglob("*.arrow")}, "all of them were merged"
    with Store.open(tmp_path / "run") as store:
        assert (store.iteration, store.state) == (15, {"new": 14})
        assert store.verify() == []
        for iteration, batch in enumerate(before):
            assert same(store.batch(iteration), batch)
            for name in ("draw_columns", "step_columns"):
                mine, other = getattr(store.batch(iteration), name), getattr(batch, name)
                assert pl.DataFrame(mine).equals(pl.DataFrame(other), null_equal=True)
        journal = pl.DataFrame(store.writes)
        assert journal["sequence"].to_list() == list(range(1, 32))
