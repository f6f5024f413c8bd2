"""A branch: a trajectory of a program, and the others that are made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, cast

from agentrl_core.env.base import Content
from agentrl_core.env.image import images_in
from agentrl_core.env.runtime.validation import checked_content
from agentrl_core.exceptions import InvalidInputError, UnsupportedError
from agentrl_core.rollout.branch_turns import Trajectory
from agentrl_core.rollout.multi_agent import AgentView, SharedEpisode
from agentrl_core.rollout.runtime import RunningEpisode
from agentrl_core.rollout.token_path import Position, TokenPath
from agentrl_core.rollout.turn import Turn


class Branch(Trajectory):
    """One trajectory of a group while its program drives it.

    It is made by `Group.start` or `fork`, awaited by one task at a time, and ordered by its key: equal in equal runs.

    Attributes:
        group: the group that it belongs to.
        key: agent, member and the places of the forks that lead to it: unique in the group.
        name: the key as a text that is unique in the run.
        agent: who speaks.
        role: `member` (drawn and trained), `baseline` (scored, never trained) or `helper` (kept, never drawn).
        origin: `generated`, `expert` or `imagined`.
        parent: the branch that it was forked from or that it answers, or None.
        turns: what was done and answered on its path, inherited turns included.
        status: `running`, or how it ended.
        record: what it was paid and told.
        seed: 63 bits that its episode begins with.
    """

    def fork(
        self,
        at: Position | None = None,
        *,
        episode: Literal["copy", "keep"] = "copy",
        train_prefix: bool = True,
        facts: Mapping[str, Any] | None = None,
        score: float | None = None,
    ) -> Branch:
        """Another branch that shares what lies before a place.

        Where others play its episode, they are forked with it, as they were then: its `peers`.

        Args:
            at: a place of this branch's path; None: where it goes on. An action that it cuts goes on in the fork, and
                the environment gets it whole.
            episode: `copy`: it gets an episode of its own, which is brought to that place when it is first needed;
                `keep`: it goes on with this branch's, which must not be stepped any more.
            train_prefix: whether the steps that it inherits are trained by it too.
            facts: what the program says of it (and of its peers), as declared in `Rollout.facts`.
            score: what the program decided by, for the log of the search.

        Raises:
            InvalidInputError: the place is on no path of this branch, or its episode cannot be brought there.
        """
        self._check_one_lane("forked")
        self._path.flush()
        place = self.end if at is None else at
        acted = self._acted_before(place)
        ordinal = self._ordinal_at(place.tokens)
        name = f"{self.name}.{place.tokens}.{ordinal}"
        match = self._episode.match.copy(acted, name) if isinstance(self._episode, AgentView) else None
        kept = self._episode if episode == "keep" or match is not None else self._episode.copy(acted)
        handle = self._runtime.forest.fork(
            self.handle, node=place.node, end=place.end, ordinal=ordinal, train_prefix=train_prefix
        )
        path = self._path.copy(handle, place, name, self._begin_at(place))
        path.acted[-1] = acted if match is not None else len(kept.answers)
        child = self._child(path, place.tokens, ordinal, kept)
        child.turns, child.record = self.turns[: place.turns], self.record.behind(place.turns)
        child.record.begin(facts)
        self.group.on_fork(self, child, place, score)
        if match is not None:
            self._fork_match(match, child, acted, facts or {}, train_prefix=train_prefix)
        return child

    def _fork_match(
        self, match: SharedEpisode, child: Branch, acted: int, facts: Mapping[str, Any], *, train_prefix: bool
    ) -> None:
        """Have the others of its match in the match of a fork too, as they were behind so many joint moves."""
        for branch in cast("list[Branch]", self._seat.match.branches):
            if branch.over and branch is not self and not match.goes_on(branch.agent):
                continue
            forked = child if branch is self else branch._behind(acted, child, train_prefix=train_prefix)  # noqa: SLF001
            forked.record.begin(facts)
            forked._episode = AgentView(match, forked.agent)  # noqa: SLF001
            match.branches.append(forked)
            for answer in match.words(forked.agent):
                forked.record.tell(answer.outcome)

    def _behind(self, acted: int, first: Branch, *, train_prefix: bool) -> Branch:
        """A fork that has done what this one had behind so many joint moves, and is told what it had been told.

        Its episode is that of `first`.
        """
        turns = sum(each is not None and each <= acted for each in self._path.acted[1:])
        place = self._path.closing(turns)
        tokens = 0 if place is None else place.tokens
        ordinal = self._ordinal_at(tokens)
        forest, name = self._runtime.forest, f"{self.name}.{tokens}.{ordinal}"
        if place is None:
            node = self._path.first
            handle = forest.fork(
                self.handle, node=node, end=None if node is None else 0, ordinal=ordinal, episode=first.handle
            )
            path = self._path.anew(handle, name)
        else:
            handle = forest.fork(
                self.handle,
                node=place.node,
                end=place.end,
                ordinal=ordinal,
                train_prefix=train_prefix,
                episode=first.handle,
            )
            path = self._path.copy(handle, place, name)
            path.answered(turns, self._seat.match.told(self.agent, cast("int", path.acted[-1]) - 1, acted))
        child = self._child(path, tokens, ordinal, self._episode)
        child.turns, child.record = self.turns[:turns], self.record.behind(turns)
        self.group.on_fork(self, child, place, None)
        return child

    def fork_many(
        self,
        count: int,
        at: Position | None = None,
        *,
        train_prefix: bool = True,
        facts: Mapping[str, Any] | None = None,
        score: float | None = None,
    ) -> list[Branch]:
        """So many forks at one place."""
        return [self.fork(at, train_prefix=train_prefix, facts=facts, score=score) for _ in range(count)]

    def splice(self, suffix: Branch, start: Position, *, at: Position | None = None) -> Branch:
        """Another branch: what this one has before a place, and what another has behind one (a repair that succeeded).

        What is taken of the other is told behind another context than it was sampled in: its log-probs are void, and
        draws of it say so (`old_logprob` is `none`). Where the other is over, the new one ends as it did; else it goes
        on, with an episode of its own that is where the other's is. It is paid what its own turns were paid, and what
        the other was paid behind `start`.

        Args:
            suffix: the other branch, of the same group.
            start: a place between two of its turns, such as `turn.begin`.
            at: a place of this branch's path; None: where it goes on.

        Raises:
            InvalidInputError: `start` cuts an action, nothing lies behind it, or an action is open.
        """
        self._check_one_lane("spliced")
        place = self.end if at is None else at
        begin = suffix._begin_at(start)
        if suffix.has_open_action or (begin is not None and begin.tokens < start.tokens):
            raise InvalidInputError(
                f"branch {self.name}: splice takes whole turns, and branch {suffix.name} has an action that is open or "
                "cut; answer it, and start at turn.begin of one of its turns"
            )
        if isinstance(suffix.episode, AgentView):
            raise InvalidInputError(f"branch {suffix.name}: others play its episode, which cannot be spliced; fork it")
        self._path.flush()
        ordinal = self._ordinal_at(place.tokens)
        node, first = suffix.path.behind(start.tokens)
        handle = self._runtime.forest.splice(
            self.handle, suffix.handle, from_node=node, start=first, node=place.node, end=place.end
        )
        path = self._path.copy(handle, place, f"{self.name}.{place.tokens}.{ordinal}")
        path.carry_on(suffix.path, start, self.group.number)
        child = self._child(path, place.tokens, ordinal, suffix.episode.copy(len(suffix.episode.answers)))
        child.turns, child.record = self.turns[: place.turns], self.record.behind(place.turns)
        child.record.go_on(suffix.record, start.turns)
        self.group.on_fork(self, child, place, None, operation="splice")
        child._take_turns(suffix, start.turns, place.tokens - start.tokens)  # noqa: SLF001
        return child

    def with_prompt(self, prompt: Content | None) -> Branch:
        """The same actions told behind another prompt, in the place of this branch.

        What was done with a demonstration or a hint in sight is trained as if it had been done without. This branch
        stays in the files and is not drawn. The log-probs of the new one are void, since nothing was sampled behind
        its prompt: draws of it say so (`old_logprob` is `none`). It goes on, or has ended, as this one.

        Args:
            prompt: the other prompt; None: what the environment says.

        Returns:
            The branch that takes its place.

        Raises:
            InvalidInputError: it has no action yet, an action is open, or its context was rewritten.
        """
        self._check_one_lane("told behind another prompt")
        if self.has_open_action or not self.turns:
            raise InvalidInputError(
                f"branch {self.name}: under tells turns that were answered behind another prompt; await a turn first"
            )
        self._path.flush()
        ordinal, tools = self._ordinal_at(0), self._episode.tools
        content = self._episode.observation if prompt is None else checked_content(prompt, "with_prompt: prompt")
        if images_in(content):
            raise UnsupportedError(f"branch {self.name}: under cannot show images; give a prompt that is all text")
        chat = self._runtime.chat(self.agent)
        tokens = chat.prompt(content, tools=tools) if tools else chat.prompt(content)
        handle = self._runtime.forest.with_prompt(self.handle, tokens)
        path = TokenPath(f"{self.name}.0.{ordinal}", self._runtime.forest, chat, handle)
        begin = self.turns[0].begin
        path.told(len(tokens), self._path, begin, self.group.number)
        child = self._child(path, 0, ordinal, self._episode)
        child.record = self.record.whole()
        self.group.on_fork(self, child, None, None, operation="replace")
        child._take_turns(self, 0, len(tokens) - begin.tokens)  # noqa: SLF001
        self._runtime.forest.replace(self.handle, by=handle)
        if not self.over:
            self._runtime.ended()
        self.status = "pruned"
        if isinstance(self._episode, AgentView):
            match = self._episode.match
            match.branches[match.branches.index(self)] = child
        return child

    def rollback(self, to: Position, *, episode: Literal["copy", "keep"] = "copy") -> None:
        """Go on from an earlier place of its path. What lay behind it stays in the files, and is not drawn.

        Args:
            to: the place.
            episode: `copy`: the environment is brought back there too; `keep`: it has seen what it has seen.
        """
        self._check_running()
        self._check_one_lane("rolled back")
        self._path.flush()
        before = self._episode
        if isinstance(before, AgentView) and episode == "copy":
            raise InvalidInputError(
                f"branch {self.name}: others play its episode, which cannot go back without them; fork it, and stop "
                'this one and its peers, or use episode="keep"'
            )
        kept = before if episode == "keep" else before.copy(self._acted_before(to))
        self.group.log_decision("rollback", self, to)
        handle = self._runtime.forest.rollback(self.handle, cast("int", to.node), to.end)
        if kept is not before:
            self._episode = kept
            before.close()
        self._runtime.grew(self._path.grown(), shared=False)
        self._path = self._path.copy(handle, to, self.name, self._begin_at(to))
        self._runtime.grew(to.tokens, shared=True)
        self._path.acted[-1] = len(kept.answers)
        self.turns, self.record = self.turns[: to.turns], self.record.behind(to.turns)

    async def rewrite(self, context: Sequence[Content | Turn]) -> None:
        """Give it another context from here on: texts or messages, and turns whose sampled tokens stay as they are.

        Args:
            context: begins and ends with something said; a text takes the role that its place has. Turns are those of
                its own path, in its present context.

        Raises:
            InvalidInputError: two turns have no message between them, or the context begins or ends with a turn.
        """
        await self._prompted()
        self._check_running()
        items = [item.index if isinstance(item, Turn) else item for item in context]
        tokens, begins = self._path.context(items, self._episode.tools)
        shared = self._runtime.forest.rewrite(self.handle, tokens, state=self.state_key)
        self._runtime.grew(shared, shared=True)
        self._runtime.grew(len(tokens) - shared, shared=False)
        self._path.rewritten(len(tokens), begins)
        self.group.log_decision("replace", self, self._path.here)

    def _child(self, path: TokenPath, tokens: int, ordinal: int, episode: RunningEpisode) -> Branch:
        """A branch that comes of this one behind so many tokens."""
        return Branch(
            self._runtime,
            self.group,
            (*self.key, tokens, ordinal),
            path,
            episode,
            agent=self.agent,
            seed=self.seed,
            role=self.role,
            parent=self,
            sampling=self._sampling,
            asked=self._content,
        )

    def _acted_before(self, place: Position) -> int:
        """How many actions its episode had answered before a place of the path."""
        if place.turns < self._path.turns and self._path.acted[place.turns + 1] is not None:
            return cast("int", self._path.acted[place.turns + 1]) - 1
        acted = self._path.acted[place.turns]
        if acted is None:
            raise InvalidInputError(
                f"branch {self.name}: what lies before token {place.tokens} was taken of another branch, and its "
                "episode never was there; fork the branch that it came of"
            )
        return len(self._episode.answers) if isinstance(self._episode, AgentView) else acted

    @property
    def _seat(self) -> AgentView:
        """Its place in a match."""
        return cast("AgentView", self._episode)

    def _begin_at(self, place: Position) -> Position | None:
        """Where the action begins that a place may cut."""
        if place.turns < len(self.turns):
            return self.turns[place.turns].begin
        return self._path.here if self._path.open else None

    def _take_turns(self, other: Trajectory, first: int, shift: int) -> None:
        """Have the turns of another behind so many of them, whose tokens lie so much further on here; end as it did."""
        for turn in other.turns[first:]:
            begin = replace(
                self._path.position(turn.begin.tokens + shift, len(self.turns)), follows_tool=turn.begin.follows_tool
            )
            self._path.spans[len(self.turns)] = (begin.tokens, begin.tokens + turn.length)
            self.turns.append(replace(turn, branch_ref=self._reference, index=len(self.turns), begin=begin))
        if other.status in ("finished", "truncated"):
            self._end(other.status)
