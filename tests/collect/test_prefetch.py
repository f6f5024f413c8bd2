"""Iterations that run ahead of the trainer depend only on the state at their start, not on timing."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from remembering import RECIPES, collector, outcome, train
from small_world import SmallWorld

from agentrl_core import Batch, Collector, Store, recipes
from agentrl_core.collect.rollout_log import IterationLog, IterationLogs
from agentrl_core.engine import Request, Segment
from agentrl_core.engine.base import aborted
from agentrl_core.env import Task
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.rollout import Branch, Rollout

QUIET = 600.0
"""Seconds after which a wait fails."""


class Speaker(SmallWorld):
    """Generates a token and a delay from the seed of each request; new weights end segments early.

    Args:
        delay: seconds of a segment, from its request.
        shared: whether it reports that it shares the trainer's tensors.
    """

    def __init__(self, delay: Callable[[Request], float] = lambda _: 0.0, *, shared: bool = False) -> None:
        super().__init__()
        self.delay = delay
        self.shares_parameters = shared
        self.request_count = 0
        self.ended = 0
        self._speaking: set[asyncio.Future[None]] = set()
        self._lock = threading.Lock()

    async def generate(self, request: Request) -> Segment:
        self.request_count += 1
        version, segment = self.policy_version, await super().generate(request)
        seconds = self.delay(request)
        if seconds:
            sleep = asyncio.ensure_future(asyncio.sleep(seconds))
            with self._lock:
                self._speaking.add(sleep)
            try:
                await asyncio.wait([sleep])
            finally:
                with self._lock:
                    self._speaking.discard(sleep)
            if sleep.cancelled():
                self.ended += 1
                # Half of it is generated: the rest is generated with the new weights.
                half = len(segment.tokens) // 2
                if request.seed % 2:
                    return aborted(request, version)
                return Segment(segment.tokens[:half], segment.logprobs[:half], None, "abort", version, request.seed)
        return Segment(segment.tokens, segment.logprobs, None, segment.finish_reason, version, request.seed)

    def update_weights(self, _model: object, version: int) -> None:
        with self._lock:
            for sleep in self._speaking:
                sleep.get_loop().call_soon_threadsafe(sleep.cancel)
        self.policy_version = version


def uneven(request: Request) -> float:
    """Random delays of up to a few milliseconds."""
    return (request.seed >> 7) % 5 / 1000


def trained(
    collect: Collector, iterations: int, *, seconds: float = 0.0, group_size: int = 4, tasks: int = 4
) -> list[Batch]:
    """Return the batches of a loop whose trainer takes `seconds`."""
    batches = []
    for _ in range(iterations):
        batches.append(collect(tasks=tasks, group_size=group_size))
        time.sleep(seconds)
        for engine in collect.engines.values():
            engine.update_weights(None, collect.iteration + 1)
        collect.end_iteration(batches[-1], {"score": 0.5})
    return batches


def rows(batch: Batch) -> list[Any]:
    """Return sampled and drawn tokens, without versions."""
    names = ("trajectory_id", "group_id", "score", "iteration")
    return [batch.column("token", "token").tolist(), *(batch.column(name, "draw").tolist() for name in names)]


def versions(batch: Batch) -> np.ndarray[Any, Any]:
    """Return the version of each sampled node."""
    column = pl.DataFrame(batch.nodes)["policy_version"].drop_nulls()
    return column.to_numpy()


@pytest.mark.parametrize("staleness", [1, 4])
def test_a_batch_is_that_of_one_iteration_at_a_time(staleness: int) -> None:
    """Without state, and with answers that depend on the request alone, staleness changes only versions."""
    runs = []
    for ahead, delay in ((0, lambda _: 0.0), (staleness, uneven)):
        speaker = Speaker(delay)
        collect = Collector(speaker, speaker, recipes.GRPO, seed=3, task_pool=64, staleness=ahead)
        speaker.update_weights = lambda _model, version, speaker=speaker: setattr(speaker, "policy_version", version)  # type: ignore[method-assign]
        runs.append([rows(batch) for batch in trained(collect, 6, seconds=0.002)])
        collect.close()
    assert runs[0] == runs[1]
    assert [batch[4][0] for batch in runs[0]] == list(range(6))


@settings(max_examples=12, deadline=None)
@given(
    staleness=st.integers(1, 4),
    seconds=st.floats(0.0, 0.01),
    spread=st.integers(1, 12),
    concurrency=st.integers(1, 24),
)
def test_no_draw_is_older_than_the_bound(staleness: int, seconds: float, spread: int, concurrency: int) -> None:
    """min policy version of iteration i >= i - s, whatever the speed of trainer, engine and longest answers."""
    speaker = Speaker(lambda request: (request.seed >> 9) % spread / 500)
    options = {"staleness": staleness, "concurrency": concurrency}
    collect = Collector(speaker, speaker, recipes.GRPO, seed=1, task_pool=64, **options)
    batches = trained(collect, 6, seconds=seconds, group_size=2)
    collect.close()
    for iteration, batch in enumerate(batches):
        draw_versions = versions(batch)
        assert len(draw_versions) >= 8
        assert draw_versions.min() >= iteration - staleness
        assert draw_versions.max() <= iteration


def test_new_weights_fall_into_segments() -> None:
    """A segment ended by new weights continues as another node; no token is lost or duplicated."""
    speaker = Speaker(lambda request: 0.4 if request.seed % 5 == 0 else 0.01)  # some segments are always in progress
    collect = Collector(speaker, speaker, recipes.GRPO, seed=3, task_pool=64, staleness=2)
    batches = trained(collect, 8)
    collect.close()
    assert speaker.ended > 0
    mixed = 0
    for batch in batches:
        nodes = pl.DataFrame(batch.nodes).filter(pl.col("policy_version").is_not_null())
        assert nodes["tokens"].list.len().min() >= 1  # type: ignore[operator]
        mixed += nodes["policy_version"].n_unique() > 1
        reasons = nodes["finish_reason"].unique().to_list()
        assert len(reasons) <= 2
    assert mixed > 0


def test_generation_runs_ahead_of_the_trainer_up_to_the_staleness() -> None:
    speaker = Speaker()
    collect = Collector(speaker, speaker, recipes.GRPO, task_pool=64, staleness=2)
    batch = collect(tasks=4, group_size=4)
    started = time.monotonic()
    while speaker.request_count < 3 * 32 and time.monotonic() < started + QUIET:
        time.sleep(0.001)
    assert speaker.request_count == 3 * 32, "two turns of 16 trajectories in each of three iterations, and no more"
    time.sleep(0.02)
    assert speaker.request_count == 3 * 32, "who is ahead waits for the oldest"
    collect.end_iteration(batch, {})
    collect(tasks=4, group_size=4)
    while speaker.request_count < 4 * 32 and time.monotonic() < started + QUIET:
        time.sleep(0.001)
    collect.close()
    assert speaker.request_count == 4 * 32


def test_an_engine_that_shares_the_trainers_tensors_is_refused() -> None:
    speaker = Speaker(shared=True)
    Collector(speaker, speaker, recipes.GRPO)
    with pytest.raises(InvalidInputError, match=r"engine 'policy' samples from the tensors .* copy=True"):
        Collector(speaker, speaker, recipes.GRPO, staleness=1)
    for wrong in (-1, 0.5, True, "2"):
        with pytest.raises(InvalidInputError, match=r"staleness=.*; give a whole number of at least 0"):
            Collector(speaker, speaker, recipes.GRPO, staleness=wrong)  # type: ignore[arg-type]
    with pytest.raises(
        InvalidInputError, match=r"concurrency=\{'a': 3\}; give a number for each environment \(world\)"
    ):
        Collector(speaker, speaker, recipes.GRPO, concurrency={"a": 3})
    with pytest.raises(InvalidInputError, match=r"concurrency\['world'\]=0"):
        Collector(speaker, speaker, recipes.GRPO, concurrency={"world": 0})


def test_each_environment_has_its_own_concurrency_limit() -> None:
    """No environment waits for the places of another one."""
    speaker = Speaker(lambda _: 0.001)
    most = {"slow": 0, "fast": 0}
    running = dict(most)

    class Counted(SmallWorld):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name
            self.runs = "inline"

        def tasks(self, count: int, *, split: str = "train", start: int = 0) -> list[Any]:
            return [Task(f"{self.name} {split} {start + row}", "?", self.name, None) for row in range(count)]

        def reset(self, task: Task, seed: int) -> Any:
            episode, name = super().reset(task, seed), self.name
            running[name] += 1
            most[name] = max(most[name], running[name])
            step = episode.step

            def counted(action: str) -> Any:
                answered = step(action)
                running[name] -= answered.terminated
                return answered

            episode.step = counted
            return episode

    worlds = {name: Counted(name) for name in most}
    collect = Collector(speaker, worlds, recipes.GRPO, task_pool=32, staleness=2, concurrency={"slow": 4, "fast": 8})
    trained(collect, 4, tasks=8)
    peaks = dict(most)  # segments that are interrupted later never report their end
    collect.close()
    assert peaks == {"slow": 4, "fast": 8}


class OneAtATime(Speaker):
    """Fails if two threads use its tasks at the same time.

    Args:
        on_demand: whether it creates each task on access.
    """

    def __init__(self, *, on_demand: bool) -> None:
        super().__init__()
        self.on_demand = on_demand
        self.task_requests = self.together = 0
        self._asking = threading.Lock()

    def tasks(self, count: int, *, split: str = "train", start: int = 0) -> Any:
        with self.alone():
            tasks = super().tasks(count, split=split, start=start)  # type: ignore[arg-type]
        return OnDemand(tasks, self) if self.on_demand else tasks

    @contextmanager
    def alone(self) -> Iterator[None]:
        self.task_requests += 1
        free = self._asking.acquire(blocking=False)
        self.together += not free
        time.sleep(0.005)
        try:
            yield
        finally:
            if free:
                self._asking.release()


class OnDemand(Sequence[Task]):
    """Tasks of an environment, each created on access."""

    def __init__(self, tasks: list[Task], world: OneAtATime) -> None:
        self.created = tasks
        self.world = world

    def __len__(self) -> int:
        return len(self.created)

    def __getitem__(self, row: Any) -> Any:
        with self.world.alone():
            return self.created[row]


@pytest.mark.parametrize("on_demand", [False, True])
def test_tasks_are_requested_by_one_thread_at_a_time(*, on_demand: bool) -> None:
    """Concurrent iterations and an evaluation: environments need not be thread-safe."""
    world = OneAtATime(on_demand=on_demand)
    collect = Collector(world, world, recipes.GRPO, task_pool=16, staleness=3)
    batch = collect(tasks=4, group_size=2)
    collect.evaluate(tasks=2)
    collect.end_iteration(batch, {})
    trained(collect, 2, group_size=2)
    collect.close()
    # The training pool and the evaluation; on demand also the first task of each, and those of five iterations.
    assert world.task_requests >= (2 + 2 + 5 * 4 if on_demand else 2)
    assert world.together == 0


def test_an_error_of_a_program_is_raised_and_the_run_can_continue(tmp_path: Path) -> None:
    fails = [False]

    @dataclass(frozen=True)
    class Fails(Rollout):
        async def branch(self, branch: Branch) -> None:
            await branch.turn()
            if fails[0] and branch.group.key[0] == 2:
                raise InvalidInputError("in the program of iteration 2")
            await branch.turn()

    recipe = recipes.GRPO.replace(rollout=Fails())
    speaker = Speaker()
    expected = trained(Collector(speaker, speaker, recipe, seed=2, task_pool=64), 5)
    with Store.open(tmp_path, sync="never") as store:
        fails[0] = True
        speaker = Speaker()
        collect = Collector(speaker, speaker, recipe, seed=2, task_pool=64, staleness=2, store=store)
        batches = trained(collect, 2)
        with pytest.raises(InvalidInputError, match="in the program of iteration 2"):
            collect(tasks=4, group_size=4)
        fails[0] = False
        before = speaker.request_count
        batches += trained(collect, 3)
        collect.close()
        # Iteration 2 had its first turns, 3 and 4 had a part of theirs; nothing of it is requested again.
        assert speaker.request_count - before <= 2 * 16 + 3 * 32
        assert [rows(batch)[0] for batch in batches] == [rows(batch)[0] for batch in expected]


def test_evaluation_in_between_touches_nothing(tmp_path: Path) -> None:
    runs = []
    for evaluates in (False, True):
        speaker = Speaker(uneven)
        with Store.open(tmp_path / str(evaluates), sync="never") as store:
            collect = Collector(speaker, speaker, recipes.GRPO, seed=3, task_pool=64, staleness=2, store=store)
            samples = []
            for _ in range(4):
                batch = collect(tasks=3, group_size=4)
                if evaluates:
                    samples.append(collect.evaluate(tasks=5, samples=2).samples.tolist())
                collect.end_iteration(batch, {})
            collect.close()
            runs.append([store.batch(iteration).column("token", "token").tolist() for iteration in range(4)])
            assert samples in ([], [[2] * 5] * 4)
    assert runs[0] == runs[1]


def test_the_states_of_an_iteration_are_those_of_its_begin(tmp_path: Path) -> None:
    """Iteration k selects by the state at the start of iteration k - s: simulation against the run."""
    attempts_by_iteration: dict[int, list[int]] = {}

    class AttemptRecorder(type(recipes.GRPO.rollout)):  # type: ignore[misc]
        async def group(self, group: Any) -> None:
            attempts = int(group.statistics.get("attempts", 0))
            attempts_by_iteration.setdefault(group.key[0], []).append(attempts)
            await super().group(group)

    speaker = Speaker(uneven)
    recipe = recipes.GRPO.replace(rollout=AttemptRecorder())
    with Store.open(tmp_path, sync="never") as store:
        # The pool has as many tasks as a batch: each is attempted four times in each iteration.
        collect = Collector(speaker, speaker, recipe, task_pool=4, staleness=2, store=store)
        trained(collect, 6)
        collect.close()
    for iteration in range(6):
        # Iterations 0, 1 and 2 start together, without any results; 3 starts with the results of 0, and so on.
        assert attempts_by_iteration[iteration] == [4 * max(iteration - 2, 0)] * 4


@pytest.mark.parametrize("name", list(RECIPES))
@pytest.mark.parametrize("staleness", [1, 3])
def test_stateful_components_do_not_depend_on_timing(tmp_path: Path, name: str, staleness: int) -> None:
    """Stateful select, reward, replay, admission and advantage: two runs of different speed are equal."""
    outcomes = []
    for run, seconds in enumerate((0.0, 0.003)):
        with Store.open(tmp_path / str(run), sync="never") as store:
            collect = collector(name, store, staleness=staleness)
            train(collect, until=6, seconds=seconds)
            collect.close()
            outcomes.append(outcome(store))
    for part, expected in outcomes[0].items():
        assert outcomes[1][part] == expected, part


def test_concurrent_openers_of_an_iteration_share_one_rollout_log() -> None:
    """The previous iteration opens the store in its thread, to carry groups over, while the trainer starts this one."""
    opened = list[int]()
    second = threading.Event()

    class Slow:
        """Waits with a rollout log until a second one is requested, or until it is clear that none will be."""

        def rollout_log(self, iteration: int) -> None:
            opened.append(iteration)
            if len(opened) > 1:
                second.set()
            second.wait(0.3)

    slow: Any = Slow()
    running = IterationLogs(slow)
    logs = list[IterationLog]()
    openers = [threading.Thread(target=lambda: logs.append(running.of(5))) for _ in range(2)]
    for opener in openers:
        opener.start()
    for opener in openers:
        opener.join(QUIET)
    assert opened == [5]
    assert len(logs) == 2
    assert logs[0] is logs[1]
