"""Rollouts of several processes equal those of one, and each is counted once."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from small_world import SmallWorld
from worker_processes import WorkerProcess

import agentrl_core as arl
from agentrl_core import Batch, Collector, recipes, replay
from agentrl_core.collect import BatchPolicy
from agentrl_core.exceptions import AgentRLWarning, DataError, EngineError, InvalidInputError, RecipeError
from agentrl_core.recipe import Recipe
from agentrl_core.rollout import Cohort, Group, Rollout

TABLES = ("nodes", "steps", "trajectories", "draws", "tasks", "decisions")
CLOCK = ("time", "seconds", "created", "latency", "duration")


def rows(source: Any) -> dict[str, pl.DataFrame]:
    """Return the tables of a batch or a store, without times."""
    tables = {}
    for name in TABLES:
        table = pl.DataFrame(getattr(source, name))
        tables[name] = table.select([column for column in table.columns if not any(word in column for word in CLOCK)])
    return tables


def assert_equal(one: Any, other: Any) -> None:
    expected, actual = rows(one), rows(other)
    assert any(len(table) for table in expected.values())
    for name in TABLES:
        assert expected[name].equals(actual[name]), name


class Sent:
    """A worker in this process: its inputs and results are pickled, as for another process."""

    def __init__(self, world: SmallWorld | None = None, recipe: Recipe = recipes.GRPO, **options: Any) -> None:
        self.world = SmallWorld() if world is None else world
        self.collector = Collector(self.world, self.world, recipe, **options)
        self.orders: list[Any] = []

    def __call__(self, order: Any) -> Batch:
        self.orders.append(order)
        batch: Batch = pickle.loads(pickle.dumps(self.collector.roll_out(pickle.loads(pickle.dumps(order)))))
        return batch


def writer(workers: Any, recipe: Recipe = recipes.GRPO, **options: Any) -> Collector:
    world = SmallWorld()
    return Collector(world, world, recipe, rollout_workers=workers, **{"task_pool": 64, "seed": 3, **options})


def run(collector: Collector, iterations: int, **size: int) -> Iterator[Batch]:
    for _ in range(iterations):
        batch = collector(**{"tasks": 8, "group_size": 4, **size})
        yield batch
        collector.end_iteration(collector.recipe.credit(batch), {})


@pytest.fixture
def processes() -> Iterator[list[WorkerProcess]]:
    started = [WorkerProcess("dapo") for _ in range(4)]
    yield started
    for each in started:
        each.close()


def test_four_rollout_workers_store_the_same_run_as_one_process(processes: list[WorkerProcess], tmp_path: Path) -> None:
    def train(collector: Collector) -> list[Batch]:
        batches = []
        # Groups with equal rewards are replaced, in further rounds; one worker dies in the second iteration.
        for iteration, batch in enumerate(run(collector, 3, tasks=6, group_size=2)):
            batches.append(batch)
            if collector.store is stores[1]:
                for each in processes:
                    each.version = iteration + 1
                if iteration == 0:
                    processes[2].kill()
            (world,) = collector.engines.values()
            world.update_weights(None, iteration + 1)  # type: ignore[arg-type]
        return batches

    stores = [arl.Store.open(tmp_path / name, sync="never") for name in ("one", "four")]
    alone = train(writer(None, recipes.DAPO, store=stores[0]))
    with pytest.warns(AgentRLWarning, match=r"worker 2 failed \(\w+: .*its groups go to the next worker"):
        together = train(writer(processes, recipes.DAPO, store=stores[1]))
    for one, other in zip(alone, together, strict=True):
        assert_equal(one, other)
        assert one.state == other.state
    assert_equal(*stores)
    assert all(each.orders > 3 for each in processes), "no iteration had a second round"
    trajectories = pl.DataFrame(stores[1].trajectories)
    latest = arl.scan(stores[1]).latest_tasks.collect()
    assert latest["attempts"].sum() == len(trajectories)
    assert trajectories.select("task_id", "group_id").unique().get_column("group_id").is_unique().all()
    assert not stores[1].verify()
    metrics = [pl.DataFrame(store.metrics).filter(pl.col("name").str.starts_with("tokens.")) for store in stores]
    assert len(metrics[0]) > 6
    assert metrics[0].equals(metrics[1])
    for store in stores:
        store.close()


def test_tasks_and_seeds_of_workers_are_disjoint() -> None:
    workers = [Sent(), Sent(), Sent()]
    (batch,) = run(writer(workers), 1, tasks=7)
    sizes = [[len(order.chosen) for order in each.orders] for each in workers]
    assert sizes == [[3], [2], [2]]
    tasks = [task.task_id for each in workers for order in each.orders for _, task in order.chosen]
    assert len(set(tasks)) == 7
    seeds = pl.DataFrame(batch.nodes)["seed"].drop_nulls()
    assert len(seeds) == 7 * 4 * 2
    assert seeds.is_unique().all()
    first = pl.DataFrame(batch.trajectories)
    assert first["task_id"].unique(maintain_order=True).to_list() == tasks, "the parts are not in the order of places"


def test_workers_without_groups_get_no_order() -> None:
    workers = [Sent(), Sent(), Sent()]
    (batch,) = run(writer(workers), 1, tasks=2)
    assert [len(each.orders) for each in workers] == [1, 1, 0]
    assert batch.num_groups == 2


def test_a_worker_uses_sampling_seed_and_limits_of_the_writer() -> None:
    (alone,) = run(writer(None, turn_limit=1), 1)
    (other,) = run(writer([Sent(seed=8, turn_limit=5)], turn_limit=1), 1)
    assert_equal(alone, other)
    assert set(pl.DataFrame(alone.steps)["step"]) == {0}


class Reads(Rollout):
    """Records its reads of the run."""

    async def group(self, group: Group) -> None:
        solved = group.library.solved()
        known = dict(group.statistics)
        READ.append((group.task.task_id, len(solved), known.get("attempts", 0), known.get("uses", 0)))
        await super().group(group)


READ: list[tuple[Any, ...]] = []


def test_programs_read_store_and_statistics_of_the_run(tmp_path: Path) -> None:
    recipe = recipes.GRPO.replace(rollout=Reads())
    runs = []
    for name, workers in (("one", None), ("two", [Sent(recipe=recipe), Sent(recipe=recipe)])):
        READ.clear()
        with arl.Store.open(tmp_path / name, sync="never") as store:
            list(run(writer(workers, recipe, store=store, task_pool=8), 2))
        runs.append(sorted(READ))
    assert runs[0] == runs[1]
    assert any(solved for _, solved, _, _ in runs[0])
    assert {attempts for _, _, attempts, _ in runs[0]} == {0, 4}


def test_a_resumed_writer_requests_only_the_missing_parts(tmp_path: Path) -> None:
    workers = [Sent(), Sent()]
    done = threading.Event()

    def first(order: Any) -> Batch:
        batch = workers[0](order)
        done.set()
        return batch

    def killed(order: Any) -> Batch:
        del order
        done.wait(60)
        raise DataError("a stand-in for a kill of the writer")

    with arl.Store.open(tmp_path, sync="never") as store, pytest.raises(DataError):
        # The first part arrives before the error of the second, and is written to the rollout log.
        next(run(writer([first, lambda order: (workers[1](order), killed(order))[1]], store=store), 1))
    (alone,) = run(writer(None), 1)
    with arl.Store.open(tmp_path, sync="never") as store:
        (resumed,) = run(writer(workers, store=store), 1)
    assert [len(each.orders) for each in workers] == [1, 2]
    assert_equal(alone, resumed)


def test_staleness_is_bounded() -> None:
    late = Sent()
    collector = writer([late])
    collector.engines["policy"].update_weights(None, 2)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match=r"weights of version 0, and iteration 0 may be sampled by version 2"):
        collector(tasks=2, group_size=2)
    late.world.update_weights(None, 2)
    assert collector(tasks=2, group_size=2).num_draws == 4


class Served(SmallWorld):
    """An engine whose servers get their weights from another process."""

    def refresh(self) -> None:
        self.policy_version = 4


def test_an_engine_of_servers_reads_their_version() -> None:
    collector = writer([Sent(Served())])
    collector.engines["policy"].update_weights(None, 4)  # type: ignore[arg-type]
    batch = collector(tasks=2, group_size=2)
    assert set(batch.column("policy_version", "token").tolist()) == {4}


def test_iterations_ahead_go_to_workers_in_order() -> None:
    workers = [Sent(), Sent()]
    collector = writer(workers, staleness=2)
    for iteration, batch in enumerate(run(collector, 4)):
        versions = batch.column("policy_version", "node_token")
        versions = versions[versions >= 0]
        assert len(versions)
        assert versions.min() >= iteration - 2
        collector.engines["policy"].update_weights(None, iteration + 1)  # type: ignore[arg-type]
        for each in workers:
            each.world.update_weights(None, iteration + 1)
    collector.close()
    for each in workers:
        assert [order.iteration for order in each.orders][:4] == [0, 1, 2, 3]


class Breaks(Rollout):
    """Fails on some tasks."""

    async def group(self, group: Group) -> None:
        if group.task.task_id in BROKEN:
            raise KeyError("of the program")
        await super().group(group)


BROKEN: set[str] = set()


@pytest.mark.parametrize(("share", "fails"), [(1, False), (2, True)])
def test_failed_groups_are_judged_over_all_workers(share: int, fails: bool) -> None:
    recipe = recipes.GRPO.replace(rollout=Breaks())
    BROKEN.clear()
    workers = [Sent(recipe=recipe) for _ in range(4)]
    (first,) = run(writer([Sent(recipe=recipe) for _ in range(4)], recipe), 1)
    tasks = pl.DataFrame(first.trajectories)["task_id"].unique(maintain_order=True).to_list()
    # One failed group is half of a part of two groups, and an eighth of the whole selection.
    BROKEN.update(tasks[:: 8 // share][:share])
    collector = writer(workers, recipe)
    if fails:
        with (
            pytest.warns(AgentRLWarning, match="is left out"),
            pytest.raises(
                EngineError, match=r"2 of 8 groups of iteration 0 failed in the workers \(the first with Key"
            ),
        ):
            next(run(collector, 1))
    else:
        with pytest.warns(AgentRLWarning, match="is left out"):
            (batch,) = run(collector, 1)
        assert batch.num_groups == 7
    BROKEN.clear()


class Speaks(Rollout):
    """Starts a branch of an agent without an engine; the task decides which."""

    async def group(self, group: Group) -> None:
        number = int(group.task.task_id.split()[1])
        await group.run([group.start(agent=("solver", "judge")[number % 2])])


def test_agents_with_different_numbers_are_refused() -> None:
    recipe = recipes.GRPO.replace(rollout=Speaks())
    with pytest.raises(
        InvalidInputError,
        match=r"workers gave agents different numbers \(\{'\w+': \d+.*, then \{'.*; give each agent an",
    ):
        next(run(writer([Sent(recipe=recipe) for _ in range(8)], recipe), 1))


def test_a_dead_worker_is_replaced_until_none_is_left() -> None:
    def dead(order: Any) -> Batch:
        del order
        raise EOFError("the pipe is closed")

    (alone,) = run(writer(None), 1)
    with pytest.warns(AgentRLWarning, match=r"worker 0 failed \(EOFError: the pipe is closed\)"):
        (other,) = run(writer([dead, Sent()]), 1)
    assert_equal(alone, other)
    with (
        pytest.warns(AgentRLWarning, match=r"worker \d failed"),
        pytest.raises(
            EngineError, match=r"none of 2 rollout workers rolled out the groups from number \d .*EOFError: "
        ),
    ):
        next(run(writer([dead, dead]), 1))


def test_results_of_an_interrupted_call_are_not_used_by_the_next_call() -> None:
    worker, goes_on = Sent(), threading.Event()

    def slow(order: Any) -> Batch:
        goes_on.wait(60)
        return worker(order)

    class InterruptError(Exception):
        pass

    def interrupt(progress: Any) -> None:
        if not goes_on.is_set():
            raise InterruptError(str(progress))

    collector = writer([slow], progress=interrupt)
    with pytest.raises(InterruptError, match="0 running"):
        collector(tasks=8, group_size=4)
    goes_on.set()
    # The worker is still busy with the order of the first call, whose size differs.
    (alone,) = run(writer(None), 1, tasks=3)
    with pytest.warns(AgentRLWarning, match="recorded answers were not used after the resume"):
        (again,) = run(collector, 1, tasks=3)
    assert_equal(alone, again)
    assert [len(order.chosen) for order in worker.orders] in ([8, 3], [3])


def test_progress_adds_up_over_workers() -> None:
    reports: list[tuple[int, int]] = []

    def note(progress: Any) -> None:
        reports.append((progress.ended, progress.turns))

    list(run(writer([Sent(), Sent(), Sent()], progress=note), 1))
    assert reports[-1] == (8 * 4, 8 * 4 * 2)


class Together(Rollout):
    """Plans over all groups."""

    async def cohort(self, groups: Cohort) -> None:
        await groups.run()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: writer([]), InvalidInputError, r"rollout_workers=\[\]; give a list with a function for each worker"),
        (lambda: writer([3]), InvalidInputError, r"rollout_workers\[0\]=3 is not a function"),
        (
            lambda: writer([Sent()], recipes.GRPO.replace(rollout=Together())),
            RecipeError,
            "plans over all groups of a selection",
        ),
        (lambda: writer([Sent()], batch_policy=BatchPolicy(oversample=2.0)), InvalidInputError, "carries groups over"),
        (
            lambda: next(run(writer([lambda order: order]), 1)),
            InvalidInputError,
            "was not made for the order that it received",
        ),
        (lambda: next(run(writer([Sent(recipe=recipes.DAPO)]), 1)), InvalidInputError, "recipe of the writer has"),
        (lambda: Sent().collector.roll_out(3), InvalidInputError, r"order=3; give the object"),  # type: ignore[arg-type]
    ],
)
def test_invalid_workers_options_and_orders_are_refused(
    make: Callable[[], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make()


def test_an_environment_of_another_name_is_refused() -> None:
    world = SmallWorld()
    worker = Collector(world, {"rooms": world}, recipes.GRPO)
    with pytest.raises(InvalidInputError, match=r"environment 'world' of the order is unknown .* which has 'rooms'"):
        next(run(writer([worker.roll_out]), 1))


def test_replay_runs_in_the_writer(tmp_path: Path) -> None:
    recipe = recipes.GRPO.replace(replay=replay.Mix(replay.Memory(), count=2, old_logprob="none"))
    runs = []
    there = recipe.replace(replay=None)
    for name, workers in (("one", None), ("two", [Sent(recipe=there), Sent(recipe=there)])):
        with arl.Store.open(tmp_path / name, sync="never") as store:
            runs.append(list(run(writer(workers, recipe, store=store), 3)))
    for one, other in zip(*runs, strict=True):
        assert_equal(one, other)
    assert np.unique(runs[1][2].column("source", "draw")).size == 2
