"""Run the rollout programs of an iteration: call engines and environments, and record the results."""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agentrl_core._util.json_text import is_unicode
from agentrl_core.collect.batch_policy import BatchPolicy
from agentrl_core.collect.concurrency import SlotLimiter, Slots, slot_limiters
from agentrl_core.collect.failures import Failures, is_wrong_call
from agentrl_core.collect.journal import Journal, digest, group_of, keep_unused_segments, question
from agentrl_core.collect.journal_codec import plain_value, read_segment, read_value, write_segment, write_value
from agentrl_core.collect.library import StoreLibrary
from agentrl_core.collect.model_queries import Model, QueryBatcher
from agentrl_core.collect.partial_rollouts import BatchCut, InFlightGroups, RequestGate, cut_batch
from agentrl_core.collect.progress import Progress
from agentrl_core.collect.recorded_episode import EnvironmentHandle, RecordedEpisode
from agentrl_core.collect.token_accounting import TokenCounts
from agentrl_core.collect.warn_once import WarnOnce
from agentrl_core.data.batch import Batch
from agentrl_core.data.codes import StepFlag
from agentrl_core.data.forest import Forest
from agentrl_core.data.store import Store
from agentrl_core.engine.base import Engine, Request, Sampling, Segment, check_request, checked_segment
from agentrl_core.engine.chat import Chat
from agentrl_core.env.base import Task
from agentrl_core.exceptions import InvalidInputError, UnsupportedError
from agentrl_core.rollout.cohort import Cohort
from agentrl_core.rollout.group import Group
from agentrl_core.rollout.library import EmptyLibrary, Library
from agentrl_core.rollout.program import Rollout
from agentrl_core.rollout.tasks import gather_or_cancel
from agentrl_core.update.sampling_use import SamplingUse

_RETRIES = 3
_FIRST_PAUSE = 0.1
_HELD = 1 << 21
"""Member number for left-over segments, unused otherwise."""
_EVALUATION = (1 << 63) - 1
"""Replaces the iteration in the keys of an evaluation."""


@dataclass(frozen=True)
class BranchLimits:
    """Limits of branches.

    Attributes:
        context_tokens: most tokens of its path.
        turns: most turns; None: no limit.
        seconds: longest call of its environment in seconds; None: no limit.
        branches: largest number of concurrent branches, over all groups, or per environment.
    """

    context_tokens: int
    turns: int | None
    seconds: float | None
    branches: int | Mapping[str, int]


class RolloutDriver:
    """Runs rollout programs; see `rollout.runtime` for their interface.

    Args:
        forest: stores the groups.
        engines: engines by agent name; an agent without one uses the first.
        worlds: environments by name.
        program: the rollout program.
        journal: records of requests and results, including those before a kill.
        sampling: default sampling of segments.
        limits: limits of branches.
        seed: seed of the run.
        mode: mode of the groups. Evaluation seeds are equal in every iteration, and differ from training seeds.
        notices: issues warnings once.
        reward: phase reward: returns the batch with more columns.
        statistics: statistics of a task, by its id.
        states: states of components, by place in the recipe.
        models: models that programs query, by column name.
        store: store of the run, for earlier solutions; None: no store.
        known: number of closed iterations at its start, whose solutions are visible.
        shared: slots for branches, by environment, shared by concurrent iterations; None: separate slots.
        window: most tokens of a branch in this iteration; None: no limit.
        use: how the recipe uses recorded log-probs.
    """

    def __init__(
        self,
        forest: Forest,
        engines: Mapping[str, Engine],
        worlds: Mapping[str, EnvironmentHandle],
        program: Rollout,
        journal: Journal,
        *,
        sampling: Sampling,
        limits: BranchLimits,
        seed: int,
        mode: Literal["train", "evaluate"],
        notices: WarnOnce,
        reward: Callable[[Batch], Batch],
        statistics: Callable[[str], Mapping[str, Any]],
        states: Mapping[str, Any] | None = None,
        models: Mapping[str, Model] | None = None,
        store: Store | None = None,
        known: int = 0,
        shared: Mapping[str, SlotLimiter] | None = None,
        window: int | None = None,
        use: SamplingUse | None = None,
    ) -> None:
        self.forest = forest
        self.program = program
        self.progress = Progress()
        self.began, self.ended, self.grew = self.progress.began, self.progress.over, self.progress.grew
        self.context_tokens = limits.context_tokens
        self.turn_limit = limits.turns
        self._engines = engines
        self._worlds = worlds
        self._journal = journal
        self._sampling = sampling
        self._limits = limits
        self._seed = seed
        self._mode: Literal["train", "evaluate"] = mode
        self._use = use if mode == "train" else None
        self._notices = notices
        self._reward = reward
        self._statistics = statistics
        self.library: Library = EmptyLibrary() if store is None else StoreLibrary(store, known, self.chat(""))
        self.states: Mapping[str, Any] = states or {}
        self.query = QueryBatcher(models or {}).ask
        self._facts = {name: fact.level for world in worlds.values() for name, fact in world.facts.items()}
        self._facts |= {name: fact.level for name, fact in program.facts.items()}
        self._agents = {name: number for number, name in enumerate(engines)}
        self._asked: dict[str, tuple[Engine, Request]] = {}
        self._numbers = 1 << 30
        self._numbers_of: dict[int, str] = {}
        """The group of a selection to which each group of the forest belongs."""
        self._failures = Failures(program.title(), notices, self.progress)
        self._worlds_of: dict[str, str] = {}
        self._rooms = slot_limiters(limits.branches, worlds) if shared is None else shared
        self._places: dict[str, Slots] = {}
        """The slots of each selected group."""
        self._gate = RequestGate(window)
        self.said: defaultdict[str, TokenCounts] = defaultdict(TokenCounts)
        """Counts of generated tokens for each selected group."""
        self._began: dict[str, Mapping[str, Any]] = {}
        """Statistics of a task at the start of its group, if that was in another iteration."""

    async def roll_out(
        self,
        tasks: Sequence[Task],
        sizes: Sequence[int],
        *,
        first: int,
        worlds: Mapping[str, str],
        variants: Sequence[int] | None = None,
    ) -> None:
        """Roll out one group for each task, until every branch of the new groups has ended.

        Args:
            tasks: one group each.
            sizes: requested trajectories of each group.
            first: number of the first group: its place in the selection.
            worlds: the name of the world of each task, by the task's id.
            variants: prompt variant of each; None: no variants.
        """
        self._worlds_of.update(worlds)
        arms = [-1] * len(tasks) if variants is None else variants
        groups = []
        for place, (task, size, variant) in enumerate(zip(tasks, sizes, arms, strict=True), start=first):
            key = (self.forest.iteration if self._mode == "train" else _EVALUATION, place)
            groups.append(self._group(task, size, variant, key, place))
        await self.program.cohort(Cohort(self, groups, (self.forest.iteration, first)))
        self._end(groups)

    async def roll_out_in_flight(
        self,
        tasks: Sequence[Task],
        flight: InFlightGroups,
        *,
        worlds: Mapping[str, str],
        programs: Callable[[int], Rollout],
        cut: BatchPolicy,
        number: int,
        wanted: int,
    ) -> BatchCut:
        """Run groups in flight until the batch is cut; the forest has those in the batch.

        Args:
            tasks: task of each group.
            flight: the groups.
            worlds: the name of the world of each task, by the task's id.
            programs: returns the program for groups that started in an iteration.
            cut: rule for the cut.
            number: number of the cut in this iteration.
            wanted: number of needed groups.
        """
        self._worlds_of.update(worlds)
        groups, chosen, now = [], flight.selection, self.forest.iteration
        for place, (task, key) in enumerate(zip(tasks, flight.keys, strict=True)):
            self._began[task.task_id] = flight.statistics[place]
            group = self._group(task, int(chosen.counts[place]), int(chosen.variants[place]), key, place)
            group.program = programs(key[0])
            groups.append(group)
        due = {place for place, (began, _) in enumerate(flight.keys) if cut.is_due(now - began)}
        landed = await cut_batch(
            groups,
            lambda group: self._play(group, group.program.group),
            self._stop_all,
            lambda landed: self._end_early(groups, landed, flight),
            cut=cut,
            gate=self._gate,
            progress=self.progress,
            journal=self._journal,
            name=f"cut/{number}",
            wanted=wanted,
            due=due,
        )
        stay = {groups[place].name for place in landed.stay}
        for named, of in self._numbers_of.items():
            if of not in stay:
                # Running trajectories are not frozen.
                self.forest.start(named, _HELD, role="helper")
        self._end([groups[place] for place in landed.stay])
        return landed

    def _end_early(self, groups: Sequence[Group], landed: BatchCut, flight: InFlightGroups) -> None:
        """End the unfinished branches of groups in a batch."""
        for place in landed.stay:
            groups[place]._deliver()
            for branch in groups[place].branches:
                if place in landed.dropped:
                    branch.drop("late")
                elif branch.over and flight.drawn[place] and not self._gate.has_said(branch.name):
                    branch.drop("it ended in an earlier window, whose batch has it")
                elif place in landed.unfinished:
                    branch._truncate("the window is over")

    def _group(self, task: Task, size: int, variant: int, key: tuple[int, int], place: int) -> Group:
        """Create a group of a selection."""
        self.forest.add_group(place, task.task_id, key=key)
        group = Group(self, task, size, key, place, mode=self._mode, fact_levels=self._facts)
        group.variant = variant
        self._numbers_of[place] = group.name
        self._failures.groups += 1
        return group

    def _end(self, groups: Sequence[Group]) -> None:
        """Report groups that have ended."""
        left = self._journal.unused_segments()
        for group in groups:
            keep_unused_segments(self.forest, group.number, left.get(group.name, ()), len(self._engines))
        self._failures.end()
        self._warn_missed_forks()

    def _stop_all(self) -> None:
        """Stop all segments being generated, and keep their tokens."""
        for name in list(self._asked):
            self.stop(name)

    async def run_groups(self, groups: Sequence[Group], program: Callable[[Group], Awaitable[Any]]) -> None:
        """Run a program on each group; an error fails only its group."""
        await gather_or_cancel([self._play(group, program) for group in groups])

    async def _play(self, group: Group, program: Callable[[Group], Awaitable[Any]]) -> None:
        room = self._rooms[self._world_of(group.task)]
        async with room.take(self.program.final_group_size(group.size), self.forest.iteration) as places:
            self._places[group.name] = places
            try:
                await group.run_program(program)
                self._failures.done += 1
            except Exception as error:  # noqa: BLE001 -- whatever a program raises
                self._failures.take(group, error)

    def release_slots(self, name: str, count: int) -> None:
        """Release slots of a group; derived groups have none."""
        if name in self._places:
            self._places[name].release_slots(count)

    async def derive(self, group: Group) -> None:
        """Run the program of a derived group to its end."""
        self.forest.add_group(group.number, group.task.task_id, key=group.key)
        self._numbers_of[group.number] = group_of(group.name)
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

    def sampling(self, agent: str) -> Sampling:
        """Default sampling of segments."""
        del agent
        return self._sampling

    def agent(self, name: str) -> int:
        """Return the number of an agent in the tables: engines first, then others in order of use."""
        return self._agents.setdefault(name, len(self._agents))

    def policy(self, agent: str) -> int:
        """Return the number of an agent's policy."""
        return self._agents[agent] if agent in self._engines else 0

    def number(self) -> int:
        """Return the number of a new group of the forest."""
        self._numbers += 1
        return self._numbers - 1

    def seed_of(self, *parts: object, began: int | None = None) -> int:
        """Return 63 random bits from the run's seed, the parts, and the iteration in which a group started."""
        iteration = self.forest.iteration if began is None or self._mode != "train" else began
        text = repr((self._seed, iteration, *parts)).encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1

    def episode(self, task: Task, environment: str | None, seed: int) -> RecordedEpisode:
        """Create an episode of a task, which is reset on first use."""
        return RecordedEpisode(
            self._world(task, environment),
            task,
            seed,
            journal=self._journal,
            progress=self.progress,
            notices=self._notices,
            seconds=self._limits.seconds,
        )

    def _world_of(self, task: Task) -> str:
        """Return the name of a task's world; a task that was not selected uses the first."""
        return self._worlds_of.get(task.task_id, next(iter(self._worlds)))

    def uses_world_model(self, task: Task, environment: str | None) -> bool:
        """Whether an episode of a task is a dream of a world model."""
        return self._world(task, environment).is_world_model

    def _world(self, task: Task, environment: str | None) -> EnvironmentHandle:
        name = self._world_of(task) if environment is None else environment
        if name not in self._worlds:
            known = ", ".join(map(repr, self._worlds))
            raise InvalidInputError(f"start: environment={name!r} is unknown to the collector; use one of: {known}")
        return self._worlds[name]

    def statistics(self, task_id: str) -> Mapping[str, Any]:
        """Return the run's statistics of a task."""
        return self._began[task_id] if task_id in self._began else self._statistics(task_id)

    def count_turn(self, flags: int, failed: str | None) -> None:
        """Count a turn by its flags, or a failed episode."""
        self.progress.turns += failed is None
        self.progress.tool_results += bool(flags & StepFlag.TOOL_RESULT)
        self.progress.failed += failed is not None
        if failed is not None:
            self._notices.once(
                "episode",
                f"{failed}; its branch ended as failed and is not drawn; failed branches are counted in the metric "
                "collect.failed",
            )

    def will_answer(self, name: str) -> bool:
        """Return whether the journal has the answer of that name."""
        return name in self._journal

    async def generate(self, name: str, agent: str, request: Request) -> Segment:
        """Return an agent's response to a request, from the journal or from its engine."""
        engine = self._engine(agent)
        if self._use is not None:
            self._use.check(request.sampling, "generate: sampling", unrecorded=True)
        asked = question(request, agent if agent in self._engines else next(iter(self._engines)))
        recorded = self._journal.find(name, asked, read_segment)
        if recorded is not None:
            if not self._journal.is_carried(name):
                self._gate.count(name, recorded)
            self.said[group_of(name)].add(recorded, len(request.tokens))
            return recorded
        check_request(request, engine.vocabulary_size)
        told = await self._gate.enter(name, request)
        self.progress.at_engine += 1
        self._asked[name] = engine, told
        try:
            segment = await self._generate(engine, told)
        finally:
            self.progress.at_engine -= 1
            del self._asked[name]
        segment = self._gate.leave(name, request, told, segment)
        self.progress.tokens += len(segment.tokens)
        self._journal.keep(name, asked, segment, write_segment)
        self.said[group_of(name)].add(segment, len(request.tokens))
        return segment

    async def _generate(self, engine: Engine, request: Request) -> Segment:
        """Call an engine; retry a few times if the request fails or its response is unusable."""
        for attempt in range(_RETRIES):
            try:
                return checked_segment(await engine.generate(request), request, engine.vocabulary_size)
            except Exception as error:
                if attempt + 1 == _RETRIES or is_wrong_call(error):
                    raise
                self.progress.repairs += 1
                await asyncio.sleep(_FIRST_PAUSE * 4**attempt)
        raise AssertionError("the last attempt returns or raises")

    def stop(self, name: str) -> None:
        """Stop the segment of that name if it is being generated, and keep its tokens."""
        if name in self._asked:
            engine, request = self._asked[name]
            engine.abort(request)

    async def record(self, name: str, make: Callable[[], Awaitable[Any]]) -> Any:
        """What the journal holds under a name; else what `make` gives, journalled first."""
        if not is_unicode(name):
            raise InvalidInputError(f"record: name {name!r:.200} is not Unicode; give another one")
        if name in self._journal:
            return self._journal.find(name, digest(name), read_value)
        value = plain_value(await make(), name)
        self._journal.keep(name, digest(name), value, write_value)
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
        if self.program.forks_at_tools and self.progress.turns and not self.progress.tool_results:
            title = ", ".join(world.title for world in self._worlds.values())
            self._notices.once(
                "tools",
                f"{self.program.title()} forks at tool results, and environment {title} reported none in iteration "
                f"{self.forest.iteration}: nothing was forked; set flags=env.StepFlag.TOOL_RESULT in the StepResult of "
                "an action that a tool answered, or use rollout.Independent",
            )
