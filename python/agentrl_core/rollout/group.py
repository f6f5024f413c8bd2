"""A group: the branches of one task, controlled by one program."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core.data.batch import Batch
from agentrl_core.data.forest import Operation, Origin, Role
from agentrl_core.engine.base import Sampling, Segment
from agentrl_core.env.base import Message, Task
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.rollout.async_tasks import cancel, gather_or_cancel
from agentrl_core.rollout.branch import Branch, Prompt
from agentrl_core.rollout.multi_agent import join_episode
from agentrl_core.rollout.prefix import Prefix
from agentrl_core.rollout.programs.deferred_tasks import as_reason
from agentrl_core.rollout.runtime import Runtime
from agentrl_core.rollout.search_tree import GroupTree
from agentrl_core.rollout.solved_trajectories import Library
from agentrl_core.rollout.token_path import Position, TokenPath
from agentrl_core.rollout.turn import Turn, uniform

BranchProgram = Callable[[Branch], Awaitable[None]]


class Group:
    """The branches of one task, controlled by its program.

    Only the program's own task may start, count, score or drop branches; a branch's program (`run`) controls only its
    own branch. Results are returned in the order of requests. So equal seeds give equal trees, independent of timing.

    Attributes:
        task: the task.
        size: requested number of trajectories.
        variant: selected prompt variant; -1: none.
        key: iteration and place in the selection, then one number for each group that this one was derived from:
            unique in the run.
        name: the key as a text.
        number: number of the group in the forest.
        mode: `train`, or `evaluate`.
        program: its program.
        branches: branches in the order of their start; forks by a branch's program are added when it returns.
        fact_levels: level of each declared fact.
        state: states of components at the start of the iteration, by place in the recipe; read-only.
    """

    task: Task
    key: tuple[int, ...]
    name: str
    branches: list[Branch]

    def __init__(
        self,
        runtime: Runtime,
        task: Task,
        size: int,
        key: tuple[int, ...],
        number: int,
        *,
        mode: Literal["train", "evaluate"] = "train",
        fact_levels: Mapping[str, str] | None = None,
        parent: Branch | None = None,
        program: Any = None,
        role: Role = "member",
    ) -> None:
        self.task = task
        self.size = size
        self.key = key
        self.name = ".".join(map(str, key))
        self.number = number
        self.variant = -1
        self.mode: Literal["train", "evaluate"] = mode
        self.program: Any = runtime.program if program is None else program
        self.branches = []
        self.fact_levels: Mapping[str, str] = fact_levels or {}
        self.state: Mapping[str, Any] = MappingProxyType(dict(runtime.states))
        self._runtime = runtime
        self._parent = parent
        self._role: Role = role
        self._members: dict[str, int] = {}
        self._derived: list[Group] = []
        """Derived groups, kept alive as long as this group."""
        self._rounds = 0
        self._decisions = 0
        self._names: dict[str, int] = {}
        self._decider: asyncio.Task[Any] | None = None
        self._tree: GroupTree | None = None
        self.prompts: set[bytes] = set()
        """Prompts of the group's branches, to count shared tokens."""
        self._late: list[Branch] = []
        """Forks by branches' programs that are not added yet."""
        self._released: set[str] = set()
        self._places: int | None = None
        """Largest number of running members after slots were released; None: no release."""

    def __repr__(self) -> str:
        return f"Group({self.name}, task {self.task.task_id!r}, {len(self.branches)} branches)"

    def __lt__(self, other: Group) -> bool:
        return self.key < other.key

    def sampling(self, **changes: Any) -> Sampling:
        """Return the default sampling with changes: `group.sampling(temperature=0.0)`."""
        return replace(self._runtime.sampling, **changes)

    def uniform(self, *key: object) -> float:
        """Return a number in [0, 1), determined by seed, group and key."""
        return uniform(self._runtime.seed_of("group", self.name, *key, began=self.iteration))

    @property
    def iteration(self) -> int:
        """The iteration in which the group started."""
        return self.key[0]

    @property
    def prompt(self) -> str:
        """The prompt text of the task."""
        return self.task.question

    @property
    def count(self) -> int:
        """Number of branches of the group, without helpers."""
        return sum(branch.role != "helper" for branch in self.branches)

    @property
    def statistics(self) -> Mapping[str, Any]:
        """Statistics of the task (attempts, successes, …) at the start of the iteration; empty for a new one."""
        return self._runtime.statistics(self.task.task_id)

    @property
    def library(self) -> Library:
        """Solved trajectories of earlier iterations, for demonstrations and prefixes."""
        return self._runtime.library

    @property
    def vocabulary_size(self) -> int:
        """Vocabulary size V: the width of the policy's logits."""
        return self._runtime.vocabulary_size("policy")

    @property
    def tree(self) -> GroupTree:
        """The current search tree: the turns of the group and their states."""
        self._decides("tree")
        self._tree = GroupTree(self, self._runtime.forest) if self._tree is None else self._tree
        self._tree.follow()
        return self._tree

    def resume_search(self, batch: Batch, group_id: int) -> GroupTree:
        """Continue the search of a stored group of the same task."""
        if self._tree is not None:
            raise InvalidInputError(
                f"group {self.name} already has a tree; call resume_search before the first use of tree"
            )
        self._tree = GroupTree(self, self._runtime.forest, batch, group_id)
        return self.tree

    def start(
        self,
        prompt: Prompt | None = None,
        *,
        prefix: Prefix | None = None,
        sampling: Sampling | None = None,
        agent: str = "policy",
        environment: str | None = None,
        episode: Branch | None = None,
        parent: Branch | None = None,
        role: Role | None = None,
        origin: Origin = "generated",
        facts: Mapping[str, Any] | None = None,
    ) -> Branch:
        """Start a branch at the prompt. The branch runs when a call on it is awaited.

        Args:
            prompt: the branch's prompt, or a function from the environment's prompt; None: the environment's.
            prefix: first actions, which are submitted to the environment but not trained.
            sampling: sampling of its segments; None: the collector's.
            agent: name of the agent that acts, if there are several.
            environment: name of the environment, if there are several; None: the task's.
            episode: another agent's branch, whose episode the new branch joins; None: a new episode.
            parent: a related branch without shared tokens.
            role: `member`; `baseline`: scored and votes, never trained; `helper`: stored, never drawn. None: that of
                the group.
            origin: origin of its actions; `imagined` in an imagined environment.
            facts: facts of the program about it, as declared in `Rollout.facts`.
        """
        self._decides("start")
        runtime, forest = self._runtime, self._runtime.forest
        role = self._role if role is None else role
        if role != "helper":
            self._check_places()
        parent = self._parent if parent is None else parent
        match = None if episode is None else join_episode(episode)
        taken = None if match is None else next((other for other in match.branches if other.agent == agent), None)
        if taken is not None:
            raise InvalidInputError(
                f"start: agent={agent!r} already plays this episode, as branch {taken.name}; give another agent of the "
                "episode, or fork that branch"
            )
        origin = "imagined" if match is None and runtime.uses_world_model(self.task, environment) else origin
        # No error may be raised from here on: member numbers seed the episodes.
        member, agent_number = self._members.get(agent, 0), runtime.agent(agent)
        self._members[agent] = member + 1
        above = None if parent is None else parent.handle
        together = None if episode is None else episode.handle
        handle = forest.start(
            self.number, member, agent=agent_number, episode=together, parent=above, role=role, origin=origin
        )
        seed, key = forest.segment_seed(handle), (agent_number, member)
        if prefix is not None and prefix.seed is not None:
            seed = prefix.seed
        branch = Branch(
            runtime,
            self,
            key,
            TokenPath(f"{self.name}/{agent_number}.{member}", forest, runtime.chat(agent), handle),
            runtime.episode(self.task, environment, seed) if match is None else match.episode,
            agent=agent,
            seed=seed,
            role=role,
            parent=parent,
            prompt=prompt,
            prefix=prefix,
            sampling=sampling,
            facts=facts,
        )
        branch.origin = origin
        if match is not None:
            join_episode(branch, match)
        reason = None if prefix is None else prefix.title
        forest.log_decision("start", handle, in_round=self._rounds, ordinal=self._ordinal(), reason=reason)
        self.branches.append(branch)
        return branch

    def start_many(self, count: int, prompt: Prompt | None = None, **options: Any) -> list[Branch]:
        """Start several branches at the prompt; see `start`."""
        return [self.start(prompt, **options) for _ in range(count)]

    async def turn(self, branches: Sequence[Branch], *, sampling: Sampling | None = None) -> list[Turn]:
        """Run one turn of each branch concurrently, and return the turns in order.

        Branches of one episode move together: the environment gets their actions as a joint move.
        """
        self._decides("turn")
        turns = await gather_or_cancel([branch.turn(sampling=sampling) for branch in branches if not branch.peers])
        several = [branch for branch in branches if branch.peers]
        await gather_or_cancel([branch.generate(sampling=sampling) for branch in several])
        matches = {id(join_episode(branch)): join_episode(branch) for branch in several}
        moved = {
            turn.branch.name: turn
            for key, match in matches.items()
            for turn in await match.move([branch for branch in several if id(join_episode(branch)) == key])
        }
        alone = iter(turns)
        turns = [moved[branch.name] if branch.peers else next(alone) for branch in branches]
        self._rounds += 1
        return turns

    async def advance(self, branches: Sequence[Branch], *, tokens: int | None = None) -> list[Segment | None]:
        """Generate at most `tokens` tokens of each branch concurrently, and leave the actions open."""
        self._decides("advance")
        segments = await gather_or_cancel([branch.generate(max_tokens=tokens) for branch in branches])
        self._rounds += 1
        return segments

    async def run(self, branches: Sequence[Branch], program: BranchProgram | None = None) -> list[Branch]:
        """Run each branch to its end by `Rollout.branch` or by `program`, concurrently, and return the branches.

        A branch that has not ended when its program returns is finished with its rewards so far.
        """
        self._decides("run")
        try:
            await gather_or_cancel([self._driven(branch, program) for branch in branches])
        finally:
            self._deliver()
        return list(branches)

    async def as_completed(
        self,
        branches: Sequence[Branch],
        program: BranchProgram | None = None,
        *,
        order: Literal["given", "arrival"] = "given",
    ) -> AsyncIterator[Branch]:
        """Yield each branch after it has ended, in the given order or that of arrival, while the others continue.

        Args:
            branches: the branches.
            program: drives each; None: `Rollout.branch`.
            order: `given`: in the order of `branches`; `arrival`: in order of completion. This order is recorded, so
                that a killed run resumes exactly; it may differ between runs.
        """
        self._decides("as_completed")
        waiting: dict[asyncio.Future[None], Branch] = {
            asyncio.ensure_future(self._driven(branch, program)): branch for branch in branches
        }
        try:
            while waiting:
                task = next(iter(waiting))
                if order == "arrival":
                    name = f"{self.name}/order{self._next('order')}"
                    first = await self._runtime.record(name, partial(_first_completed, waiting))
                    task = next(task for task, branch in waiting.items() if branch.name == first)
                await task
                branch = waiting.pop(task)
                self._deliver(branch)
                yield branch
        finally:
            await cancel(waiting)

    async def score(self, column: str = "score", branches: Sequence[Branch] | None = None) -> NDArray[np.float64]:
        """Return scores of the ended branches by phase reward, at this point of the search; NaN if missing.

        Scoring does not change states of components.

        Args:
            column: draw column of the scores.
            branches: the branches; None: all.
        """
        self._decides("score")
        scores = self._runtime.scores(self, column)
        chosen = self.branches if branches is None else branches
        return np.array([scores.get(branch.handle, np.nan) for branch in chosen], np.float64)

    async def spawn(
        self,
        task: Task,
        *,
        size: int = 1,
        program: Any = None,
        parent: Branch | None = None,
        role: Role = "member",
    ) -> Group:
        """Run a derived group: another task, which starts now and runs to its end.

        Args:
            task: a task of the environment, or a new one.
            size: number of trajectories.
            program: a rollout; None: that of the recipe.
            parent: the related branch. Linked groups freeze together.
            role: role of its branches.
        """
        self._decides("spawn")
        key = (*self.key, self._next("derived"))
        group = Group(
            self._runtime,
            task,
            size,
            key,
            self._runtime.number(),
            mode=self.mode,
            fact_levels=self.fact_levels,
            parent=parent,
            program=program,
            role=role,
        )
        self._derived.append(group)
        await self._runtime.derive(group)
        return group

    async def side_effect(self, name: str, function: Callable[..., Any], *args: Any, thread: bool = False) -> Any:
        """Call an external function, such as a judge or a web search, and record its result.

        A resumed run reads the record instead of calling again; a kill during the call repeats it.

        Args:
            name: name of the result.
            function: plain or asynchronous function; its result consists of plain JSON values.
            args: its arguments.
            thread: whether to run a plain function in a thread, so that it does not block others.
        """
        self._decides("side_effect")

        async def call() -> Any:
            value = await asyncio.to_thread(function, *args) if thread else function(*args)
            return await value if isinstance(value, Awaitable) else value

        return await self._runtime.record(f"{self.name}/effect{self._next(name)}.{name}", call)

    async def query(self, column: str, branches: Sequence[Branch]) -> NDArray[np.float64]:
        """Query a model about branches in their current state (a quality, a likelihood), and record its answers.

        Concurrent queries of all groups share one call of the model.

        Args:
            column: one of the collector's `models`.
            branches: the branches, whose path tokens the model gets.

        Raises:
            InvalidInputError: the model does not exist.
        """
        self._decides("query")
        paths = [branch.tokens for branch in branches]
        name = f"{self.name}/ask{self._next('ask')}.{column}"
        return np.array(await self._runtime.record(name, lambda: self._runtime.query(column, paths)), np.float64)

    def defer(self, task: Task, branch: Branch, *, turns: int | None = None, messages: Sequence[Message] = ()) -> None:
        """Defer a task to a later iteration.

        A queue of phase replay takes it from the batch (`rollout.deferred_tasks`).

        It is in the table `decisions` of the batch, so it survives a kill like the batch.

        Args:
            task: a task of the environment, or a new one; its payload consists of plain JSON values.
            branch: the source branch.
            turns: number of its turns to start after; None: at the prompt.
            messages: messages for the prompt (an error, feedback).

        Raises:
            InvalidInputError: the task does not consist of plain JSON values, or the branch has fewer turns.
        """
        self._decides("defer")
        place = None if turns is None else branch.position_after(turns)
        self.log_decision("resume", branch, place, as_reason(task, turns, messages))

    def drop(self, branches: Iterable[Branch], reason: str) -> None:
        """Remove branches from the batch; they stay in the files, with the reason."""
        self._decides("drop")
        for branch in branches:
            branch.drop(reason)

    def release_slots(self, branches: Iterable[Branch]) -> None:
        """Release the slots of ended branches to waiting groups, while others continue.

        A group holds `Rollout.final_group_size` slots until its program ends, since it may start further branches. A
        release promises that it will not.

        Args:
            branches: the branches; each releases its slot once.

        Raises:
            InvalidInputError: a branch is running, is a helper, or belongs to another group; or later more members
                start than slots are left.
        """
        self._decides("release_slots")
        ended = list(branches)
        for branch in ended:
            if branch.group is not self or branch.role == "helper" or not branch.over:
                problem = "is still running" if branch.group is self else f"is not of group {self.name}"
                problem = "is a helper, which has no slot" if branch.role == "helper" else problem
                raise InvalidInputError(
                    f"release_slots: branch {branch.name} {problem}; give ended members of this group only"
                )
        newly_released = {branch.name for branch in ended} - self._released
        self._released |= newly_released
        slots = self.program.final_group_size(self.size) if self._places is None else self._places
        self._places = max(slots - len(newly_released), 0)
        self._runtime.release_slots(self.name, len(newly_released))

    async def run_program(self, program: Callable[[Group], Awaitable[Any]]) -> None:
        """Run a program on the group in the calling task; branches that are still running afterwards are aborted."""
        self._decider = asyncio.current_task()
        self._places = None
        try:
            await program(self)
        finally:
            self._deliver()
            for branch in self.branches:
                if not branch.over:
                    branch.stop("left by the program", status="aborted")

    def on_turn(self, branch: Branch) -> None:
        """Record an answered turn in the group's search tree."""
        if self._tree is not None:
            self._tree.on_turn(branch)

    def on_fork(
        self,
        parent: Branch,
        child: Branch,
        place: Position | None,
        score: float | None,
        *,
        operation: Operation = "fork",
    ) -> None:
        """Add a forked branch to the group, and log the decision."""
        if operation != "replace" and child.role != "helper":
            self._check_places()
        (self.branches if self._is_decider() else self._late).append(child)
        self.on_turn(child)
        self._runtime.progress.grew(0 if place is None else place.tokens, shared=True)
        self.log_decision(operation, parent, place, result=child, score=score)

    def log_decision(
        self,
        operation: Operation,
        branch: Branch,
        place: Position | None,
        reason: str | None = None,
        *,
        result: Branch | None = None,
        score: float | None = None,
    ) -> None:
        """Log a decision of the program, so that the search can be replayed."""
        # Decisions of a branch's own program are ordered by the affected branch, not by the group.
        decider = self._is_decider()
        self._runtime.forest.log_decision(
            operation,
            branch.handle,
            in_round=max(self._rounds - 1, 0) if decider else len(branch.turns),
            ordinal=self._ordinal() if decider else None,
            node=None if place is None else place.node,
            end=None if place is None else place.end,
            result=None if result is None else result.handle,
            score=score,
            reason=reason,
        )

    async def _driven(self, branch: Branch, program: BranchProgram | None) -> None:
        """Run one branch to its end by a program, by default `Rollout.branch`."""
        await (self.program.branch if program is None else program)(branch)
        if not branch.over:
            branch.finish()

    def _decides(self, method: str) -> None:
        """Raise an error if the caller is not the group's own program: the order would not be deterministic."""
        if not self._is_decider():
            raise InvalidInputError(
                f"group {self.name}: {method} was used in another asyncio task; use it in Rollout.group itself, since "
                "other tasks may only turn, fork and end their own branch"
            )

    def _check_places(self) -> None:
        """Raise an error for a new member if slots were released and all remaining slots are in use."""
        if self._places is None:
            return
        running = sum(not branch.over and branch.role != "helper" for branch in (*self.branches, *self._late))
        if running >= self._places:
            raise InvalidInputError(
                f"group {self.name} has {running} running members for its {self._places} slots, as it released the "
                "others; release a slot only if no new member needs it"
            )

    def _is_decider(self) -> bool:
        return asyncio.current_task() is self._decider

    def _ordinal(self) -> int:
        """Return the number of the next decision of the group."""
        self._decisions += 1
        return self._decisions - 1

    def _next(self, kind: str) -> int:
        """Return the next number of a named counter of the group."""
        number = self._names[kind] = self._names.get(kind, -1) + 1
        return number

    def _deliver(self, of: Branch | None = None) -> None:
        """Add to the group the branches that were forked by the programs of branches, sorted by key."""
        if not self._late:
            return
        forked = sorted(branch for branch in self._late if of is None or branch.key[: len(of.key)] == of.key)
        self._late = [branch for branch in self._late if branch not in forked]
        self.branches += forked


async def _first_completed(waiting: Mapping[asyncio.Future[None], Branch]) -> str:
    """Wait until a branch ends, and return its name."""
    done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    return min(waiting[task] for task in done).name
