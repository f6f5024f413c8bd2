"""Stores written by older versions stay readable. Their files are never rewritten."""

from __future__ import annotations

import shutil
from pathlib import Path

import polars as pl
import pytest
from forests import frames, grow, same
from golden import expected_columns
from golden_facts import FACTS, ROLES, answer_of, facts_of, grown

from agentrl_core import Store
from agentrl_core.exceptions import InvalidInputError

V1 = Path(__file__).parent / "v1"
V2 = Path(__file__).parent / "v2"


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
                # In that version, the flag of a truncated trajectory's last step was not derived from its status.
                ids = ("trajectory_id", "first_node_id", "node_id", "origin_trajectory_id", "truncated")
                steps, again = (frames(each)["steps"].drop(*ids) for each in (batch, fresh))
                assert steps.equals(again, null_equal=True)
            nodes += len(fresh.nodes)
        draws = pl.DataFrame(store.batch(2).draws).tail(2)
        assert draws["trajectory_id"].to_list() == [1, 0]
        assert draws["reason"].to_list() == ["golden", "golden"]
        assert len(store.nodes) == nodes + len(grow(3, groups=1, members=2, turns=2, iteration=3)[0].nodes)
        assert store.verify() == []


def test_a_store_of_format_v1_can_be_continued(tmp_path: Path) -> None:
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
        writes = pl.DataFrame(store.write_log)
        assert writes["sequence"].to_list() == list(range(1, 32))


def test_columns_added_later_have_defaults_in_a_store_of_format_v1(tmp_path: Path) -> None:
    shutil.copytree(V1, tmp_path / "run")
    with Store.open(tmp_path / "run") as store:
        first = store.batch(0)
        assert set(first.column("trained", "draw")) == {1}
        assert set(pl.DataFrame(first.trajectories)["role"]) == {0}
        assert first.facts == {}
        assert len(store.metrics) == 0
        with pytest.raises(InvalidInputError, match=r"the batch has facts .*, but the store has \{\} since"):
            store.append(store.rebase(grown(3)), iteration=3)
        batch = store.rebase(grow(3, groups=1, members=2, turns=2, iteration=3)[0])
        store.append(batch, iteration=3)
        store.close_iteration(batch, {"metrics": {"loss": 0.5}})
        assert pl.DataFrame(store.metrics).rows() == [(3, "loss", 0.5)]
        assert same(store.batch(0), first)
    for table, column in (("draws", "trained"), ("trajectories", "role"), ("steps", "reward")):
        rows = pl.scan_ipc(tmp_path / "run" / table / "*.arrow").collect()
        assert rows.height == len(getattr(Store.open(tmp_path / "run", read_only=True), table))
        assert column == "reward" or rows[column].null_count() == 0


@pytest.mark.parametrize("compacted", [False, True])
def test_the_store_of_format_v2_is_read(tmp_path: Path, compacted: bool) -> None:
    shutil.copytree(V2, tmp_path / "run")
    if compacted:
        with Store.open(tmp_path / "run") as store:
            assert store.compact() > 0
    with Store.open(tmp_path / "run", read_only=True) as store:
        assert store.iteration == 2
        for iteration in range(2):
            batch = store.batch(iteration)
            assert batch.facts == FACTS
            trajectories = pl.DataFrame(batch.trajectories).filter(iteration=iteration)
            assert [("member", "baseline", "helper")[code] for code in trajectories["role"]] == list(ROLES)
            missing = {"answer": None, "calls": None}
            expected_facts = [missing | answer_of(iteration, member) for member in range(4)]
            assert trajectories["facts"].to_list() == expected_facts
            missing = {"flawed": None, "tool": None}
            expected_facts = [missing | facts_of(iteration, member, turn) for member in range(4) for turn in range(2)]
            steps = pl.DataFrame(batch.steps).join(trajectories, on="trajectory_id", how="semi", maintain_order="left")
            assert steps["facts"].to_list() == expected_facts
            assert batch.column("advantage", "draw").tolist() == expected_columns(iteration, batch)["advantage"]
        assert batch.column("trained", "draw").tolist() == [1, 0, 1, 0]
        assert pl.DataFrame(store.metrics).rows() == [
            (0, "loss", 0.0),
            (0, "collect.draws", 3.0),
            (1, "loss", 0.5),
            (1, "collect.draws", 4.0),
        ]
        assert store.verify() == []
    assert (
        pl.scan_ipc(tmp_path / "run" / "steps" / "*.arrow")
        .select(pl.col("facts").struct.field("flawed").count())
        .collect()
        .item()
        == 12
    )
