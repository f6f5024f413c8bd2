"""A branch: a trajectory of a program with places, at which it forks, splices and rolls back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, cast

from agentrl_core.env.base import Content
from agentrl_core.env.image import images_in
from agentrl_core.env.runtime.validation import checked_content
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.rollout.multi_agent import AgentView, SharedEpisode
from agentrl_core.rollout.runtime import RunningEpisode
from agentrl_core.rollout.token_path import Position, TokenPath
from agentrl_core.rollout.trajectory import Trajectory
from agentrl_core.rollout.turn import Turn


class Branch(Trajectory):
    """One trajectory of a group, driven by a program.

    It is created by `Group.start` or `fork`, awaited by one task at a time, and ordered by its key, which is
    deterministic.

    Attributes:
        group: its group.
        key: agent, member and the places of its forks: unique in the group.
        name: the key as a text, unique in the run.
        agent: name of its agent.
        role: `member` (drawn and trained), `baseline` (scored, never trained) or `helper` (stored, never drawn).
        origin: `generated`, `expert` or `imagined`.
        parent: the branch from which it was forked or derived, or None.
        turns: the turns of its path, including inherited ones.
        status: `running`, or the final status.
        record: its rewards and facts.
        path: its tokens, piece by piece.
        episode: its episode.
        seed: 63-bit seed of its episode.
    """

    def position(self, token: int) -> Position:
        """Return the place after a number of its path's tokens, possibly inside a node.

        Raises:
            InvalidInputError: the path has fewer tokens, or the number is 0.
        """
        turns = sum(turn.begin.tokens + turn.length <= token for turn in self.turns)
        return self.path.position(token, turns)

    def end_of(self, turn: int) -> Position:
        """Return the place after a turn of its path."""
        return self.path.end_of(turn)

    def position_after(self, turns: int) -> Position:
        """Return the place after n turns; 0: the start of the first action.

        Raises:
            InvalidInputError: it has fewer turns.
        """
        if not 0 <= turns <= len(self.turns) or not self.turns:
            raise InvalidInputError(
                f"branch {self.name} has {len(self.turns)} turns, so there is no place after {turns}; give a smaller "
                f"number"
            )
        return self.turns[turns - 1].end if turns else self.turns[0].begin

    def fork(
        self,
        at: Position | None = None,
        *,
        episode: Literal["copy", "keep"] = "copy",
        train_prefix: bool = True,
        facts: Mapping[str, Any] | None = None,
        score: float | None = None,
    ) -> Branch:
        """Fork a branch that shares all tokens before a place.

        In a multi-agent episode, its `peers` are forked with it, in their state at that time.

        Args:
            at: a place of this branch's path; None: its end. An action that it splits continues in the fork, and the
                environment gets the whole action.
            episode: `copy`: it gets a new episode, which is replayed to that place on first use; `keep`: it continues
                this branch's episode, which must not be stepped any more.
            train_prefix: whether it also trains the inherited steps.
            facts: facts of the program about it (and its peers), as declared in `Rollout.facts`.
            score: score of the decision, for the log of the search.

        Raises:
            InvalidInputError: the place is not on this branch's path, or its episode cannot be replayed to it.
        """
        self._check_one_lane("forked")
        self.path.flush()
        place = self.end if at is None else at
        if place.node is None and place.tokens < self.path.length:
            raise InvalidInputError(
                f"branch {self.name}: token {place.tokens} is the end of a context that was rewritten to its own "
                "beginning; fork it before the next turn, or at an end of a later turn"
            )
        acted = self._acted_before(place)
        ordinal = self._ordinal_at(place.tokens)
        name = f"{self.name}.{place.tokens}.{ordinal}"
        match = self.episode.match.copy(acted, name) if isinstance(self.episode, AgentView) else None
        kept = self.episode if episode == "keep" or match is not None else self.episode.copy(acted)
        handle = self._runtime.forest.fork(
            self.handle, node=place.node, end=place.end, ordinal=ordinal, train_prefix=train_prefix
        )
        path = self.path.copy(handle, place, name, self._begin_at(place))
        path.acted[-1] = acted if match is not None else len(kept.answers)
        child = self._child(path, place.tokens, ordinal, kept)
        child.turns, child.record = self.turns[: place.turns], self.record.first_turns(place.turns)
        child.record.begin(facts)
        self.group.on_fork(self, child, place, score)
        if match is not None:
            self._fork_match(match, child, acted, facts or {}, train_prefix=train_prefix)
        return child

    def _fork_match(
        self, match: SharedEpisode, child: Branch, acted: int, facts: Mapping[str, Any], *, train_prefix: bool
    ) -> None:
        """Fork the peers of its episode too, in their state after n joint moves."""
        for branch in cast("list[Branch]", self._seat.match.branches):
            if branch.over and branch is not self and not match.goes_on(branch.agent):
                continue
            forked = child if branch is self else branch._behind(acted, child, train_prefix=train_prefix)  # noqa: SLF001
            forked.record.begin(facts)
            forked.episode = AgentView(match, forked.agent)
            match.branches.append(forked)
            for answer in match.words(forked.agent):
                forked.record.tell(answer.outcome)

    def _behind(self, acted: int, first: Branch, *, train_prefix: bool) -> Branch:
        """Fork at joint move n, and replay the agent's observations.

        Its episode is that of `first`.
        """
        turns = sum(each is not None and each <= acted for each in self.path.acted[1:])
        place = self.path.closing(turns)
        tokens = 0 if place is None else place.tokens
        ordinal = self._ordinal_at(tokens)
        forest, name = self._runtime.forest, f"{self.name}.{tokens}.{ordinal}"
        if place is None:
            node = self.path.first
            handle = forest.fork(
                self.handle, node=node, end=None if node is None else 0, ordinal=ordinal, episode=first.handle
            )
            path = self.path.anew(handle, name)
        else:
            handle = forest.fork(
                self.handle,
                node=place.node,
                end=place.end,
                ordinal=ordinal,
                train_prefix=train_prefix,
                episode=first.handle,
            )
            path = self.path.copy(handle, place, name)
            path.answered(turns, self._seat.match.told(self.agent, cast("int", path.acted[-1]) - 1, acted))
        child = self._child(path, tokens, ordinal, self.episode)
        child.turns, child.record = self.turns[:turns], self.record.first_turns(turns)
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
        """Fork several branches at one place."""
        return [self.fork(at, train_prefix=train_prefix, facts=facts, score=score) for _ in range(count)]

    def splice(self, suffix: Branch, start: Position, *, at: Position | None = None) -> Branch:
        """Create a branch from this one's prefix and another one's suffix (a successful repair).

        The suffix has another context than when it was sampled: its log-probs are dropped, and its draws have
        `old_logprob` `none`. If the other branch has ended, the new one ends equally; otherwise it continues, with a
        copy of the other's episode. Its rewards are those of its own turns, and those of the other after `start`.

        Args:
            suffix: the other branch, of the same group.
            start: a place between two of its turns, such as `turn.begin`.
            at: a place of this branch's path; None: its end.

        Raises:
            InvalidInputError: `start` splits an action, there are no turns after it, or an action is open.
        """
        self._check_one_lane("spliced")
        place = self.end if at is None else at
        begin = suffix._begin_at(start)
        if suffix.has_open_action or (begin is not None and begin.tokens < start.tokens):
            raise InvalidInputError(
                f"branch {self.name}: splice needs whole turns, but branch {suffix.name} has an open or split action; "
                f"submit it, and start at turn.begin of one of its turns"
            )
        if isinstance(suffix.episode, AgentView):
            raise InvalidInputError(f"branch {suffix.name}: its multi-agent episode cannot be spliced; fork it")
        self.path.flush()
        ordinal = self._ordinal_at(place.tokens)
        node, first = suffix.path.node_after(start.tokens)
        handle = self._runtime.forest.splice(
            self.handle, suffix.handle, from_node=node, start=first, node=place.node, end=place.end
        )
        path = self.path.copy(handle, place, f"{self.name}.{place.tokens}.{ordinal}")
        path.carry_on(suffix.path, start, self.group.number)
        child = self._child(path, place.tokens, ordinal, suffix.episode.copy(len(suffix.episode.answers)))
        child.turns, child.record = self.turns[: place.turns], self.record.first_turns(place.turns)
        child.record.go_on(suffix.record, start.turns)
        self.group.on_fork(self, child, place, None, operation="splice")
        child._take_turns(suffix, start.turns, place.tokens - start.tokens)  # noqa: SLF001
        return child

    def with_prompt(self, prompt: Content | None) -> Branch:
        """Replace this branch with the same actions after a different prompt.

        Use it to train actions sampled with a hint or demonstration as if they were sampled without. This branch stays
        in the files without draws. The new one has no log-probs, since its actions were not sampled after its prompt:
        its draws have `old_logprob` `none`. It continues, or has ended, like this one.

        Args:
            prompt: the other prompt; None: that of the environment.

        Returns:
            The replacement.

        Raises:
            InvalidInputError: it has no action yet, an action is open, or its context was rewritten.
        """
        self._check_one_lane("given another prompt")
        if self.has_open_action or not self.turns:
            raise InvalidInputError(
                f"branch {self.name}: with_prompt needs at least one answered turn; await a turn first"
            )
        self.path.flush()
        ordinal, tools = self._ordinal_at(0), self.episode.tools
        content = self.episode.observation if prompt is None else checked_content(prompt, "with_prompt: prompt")
        chat = self._runtime.chat(self.agent)
        tokens = chat.prompt(content, tools=tools) if tools else chat.prompt(content)
        images = images_in(content)
        handle = self._runtime.forest.with_prompt(self.handle, tokens, blobs=self.path.blobs(images))
        path = TokenPath(f"{self.name}.0.{ordinal}", self._runtime.forest, chat, handle)
        begin = self.turns[0].begin
        path.told(len(tokens), images, self.path, begin, self.group.number)
        child = self._child(path, 0, ordinal, self.episode)
        child.record = self.record.whole()
        self.group.on_fork(self, child, None, None, operation="replace")
        child._take_turns(self, 0, len(tokens) - begin.tokens)  # noqa: SLF001
        self._runtime.forest.replace(self.handle, by=handle)
        if not self.over:
            self._runtime.ended()
        self.status = "pruned"
        if isinstance(self.episode, AgentView):
            match = self.episode.match
            match.branches[match.branches.index(self)] = child
        return child

    def rollback(self, to: Position, *, episode: Literal["copy", "keep"] = "copy") -> None:
        """Continue from an earlier place of its path. Later turns stay in the files without draws.

        Args:
            to: the place.
            episode: `copy`: the environment is replayed to it too; `keep`: the environment keeps its state.
        """
        self._check_running()
        self._check_one_lane("rolled back")
        self.path.flush()
        before = self.episode
        if isinstance(before, AgentView) and episode == "copy":
            raise InvalidInputError(
                f"branch {self.name}: its multi-agent episode cannot be rolled back for one agent; fork it, and stop "
                'this one and its peers, or use episode="keep"'
            )
        kept = before if episode == "keep" else before.copy(self._acted_before(to))
        self.group.log_decision("rollback", self, to)
        handle = self._runtime.forest.rollback(self.handle, cast("int", to.node), to.end)
        if kept is not before:
            self.episode = kept
            before.close()
        self._runtime.grew(self.path.grown(), shared=False)
        self.path = self.path.copy(handle, to, self.name, self._begin_at(to))
        self._runtime.grew(to.tokens, shared=True)
        self.path.acted[-1] = len(kept.answers)
        self.turns, self.record = self.turns[: to.turns], self.record.first_turns(to.turns)

    def _truncate(self, reason: str) -> None:
        """Draw it in its current state, while it continues later (for the runtime); success is unknown."""
        if self.over:
            return
        if self.path.open:
            of_engine = self._of_engine("step")
            self.path.flush()
            self._runtime.forest.step(self.handle, truncated=True, facts=of_engine or None)
        self.status = "truncated"
        self._runtime.ended()
        ended = {**self.record.ended("truncated", reason), "success": None}
        self._runtime.forest.finish(self.handle, status="truncated", **ended)
        self.episode.close()

    async def rewrite(self, context: Sequence[Content | Turn]) -> None:
        """Change its context from here on: texts or messages, and turns with their sampled tokens.

        Args:
            context: starts and ends with a message; a text gets the role of its place. Turns must be in its current
                context.

        Raises:
            InvalidInputError: two turns have no message between them, or the context starts or ends with a turn.
        """
        await self._prompted()
        self._check_running()
        items = [item.index if isinstance(item, Turn) else item for item in context]
        tokens, begins, shown = self.path.context(items, self.episode.tools)
        # The images of a message are shared together, so it is enough to know where they begin.
        images = [(begin, blob) for begin, _, images in shown for blob in self.path.blobs(images)]
        shared = self._runtime.forest.rewrite(self.handle, tokens, images=images, state=self.state_key)
        self._runtime.grew(shared, shared=True)
        self._runtime.grew(len(tokens) - shared, shared=False)
        tip = self.path.tip(self.group.number) if shared < len(tokens) else None
        self.path.rewritten(len(tokens), begins, shown, tip)
        self.group.log_decision("replace", self, self.path.here)

    def _child(self, path: TokenPath, tokens: int, ordinal: int, episode: RunningEpisode) -> Branch:
        """Create a branch derived from this one after n tokens."""
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
        """Return the number of actions that its episode had answered before a place of the path."""
        if place.turns < self.path.turns and self.path.acted[place.turns + 1] is not None:
            return cast("int", self.path.acted[place.turns + 1]) - 1
        acted = self.path.acted[place.turns]
        if acted is None:
            raise InvalidInputError(
                f"branch {self.name}: tokens before token {place.tokens} are from another branch, so its episode "
                f"cannot be replayed there; fork that branch"
            )
        return len(self.episode.answers) if isinstance(self.episode, AgentView) else acted

    def _ordinal_at(self, tokens: int) -> int:
        """Return the number of the next fork after n tokens."""
        ordinal = self._forks[tokens] = self._forks.get(tokens, -1) + 1
        return ordinal

    def _check_one_lane(self, what: str) -> None:
        if self._lanes is not None and len(self._lanes.paths) > 1:
            raise InvalidInputError(
                f"branch {self.name}: its episode has {len(self._lanes.paths)} conversations, so it cannot be {what}; "
                f"use a rollout without forks, such as Independent"
            )

    @property
    def _seat(self) -> AgentView:
        """Its view of a multi-agent episode."""
        return cast("AgentView", self.episode)

    def _begin_at(self, place: Position) -> Position | None:
        """Return the start of the action that a place may split."""
        if place.turns < len(self.turns):
            return self.turns[place.turns].begin
        return self.path.here if self.path.open else None

    def _take_turns(self, other: Trajectory, first: int, shift: int) -> None:
        """Append turns of another branch, shifted by an offset in tokens, and end like it."""
        for turn in other.turns[first:]:
            begin = replace(
                self.path.position(turn.begin.tokens + shift, len(self.turns)), follows_tool=turn.begin.follows_tool
            )
            self.path.spans[len(self.turns)] = (begin.tokens, begin.tokens + turn.length)
            self.turns.append(replace(turn, branch_ref=self._reference, index=len(self.turns), begin=begin))
        if other.status in ("finished", "truncated"):
            self._end(other.status)
