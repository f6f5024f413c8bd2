"""Roll out in several processes: each gets a part of the selected groups, and the collector merges their batches."""

from __future__ import annotations

import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from agentrl_core import _core
from agentrl_core.collect.failures import MOST_FAILED
from agentrl_core.collect.iteration import TokenCounts
from agentrl_core.collect.rollout_driver import CollectionSettings
from agentrl_core.collect.rollout_log import IterationLog
from agentrl_core.collect.run_state import RunState
from agentrl_core.collect.warn_once import WarnOnce
from agentrl_core.collect.worker_order import RolloutOrder, RolloutPart
from agentrl_core.data.batch import Batch
from agentrl_core.env.base import Task
from agentrl_core.exceptions import AgentRLError, EngineError, InvalidInputError, RecipeError
from agentrl_core.recipe import Recipe
from agentrl_core.rollout import Rollout
from agentrl_core.rollout.progress import Progress

Worker = Callable[[Any], Any]
"""Interface of a rollout worker: sends an order to a process, and returns the batch of its `Collector.roll_out`."""
_WATCH_SECONDS = 0.1
_MOST_BYTES = 200 << 20
"""Larger parts are not recorded: a record has at most 256 MiB."""


class RolloutWorkers:
    """The rollout workers of a collector. Each works on one order at a time.

    Args:
        workers: functions that send an order and return its batch.
        recipe: its rollout program must not plan over the groups of a selection.
        is_synchronous: whether the batch of an iteration has its own groups only.

    Raises:
        InvalidInputError: there are no workers, one is not a function, or batches carry groups over.
        RecipeError: the rollout program plans over several groups.
    """

    def __init__(self, workers: object, recipe: Recipe, *, is_synchronous: bool) -> None:
        if isinstance(workers, str) or not isinstance(workers, Sequence) or not workers:
            raise InvalidInputError(
                f"Collector: rollout_workers={workers!r}; give a list with a function for each worker, or None"
            )
        for place, worker in enumerate(workers):
            if not callable(worker):
                raise InvalidInputError(
                    f"Collector: rollout_workers[{place}]={worker!r} is not a function; give one that sends an order "
                    "to a process and returns the batch of its Collector.roll_out"
                )
        if not is_synchronous:
            raise InvalidInputError(
                "Collector: rollout workers finish all groups of an iteration, but batch_policy carries groups over; "
                "use the default batch_policy, or leave rollout_workers out"
            )
        if type(recipe.rollout).cohort is not Rollout.cohort:
            raise RecipeError(
                f"recipe {recipe.name!r}: {recipe.rollout.title()} plans over all groups of a selection together, but "
                "each worker gets some of them; leave rollout_workers out"
            )
        self._workers: list[Worker] = list(workers)
        self._locks = [threading.Lock() for _ in workers]

    def __len__(self) -> int:
        """Number of workers."""
        return len(self._workers)

    def send(self, place: int, order: RolloutOrder, notices: WarnOnce, begun: Callable[[], bool]) -> Batch:
        """Return the batch of an order, from the worker at an index, or if that fails from the next one.

        Args:
            place: number of the worker.
            order: the order.
            notices: warns of workers that fail.
            begun: called when a worker is free; returns whether the order is still wanted.

        Raises:
            AgentRLError: that of the worker's collector, unless its engine failed.
            EngineError: every worker failed.
        """
        failure: Exception | None = None
        for number in range(place, place + len(self)):
            worker = number % len(self)
            with self._locks[worker]:
                if not begun():
                    raise InterruptedError
                try:
                    batch = self._workers[worker](order)
                    RolloutPart.of(batch, order)
                except Exception as error:
                    # Besides errors of engines, whatever the transport raises if the process is gone.
                    if isinstance(error, AgentRLError) and not isinstance(error, EngineError):
                        raise
                    failure = error
                    notices.once(
                        f"worker {worker}",
                        f"rollout worker {worker} failed ({type(error).__name__}: {error}); its groups go to the next "
                        "worker, and it is tried again in the next iteration",
                    )
                    continue
                return batch  # type: ignore[no-any-return]
        raise EngineError(
            f"Collector: none of {len(self)} rollout workers rolled out the groups from number {order.first} on (error "
            f"of the last worker: {type(failure).__name__}: {failure}); check the workers' logs, and start them again"
        ) from failure


class WorkerDriver:
    """Roll out the selections of an iteration in workers, like a `RolloutDriver` in this process.

    The groups of a selection are divided into one part for each worker, in order, so that the merged batch equals that
    of one process: seeds follow from the place of a group, and ids from the order of the parts.

    Args:
        pool: the workers.
        settings: the writer's settings.
        recipe: the writer's recipe.
        head: state of the run at the start of the iteration.
        log: rollout log of the iteration, which records the parts as they arrive.
        iteration: its number.
    """

    def __init__(
        self,
        pool: RolloutWorkers,
        settings: CollectionSettings,
        recipe: Recipe,
        head: RunState,
        log: IterationLog,
        *,
        iteration: int,
    ) -> None:
        self.progress = Progress()
        self.token_counts: defaultdict[str, TokenCounts] = defaultdict(TokenCounts)
        self._pool = pool
        self._settings = settings
        self._recipe = recipe
        self._head = head
        self._log = log
        self._iteration = iteration
        self._agents: dict[str, int] = {}
        self._groups = self._failed = 0

    def roll_out(
        self,
        chosen: Sequence[tuple[str, Task]],
        sizes: Sequence[int],
        *,
        first: int,
        variants: Sequence[int] | None = None,
    ) -> Batch:
        """Roll out one group for each task; see `RolloutDriver.roll_out`.

        Raises:
            EngineError: a fifth of the groups failed, or no worker is left.
            InvalidInputError: workers gave an agent different numbers.
        """
        turn = self._settings.turn
        if turn is not None:
            turn.wait_for_previous()
        orders = self._orders(list(chosen), list(sizes), first, [-1] * len(chosen) if variants is None else variants)
        self._groups += len(chosen)
        batches = self._batches(orders)
        failure = ""
        for order, batch in zip(orders, batches, strict=True):
            part = RolloutPart.of(batch, order)
            self._check_agents(part)
            self.token_counts.update(part.counts)
            for name, count in part.progress.items():
                setattr(self.progress, name, getattr(self.progress, name) + count)
            self._failed += part.failed_groups
            failure = failure or part.failure
        if self._settings.progress is not None:
            self._settings.progress(self.progress)
        if self._failed > MOST_FAILED * self._groups:
            raise EngineError(
                f"{self._failed} of {self._groups} groups of iteration {self._iteration} failed in the workers (the "
                f"first with {failure}); check the logs of the workers"
            )
        return Batch.concat([batch.with_state({}) for batch in batches])

    def _orders(
        self, chosen: list[tuple[str, Task]], sizes: list[int], first: int, variants: Sequence[int]
    ) -> list[RolloutOrder]:
        """Return an order for each worker, with neighbouring groups of the selection."""
        settings, head, store = self._settings, self._head, self._settings.store
        parts = [part for part in np.array_split(np.arange(len(chosen)), len(self._pool)) if len(part)]
        whole = RolloutOrder(
            iteration=self._iteration,
            first=first,
            chosen=chosen,
            sizes=sizes,
            variants=list(variants),
            other_groups=0,
            recipe=self._recipe.to_dict(),
            seed=settings.seed,
            sampling=settings.sampling,
            limits={name: getattr(settings, name) for name in ("context_tokens", "turn_limit", "call_seconds")},
            versions={name: engine.policy_version for name, engine in settings.engines.items()},
            components=head.components,
            began=head.iteration,
            statistics=Batch(head.tasks),
            store=None if store is None else (store.path, store._core.snapshot),  # noqa: SLF001
        )
        return [
            replace(
                whole,
                first=first + int(part[0]),
                chosen=chosen[part[0] : part[-1] + 1],
                sizes=sizes[part[0] : part[-1] + 1],
                variants=whole.variants[part[0] : part[-1] + 1],
                other_groups=len(chosen) - len(part),
            )
            for part in parts
        ]

    def _batches(self, orders: Sequence[RolloutOrder]) -> list[Batch]:
        """Return the batch of each order, from the rollout log or from a worker."""
        found: dict[int, Batch] = {}
        for number, order in enumerate(orders):
            recorded = self._log.find(_name(order), bytes.fromhex(order.key), _read)
            if recorded is not None:
                found[number] = recorded
        rest = [number for number in range(len(orders)) if number not in found]
        results: queue.Queue[tuple[int, Batch | BaseException | None]] = queue.Queue()
        unwanted = threading.Event()

        def begun(number: int) -> bool:
            results.put((number, None))
            return not unwanted.is_set()

        def work(number: int) -> None:
            try:
                batch = self._pool.send(number, orders[number], self._settings.notices, lambda: begun(number))
            except BaseException as error:  # noqa: BLE001 -- the collecting thread raises it
                results.put((number, error))
            else:
                results.put((number, batch))

        for number in rest:
            threading.Thread(target=work, args=(number,), name=f"agentrl-worker-{number}", daemon=True).start()
        try:
            self._wait(orders, rest, results, found)
        finally:
            # Orders that wait for a worker are given up; those at work end there, and their batches are dropped.
            unwanted.set()
        return [found[number] for number in range(len(orders))]

    def _wait(
        self,
        orders: Sequence[RolloutOrder],
        rest: Sequence[int],
        results: queue.Queue[tuple[int, Batch | BaseException | None]],
        found: dict[int, Batch],
    ) -> None:
        """Wait for the results of all workers, and record each."""
        waiting, watch, turn = set(rest), self._settings.progress, self._settings.turn
        while len(found) < len(orders):
            if turn is not None and not waiting:
                turn.release_next()  # later iterations get a worker after these
            try:
                number, result = results.get(timeout=_WATCH_SECONDS)
            except queue.Empty:
                if watch is not None:
                    watch(self.progress)
                continue
            waiting.discard(number)
            if isinstance(result, BaseException):
                raise result
            if result is not None:
                found[number] = result
                self._keep(orders[number], result)
        if turn is not None:
            turn.release_next()

    def _keep(self, order: RolloutOrder, batch: Batch) -> None:
        """Record a part in the rollout log, unless it is too large."""
        payload = _written(batch)
        if len(payload) < _MOST_BYTES:
            self._log.keep(_name(order), bytes.fromhex(order.key), batch, lambda _: payload)

    def _check_agents(self, part: RolloutPart) -> None:
        """Refuse parts in which agents have different numbers, since rows would be mixed up."""
        for name, number in part.agents.items():
            known = self._agents.setdefault(name, number)
            if known != number or list(self._agents.values()).count(number) > 1:
                raise InvalidInputError(
                    f"Collector: two rollout workers gave agents different numbers ({self._agents}, then "
                    f"{part.agents}); give each agent an engine, engine={{{name!r}: ...}}, so that its number is fixed"
                )


def _name(order: RolloutOrder) -> str:
    """Return the name of a part in the rollout log."""
    return f"part/{order.first}"


def _written(batch: Batch) -> bytes:
    """Encode a batch: number and lengths of its parts, then the parts."""
    parts = batch._core.to_bytes()  # noqa: SLF001
    lengths = np.array([len(parts), *map(len, parts)], "<i8")
    return b"".join([lengths.tobytes(), *(part.tobytes() for part in parts)])


def _read(payload: bytes) -> Batch:
    """Decode a batch of `_written`."""
    count = int(np.frombuffer(payload, "<i8", 1)[0])
    ends = 8 * (count + 1) + np.cumsum(np.frombuffer(payload, "<i8", count, 8))
    starts = [8 * (count + 1), *ends[:-1].tolist()]
    content = np.frombuffer(payload, np.uint8)
    parts = [content[begin:end] for begin, end in zip(starts, ends.tolist(), strict=True)]
    return Batch(_core.Batch.from_bytes(parts))
