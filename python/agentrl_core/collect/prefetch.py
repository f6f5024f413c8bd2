"""Prefetch iterations ahead of the trainer, started in order with recorded inputs that survive a kill."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from agentrl_core.collect.rollout_log import IterationLog, IterationLogs, digest
from agentrl_core.collect.run_state import RunState
from agentrl_core.data.store import Store, open_snapshot
from agentrl_core.recipe import Recipe
from agentrl_core.rollout.progress import Progress
from agentrl_core.schedule import LimitStaleness

Value = TypeVar("Value")
_WATCH_SECONDS = 0.1
_CLEAN_UP_SECONDS = 10.0

_BEGIN = "begin"


class IterationPrefetcher(Generic[Value]):
    """Running iterations: the open one, and a number of later ones.

    Iteration k starts when iteration k - staleness is requested, with the state of the run at that time. Its batch
    depends on this state and on the answers of engines and environments only, not on timing: iterations are consumed in
    order.

    Args:
        staleness: number of iterations ahead of the open one, unless the recipe limits it.
        recipe: may limit it; see `schedule.LimitStaleness`.
        store: store of the run; None: in memory.
        logs: the rollout logs of its iterations.
        work: collects an iteration.
    """

    def __init__(
        self, staleness: int, recipe: Recipe, store: Store | None, logs: IterationLogs, work: Work[Value]
    ) -> None:
        self._staleness = staleness
        self._recipe = recipe
        self._store = store
        self._logs = logs
        self._work = work
        self._tasks: dict[int, IterationTask[Value]] = {}

    def begin(self, head: RunState, tasks: int, group_size: int) -> None:
        """Start the open iteration and later ones, up to the limit."""
        for iteration in range(head.iteration, head.iteration + allowed(self._recipe, self._staleness, head) + 1):
            if self._store is not None and self._store.has_batch(iteration):
                continue
            known = self._tasks.get(iteration)
            if known is None or known.stopped:
                if known is not None:
                    known.join()
                self._tasks[iteration] = known = self._iteration(iteration, head, tasks, group_size)
            known.start()

    def take(self, iteration: int, watch: Callable[[Progress], object] | None) -> Value:
        """Wait for the result of an iteration. An error stops all iterations; `begin` restarts them."""
        try:
            return self._tasks[iteration].wait(watch)
        except BaseException:
            self.stop()
            raise

    def end(self, iteration: int) -> None:
        """Remove a committed iteration and all before it."""
        self._tasks = {number: each for number, each in self._tasks.items() if number > iteration}

    def stop(self) -> None:
        """Stop all iterations as if killed: their records stay in the rollout logs."""
        for task in self._tasks.values():
            task.stop()
        for task in self._tasks.values():
            task.join()

    def _iteration(self, iteration: int, head: RunState, tasks: int, group_size: int) -> IterationTask[Value]:
        log, work = self._logs.of(iteration), self._work
        log.begin()
        inputs = self._inputs(log, head, tasks, group_size)
        return IterationTask(
            lambda task: work(iteration, *inputs, log, task),
            f"agentrl-iteration-{iteration}",
            self._tasks.get(iteration - 1),
        )

    def _inputs(self, log: IterationLog, head: RunState, tasks: int, group_size: int) -> tuple[RunState, int, int]:
        """Return the state of the run, and the arguments of the call: from now, or from before a kill.

        They are recorded before the selection, with the store's commit, which has the state.
        """
        store = self._store
        snapshot = None if store is None else store._core.snapshot  # noqa: SLF001

        def read(payload: bytes) -> tuple[RunState, int, int]:
            tasks, group_size, then = json.loads(payload)
            if store is None or then == snapshot:
                return head, tasks, group_size
            with open_snapshot(store.path, then) as opened:
                return RunState.of(opened), tasks, group_size

        def write(inputs: tuple[RunState, int, int]) -> bytes:
            return json.dumps([*inputs[1:], snapshot]).encode()

        now = head, tasks, group_size
        recorded = log.find(_BEGIN, digest(_BEGIN), read)
        if recorded is None:
            log.keep(_BEGIN, digest(_BEGIN), now, write)
        return now if recorded is None else recorded


def allowed(recipe: Recipe, staleness: int, head: RunState) -> int:
    """Return how many iterations may start after the open one: the collector's staleness, or a lower recipe limit.

    Example:
        >>> from agentrl_core import _core, recipes
        >>> from agentrl_core.schedule import Above, LimitStaleness
        >>> recipe = recipes.GRPO.replace(hooks=LimitStaleness(1, when=Above("approximate_kl", 0.02)))
        >>> far = {"hooks[0].LimitStaleness.when": {"value": 1.0, "missed": 0}}
        >>> [allowed(recipe, 4, RunState(9, states, {}, {}, None, _core.Batch.empty(), 0)) for states in ({}, far)]
        [4, 1]
    """
    iteration, states = head.iteration, head.components
    components = recipe.at(iteration, states).components("hooks")
    gates = [(place, each) for place, each in components if isinstance(each, LimitStaleness)]
    return min([staleness, *(each.at_most for place, each in gates if each.is_active(iteration, states, place))])


class _StoppedError(Exception):
    """Raised in an iteration that was stopped."""


class IterationTask(Generic[Value]):
    """A computation in a separate thread, from `start` until `wait` returns its result or `stop` abandons it.

    Args:
        make: computes the result from this task, and calls its `check_stopped` and `wait_for_previous`.
        name: name of the thread.
        before: the previous task; None: no previous task.
    """

    def __init__(
        self, make: Callable[[IterationTask[Value]], Value], name: str, before: IterationTask[Value] | None
    ) -> None:
        self._make = make
        self._before = before
        self._released = threading.Event()
        self._over = threading.Event()
        self._unwanted = threading.Event()
        self._made: list[Value] = []
        self._error: BaseException | None = None
        self._progress: Progress | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def stopped(self) -> bool:
        """Whether the task was stopped and will not return a result."""
        return self._unwanted.is_set()

    def start(self) -> None:
        """Start the computation, unless it has started."""
        if self._thread.ident is None and not self.stopped:
            self._thread.start()

    def stop(self) -> None:
        """Request the computation to stop, without waiting."""
        self._unwanted.set()
        self._released.set()

    def join(self) -> None:
        """Wait a few seconds at most for the stopped computation to clean up."""
        if self._thread.ident is not None:
            self._over.wait(_CLEAN_UP_SECONDS)

    def wait(self, watch: Callable[[Progress], object] | None) -> Value:
        """Wait for the result; `watch` is called ten times a second, and at the end.

        Raises:
            BaseException: the error of the computation.
        """
        while not self._over.wait(_WATCH_SECONDS):
            self._watch(watch)
        self._watch(watch)
        if self._error is not None:
            raise self._error
        return self._made[0]

    def _watch(self, watch: Callable[[Progress], object] | None) -> None:
        if watch is not None and self._progress is not None:
            watch(self._progress)

    def check_stopped(self, progress: Progress) -> None:
        """Report progress, and raise an error if the task was stopped."""
        self._progress = progress
        if self.stopped:
            raise _StoppedError

    def wait_for_previous(self) -> None:
        """Wait until the previous task releases this one, or ends."""
        if self._before is not None:
            self._before._released.wait()  # noqa: SLF001 -- one of its own
            self._before = None

    def wait_for_previous_batch(self) -> None:
        """Wait for the previous result, and stop if it failed."""
        if self._before is not None:
            before, self._before = self._before, None
            before._released.wait()  # noqa: SLF001 -- one of its own
            if before.stopped or before._error is not None:  # noqa: SLF001
                self.stop()
        if self.stopped:
            raise _StoppedError

    def release_next(self) -> None:
        """Let the next task continue past `wait_for_previous`."""
        self._released.set()

    def _run(self) -> None:
        try:
            self._made.append(self._make(self))
        except BaseException as error:  # noqa: BLE001 -- whoever waits gets it
            self._error = error
        finally:
            self._released.set()
            self._over.set()


Work = Callable[[int, RunState, int, int, IterationLog, IterationTask[Value]], Value]
"""Interface of a function that collects the batch of an iteration."""
