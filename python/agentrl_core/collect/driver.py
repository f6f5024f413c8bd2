"""Runs the rollout programs of an iteration: asks engines and environments for them, and keeps what they got."""

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

_RETRIES = 3
_FIRST_PAUSE = 0.1
_HELD = 1 << 21
"""Number of a member that nobody has, behind what is left over."""
_EVALUATION = (1 << 63) - 1
"""Stands in the place of the iteration in the keys of an evaluation."""


@dataclass(frozen=True)
class BranchLimits:
    """What a branch may use.

    Attributes:
        context_tokens: most tokens of its path.
        turns: most turns; None: no limit.
        seconds: most seconds of one call of its environment; None: no limit.
        branches: most branches that are driven at once, over all groups, or of each environment.
    """

    context_tokens: int
    turns: int | None
    seconds: float | None
    branches: int | Mapping[str, int]


class RolloutDriver:
    """Who runs programs; see `rollout.runtime` for what they ask.

    Args:
        forest: takes the groups.
        engines: who speaks, by the name of the agent; an agent without an engine of its own is spoken for by the first.
        worlds: who answers, by name.
        program: what is run.
        journal: what was asked and got, now and before a kill.
        sampling: of segments whose program does not say.
        limits: what a branch may use.
        seed: of the run.
        mode: what the groups are told. The seeds of an evaluation are the same in every iteration, none of training.
        notices: keeps what was warned of already.
        reward: what phase reward makes of a batch: the same batch with more columns.
        statistics: what is known of a task, by its id.
        states: what components remember, by their place in the recipe.
        models: whom programs ask for numbers, by the name of the column.
        store: of the run, which says what was solved before; None: nothing was.
        known: how many iterations were closed when this one began: what was solved in them.
        shared: room for branches, by environment, where several iterations run at once; None: this one has its own.
        window: most tokens that a branch says in this iteration; None: no limit.
        old_logprob: what the recipe takes ratios to.
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
        old_logprob: str = "behaviour",
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
        self._old_logprob = old_logprob
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
        """Those of each group of a selection."""
        self._gate = RequestGate(window)
        self.said: defaultdict[str, TokenCounts] = defaultdict(TokenCounts)
        """What engines said for each group of a selection."""
        self._began: dict[str, Mapping[str, Any]] = {}
        """What was known of a task when its group began, where that was in another iteration."""

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
            sizes: how many trajectories each group is asked for.
            first: number of the first group: its place in the selection.
            worlds: the name of the world of each task, by the task's id.
            variants: prompt variant of each; None: none has one.
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
        """Run groups that are in flight until the batch is cut; the forest has those that are in the batch.

        Args:
            tasks: of each group.
            flight: the groups.
            worlds: the name of the world of each task, by the task's id.
            programs: what is run on groups that began in an iteration.
            cut: when.
            number: of the cut in this iteration.
            wanted: how many groups are needed.
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
                # What runs is not frozen.
                self.forest.start(named, _HELD, role="helper")
        self._end([groups[place] for place in landed.stay])
        return landed

    def _end_early(self, groups: Sequence[Group], landed: BatchCut, flight: InFlightGroups) -> None:
        """End the branches of groups that are in a batch and have not come to their ends."""
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
        """A group of a selection."""
        self.forest.add_group(place, task.task_id, key=key)
        group = Group(self, task, size, key, place, mode=self._mode, fact_levels=self._facts)
        group.variant = variant
        self._numbers_of[place] = group.name
        self._failures.groups += 1
        return group

    def _end(self, groups: Sequence[Group]) -> None:
        """What there is to say of groups that have come to their end."""
        left = self._journal.unused_segments()
        for group in groups:
            keep_unused_segments(self.forest, group.number, left.get(group.name, ()), len(self._engines))
        self._failures.end()
        self._warn_missed_forks()

    def _stop_all(self) -> None:
        """End every segment that is being said, with what there is."""
        for name in list(self._asked):
            self.stop(name)

    async def run_groups(self, groups: Sequence[Group], program: Callable[[Group], Awaitable[Any]]) -> None:
        """Run a program on each group; one that raises fails alone."""
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
        """Give back so many of the places of a group; one that another made has none of its own."""
        if name in self._places:
            self._places[name].release_slots(count)

    async def derive(self, group: Group) -> None:
        """Run the program of a group that another group made, to its end."""
        self.forest.add_group(group.number, group.task.task_id, key=group.key)
        self._numbers_of[group.number] = group_of(group.name)
        # In a task of its own, which is the one that decides about it.
        await gather_or_cancel([group.run_program(group.program.group)])

    def chat(self, agent: str) -> Chat:
        """How text becomes tokens for the model of an agent."""
        return self._engine(agent).chat

    def vocabulary_size(self, agent: str) -> int:
        """V, the width of the logits of an agent's model."""
        return self._engine(agent).vocabulary_size

    def precision(self, agent: str) -> int | None:
        """How many bits the weights have in the engine that speaks for an agent; None: it does not say."""
        bits: int | None = getattr(self._engine(agent), "precision", None)
        return bits

    def check_images(self, agent: str, title: str) -> None:
        """Refuse images of an environment for an agent whose engine takes none."""
        engine = self._engine(agent)
        if not getattr(engine, "takes_images", False):
            raise UnsupportedError(
                f"environment {title} shows images, and engine {list(self._engines)[self.policy(agent)]!r} "
                f"({type(engine).__name__}) takes none; give an engine that does (takes_images = True), or an "
                "environment that says in words what it shows"
            )

    def sampling(self, agent: str) -> Sampling:
        """How segments are sampled where a program does not say."""
        del agent
        return self._sampling

    def agent(self, name: str) -> int:
        """The number of an agent in the tables: engines first, then others as they come."""
        return self._agents.setdefault(name, len(self._agents))

    def policy(self, agent: str) -> int:
        """The number of the policy that speaks for an agent."""
        return self._agents[agent] if agent in self._engines else 0

    def number(self) -> int:
        """A number for one more group of the forest."""
        self._numbers += 1
        return self._numbers - 1

    def seed_of(self, *parts: object, began: int | None = None) -> int:
        """63 random bits that depend on the run's seed, on the parts, and on the iteration in which a group began."""
        iteration = self.forest.iteration if began is None or self._mode != "train" else began
        text = repr((self._seed, iteration, *parts)).encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1

    def episode(self, task: Task, environment: str | None, seed: int) -> RecordedEpisode:
        """An episode of a task, which is reset when it is first asked."""
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
        """The name of a task's world; one that no selection chose is of the first."""
        return self._worlds_of.get(task.task_id, next(iter(self._worlds)))

    def uses_world_model(self, task: Task, environment: str | None) -> bool:
        """Whether an episode of a task is a dream of a world model."""
        return self._world(task, environment).is_world_model

    def _world(self, task: Task, environment: str | None) -> EnvironmentHandle:
        name = self._world_of(task) if environment is None else environment
        if name not in self._worlds:
            known = ", ".join(map(repr, self._worlds))
            raise InvalidInputError(f"start: environment={name!r} is none of the collector's; it has: {known}")
        return self._worlds[name]

    def statistics(self, task_id: str) -> Mapping[str, Any]:
        """What the run knows of a task."""
        return self._began[task_id] if task_id in self._began else self._statistics(task_id)

    def count_turn(self, flags: int, failed: str | None) -> None:
        """A turn was answered with these flags, or its episode broke down."""
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
        """Whether the journal holds the answer of that name."""
        return name in self._journal

    async def generate(self, name: str, agent: str, request: Request) -> Segment:
        """What the model of an agent says to a request, from the journal or from its engine."""
        engine = self._engine(agent)
        if request.sampling.by_entropy is not None and self._old_logprob == "behaviour" and self._mode == "train":
            raise InvalidInputError(
                "sampling.by_entropy gives every token another temperature, at which no loss runs the model; take "
                'ratios to what is recomputed: recipe.replace(old_logprob="recomputed")'
            )
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
        """Ask an engine; a request that fails, or whose response cannot be used, is retried a few times."""
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
        """End the segment of that name, if it is being generated, with what there is."""
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
        """What phase reward makes of a group as it stands: a number for the handle of each ended branch."""
        batch, handles = self.forest.snapshot(group.number)
        scored = self._reward(batch)
        of_id = dict(zip(batch.trajectories.column("trajectory_id").tolist(), handles.tolist(), strict=True))
        ids = scored.column("trajectory_id", "draw").tolist()
        return {of_id[row]: score for row, score in zip(ids, scored.column(column, "draw").tolist(), strict=True)}

    def _engine(self, agent: str) -> Engine:
        engine = self._engines.get(agent)
        return next(iter(self._engines.values())) if engine is None else engine

    def _warn_missed_forks(self) -> None:
        """Warn where a program that forks at tool results was told of none."""
        if self.program.forks_at_tools and self.progress.turns and not self.progress.tool_results:
            title = ", ".join(world.title for world in self._worlds.values())
            self._notices.once(
                "tools",
                f"{self.program.title()} forks at tool results, and environment {title} reported none in iteration "
                f"{self.forest.iteration}: nothing was forked; set flags=env.StepFlag.TOOL_RESULT in the StepResult of "
                "an action that a tool answered, or use rollout.Independent",
            )
