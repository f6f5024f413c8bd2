"""Run the rollout programs of an iteration: call engines and environments, and record the results."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal, TypeVar

import numpy as np

from agentrl_core._util.json_text import is_unicode
from agentrl_core._util.stable_hash import stable_hash
from agentrl_core.collect import event_loop as loop
from agentrl_core.collect.event_loop import SlotLimiter, Slots, slot_limiters
from agentrl_core.collect.failures import Failures, is_wrong_call
from agentrl_core.collect.iteration import TokenCounts
from agentrl_core.collect.model_queries import Model, QueryBatcher
from agentrl_core.collect.prefetch import IterationTask
from agentrl_core.collect.recorded_episode import EnvironmentHandle, RecordedEpisode
from agentrl_core.collect.rollout_log import (
    IterationLog,
    digest,
    group_of,
    keep_unused_segments,
    plain_value,
    read_segment,
    read_value,
    write_segment,
    write_value,
)
from agentrl_core.collect.run_state import RunState
from agentrl_core.collect.stored_solutions import StoreLibrary
from agentrl_core.collect.warn_once import WarnOnce
from agentrl_core.component.schedule import Schedule
from agentrl_core.data.batch import Batch
from agentrl_core.data.forest import Forest
from agentrl_core.data.store import Store
from agentrl_core.engine.base import Engine, Request, Sampling, Segment, check_request, checked_segment
from agentrl_core.engine.chat import Chat
from agentrl_core.env.base import Task
from agentrl_core.exceptions import InvalidInputError, UnsupportedError
from agentrl_core.recipe import Recipe
from agentrl_core.rollout.async_tasks import gather_or_cancel
from agentrl_core.rollout.group import Group
from agentrl_core.rollout.program import Cohort
from agentrl_core.rollout.progress import Progress
from agentrl_core.rollout.solved_trajectories import EmptyLibrary, Library
from agentrl_core.update.check_sampling import SamplingUse

Value = TypeVar("Value")
_RETRIES = 3
_FIRST_PAUSE = 0.1
_EVALUATION = (1 << 63) - 1
"""Replaces the iteration in the keys of an evaluation."""


@dataclass(frozen=True)
class CollectionSettings:
    """Engines, environments and limits of a collection; see the arguments of `Collector`.

    An agent without an engine of its name uses the first. Concurrent iterations share `limiters`, and each requests
    slots in its `turn`, if it has one.
    """

    engines: Mapping[str, Engine]
    worlds: Mapping[str, EnvironmentHandle]
    sampling: Sampling
    context_tokens: int | Schedule
    turn_limit: int | Schedule | None
    call_seconds: float | Schedule | None
    concurrency: int | Mapping[str, int]
    seed: int
    models: Mapping[str, Model]
    store: Store | None
    notices: WarnOnce
    progress: Callable[[Progress], None] | None
    limiters: Mapping[str, SlotLimiter] | None = None
    turn: IterationTask[Any] | None = None
    other_groups: int = 0
    """Groups of the selection that other workers roll out."""

    def facts(self, recipe: Recipe) -> dict[str, dict[str, Literal["number", "key"]]]:
        """Return the facts that environments and program declare: the kind of each, by level and name."""
        facts: dict[str, dict[str, Literal["number", "key"]]] = {"step": {}, "trajectory": {}}
        for declared in (*(world.facts for world in self.worlds.values()), recipe.rollout.facts):
            for name, fact in declared.items():
                facts[fact.level][name] = fact.kind
        return facts


class RolloutDriver:
    """Runs the program of a recipe on tasks, and freezes the groups; see `rollout.runtime` for its interface.

    Args:
        settings: engines, environments and limits.
        recipe: the recipe of the iteration.
        head: state of the run: states of components, statistics of tasks, and the iterations whose solutions are
            visible.
        log: records of requests and results, including those before a kill.
        reward: phase reward: returns the batch with more columns.
        iteration: its number.
        mode: mode of the groups. Evaluation seeds are equal in every iteration, and differ from training seeds; it sees
            no earlier solutions.
    """

    def __init__(
        self,
        settings: CollectionSettings,
        recipe: Recipe,
        head: RunState,
        log: IterationLog,
        reward: Callable[[Batch], Batch],
        *,
        iteration: int,
        mode: Literal["train", "evaluate"] = "train",
    ) -> None:
        facts = settings.facts(recipe)
        estimator = next(iter(settings.engines.values())).entropy_estimator
        self.forest = Forest(iteration=iteration, seed=settings.seed, entropies=estimator, facts=facts)
        self.program = recipe.rollout
        self.progress = Progress()

        def now(limit: Any) -> Any:
            return limit.at(iteration) if isinstance(limit, Schedule) else limit

        turns = now(settings.turn_limit)
        self.context_tokens = round(now(settings.context_tokens))
        self.turn_limit = None if turns is None else round(turns)
        self._seconds: float | None = now(settings.call_seconds)
        self._iteration = iteration
        self._settings = settings
        self.sampling = settings.sampling
        self._engines = settings.engines
        self._worlds = settings.worlds
        self._head = head
        self._log = log
        self._mode: Literal["train", "evaluate"] = mode
        self._use = SamplingUse.of(recipe) if mode == "train" else None
        self._checked: set[Sampling] = set()
        """Samplings whose log-probs the recipe can use."""
        self._notices = settings.notices
        self._reward = reward
        self.states: Mapping[str, Any] = head.components
        self._fact_levels = {name: level for level, kinds in facts.items() for name in kinds}
        self.agents = {name: number for number, name in enumerate(settings.engines)}
        """Number of each agent in the tables: engines first, then others in order of use."""
        self._requests: dict[str, tuple[Engine, Request]] = {}
        self._numbers = 1 << 30
        self._selected: dict[str, tuple[int, str]] = {}
        """Of each group: its number in the forest, and the selected group to which it belongs."""
        self.failures = Failures(self.program.title(), settings.notices, self.progress)
        self.failures.groups = settings.other_groups
        self._worlds_of: dict[str, str] = {}
        shared = settings.limiters
        self._limiters = slot_limiters(settings.concurrency, settings.worlds) if shared is None else shared
        self._slots: dict[str, Slots] = {}
        """The slots of each selected group."""
        self.token_counts: defaultdict[str, TokenCounts] = defaultdict(TokenCounts)
        """Counts of generated tokens for each selected group."""

    @cached_property
    def library(self) -> Library:
        """Solved trajectories of earlier iterations; none without a store or in an evaluation."""
        store = self._settings.store if self._mode == "train" else None
        return EmptyLibrary() if store is None else StoreLibrary(store, self._head.iteration, self.chat(""))

    @cached_property
    def query(self) -> Callable[..., Coroutine[Any, Any, list[float]]]:
        """The function that queries a model about token paths, batched with other groups."""
        return QueryBatcher(self._settings.models).query

    def roll_out(
        self,
        chosen: Sequence[tuple[str, Task]],
        sizes: Sequence[int],
        *,
        first: int,
        variants: Sequence[int] | None = None,
    ) -> Batch:
        """Roll out one group for each task, until every branch of the new groups has ended; return them, frozen.

        Args:
            chosen: one group each: the name of its world, and the task.
            sizes: requested trajectories of each group.
            first: number of the first group: its place in the selection.
            variants: prompt variant of each; None: no variants.
        """
        turn = self._settings.turn

        def begin() -> Coroutine[Any, Any, None]:
            # Later iterations start their groups after these.
            if turn is not None:
                turn.release_next()
            return self._roll_out(chosen, sizes, first, [-1] * len(chosen) if variants is None else variants)

        if turn is not None:
            turn.wait_for_previous()
        self.run(begin)
        return self.forest.freeze()

    def run(self, begin: Callable[[], Coroutine[Any, Any, Value]]) -> Value:
        """Run a coroutine on the event loop, with progress reports."""
        settings, watch, progress = self._settings, self._settings.progress, self.progress
        return loop.run(begin, None if watch is None else lambda: watch(progress), alone=settings.limiters is None)

    async def _roll_out(
        self, chosen: Sequence[tuple[str, Task]], sizes: Sequence[int], first: int, variants: Sequence[int]
    ) -> None:
        began = self._iteration if self._mode == "train" else _EVALUATION
        groups = [
            self._group(world, task, size, variant, (began, place), place)
            for place, ((world, task), size, variant) in enumerate(zip(chosen, sizes, variants, strict=True), first)
        ]
        await self.program.cohort(Cohort(self, groups, (self._iteration, first)))
        self._end(groups)

    def _group(self, world: str, task: Task, size: int, variant: int, key: tuple[int, int], place: int) -> Group:
        """Create a group of a selection."""
        self._worlds_of[task.task_id] = world
        self.forest.add_group(place, task.task_id, key=key)
        group = Group(self, task, size, key, place, mode=self._mode, fact_levels=self._fact_levels)
        group.variant = variant
        self._selected[group.name] = place, group.name
        self.failures.groups += 1
        return group

    def _end(self, groups: Sequence[Group]) -> None:
        """Store unused recorded segments of groups that have ended, and warn of groups that failed."""
        left = self._log.unused_segments()
        for group in groups:
            if group.name in left:
                keep_unused_segments(self.forest, group.number, left[group.name], len(self._engines))
        self.failures.end()
        if self.program.forks_at_tools:
            self._warn_missed_forks()

    async def run_groups(self, groups: Sequence[Group], program: Callable[[Group], Awaitable[Any]]) -> None:
        """Run a program on each group, concurrently within the limit; most errors fail only their group."""
        await gather_or_cancel([self._play(group, program) for group in groups])

    async def _play(self, group: Group, program: Callable[[Group], Awaitable[Any]]) -> None:
        limiter = self._limiters[self._world_of(group.task)]
        async with limiter.take(self.program.final_group_size(group.size), self._iteration) as slots:
            self._slots[group.name] = slots
            try:
                await group.run_program(program)
                self.failures.done += 1
            except Exception as error:  # noqa: BLE001 -- whatever a program raises
                self.failures.take(group, error)

    def release_slots(self, name: str, count: int) -> None:
        """Release slots of a group; derived groups have none."""
        if name in self._slots:
            self._slots[name].release_slots(count)

    async def derive(self, group: Group) -> None:
        """Run the program of a derived group to its end."""
        self.forest.add_group(group.number, group.task.task_id, key=group.key)
        self._selected[group.name] = group.number, group_of(group.name)
        # In a separate task, which alone may change the group.
        await gather_or_cancel([group.run_program(group.program.group)])

    def chat(self, agent: str) -> Chat:
        """Return the chat of an agent's model."""
        return self._engine(agent).chat

    def vocabulary_size(self, agent: str) -> int:
        """Return V, the width of the logits of an agent's model."""
        return self._engine(agent).vocabulary_size

    def precision(self, agent: str) -> int | None:
        """Return the bits per weight of an agent's engine; None if unknown."""
        bits: int | None = getattr(self._engine(agent), "precision", None)
        return bits

    def check_images(self, agent: str, title: str) -> None:
        """Refuse images of an environment if the agent's engine does not support them."""
        engine = self._engine(agent)
        if not getattr(engine, "takes_images", False):
            raise UnsupportedError(
                f"environment {title} shows images, but engine {list(self._engines)[self.policy(agent)]!r} "
                f"({type(engine).__name__}) does not support them; use an engine with takes_images = True, or an "
                f"environment with text observations"
            )

    def agent(self, name: str) -> int:
        """Return the number of an agent in the tables: engines first, then others in order of use."""
        return self.agents.setdefault(name, len(self.agents))

    def policy(self, agent: str) -> int:
        """Return the number of an agent's policy: that of its own engine; without one, 0, that of the first engine."""
        return self.agents[agent] if agent in self._engines else 0

    def number(self) -> int:
        """Return the number of a new group of the forest."""
        self._numbers += 1
        return self._numbers - 1

    def seed_of(self, *parts: object, began: int | None = None) -> int:
        """Return 63 random bits from the run's seed, the parts, and the iteration: in training `began`, if given."""
        iteration = self._iteration if began is None or self._mode != "train" else began
        text = repr((self._settings.seed, iteration, *parts)).encode()
        return stable_hash(text)

    def episode(self, task: Task, environment: str | None, seed: int) -> RecordedEpisode:
        """Create an episode of a task, which is reset on first use."""
        return RecordedEpisode(
            self._world(task, environment),
            task,
            seed,
            log=self._log,
            progress=self.progress,
            notices=self._notices,
            seconds=self._seconds,
        )

    def _world_of(self, task: Task) -> str:
        """Return the name of a task's world; a task that was not selected uses the first."""
        return self._worlds_of.get(task.task_id, next(iter(self._worlds)))

    def uses_world_model(self, task: Task, environment: str | None) -> bool:
        """Return whether a world model simulates the episode of a task."""
        return self._world(task, environment).is_world_model

    def _world(self, task: Task, environment: str | None) -> EnvironmentHandle:
        name = self._world_of(task) if environment is None else environment
        if name not in self._worlds:
            known = ", ".join(map(repr, self._worlds))
            raise InvalidInputError(f"start: environment={name!r} is unknown to the collector; use one of: {known}")
        return self._worlds[name]

    def statistics(self, task_id: str) -> Mapping[str, Any]:
        """Return the run's statistics of a task."""
        return self._head.statistics(task_id)

    def count_failed(self, reason: str) -> None:
        """Count a failed episode, and warn of the first one."""
        self.progress.failed += 1
        self._notices.once(
            "episode",
            f"{reason}; its branch ended as failed and is not drawn; failed branches are counted in the metric "
            "collect.failed",
        )

    async def generate(self, name: str, agent: str, request: Request) -> Segment:
        """Return an agent's response to a request, from the rollout log or from its engine."""
        engine = self._engine(agent)
        if self._use is not None and request.sampling not in self._checked:
            self._use.check(request.sampling, "generate: sampling", unrecorded=True)
            self._checked.add(request.sampling)
        key = question(request, agent if agent in self._engines else next(iter(self._engines)))
        segment = self._recorded(name, key)
        if segment is None:
            takes_images = bool(getattr(engine, "takes_images", False))
            check_request(request, engine.vocabulary_size, takes_images=takes_images)
            segment = await self._sample(name, engine, request)
            self.progress.tokens += len(segment.tokens)
            self._log.keep(name, key, segment, write_segment)
        counts = self.token_counts[self._selected[request.group][1]]
        counts.tokens[segment.policy_version] += len(segment.tokens)
        counts.context += len(request.tokens)
        counts.cached += segment.cached_tokens or 0
        return segment

    def _recorded(self, name: str, key: bytes) -> Segment | None:
        """Return the segment of a request in the rollout log; None if there is none."""
        return self._log.find(name, key, read_segment)

    async def _sample(self, name: str, engine: Engine, request: Request) -> Segment:
        """Return the engine's response to a request, which `stop` can interrupt.

        A request is repeated a few times if it fails or its response is unusable.
        """
        self.progress.at_engine += 1
        self._requests[name] = engine, request
        try:
            for attempt in range(_RETRIES):
                try:
                    return checked_segment(await engine.generate(request), request, engine.vocabulary_size)
                except Exception as error:
                    if attempt + 1 == _RETRIES or is_wrong_call(error):
                        raise
                    self.progress.repairs += 1
                    await asyncio.sleep(_FIRST_PAUSE * 4**attempt)
            raise AssertionError("the last attempt returns or raises")
        finally:
            self.progress.at_engine -= 1
            del self._requests[name]

    def stop(self, name: str) -> None:
        """Stop the segment of that name if it is being generated, and keep its tokens."""
        if name in self._requests:
            engine, request = self._requests[name]
            engine.abort(request)

    async def record(self, name: str, make: Callable[[], Awaitable[Any]]) -> Any:
        """Return the rollout log's value of a name, or that of `make`, which is written to it first."""
        if not is_unicode(name):
            raise InvalidInputError(f"record: name {name!r:.200} is not Unicode; give another one")
        if name in self._log:
            return self._log.find(name, digest(name), read_value)
        value = plain_value(await make(), name)
        self._log.keep(name, digest(name), value, write_value)
        return value

    def scores(self, group: Group, column: str) -> dict[int, float]:
        """Score a group in its current state: a number for the handle of each ended branch."""
        batch, handles = self.forest.snapshot(group.number)
        scored = self._reward(batch)
        of_id = dict(zip(batch.trajectories.column("trajectory_id").tolist(), handles.tolist(), strict=True))
        ids = scored.column("trajectory_id", "draw").tolist()
        return {of_id[row]: score for row, score in zip(ids, scored.column(column, "draw").tolist(), strict=True)}

    def _engine(self, agent: str) -> Engine:
        engine = self._engines.get(agent)
        return next(iter(self._engines.values())) if engine is None else engine

    def _warn_missed_forks(self) -> None:
        """Warn if a program that forks at tool results got no tool result."""
        if self.progress.turns and not self.progress.tool_results:
            title = ", ".join(world.title for world in self._worlds.values())
            self._notices.once(
                "tools",
                f"{self.program.title()} forks at tool results, and environment {title} reported none in iteration "
                f"{self._iteration}: nothing was forked; set flags=env.StepFlag.TOOL_RESULT in the StepResult of "
                "an action that a tool answered, or use rollout.Independent",
            )


def question(request: Request, engine: str) -> bytes:
    """Return the digest of a request to an engine."""
    # Each request has the whole context so far, so hashing must run at memory speed.
    tokens = np.ascontiguousarray(request.tokens, np.int32)
    images = [image.sha256 for image in request.images] if request.images else ()
    return digest(tokens, _sampling_text(request.sampling), engine, *images)


_sampling_text: Callable[[Sampling], str] = lru_cache(maxsize=64)(repr)
"""Return the sampling as part of a digest."""
