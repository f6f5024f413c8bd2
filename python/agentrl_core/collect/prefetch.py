"""Iterations that run ahead of the trainer: begun in order, each with what was known then, and kept through a kill."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from agentrl_core.collect.iteration import BuiltBatch
from agentrl_core.collect.journal import Journal, digest
from agentrl_core.collect.progress import Progress
from agentrl_core.collect.run_state import RunState
from agentrl_core.data.store import Store, open_snapshot
from agentrl_core.recipe import Recipe
from agentrl_core.schedule import LimitStaleness

Value = TypeVar("Value")
_WATCH_SECONDS = 0.1
_CLEAN_UP_SECONDS = 10.0

_BEGIN = "begin"


@dataclass(frozen=True)
class PrefetchedInputs:
    """What an iteration began with; in its journal before anything of it is selected.

    Attributes:
        head: where the run stood.
        tasks: how many groups were asked for.
        group_size: trajectories of a group.
        snapshot: what the store held; None: there is none.
    """

    head: RunState
    tasks: int
    group_size: int
    snapshot: str | None

    def write(self) -> bytes:
        """Itself as bytes: the head is that of the snapshot."""
        return json.dumps([self.tasks, self.group_size, self.snapshot]).encode()


class IterationPrefetcher:
    """The iterations that are under way: the one that is open, and so many behind it.

    Iteration k begins when iteration k - staleness is asked for, so it sees what was known when that one began. It is a
    function of this alone (and of what engines and environments answer), whoever is faster: iterations are consumed in
    their order, and nothing of one is taken for another.

    Args:
        staleness: how many iterations run ahead of the open one, where the recipe does not hold them back.
        recipe: may hold them back; see `schedule.LimitStaleness`.
        store: has their journals; None: they are in memory.
        work: makes an iteration.
    """

    def __init__(self, staleness: int, recipe: Recipe, store: Store | None, work: Work) -> None:
        self._staleness = staleness
        self._recipe = recipe
        self._store = store
        self._work = work
        self._journals: dict[int, Journal] = {}
        # An iteration that is under way opens the journal of the next one, to which it carries what it leaves.
        self._opening = threading.Lock()
        self._underway: dict[int, IterationTask[BuiltBatch]] = {}

    def begin(self, head: RunState, tasks: int, group_size: int) -> None:
        """Have the open iteration and those behind it run, as far as they may and do not."""
        for iteration in range(head.iteration, head.iteration + allowed(self._recipe, self._staleness, head) + 1):
            if self._store is not None and self._store.has_batch(iteration):
                continue
            known = self._underway.get(iteration)
            if known is None or known.stopped:
                if known is not None:
                    known.join()
                self._underway[iteration] = known = self._iteration(iteration, head, tasks, group_size)
            known.start()

    def take(self, iteration: int, watch: Callable[[Progress], object] | None) -> BuiltBatch:
        """What an iteration came to, as soon as it has. What ends the wait ends all of them; they can begin again."""
        try:
            return self._underway[iteration].wait(watch)
        except BaseException:
            self.stop()
            raise

    def journal(self, iteration: int) -> Journal:
        """What live groups of an iteration asked and got."""
        with self._opening:
            if iteration not in self._journals:
                store = self._store
                self._journals[iteration] = Journal(None if store is None else store.rollout_log(iteration))
            return self._journals[iteration]

    def end(self, iteration: int) -> None:
        """Forget what was made, and all before it: its batch is committed."""
        self._underway = {number: each for number, each in self._underway.items() if number > iteration}
        with self._opening:
            self._journals = {number: each for number, each in self._journals.items() if number > iteration}

    def stop(self) -> None:
        """Give up what runs, as a kill does: what was asked and got stays in the journals."""
        for underway in self._underway.values():
            underway.stop()
        for underway in self._underway.values():
            underway.join()

    def _iteration(self, iteration: int, head: RunState, tasks: int, group_size: int) -> IterationTask[BuiltBatch]:
        journal, work = self.journal(iteration), self._work
        journal.begin()
        begun = self._begun(journal, head, tasks, group_size)
        return IterationTask(
            lambda underway: work(iteration, begun, journal, underway),
            f"agentrl-iteration-{iteration}",
            self._underway.get(iteration - 1),
        )

    def _begun(self, journal: Journal, head: RunState, tasks: int, group_size: int) -> PrefetchedInputs:
        """What it began with, now or before a kill."""
        store = self._store
        now = PrefetchedInputs(head, tasks, group_size, None if store is None else store._core.snapshot)  # noqa: SLF001

        def read(payload: bytes) -> PrefetchedInputs:
            tasks, group_size, snapshot = json.loads(payload)
            if store is None or snapshot == now.snapshot:
                return PrefetchedInputs(head, tasks, group_size, snapshot)
            with open_snapshot(store.path, snapshot) as then:
                return PrefetchedInputs(RunState.of(then), tasks, group_size, snapshot)

        begun = journal.find(_BEGIN, digest(_BEGIN), read)
        if begun is None:
            journal.keep(_BEGIN, digest(_BEGIN), now, PrefetchedInputs.write)
        return now if begun is None else begun


def allowed(recipe: Recipe, staleness: int, head: RunState) -> int:
    """How many iterations may begin behind the open one: what the collector says, or less where the recipe does.

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
    """It is not wanted any more."""


class IterationTask(Generic[Value]):
    """What is made in a thread of its own, from `start` until `wait` gives it or `stop` gives it up.

    Args:
        make: makes it of this, which it tells how it goes (`check_stopped`), and whose turn it waits for
        (`wait_for_previous`).
        name: of the thread.
        before: who comes first; None: nobody.
    """

    def __init__(
        self, make: Callable[[IterationTask[Value]], Value], name: str, before: IterationTask[Value] | None
    ) -> None:
        self._make = make
        self._before = before
        self._came = threading.Event()
        self._over = threading.Event()
        self._unwanted = threading.Event()
        self._made: list[Value] = []
        self._error: BaseException | None = None
        self._progress: Progress | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def stopped(self) -> bool:
        """Whether it was given up: it will give nothing."""
        return self._unwanted.is_set()

    def start(self) -> None:
        """Begin, unless it has begun."""
        if self._thread.ident is None and not self.stopped:
            self._thread.start()

    def stop(self) -> None:
        """Give it up, without waiting for it."""
        self._unwanted.set()
        self._came.set()

    def join(self) -> None:
        """Wait until it has cleaned up, a few seconds at most."""
        if self._thread.ident is not None:
            self._over.wait(_CLEAN_UP_SECONDS)

    def wait(self, watch: Callable[[Progress], object] | None) -> Value:
        """What was made, as soon as it is there; meanwhile `watch` is called ten times a second, and in the end.

        Raises:
            BaseException: what making it raised.
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
        """See how it goes (for who makes it), and raise where it has to stop."""
        self._progress = progress
        if self.stopped:
            raise _StoppedError

    def wait_for_previous(self) -> None:
        """Wait until the one before has come, or is over."""
        if self._before is not None:
            self._before._came.wait()  # noqa: SLF001 -- one of its own
            self._before = None

    def wait_for_previous_batch(self) -> None:
        """Wait until the one before is made, and be given up where it is not."""
        if self._before is not None:
            before, self._before = self._before, None
            before._came.wait()  # noqa: SLF001 -- one of its own
            if before.stopped or before._error is not None:  # noqa: SLF001
                self.stop()
        if self.stopped:
            raise _StoppedError

    def release_next(self) -> None:
        """Let the one behind come."""
        self._came.set()

    def _run(self) -> None:
        try:
            self._made.append(self._make(self))
        except BaseException as error:  # noqa: BLE001 -- whoever waits gets it
            self._error = error
        finally:
            self._came.set()
            self._over.set()


Work = Callable[[int, PrefetchedInputs, Journal, IterationTask[BuiltBatch]], BuiltBatch]
"""Makes the batch of an iteration, as what is under way."""
