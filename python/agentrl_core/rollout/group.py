"""A group: the branches of one task, and the one program that decides about them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core.data.batch import Batch
from agentrl_core.data.forest import Operation
from agentrl_core.engine.base import Sampling, Segment
from agentrl_core.env.base import Message, Task
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.rollout.branch import Branch
from agentrl_core.rollout.branch_state import Origin, Prompt, Role
from agentrl_core.rollout.group_runtime import GroupProgram, GroupRuntime
from agentrl_core.rollout.group_view import GroupView
from agentrl_core.rollout.prefix import Prefix
from agentrl_core.rollout.programs.deferred_tasks import as_reason
from agentrl_core.rollout.search_tree import GroupTree
from agentrl_core.rollout.tasks import cancel, first_completed, gather_or_cancel
from agentrl_core.rollout.token_path import Position, TokenPath
from agentrl_core.rollout.turn import Turn

BranchProgram = Callable[[Branch], Awaitable[None]]


class Group(GroupView):
    """The branches of one task while its program runs.

    Branches are started, counted, scored and dropped by the program's own task alone; a branch's program (`run`) does
    what it likes with the branch that it drives. Results come in the order in which they were asked for. So the same
    seeds give the same tree, whoever is faster.

    Attributes:
        task: what is to be solved.
        size: how many trajectories were asked for.
        variant: which prompt variant select chose; -1: none.
        key: iteration and place in the selection, then one number for each group that this one was derived from:
            unique in the run.
        name: the key as a text.
        number: of the group in the forest.
        mode: `train`, or `evaluate`.
        program: what runs it.
        branches: in the order in which they were started; those that a branch's program forked come when that is done.
        fact_levels: the level of each fact that the environment and the program declare.
        state: what components remember, by their place in the recipe, as of the iteration's begin; to be read.
    """

    def __init__(
        self,
        runtime: GroupRuntime,
        task: Task,
        size: int,
        key: tuple[int, ...],
        number: int,
        *,
        mode: Literal["train", "evaluate"] = "train",
        fact_levels: Mapping[str, str] | None = None,
        parent: Branch | None = None,
        program: GroupProgram | None = None,
        role: Role = "member",
    ) -> None:
        self.task = task
        self.size = size
        self.key = key
        self.name = ".".join(map(str, key))
        self.number = number
        self.variant = -1
        self.mode: Literal["train", "evaluate"] = mode
        self.program: GroupProgram = runtime.program if program is None else program
        self.branches: list[Branch] = []
        self.fact_levels: Mapping[str, str] = fact_levels or {}
        self.state: Mapping[str, Any] = MappingProxyType(dict(runtime.states))
        self._runtime = runtime
        self._parent = parent
        self._role: Role = role
        self._members: dict[str, int] = {}
        self._derived: list[Group] = []
        """Those that it made, which live as long as it."""
        self._rounds = 0
        self._decisions = 0
        self._names: dict[str, int] = {}
        self._decider: asyncio.Task[Any] | None = None
        self._tree: GroupTree | None = None
        self._asked: set[bytes] = set()
        self._late: list[Branch] = []
        """Forks that branches' programs made, until they are delivered."""
        self._released: set[str] = set()
        self._places: int | None = None
        """How many members may run, once it gave places back; None: it did not."""

    @property
    def tree(self) -> GroupTree:
        """What was tried, and what came of it: the turns of the group and the states that they lead to, as of now."""
        self._decides()
        self._tree = GroupTree(self, self._runtime.forest) if self._tree is None else self._tree
        self._tree.follow()
        return self._tree

    def resume_search(self, batch: Batch, group_id: int) -> GroupTree:
        """Have the tree begin with that of a stored group of the same task: its search goes on here."""
        if self._tree is not None:
            raise InvalidInputError(f"group {self.name} has a tree already; carry on before the first look at it")
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
        """A branch at the prompt. Nothing runs before it is awaited.

        Args:
            prompt: what it is asked, or a function that makes it of what the environment says; None: that itself.
            prefix: actions that it begins with, which are not trained and which the environment answers.
            sampling: of its segments; None: the collector's.
            agent: who speaks, where there are several.
            environment: which environment answers, where there are several; None: the task's.
            episode: a branch whose episode it plays too, as another agent; None: it gets one of its own.
            parent: the branch that it answers without sharing tokens.
            role: `member`; `baseline`: it is scored and votes, and is never trained; `helper`: it is kept, and never
                drawn. None: that of the group.
            origin: where what it does comes from; in an imagined environment it is `imagined`.
            facts: what the program says of it, as declared in `Rollout.facts`.
        """
        self._decides()
        runtime, forest = self._runtime, self._runtime.forest
        role = self._role if role is None else role
        if role != "helper":
            self._check_places()
        parent = self._parent if parent is None else parent
        member, speaker = self._members.get(agent, 0), runtime.agent(agent)
        self._members[agent] = member + 1
        above = None if parent is None else parent.handle
        match = None if episode is None else episode._join_episode()
        if match is not None and any(agent == other.agent for other in match.branches):
            raise InvalidInputError(
                f"start: agent={agent!r} plays the episode of branch {episode} already; fork that branch for another"
            )
        together = None if episode is None else episode.handle
        origin = "imagined" if match is None and runtime.uses_world_model(self.task, environment) else origin
        handle = forest.start(
            self.number, member, agent=speaker, episode=together, parent=above, role=role, origin=origin
        )
        seed, key = forest.segment_seed(handle), (speaker, member)
        if prefix is not None and prefix.seed is not None:
            seed = prefix.seed
        branch = Branch(
            runtime,
            self,
            key,
            TokenPath(f"{self.name}/{speaker}.{member}", forest, runtime.chat(agent), handle),
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
            branch._join_episode(match)
        reason = None if prefix is None else prefix.title
        forest.log_decision("start", handle, in_round=self._rounds, ordinal=self._ordinal(), reason=reason)
        self.branches.append(branch)
        return branch

    def start_many(self, count: int, prompt: Prompt | None = None, **options: Any) -> list[Branch]:
        """So many branches at the prompt; see `start`."""
        return [self.start(prompt, **options) for _ in range(count)]

    async def turn(self, branches: Sequence[Branch], *, sampling: Sampling | None = None) -> list[Turn]:
        """One turn of each branch, side by side; the turns in the order of the branches.

        Branches that play one episode move together: the environment gets their actions as one.
        """
        self._decides()
        turns = await gather_or_cancel([branch.turn(sampling=sampling) for branch in branches if not branch.peers])
        several = [branch for branch in branches if branch.peers]
        await gather_or_cancel([branch.generate(sampling=sampling) for branch in several])
        matches = {id(branch._join_episode()): branch._join_episode() for branch in several}
        moved = {
            turn.branch.name: turn
            for key, match in matches.items()
            for turn in await match.move([branch for branch in several if id(branch._join_episode()) == key])
        }
        alone = iter(turns)
        turns = [moved[branch.name] if branch.peers else next(alone) for branch in branches]
        self._rounds += 1
        return turns

    async def advance(self, branches: Sequence[Branch], *, tokens: int | None = None) -> list[Segment | None]:
        """So many tokens of each branch, side by side, without an answer of the environment: the actions stay open."""
        self._decides()
        segments = await gather_or_cancel([branch.generate(max_tokens=tokens) for branch in branches])
        self._rounds += 1
        return segments

    async def run(self, branches: Sequence[Branch], program: BranchProgram | None = None) -> list[Branch]:
        """Each branch to its end by `Rollout.branch` or by `program`, side by side; returns them.

        A branch that is not over when its program returns is finished with what it was paid so far.
        """
        self._decides()
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
        """Each branch when it has come to its end, while the others run on.

        Args:
            branches: which.
            program: drives each; None: `Rollout.branch`.
            order: `given`: in the order of `branches`; `arrival`: whoever is first. That order is kept in the journal,
                so that a run that was killed goes on exactly; between two runs it may differ.
        """
        self._decides()
        waiting: dict[asyncio.Future[None], Branch] = {
            asyncio.ensure_future(self._driven(branch, program)): branch for branch in branches
        }
        try:
            while waiting:
                task = next(iter(waiting))
                if order == "arrival":
                    name = f"{self.name}/order{self._next('order')}"
                    first = await self._runtime.record(name, first_completed(waiting))
                    task = next(task for task, branch in waiting.items() if branch.name == first)
                await task
                branch = waiting.pop(task)
                self._deliver(branch)
                yield branch
        finally:
            await cancel(waiting)

    async def score(self, column: str = "score", branches: Sequence[Branch] | None = None) -> NDArray[np.float64]:
        """What phase reward makes of the ended branches as the group stands, before more is spent; NaN where none is.

        Looking moves no component's state.

        Args:
            column: of the draws.
            branches: of which; None: all.
        """
        self._decides()
        scores = self._runtime.scores(self, column)
        chosen = self.branches if branches is None else branches
        return np.array([scores.get(branch.handle, np.nan) for branch in chosen], np.float64)

    async def spawn(
        self,
        task: Task,
        *,
        size: int = 1,
        program: GroupProgram | None = None,
        parent: Branch | None = None,
        role: Role = "member",
    ) -> Group:
        """A derived group: another task, which begins now and is run to its end.

        Args:
            task: a task of the environment, or one that was made here.
            size: how many trajectories.
            program: a rollout; None: that of the recipe.
            parent: the branch that it answers. Groups that are linked so are frozen together.
            role: of its branches.
        """
        self._decides()
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
        """Something from outside, a judge or a search: what `function(*args)` gives, recorded before it is returned.

        A run that was killed gets the record and does not call again; killed in between, it is called once more.

        Args:
            name: what it is.
            function: plain or asynchronous; its result is made of plain JSON values.
            args: what it is given.
            thread: run a plain function in a thread, where it would block the others.
        """
        self._decides()

        async def call() -> Any:
            value = await asyncio.to_thread(function, *args) if thread else function(*args)
            return await value if isinstance(value, Awaitable) else value

        return await self._runtime.record(f"{self.name}/effect{self._next(name)}.{name}", call)

    async def query(self, column: str, branches: Sequence[Branch]) -> NDArray[np.float64]:
        """What a model says of branches as they stand (how good they look, how likely a text is), recorded.

        Those who ask at the same time, in all groups, are answered by one call of the model.

        Args:
            column: which; one of the collector's `models`.
            branches: of which; the model gets the tokens of their paths.

        Raises:
            InvalidInputError: there is no such model.
        """
        self._decides()
        paths = [branch.tokens for branch in branches]
        name = f"{self.name}/ask{self._next('ask')}.{column}"
        return np.array(await self._runtime.record(name, lambda: self._runtime.query(column, paths)), np.float64)

    def defer(self, task: Task, branch: Branch, *, turns: int | None = None, messages: Sequence[Message] = ()) -> None:
        """Defer a task to a later iteration.

        A queue of phase replay takes it from the batch (`rollout.deferred_tasks`).

        It stands in the table `decisions` of the batch, and so outlives a kill as the batch does.

        Args:
            task: a task of the environment, or one that was made here; its payload is made of plain JSON values.
            branch: what it came of.
            turns: to begin behind so many turns of the branch; None: at the prompt.
            messages: what is said in the prompt (an error, a feedback).

        Raises:
            InvalidInputError: the task is not made of plain JSON values, or the branch has not so many turns.
        """
        self._decides()
        place = None if turns is None else branch.position_after(turns)
        self.log_decision("resume", branch, place, as_reason(task, turns, messages))

    def drop(self, branches: Iterable[Branch], reason: str) -> None:
        """Take branches out of the batch: they stay in the files, with the reason."""
        self._decides()
        for branch in branches:
            branch.drop(reason)

    def release_slots(self, branches: Iterable[Branch]) -> None:
        """Give the places of ended branches to groups that wait for room, while the others go on.

        A group holds as many places as its program says (`Rollout.final_group_size`) until that has come to its end,
        since it may start others for those that end. Here it says that it will not.

        Args:
            branches: which; each gives its place back once.

        Raises:
            InvalidInputError: a branch runs, is a helper, or belongs to another group. And later: more members are
                started than there are places left.
        """
        self._decides()
        ended = list(branches)
        for branch in ended:
            if branch.group is not self or branch.role == "helper" or not branch.over:
                raise InvalidInputError(
                    f"release: branch {branch.name} ({branch.role}, {branch.status}) holds no place of group "
                    f"{self.name} that could be given back; release its members that are over"
                )
        given = {branch.name for branch in ended} - self._released
        self._released |= given
        held = self.program.final_group_size(self.size) if self._places is None else self._places
        self._places = max(held - len(given), 0)
        self._runtime.release_slots(self.name, len(given))

    def shares_prompt(self, prompt: NDArray[np.int32]) -> bool:
        """Whether another branch of it began with these tokens (for who counts what is shared)."""
        known = prompt.tobytes() in self._asked
        self._asked.add(prompt.tobytes())
        return known

    async def run_program(self, program: Callable[[Group], Awaitable[Any]]) -> None:
        """Run a program on it, in the task that calls; what it leaves running is aborted."""
        self._decider = asyncio.current_task()
        self._places = None
        try:
            await program(self)
        finally:
            self._deliver()
            for branch in self.branches:
                branch.stop("left by the program", status="aborted")

    def on_turn(self, branch: Branch) -> None:
        """A branch has something that its tree has not seen."""
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
        """A branch made another one."""
        if operation != "replace" and child.role != "helper":
            self._check_places()
        (self.branches if self._is_decider() else self._late).append(child)
        self.on_turn(child)
        self._runtime.grew(0 if place is None else place.tokens, shared=True)
        score = None if score is None or np.isnan(score) else score
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
        """Keep a decision, so that the search can be replayed."""
        # What a branch's own program decides has no place in the group's order: it is ordered by what it acts on.
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
        """One branch to its end."""
        await (self.program.branch if program is None else program)(branch)
        if not branch.over:
            branch.finish()

    def _decides(self) -> None:
        """Refuse what would make the order of things a matter of chance."""
        if not self._is_decider():
            raise InvalidInputError(
                f"group {self.name} is decided about by the task that runs its program alone; a task that drives a "
                "branch may turn, fork and end that branch: wait for it with round(), run() or completed()"
            )

    def _check_places(self) -> None:
        """Refuse one more member where the places of others were given back."""
        if self._places is None:
            return
        running = sum(not branch.over and branch.role != "helper" for branch in (*self.branches, *self._late))
        if running >= self._places:
            raise InvalidInputError(
                f"group {self.name} has {running} members that run, and gave the other places back; release a branch "
                "only where none takes its place"
            )

    def _is_decider(self) -> bool:
        return asyncio.current_task() is self._decider

    def _ordinal(self) -> int:
        """Number of the next decision."""
        self._decisions += 1
        return self._decisions - 1

    def _next(self, kind: str) -> int:
        """A number for one more of a kind."""
        number = self._names[kind] = self._names.get(kind, -1) + 1
        return number

    def _deliver(self, of: Branch | None = None) -> None:
        """Count what branches' programs forked, in the order of the keys."""
        come = sorted(branch for branch in self._late if of is None or branch.key[: len(of.key)] == of.key)
        self._late = [branch for branch in self._late if branch not in come]
        self.branches += come
