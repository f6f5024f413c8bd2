"""Commands print equal numbers for groups carried over, rejected, partial, replayed and dropped."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from cutting import CUTS, Uneven, trained

from agentrl_core import Batch, Forest, Store, scan
from agentrl_core.cli import main
from agentrl_core.view.iteration_statistics import rollout_counts, statistics


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a terminal in which no cell is empty or cut."""
    monkeypatch.setenv("COLUMNS", "400")


def groups_of_two(store: Store, iteration: int, groups: int) -> Batch:
    """Return groups of two: member 0 solves its task, member 1 has unknown success; actions have 1 + group tokens."""
    forest = Forest(iteration=iteration)
    for group in range(groups):
        forest.add_group(group, f"task {group}")
        for member in range(2):
            path = forest.start(group, member)
            forest.append(path, [1, 2, 3], kind="prompt")
            forest.append(path, [4 + member] * (1 + group), kind="action", logprobs=[-0.5] * (1 + group))
            forest.step(path, reward=0.0)
            forest.finish(path, reward=float(member == 0), success=True if member == 0 else None)
    return store.rebase(forest.freeze())


def first_groups(batch: Batch, count: int) -> Batch:
    groups = np.unique(batch.keys("group_id", "draw"), return_inverse=True)[1]
    return batch.select_draws(np.flatnonzero(groups < count))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Run iterations: 0 rejects one of three groups, 1 rejects all, 2 is empty, 3 replays, 4 is open."""
    with Store.open(tmp_path / "run", sync="never") as store:
        for iteration, batch in enumerate(
            (first_groups(groups_of_two(store, 0, 3), 2), first_groups(groups_of_two(store, 1, 2), 0))
        ):
            store.append(store.rebase(batch), iteration=iteration)
            store.close_iteration(batch, {"metrics": {"loss": 0.5}})
            if iteration == 0:
                store.flush()
        nothing = store.rebase(Forest(iteration=2).freeze())
        store.append(nothing, iteration=2)
        store.close_iteration(nothing, {"metrics": {"loss": 0.5}})
        store.append(first_groups(groups_of_two(store, 3, 1), 0), iteration=3, partial=True)
        store.flush()
        batch = Batch.concat([groups_of_two(store, 3, 1), store.trajectory_batch([0, 4])]).with_draws(
            [0, 4], source="replay"
        )
        store.append(batch, iteration=3)
        store.close_iteration(batch, {"metrics": {"loss": 0.5}})
        store.append(groups_of_two(store, 4, 1), iteration=4)
    return tmp_path / "run"


def printed(capsys: pytest.CaptureFixture[str], command: str, run: Path) -> dict[int, dict[str, str]]:
    """Return the rows of a table by iteration, printed in a pipe."""
    capsys.readouterr()
    assert main([command, str(run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = lines[0].split()
    rows = [re.split(r"\s{2,}", line.strip()) for line in lines[1:] if line[:1] == " "]
    return {int(row[0]): dict(zip(names, row, strict=True)) for row in rows}


def test_counts_of_drawn_and_left_out_trajectories(run) -> None:
    expected = {
        "iteration": [0, 1, 2, 3, 4],
        "groups": [3, 2, 0, 2, 1],
        "trajectories": [6, 4, 0, 4, 2],
        "left_out": [1, 4, 0, 2, 0],  # trajectory 4 of iteration 0 was rejected then, and drawn in iteration 3
        "draws": [4, 0, 0, 4, 2],
        "success": [1.0, 1.0, None, 1.0, 1.0],  # of known outcomes: members 1 do not count
        "reward": [0.5, 0.5, None, 0.5, 0.5],
    }
    assert rollout_counts(scan(run)).to_dict(as_series=False) == expected
    stats = statistics(scan(run))
    assert stats.select(*expected).to_dict(as_series=False) == expected
    assert stats["drawn_groups"].to_list() == [2, 0, 0, 3, 1]
    assert stats["drawn_reward"].to_list() == [0.5, None, None, 0.75, 0.5]


def test_commands_print_equal_numbers(run, capsys) -> None:
    listed, stats = printed(capsys, "ls", run), printed(capsys, "stats", run)
    assert listed.keys() == stats.keys() == {0, 1, 2, 3, 4}
    common = [name for name in listed[0] if name in stats[0]]
    assert common == ["iteration", "groups", "trajectories", "left_out", "draws", "success", "reward"]
    assert [[row[name] for name in common] for row in listed.values()] == [
        [row[name] for name in common] for row in stats.values()
    ]
    # tokens of actions: 2 (1 + 2 + 3), 2 (1 + 2), none, 2 + 2, 2
    assert [row["generated"] for row in listed.values()] == ["12", "6", "0", "4", "2"]
    main(["ls", str(run)])
    assert "4 iterations closed, 8 groups, 16 trajectories, 24 tokens generated" in capsys.readouterr().out
    main(["ls", str(run.parent)])
    assert capsys.readouterr().out.splitlines()[1].split()[2:5] == ["4", "1.000", "1.000"]
    assert main(["compare", str(run), str(run)]) == 0
    assert main(["watch", str(run), "--once"]) == 0
    assert main(["view", str(run), "-o", str(run.parent / "page.html")]) == 0


def test_dropped_iterations_are_not_counted(run, capsys) -> None:
    with Store.open(run, sync="never") as store:
        store.drop_before(3, rewrite=True)
    assert rollout_counts(scan(run))["iteration"].to_list() == [0, 3, 4]  # 0 was replayed
    assert printed(capsys, "ls", run).keys() == printed(capsys, "stats", run).keys()


@pytest.mark.parametrize("cut", CUTS)
def test_ls_and_stats_agree_on_runs_with_groups_in_flight(tmp_path, capsys, cut) -> None:
    """Trajectories that a window cuts have no success, and draws a column of that name."""
    with Store.open(tmp_path / "run", sync="never") as store:
        batches = trained(Uneven(), CUTS[cut], store)
    listed, stats = printed(capsys, "ls", tmp_path / "run"), printed(capsys, "stats", tmp_path / "run")
    assert [int(row["draws"]) for row in listed.values()] == [batch.num_draws for batch in batches]
    for name in ("groups", "trajectories", "draws", "success", "reward"):
        assert [row[name] for row in listed.values()] == [row[name] for row in stats.values()]
    success = scan(tmp_path / "run").metrics.filter(pl.col("name") == "success").collect()["value"].to_list()
    assert [float(row["success"]) for row in stats.values()] == pytest.approx(success, abs=5.1e-4)
