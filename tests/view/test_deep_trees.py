"""Deep trees: the page and the statistics equal those of paths written out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from forests import grow

import agentrl_core as arl
from agentrl_core import scan
from agentrl_core.data.table_codes import UNTRAINED
from agentrl_core.view import Page
from agentrl_core.view.blocks import _inherited, _own_steps
from agentrl_core.view.iteration_statistics import statistics


def comb(turns: int, ways: int, iteration: int = 0) -> arl.Batch:
    """Return a long branch with *n* forks at each turn; some branches skip their beginning, some are not trained."""
    forest = arl.Forest(iteration=iteration)
    forest.add_group(0, "a deep task")
    trunk = forest.start(0, 0)
    forest.append(trunk, [1, 2, 3], kind="prompt")
    ended = [trunk]
    for turn in range(turns):
        forks = [forest.fork(trunk, train_prefix=way % 2 == 0) for way in range(ways - 1)]
        for way, path in enumerate((trunk, *forks)):
            forest.append(path, [turn, way], kind="action", logprobs=[-0.5, -0.25], policy_version=turn % 3)
            forest.step(path, reward=float(way))
        ended += forks
    for number, path in enumerate(ended):
        forest.finish(path, reward=float(number % 2))
    return forest.freeze()


def stored(folder: Path, batches: list[arl.Batch]) -> Path:
    with arl.Store.open(folder) as store:
        for iteration, batch in enumerate(batches):
            rebased = store.rebase(batch)
            store.append(rebased, iteration=iteration)
            store.close_iteration(rebased, {})
    return folder


def written_out(run: Path) -> pl.DataFrame:
    """Return length, generated tokens, staleness and sharing of each iteration, by the nodes of every path."""
    tables = scan(run)
    nodes = tables.draws.select("iteration", "draw_id", "trajectory_id").agentrl.nodes(tables).collect()
    action, known = pl.col("kind") == "action", pl.col("policy_version").is_not_null()
    age = ((pl.col("iteration") - pl.col("policy_version")) * pl.col("end")).sum()
    draws = pl.col("draw_id").n_unique()
    distinct = nodes.unique(["iteration", "node_id"]).with_columns(
        values=pl.col("entropies").cast(pl.List(pl.Float64)).list.drop_nulls()
    )
    sizes = distinct.group_by("iteration").agg(
        entropy=pl.col("values").list.sum().sum() / pl.col("values").list.len().sum().replace(0, None),
        stored=pl.col("tokens").list.len().sum(),
    )
    sums = nodes.group_by("iteration").agg(
        length=pl.col("end").sum() / draws,
        action_length=pl.col("end").filter(action).sum() / draws,
        staleness=age / pl.col("end").filter(known).sum().replace(0, None),
        tokens=pl.col("end").sum(),
    )
    joined = sums.join(sizes, on="iteration").with_columns(sharing=pl.col("tokens") / pl.col("stored"))
    return joined.select("iteration", "entropy", "action_length", "length", "sharing", "staleness").sort("iteration")


@pytest.mark.parametrize("seed", range(6))
def test_statistics_are_those_of_paths_written_out(tmp_path: Path, seed: int) -> None:
    """Forks in the middle of nodes, several groups and iterations, tokens without a version."""
    run = stored(tmp_path, [grow(seed, turns=6)[0], comb(7, 3, 1), grow(seed + 50, members=5, iteration=2)[0]])
    stats = statistics(scan(run)).select(written_out(run).columns)
    for name in stats.columns:
        mine, other = (frame[name].cast(pl.Float64).to_numpy() for frame in (stats, written_out(run)))
        np.testing.assert_allclose(mine, other, rtol=1e-6, err_msg=name)
    assert len(stats) == 3


@pytest.mark.parametrize("seed", range(6))
def test_the_steps_of_a_page_are_those_of_the_run(tmp_path: Path, seed: int) -> None:
    """A branch has the first steps of its parent, and so on up; whatever it leaves untrained is its own."""
    tables = scan(stored(tmp_path, [comb(9, 4), grow(seed, turns=8, iteration=1)[0]]))
    trajectories = tables.trajectories.with_columns(block=pl.lit(0))
    shared = _inherited(trajectories, tables.steps)
    steps_by_trajectory: dict[int, list[dict[str, object]]] = {}
    for row in _own_steps(tables.steps, shared).collect().sort("trajectory_id", "step").iter_rows(named=True):
        steps_by_trajectory.setdefault(row["trajectory_id"], []).append(row)
    counts = {row["trajectory_id"]: row for row in shared.iter_rows(named=True)}
    parents = dict(trajectories.select("trajectory_id", "parent_trajectory").collect().iter_rows())

    def steps_of(trajectory: int) -> list[dict[str, object]]:
        about = counts.get(trajectory, {})
        count = about.get("inherited") or 0
        if not count:
            return steps_by_trajectory.get(trajectory, [])
        above = [{**row, "trajectory_id": trajectory} for row in steps_of(parents[trajectory])[:count]]
        for number, row in enumerate(above):
            assert isinstance(row["flags"], int)
            row["flags"] = row["flags"] & ~UNTRAINED | UNTRAINED * (number < about["inherited_untrained"])
        return above + steps_by_trajectory.get(trajectory, [])

    expected = tables.steps.collect().sort("trajectory_id", "step")
    steps = [row for trajectory in parents for row in steps_of(trajectory)]
    steps.sort(key=lambda row: (row["trajectory_id"], row["step"]))
    assert pl.DataFrame(steps, schema=expected.schema).equals(expected, null_equal=True)
    assert sum(map(len, steps_by_trajectory.values())) < 0.7 * len(expected)


def test_a_page_has_each_step_of_a_deep_tree_once(tmp_path: Path) -> None:
    """Nodes and steps of the page grow like the tree; those of the store like depth times branches."""
    for turns in (10, 40):
        run = stored(tmp_path / str(turns), [comb(turns, 10)])
        tables = scan(run)
        nodes = tables.nodes.select(pl.len()).collect().item()
        trajectories = tables.trajectories.with_columns(block=pl.lit(0))
        step_count = _own_steps(tables.steps, _inherited(trajectories, tables.steps)).select(pl.len()).collect().item()
        assert step_count == nodes - 1 == 10 * turns
    assert tables.steps.select(pl.len()).collect().item() > 15 * step_count


def test_the_browser_shows_the_turns_that_a_branch_inherits(browser, tmp_path: Path) -> None:
    run = stored(tmp_path / "run", [comb(6, 3)])
    page = Page.of(arl.Store.open(run, read_only=True)).save(tmp_path / "page.html")
    tables = scan(run)
    steps = tables.steps.collect()
    for trajectory in tables.trajectories.select("trajectory_id").collect()["trajectory_id"]:
        browser.open(page, f"#g0/t{trajectory}")
        browser.until("document.querySelectorAll('.part').length > 0")
        mine = steps.filter(trajectory_id=trajectory)
        assert browser.do("document.querySelectorAll('.part.action').length") == len(mine)
        assert browser.errors == []
