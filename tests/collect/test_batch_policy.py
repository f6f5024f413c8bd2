"""Batches that are cut while groups are in flight: members, staleness, and no loss after a kill."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import cutting
import numpy as np
import polars as pl
import pytest
from cutting import CUTS, ITERATIONS, LONG, SEED, SIZE, TASKS, Uneven, trained, turns
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_core import Batch, Collector, Forest, Schedule, Store, recipes
from agentrl_core.collect import BatchPolicy
from agentrl_core.collect.rollout_log import CARRIED, DIGEST_BYTES
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.rollout import EarlyStop

KILLS = 17
Key = tuple[int, int]


def keys_of_seeds(most: int = 16) -> dict[int, tuple[Key, int]]:
    """Map the first seed of each trajectory to its group and member."""
    forest, keys = Forest(seed=SEED), {}
    for number, key in enumerate((began, place) for began in range(30) for place in range(most)):
        forest.add_group(number, "task", key=key)
        for member in range(SIZE):
            keys[forest.segment_seed(forest.start(number, member))] = key, member
    return keys


KNOWN = keys_of_seeds()


def paths(batch: Batch) -> dict[tuple[Key, int], list[int]]:
    """Return the tokens sampled by each drawn trajectory, by group and member."""
    nodes = pl.DataFrame(batch.nodes).filter(pl.col("policy_version").is_not_null())
    rows = {row["node_id"]: row for row in pl.DataFrame(batch.nodes).iter_rows(named=True)}
    assert len(nodes)
    leaves = dict(pl.DataFrame(batch.trajectories).select("trajectory_id", "leaf_node_id").iter_rows())
    tokens_by_name: dict[tuple[Key, int], list[int]] = {}
    for trajectory in batch.column("trajectory_id", "draw").tolist():
        path, node = [], leaves[trajectory]
        while node is not None and node >= 0:
            path.append(rows[node])
            node = rows[node]["parent_id"]
        sampled_rows = [row for row in reversed(path) if row["policy_version"] is not None]
        name = KNOWN[sampled_rows[0]["seed"]]
        assert name not in tokens_by_name, "twice in one batch"
        tokens_by_name[name] = [token for row in sampled_rows for token in row["tokens"]]
    return tokens_by_name


def long_ones(batch: Batch) -> int:
    return sum(turns(task) == LONG for task in batch.texts("task_id", "draw"))


def ages(batches: list[Batch]) -> dict[bool, list[int]]:
    """Return how many iterations each group was in flight before its batch: for long groups, and for others."""
    by_length: dict[bool, list[int]] = {True: [], False: []}
    for iteration, batch in enumerate(batches):
        tasks = dict(zip(paths(batch), batch.texts("task_id", "draw"), strict=True))
        for (began, _), task in {key: task for (key, _), task in tasks.items()}.items():
            by_length[turns(task) == LONG].append(iteration - began)
    return by_length


def test_who_ends_first_is_biased_and_who_begins_first_is_not() -> None:
    """In order of arrival, long episodes come later than others; none is lost or duplicated."""
    count = 24
    in_order = trained(Uneven(), BatchPolicy(), until=count)
    by_length = ages(in_order)
    assert by_length[True]
    assert set(by_length[True] + by_length[False]) == {0}
    # Three standard deviations of the number of long episodes, which are drawn by groups with chance 1 / 8.
    spread = 3 * SIZE * np.sqrt(count * TASKS / LONG * (1 - 1 / LONG))
    assert abs(sum(map(long_ones, in_order)) - count * TASKS * SIZE / LONG) <= spread
    arrived = trained(Uneven(seconds=0.002), BatchPolicy(oversample=2.0), until=count)
    by_length = ages(arrived)
    assert by_length[True]
    assert np.mean(by_length[True]) > np.mean(by_length[False]), "they wait, and are older"
    assert long_ones(arrived[0]) < TASKS * SIZE / 2 <= arrived[0].num_draws
    names = [name for batch in arrived for name in paths(batch)]
    assert len(names) == len(set(names)) == count * TASKS * SIZE
    dropped = trained(
        Uneven(seconds=0.002), BatchPolicy(oversample=2.0, max_carryovers=0, stragglers="drop"), until=count
    )
    assert sum(map(long_ones, dropped)) == 0, "where the late ones are dropped they never come"


@settings(max_examples=25, deadline=None)
@given(
    begun=st.floats(1.0, 3.0),
    carried=st.integers(0, 4),
    late=st.sampled_from(["wait", "drop"]),
    staleness=st.integers(0, 2),
)
def test_no_draw_is_older_than_the_bounds(begun: float, carried: int, late: Any, staleness: int) -> None:
    """min policy version of iteration i >= i - staleness - carried; stragglers are awaited or dropped."""
    policy = BatchPolicy(oversample=begun, max_carryovers=carried, stragglers=late)
    batches = trained(Uneven(), policy, staleness=staleness)
    names = [name for batch in batches for name in paths(batch)]
    assert len(names) == len(set(names))
    for iteration, batch in enumerate(batches):
        versions = pl.DataFrame(batch.nodes)["policy_version"].drop_nulls()
        assert versions.min() >= iteration - staleness - carried  # type: ignore[operator]
        assert versions.max() <= iteration  # type: ignore[operator]
        groups = {key for key, _ in paths(batch)}
        assert all(iteration - began <= carried for began, _ in groups)
        assert len(groups) >= TASKS
        assert len(groups) == TASKS or late == "wait"


def test_each_iteration_continues_trajectories_by_at_most_a_token_window() -> None:
    """Each iteration takes at most *n* tokens of a trajectory; each draw continues the previous one."""
    batches = trained(Uneven(), BatchPolicy(max_new_tokens=8))
    known: dict[tuple[Key, int], list[int]] = {}
    unfinished = 0
    for iteration, batch in enumerate(batches):
        assert batch.num_draws == TASKS * SIZE, "the number of those in flight is the same"
        trajectories = paths(batch)
        for name, tokens in trajectories.items():
            before = known.get(name, [])
            assert tokens[: len(before)] == before
            assert 0 < len(tokens) - len(before) <= 8
        known |= trajectories
        success, status = batch.column("success", "draw"), pl.DataFrame(batch.trajectories)["status"].to_list()
        unfinished += int(np.isnan(success.astype(float)).sum())
        assert np.isfinite(batch.column("score", "draw")).all()
        assert set(status) <= {0, 1}
        versions = batch.column("policy_version", "token")
        assert (versions == iteration).sum() == sum(len(tokens) for tokens in trajectories.values()) - sum(
            len(tokens) for tokens in before_of(trajectories, batches[:iteration]).values()
        )
    assert unfinished > 0
    by_iteration = trained(Uneven(), BatchPolicy())
    for name, tokens in paths(by_iteration[0]).items():
        assert known[name] == tokens[: len(known[name])], "as if nothing had been cut"


def before_of(trajectories: dict[Any, list[int]], batches: list[Batch]) -> dict[Any, list[int]]:
    """Return the tokens of each trajectory in the previous batch."""
    last = paths(batches[-1]) if batches else {}
    return {name: last.get(name, []) for name in trajectories}


def test_a_window_counts_no_attempt_before_the_end(tmp_path: Path) -> None:
    with Store.open(tmp_path, sync="never") as store:
        batches = trained(Uneven(), BatchPolicy(max_new_tokens=8), store)
        ended = sum(int(np.isfinite(batch.column("success", "draw").astype(float)).sum()) for batch in batches)
        tasks = pl.DataFrame(store.tasks).unique("task_id", keep="last")
        assert tasks["attempts"].sum() == ended > 0
        for iteration in range(ITERATIONS):
            again = store.batch(iteration)
            assert paths(again) == paths(batches[iteration])
        assert store.verify() == []


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="processes are killed as on Unix")
@pytest.mark.parametrize(
    ("name", "staleness"), [("arrival", 0), ("arrival", 1), ("bound", 1), ("drop", 0), ("window", 0), ("window", 1)]
)
def test_kills_lose_nothing_and_do_nothing_twice(tmp_path: Path, name: str, staleness: int) -> None:
    command = [sys.executable, cutting.__file__, str(tmp_path), name, str(staleness)]
    rng = random.Random(f"{name} {staleness}")
    kills = 0
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for number in range(KILLS + 1):
            process.stdin.write(f"{rng.randint(1, 6) if number < KILLS else 0}\n")
            process.stdin.flush()
            status = process.stdout.readline().split()
            kills += status == ["died", str(int(signal.SIGKILL))]
        assert status == ["died", "0"]
        process.stdin.close()
    assert kills == KILLS
    requests = Counter((tmp_path / "asked").read_text(encoding="ascii").split())
    assert sum(requests.values()) - len(requests) <= kills, (
        "what was sampled is asked again only where a kill cut its answer off"
    )
    with Store.open(tmp_path / "run", sync="never") as store:
        assert store.iteration == ITERATIONS
        assert store.verify() == []
        batches = [store.batch(iteration) for iteration in range(ITERATIONS)]
        records = dict(store.rollout_log(ITERATIONS).records())
    flight = json.loads(records[CARRIED.encode()][DIGEST_BYTES:])
    if name == "window":
        for batch, other in zip(batches, trained(Uneven(), CUTS[name], staleness=staleness), strict=True):
            assert paths(batch) == paths(other)
        return
    in_batches = Counter(key for batch in batches for key, _ in paths(batch))
    assert set(in_batches.values()) == {SIZE}, "each group once, and whole"
    aloft = {(began, place) for began, place in flight["keys"]}
    assert not aloft & in_batches.keys()
    stopped = {
        KNOWN[seed][0]
        for batch in batches
        for seed in pl.DataFrame(batch.nodes)["seed"].drop_nulls().to_list()
        if seed in KNOWN
    } - in_batches.keys()
    assert bool(stopped) == (name == "drop")
    started = aloft | stopped | in_batches.keys()
    for began in range(ITERATIONS):
        places = {place for key, place in started if key == began}
        assert places == set(range(len(places))), "no task is skipped"


def test_invalid_or_unsupported_batch_policies_are_refused() -> None:
    world = Uneven()
    for wrong, message in (
        ({"oversample": 0.5}, "oversample=0.5; give a finite number of at least 1"),
        ({"max_new_tokens": 0}, "max_new_tokens=0; give a whole number of at least 1, or None"),
        ({"max_carryovers": -1}, "max_carryovers=-1; give a whole number of at least 0, or None"),
        ({"max_new_tokens": 4, "max_carryovers": 1}, "max_carryovers=1 has no effect with max_new_tokens"),
        ({"stragglers": "never"}, "stragglers='never'; give 'wait' or 'drop'"),
        ({"stragglers": "drop"}, "stragglers='drop' needs max_carryovers, but it is None; give a whole number"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            BatchPolicy(**wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match=r"batch_policy=2; give a collect\.BatchPolicy"):
        Collector(world, world, recipes.GRPO, batch_policy=2)  # type: ignore[arg-type]
    policy = BatchPolicy(oversample=2.0)
    with pytest.raises(InvalidInputError, match=r"EarlyStop.* decides over all groups"):
        Collector(world, world, recipes.GRPO.replace(rollout=EarlyStop()), batch_policy=policy)
    with pytest.raises(InvalidInputError, match="context_tokens is a Schedule"):
        Collector(world, world, recipes.GRPO, batch_policy=policy, context_tokens=Schedule(8, 16, iterations=2))
    world.replayable = False  # type: ignore[attr-defined]
    with pytest.raises(InvalidInputError, match="replayable=False"):
        Collector(world, world, recipes.GRPO, batch_policy=policy)
    Collector(world, world, recipes.GRPO, batch_policy=BatchPolicy())


def test_an_evaluation_has_no_window() -> None:
    # Five of the tasks have episodes of 8 turns of 3 tokens each; a batch takes at most 8 tokens of a trajectory.
    world = Uneven()
    collect = Collector(world, world, recipes.GRPO, task_pool=40, batch_policy=BatchPolicy(max_new_tokens=8))
    evaluation = collect.evaluate(tasks=40, split="train")
    assert evaluation.samples.tolist() == [1] * 40
    assert evaluation.success == 1.0
