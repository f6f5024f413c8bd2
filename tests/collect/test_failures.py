"""Failures are retried, recorded, counted and reported: each line of the table with a real failure."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from failing_world import FailingWorld
from small_world import SmallWorld

import agentrl_core as arl
from agentrl_core import recipes, rollout
from agentrl_core.engine import Request, Segment
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.rollout import Group

STATUS = ("finished", "truncated", "aborted", "pruned", "failed", "partial")
RUNS = ["inline", "thread", "process"]


class Engine(SmallWorld):
    """Fails the first requests for a seed."""

    def __init__(self, times: int = 0) -> None:
        super().__init__()
        self.times = times
        self.requests_by_seed: dict[int, int] = {}

    async def generate(self, request: Request) -> Segment:
        self.requests_by_seed[request.seed] = count = self.requests_by_seed.get(request.seed, 0) + 1
        if count <= self.times:
            raise ConnectionError("the engine is busy")
        return await super().generate(request)


def collector(world: FailingWorld, program: Any = None, engine: Any = None, **options: Any) -> arl.Collector:
    recipe = recipes.GRPO if program is None else recipes.GRPO.replace(rollout=program)
    return arl.Collector(Engine() if engine is None else engine, world, recipe, task_pool=4, processes=2, **options)


def by_task(batch: arl.Batch) -> dict[str, list[str]]:
    statuses: dict[str, list[str]] = {}
    for row in pl.DataFrame(batch.trajectories).iter_rows(named=True):
        statuses.setdefault(row["task_id"].split(" #")[0], []).append(STATUS[row["status"]])
    return statuses


def counted(world: FailingWorld, what: str) -> int:
    return sum(path.stat().st_size for path in Path(world.folder).glob(f"* {what}"))


@pytest.mark.parametrize("runs", RUNS)
def test_two_failures_are_retried_without_changing_the_batch(tmp_path: Path, runs: str) -> None:
    world = FailingWorld(str(tmp_path), ("fine", "raise 2", "resetraise 2", "fail"), runs)
    collect = collector(world)
    batch = collect(tasks=4, group_size=1)
    assert by_task(batch) == {how: ["finished"] for how in world.hows}
    assert batch.num_draws == 4
    calm = FailingWorld(str(tmp_path), world.hows, runs)
    other = collector(calm)
    again = other(tasks=4, group_size=1)
    assert again.column("token", "token").tolist() == batch.column("token", "token").tolist()
    for each in (collect, other):
        each.close()


@pytest.mark.parametrize("runs", RUNS)
def test_an_environment_with_patience_outlasts_an_outage(tmp_path: Path, runs: str) -> None:
    hows = ("fine", "raise 4", "resetraise 4", "fail")
    batches = []
    for patience, folder in ((600.0, tmp_path / "flaky"), (0.0, tmp_path / "calm")):
        folder.mkdir()
        if not patience:  # it fails no more
            for name in ("raise 4 #1", "resetraise 4 #2"):
                (folder / f"{name} failures").write_text("xxxx")
        collect = collector(FailingWorld(str(folder), hows, runs, patience=patience))
        if patience:
            with pytest.warns(RuntimeWarning, match=r"OSError: the server is down.*episodes are retried for 600 s"):
                batches.append(collect(tasks=4, group_size=1))
        else:
            batches.append(collect(tasks=4, group_size=1))
        collect.close()
    assert by_task(batches[0]) == {how: ["finished"] for how in hows}
    assert batches[0].column("token", "token").tolist() == batches[1].column("token", "token").tolist()


def test_patience_that_is_over_ends_an_episode(tmp_path: Path) -> None:
    collect = collector(FailingWorld(str(tmp_path), ("fine", "raise 99"), "inline", patience=0.5))
    with pytest.warns(RuntimeWarning, match="OSError: the server is down"):
        batch = collect(tasks=2, group_size=1)
    assert by_task(batch) == {"fine": ["finished"], "raise 99": ["failed"]}
    assert counted(FailingWorld(str(tmp_path), ()), "failures") > 3, "more often than without patience"
    with pytest.raises(InvalidInputError, match=r"patience=-1\.0; give the seconds"):
        collector(FailingWorld(str(tmp_path), ("fine",), patience=-1.0))


@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("how", ["raise 9", "resetraise 9"])
def test_a_permanent_failure_fails_only_its_own_branch(tmp_path: Path, runs: str, how: str) -> None:
    world = FailingWorld(str(tmp_path), ("fine", how), runs)
    collect = collector(world)
    with pytest.warns(RuntimeWarning, match=r"failed 3 times \(last error: OSError: the server is down") as warned:
        batch = collect(tasks=4, group_size=2)
    assert len([each for each in warned if "failed 3 times" in str(each.message)]) == 1
    without_tokens = how.startswith("reset")
    assert by_task(batch) == {"fine": ["finished"] * 4, **({} if without_tokens else {how: ["failed"] * 4})}
    assert batch.num_draws == 4
    failed = pl.DataFrame(batch.trajectories).filter(pl.col("status") == STATUS.index("failed"))
    assert failed["info"].str.contains("the server is down").all()
    actions = pl.DataFrame(batch.nodes).filter(pl.col("kind") == 1)
    assert len(actions) == 4 * 3 + (0 if without_tokens else 4 * 2), "sampled tokens are kept"
    received: list[Any] = []
    collect.on_iteration(lambda _, metrics: received.append(metrics["collect"]))
    collect.end_iteration(recipes.GRPO.credit(batch), {})
    assert received == [{"draws": 4, "unscored": 0, "failed": 4, "abandoned": 0}], "without a token too"
    collect.close()


def test_failed_branches_are_replaced_if_the_program_requests_it(tmp_path: Path) -> None:
    world = FailingWorld(str(tmp_path), ("raise 3",))
    with pytest.warns(RuntimeWarning, match="failed 3 times"):
        batch = collector(world, rollout.Independent(replacements=1))(tasks=1, group_size=1)
    assert by_task(batch) == {"raise 3": ["failed", "finished"]}


@pytest.mark.parametrize("runs", ["thread", "process"])
def test_an_episode_that_hangs_is_given_up(tmp_path: Path, runs: str) -> None:
    world = FailingWorld(str(tmp_path), ("fine", "hang 1", "hang 9"), runs)
    collect = collector(world, call_seconds=1.0)
    begin = time.monotonic()
    with pytest.warns(RuntimeWarning, match="took longer than 1.0 s"):
        batch = collect(tasks=3, group_size=2)
    assert time.monotonic() - begin < world.hang
    statuses = by_task(batch)
    assert statuses["fine"] == ["finished"] * 2
    assert statuses["hang 1"] == ["finished"] * 2, "once is repaired"
    assert statuses["hang 9"] == ["failed"] * 2
    collect.close()


def test_threads_that_are_given_up_are_counted_until_there_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []
    world = FailingWorld(str(tmp_path), ("fine", "hang 9"), "thread")
    collect = collector(world, call_seconds=1.5, progress=lambda progress: counts.append(progress.abandoned))
    with pytest.warns(RuntimeWarning, match="took longer than 1.5 s"):
        batch = collect(tasks=2, group_size=1)
    assert counts[-1] == 3, "once, and two repairs"
    received: list[Any] = []
    collect.on_iteration(lambda _, metrics: received.append(metrics["collect"]))
    collect.end_iteration(recipes.GRPO.credit(batch), {})
    assert received == [{"draws": 1, "unscored": 0, "failed": 1, "abandoned": 3}]
    monkeypatch.setattr("agentrl_core.env.runtime.thread_worker._MOST_ABANDONED", 4)
    with pytest.raises(InvalidInputError, match=r"FailingWorld: 5 calls took longer than 1.5 s, .*: runs=\"process\""):
        collect.evaluate(tasks=2, split="train", samples=4)
    collect.close()


def test_a_dying_worker_does_not_fail_episodes_of_other_tasks(tmp_path: Path) -> None:
    world = FailingWorld(str(tmp_path), ("fine", "die 1", "die 9"), "process")
    collect = collector(world)
    with pytest.warns(RuntimeWarning, match=r"the process of the episode died \(exit code 7\)"):
        batch = collect(tasks=3, group_size=3)
    statuses = by_task(batch)
    assert statuses["fine"] == ["finished"] * 3
    assert statuses["die 1"] == ["finished"] * 3
    assert "failed" in statuses["die 9"]
    collect.close()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("unreadable 9", "the result of a worker cannot be unpickled in this process: .*'other'"),
        ("unsendable 9", "not be pickled"),
    ],
)
def test_a_pickling_error_between_processes_fails_only_its_own_branch(tmp_path: Path, how: str, message: str) -> None:
    collect = collector(FailingWorld(str(tmp_path), ("fine", how), "process"))
    with pytest.warns(RuntimeWarning, match=message):
        batch = collect(tasks=4, group_size=2)
    statuses = by_task(batch)
    assert statuses.pop("fine") == ["finished"] * 4
    assert {status for each in statuses.values() for status in each} <= {"failed"}
    collect.close()


@pytest.mark.parametrize("how", ["hog", "hungry"])
def test_a_process_that_needs_too_much_memory_is_ended(tmp_path: Path, how: str) -> None:
    world = FailingWorld(str(tmp_path), ("fine", f"{how} 1", f"{how} 9", "fail"), "process")
    collect = collector(world, memory_bytes=700 << 20)
    with pytest.warns(RuntimeWarning, match=rf"task '{how} 9 #2' failed 3 times \(.*needed more than memory_bytes="):
        batch = collect(tasks=4, group_size=2)
    collect.end_iteration(recipes.GRPO.credit(batch), {})
    collect.close()
    finished = ["finished"] * 2
    assert by_task(batch) == {"fine": finished, f"{how} 1": finished, f"{how} 9": ["failed"] * 2, "fail": finished}
    without = FailingWorld(str(tmp_path / "without"), (f"{how} 9",), "process")
    Path(without.folder).mkdir()
    collect = collector(without)
    assert by_task(collect(tasks=1, group_size=1)) == {f"{how} 9": ["finished"]}
    collect.close()


def test_a_hanging_close_does_not_block_the_collection(tmp_path: Path) -> None:
    world = FailingWorld(str(tmp_path), ("closehang 1",), "process")
    collect = arl.Collector(Engine(), world, recipes.GRPO, task_pool=4, processes=1, call_seconds=1.0, concurrency=1)
    begin = time.monotonic()
    assert by_task(collect(tasks=2, group_size=1)) == {"closehang 1": ["finished"] * 2}
    assert time.monotonic() - begin < world.hang
    collect.close()


def test_more_episodes_than_a_pipe_holds(tmp_path: Path) -> None:
    world = FailingWorld(str(tmp_path), ("fine",), "process")
    collect = collector(world)
    assert collect(tasks=4, group_size=200).num_draws == 800
    collect.close()


@pytest.mark.parametrize("runs", RUNS)
def test_every_episode_is_closed(tmp_path: Path, runs: str) -> None:
    world = FailingWorld(str(tmp_path), ("fine", "raise 1"), runs)
    collect = collector(world)
    collect(tasks=2, group_size=3)
    deadline = time.monotonic() + 60
    while counted(world, "closed") < 7 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert counted(world, "closed") == 7, "six that ended, and one that broke down and was built anew"
    collect.close()


def test_a_world_that_cannot_be_replayed_fails_at_once(tmp_path: Path) -> None:
    world = FailingWorld(str(tmp_path), ("fine", "raise 1"), replayable=False)
    with pytest.warns(RuntimeWarning, match=r"failed 1 time \("):
        batch = collector(world)(tasks=2, group_size=1)
    assert by_task(batch) == {"fine": ["finished"], "raise 1": ["failed"]}

    class Fork(rollout.Rollout):
        async def group(self, group: Group) -> None:
            [branch] = group.start_many(1)
            await branch.turn()
            branch.fork()

    with pytest.raises(InvalidInputError, match="FailingWorld has replayable=False, so its episodes cannot be forked"):
        collector(FailingWorld(str(tmp_path), ("fine",), replayable=False), Fork())(tasks=1, group_size=1)


def test_a_failing_engine_is_retried_a_limited_number_of_times(tmp_path: Path) -> None:
    world = FailingWorld(str(tmp_path), ("fine",))
    engine = Engine(times=2)
    batch = collector(world, engine=engine)(tasks=2, group_size=2)
    assert by_task(batch) == {"fine": ["finished"] * 4}
    assert set(engine.requests_by_seed.values()) == {3}
    with pytest.warns(RuntimeWarning, match="which is left out"), pytest.raises(ConnectionError, match="is busy"):
        collector(world, engine=Engine(times=9))(tasks=2, group_size=2)


def test_a_program_that_raises_fails_its_group_alone(tmp_path: Path) -> None:
    class Odd(rollout.Rollout):
        async def group(self, group: Group) -> None:
            await group.run(group.start_many(group.size))
            if group.key[1] == 3:
                raise KeyError("a typo")

    world = FailingWorld(str(tmp_path), ("fine",))
    with pytest.warns(RuntimeWarning, match=r"failed on group 0.3 .*, which is left out: KeyError: 'a typo'"):
        batch = arl.Collector(Engine(), world, recipes.GRPO.replace(rollout=Odd()), task_pool=16)(tasks=6, group_size=2)
    assert batch.num_groups == 5
    assert by_task(batch) == {"fine": ["finished"] * 6 + ["pruned"] * 2 + ["finished"] * 4}


@pytest.mark.parametrize("groups", [2, 12])
def test_a_program_that_always_raises_stops_the_collection(tmp_path: Path, groups: int) -> None:
    started: list[str] = []

    class Wrong(rollout.Rollout):
        async def group(self, group: Group) -> None:
            started.append(group.name)
            await group.run(group.start_many(1))
            raise KeyError("a typo")

    world = FailingWorld(str(tmp_path), ("fine",))
    with pytest.warns(RuntimeWarning, match="a typo"), pytest.raises(KeyError, match="a typo"):
        arl.Collector(Engine(), world, recipes.GRPO.replace(rollout=Wrong()), task_pool=16, concurrency=2)(
            tasks=groups, group_size=2
        )
    assert len(started) <= 9, "a typo does not burn a night"


def test_asynchronous_episodes_run_in_the_loop() -> None:
    import asyncio

    from agentrl_core.env import StepResult, Task

    class Episode:
        observation = "begin"

        def __init__(self, hang: bool) -> None:
            self.hang = hang

        async def step(self, action: str) -> StepResult:
            del action
            await asyncio.sleep(60 if self.hang else 0.01)
            return StepResult(reward=1.0, terminated=True, success=True)

        def state_key(self) -> bytes:
            return b"here"

    class World:
        runs = "inline"

        def tasks(self, count: int, *, split: str = "train", start: int = 0) -> list[Task]:
            del split
            return [Task(f"task {number}", "?", "x", None) for number in range(start, start + count)]

        async def reset(self, task: Task, seed: int) -> Episode:
            del seed
            await asyncio.sleep(0.01)
            return Episode(task.task_id == "task 1")

    with pytest.warns(RuntimeWarning, match="took longer than 0.5 s"):
        batch = arl.Collector(Engine(), World(), recipes.GRPO, task_pool=2, call_seconds=0.5)(tasks=2, group_size=2)
    assert (
        sorted(STATUS[status] for status in pl.DataFrame(batch.trajectories)["status"])
        == ["failed"] * 2 + ["finished"] * 2
    )


def test_episodes_wait_side_by_side(tmp_path: Path) -> None:
    counts: list[int] = []
    world = FailingWorld(str(tmp_path), ("fine",), seconds=0.5)
    collect = collector(world, progress=lambda progress: counts.append(progress.at_environment))
    collect(tasks=2, group_size=8)
    assert max(counts) > 1, "the watcher saw several of them wait at once"
    collect.close()


def test_a_forked_process_can_collect(tmp_path: Path) -> None:
    world = FailingWorld(str(tmp_path), ("fine",))
    collect = collector(world)
    collect(tasks=1, group_size=2)
    child = os.fork()
    if not child:
        try:
            os._exit(0 if collect(tasks=1, group_size=2).num_draws == 2 else 1)
        except BaseException:  # noqa: BLE001 -- the parent has to receive it
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"runs": "moon"}, r"environment FailingWorld: runs='moon'; give one of 'inline', 'thread', 'process', 'ray'"),
        ({"facts": {"a": 1}}, r"environment FailingWorld: facts\['a'\] is 1; give an env.ExtraColumn"),
    ],
)
def test_invalid_attributes_of_an_environment_are_reported(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    world = FailingWorld(str(tmp_path), ("fine",))
    for name, value in change.items():
        setattr(world, name, value)
    with pytest.raises(InvalidInputError, match=message):
        collector(world)


def test_a_world_that_does_not_pickle_is_refused(tmp_path: Path) -> None:
    world = FailingWorld(str(tmp_path), ("fine",), "process")
    world.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(InvalidInputError, match=r'runs="process", but cannot be pickled: .*; make it picklable'):
        collector(world)(tasks=1, group_size=1)


def test_a_branch_that_is_stopped_while_its_episode_breaks_down_stays_stopped() -> None:
    class Stops(rollout.Rollout):
        async def branch(self, branch: rollout.Branch) -> None:
            asyncio.get_running_loop().call_soon(lambda: branch.stop("a clock said so"))
            await branch.turn()

    class Breaks(SmallWorld):
        runs = "inline"

        def reset(self, task: Any, seed: int) -> Any:
            episode = super().reset(task, seed)

            async def step(action: str) -> Any:
                await asyncio.sleep(0.001)
                raise OSError(f"no answer to {action}")

            episode.step = step
            return episode

    world = Breaks()
    batch = arl.Collector(world, world, recipes.GRPO.replace(rollout=Stops()), task_pool=4)(tasks=2, group_size=2)
    assert list(by_task(batch).values()) == [["pruned"] * 2] * 2
