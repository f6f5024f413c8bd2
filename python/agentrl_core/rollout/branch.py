"""A branch: one trajectory of a group, driven turn by turn by a program."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar, cast
from weakref import ReferenceType, ref

import numpy as np
from numpy.typing import NDArray

from agentrl_core.data.forest import Origin, Role
from agentrl_core.data.table_codes import StepFlag
from agentrl_core.engine.base import Sampling, Segment
from agentrl_core.env.base import Content, Message, StepResult, as_messages
from agentrl_core.env.runtime.result_checks import checked_content
from agentrl_core.env.step_record import EpisodeError, JointStep, StepRecord
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.rollout import branch_edits
from agentrl_core.rollout.async_tasks import unawaited
from agentrl_core.rollout.branch_record import PRECISION, BranchRecord
from agentrl_core.rollout.conversations import BranchConversations
from agentrl_core.rollout.multi_agent import AgentView, join_episode
from agentrl_core.rollout.prefix import Action, Prefix, submit_prefix
from agentrl_core.rollout.runtime import RunningEpisode, Runtime
from agentrl_core.rollout.token_path import Position, TokenPath
from agentrl_core.rollout.turn import Turn, dereference, uniform

Value = TypeVar("Value")
Status = Literal["running", "finished", "truncated", "failed", "aborted", "pruned"]
Prompt = Content | Callable[[Content], Content]
"""A prompt, or a function from the environment's first observation to a prompt."""


class Branch:
    """One trajectory of a group, driven by a program.

    It is created by `Group.start` or `fork`, awaited by one task at a time, and ordered by its key, which is
    deterministic.

    Attributes:
        group: the group to which it belongs.
        key: agent, member and the positions of the forks that led to it: unique in the group.
        name: the key as a text, unique in the run.
        agent: name of the agent that acts in it.
        role: `member` (drawn and trained), `baseline` (scored, never trained) or `helper` (stored, never drawn).
        origin: `generated`, `expert` or `imagined`.
        parent: the branch from which it was forked or derived, or None.
        turns: the turns of the branch, including inherited ones.
        status: `running`, or the final status.
        record: rewards and facts of the branch.
        path: tokens of the branch, piece by piece.
        episode: the environment's episode that it drives.
        seed: 63-bit seed of the episode.
    """

    path: TokenPath
    episode: RunningEpisode

    def __init__(
        self,
        runtime: Runtime,
        group: Any,
        key: tuple[int, ...],
        path: TokenPath,
        episode: RunningEpisode,
        *,
        agent: str,
        seed: int,
        role: Role = "member",
        parent: Any = None,
        prompt: Prompt | None = None,
        prefix: Prefix | None = None,
        sampling: Sampling | None = None,
        facts: Mapping[str, Any] | None = None,
        content: Content = "",
    ) -> None:
        self._group = ref(group)
        self.key = key
        self.name = path.name
        self.agent = agent
        self.role: Role = role
        self.origin: Origin = "generated" if parent is None else parent.origin
        self.parent = parent
        self.turns: list[Turn] = []
        self.status: Status = "running"
        self.record = BranchRecord(group.fact_levels, dict(facts or {}))
        self.seed = seed
        self._runtime = runtime
        self.path = path
        self.episode = episode
        self._prompt = prompt
        self._prefix = prefix
        self._content = content
        self._sampling = runtime.sampling if sampling is None else sampling
        self._policy = runtime.policy(agent)
        self._forks: dict[int, int] = {}
        """Number of forks at each position, by number of tokens."""
        self._group_name = group.name
        self._requests = Counter[str]()
        """Number of requests of each path, by which a resumed run finds the responses."""
        self._waiting: set[str] = set()
        """Names of the requests without a response."""
        self._answers = 0
        """Number of requested answers of the environment: used for names in the rollout log."""
        self._failure: str | None = None
        self._conversations: BranchConversations | None = None
        """The conversations of the branch, if its episode has several; otherwise None."""
        self._awaited = asyncio.Lock()
        self._reference: ReferenceType[Any] = ref(self)
        self._prompts: set[bytes] = group.prompts
        runtime.progress.running += 1

    @property
    def group(self) -> Any:
        """The `Group` that owns this branch.

        Raises:
            InvalidInputError: the group was garbage-collected.
        """
        return dereference(self._group, f"the group of branch {self.name}")

    @property
    def handle(self) -> int:
        """Handle of the branch's trajectory in the forest; a rollback changes it."""
        return self.path.handle

    @property
    def can_act(self) -> bool:
        """Whether the branch may act: it has not ended and, with several agents, its agent moves next."""
        if self.over or not isinstance(self.episode, AgentView):
            return not self.over
        return self.agent in self.episode.match.turn_of

    @property
    def has_open_action(self) -> bool:
        """Whether an action was begun but not yet answered by the environment."""
        return bool(self.path.open)

    @property
    def over(self) -> bool:
        """Whether the branch has ended, with any status."""
        return self.status != "running"

    @property
    def reward(self) -> float:
        """Reward of the branch: the sum over its turns, or the reward passed to `finish`."""
        return self.record.reward

    @property
    def success(self) -> bool | None:
        """Whether the episode succeeded, as reported by the environment or to `finish`; None if unknown."""
        return self.record.success

    @property
    def text(self) -> str:
        """Text of all actions so far, joined by blank lines."""
        return "\n\n".join([*(turn.text for turn in self.turns), *([self.path.text] if self.path.open else [])])

    @property
    def state_key(self) -> bytes | str:
        """Key of the environment's state before the next action."""
        states = [answer.state_key for answer in self.episode.answers if answer.state_key is not None]
        return states[-1] if states else self.episode.state_key

    def decode(self, tokens: NDArray[np.int32]) -> str:
        """Decode tokens of the branch to text."""
        return self._runtime.chat(self.agent).decode(tokens)

    def tokens_before(self, tokens: NDArray[np.int32], character: int) -> int:
        """Return the number of whole tokens of an action before a character of its text."""
        return bisect_right(range(len(tokens) + 1), character, key=lambda end: len(self.decode(tokens[:end]))) - 1

    @property
    def prompt_messages(self) -> list[Message]:
        """Return the prompt of the branch as chat messages.

        Raises:
            InvalidInputError: the episode has not started.
        """
        self._check_prompted()
        return as_messages(self._content)

    @property
    def tokens(self) -> NDArray[np.int32]:
        """All tokens of the branch, from the prompt on: `int32[n]`."""
        self.path.flush()
        return self._runtime.forest.tokens(self.handle)

    @property
    def end(self) -> Position:
        """The position after the last answer of the environment.

        Raises:
            InvalidInputError: it has no prompt yet, or an action is open.
        """
        if self.path.open:
            raise InvalidInputError(
                f"branch {self.name} has an open action, so its end is not known yet; submit the action, or give a "
                "position in it"
            )
        self.path.flush()
        return self._check_prompted()

    def __repr__(self) -> str:
        return f"Branch({self.name}, {self.agent}, {len(self.turns)} turns, {self.status})"

    def __lt__(self, other: Branch) -> bool:
        return (self.group.key, self.key) < (other.group.key, other.key)

    def uniform(self, *key: object) -> float:
        """Return a number in [0, 1), determined by seed, branch and key."""
        return uniform(self._runtime.seed_of("branch", self.name, *key, began=self.group.key[0]))

    @property
    def peers(self) -> Sequence[Branch]:
        """Other branches of the same episode, in the order of their start."""
        if not isinstance(self.episode, AgentView):
            return []
        return [branch for branch in self.episode.match.branches if branch is not self]

    async def turn(self, action: str | None = None, *, sampling: Sampling | None = None) -> Turn:
        """Generate an action (or use `action`) and submit it to the environment.

        Args:
            action: the action to write instead of generating one; see `write`.
            sampling: sampling of this action; None: the branch's own.

        Raises:
            InvalidInputError: the branch has ended, or another task awaits it.
        """
        self._check_running()
        if action is None:
            await self.generate(sampling=sampling)
        else:
            await self._prompted()
            self.write(action)
        return await self.submit()

    async def generate(self, *, sampling: Sampling | None = None, max_tokens: int | None = None) -> Segment | None:
        """Generate more of the open action, or a new one.

        Args:
            sampling: sampling of this action; None: the branch's own.
            max_tokens: stop after this many tokens, and leave the action open.

        Returns:
            The last segment; None if the episode failed or the path is full.
        """
        if self.path.here is None:
            await self._prompted()
        sampling = self._sampling if sampling is None else sampling
        async with unawaited(self._awaited, self.name):
            if self._conversations is None:
                return await self._generate_more(self.path, sampling, max_tokens)
            return await self._conversations.generate(self._generate_more, sampling, max_tokens)

    async def _generate_more(self, path: TokenPath, sampling: Sampling, max_tokens: int | None) -> Segment | None:
        """Generate more of the open action of a path, or a new action."""
        runtime = self._runtime
        remaining = sampling.max_tokens - (path.open_length if path.open else 0)
        remaining = remaining if max_tokens is None else min(remaining, max_tokens)
        segment = None
        while remaining > 0 and not self.over:
            request = path.request(sampling, remaining, runtime.context_tokens, self._group_name)
            waits = path is self.path and self.episode.handle is None
            if request is None or (waits and await self._or_fail(self.episode.ready(self._answer_name())) is False):
                return None
            if request.images:
                runtime.check_images(self.agent, self.episode.title)
            name = f"{path.name}/segment{self._requests[path.name]}"
            self._requests[path.name] += 1
            self._waiting.add(name)
            try:
                segment = await runtime.generate(name, self.agent, request)
            finally:
                self._waiting.discard(name)
            if len(segment.tokens) and not self.over:
                path.sampled(segment, sampling, self._policy)
            if segment.finish_reason != "abort":
                break
            remaining -= len(segment.tokens)  # interrupted by new weights, with which the same action continues
        return segment

    async def _or_fail(self, call: Awaitable[Value]) -> Value | Literal[False]:
        """Await a call of the episode, and return its result; if it fails, fail the branch and return False."""
        try:
            return await call
        except EpisodeError as error:
            self._fail(str(error))
            return False

    async def submit(self) -> Turn:
        """Submit the open action to the environment, and put the answer into the context of the next action.

        Raises:
            InvalidInputError: no action is open.
        """
        if self.path.here is None:
            await self._prompted()
        if not (self.path.open or self.over):
            raise InvalidInputError(f"branch {self.name}: no action is open; generate() or write() one, or use turn()")
        if isinstance(self.episode, AgentView):
            return (await self.episode.match.move([self]))[0]
        answer, action = None, self.path.action
        if not self.over:
            name = self._answer_name()
            self._answers += 1
            async with unawaited(self._awaited, self.name):
                answer = await self._or_fail(self.episode.step(name, action)) or None
        return self._take_result(answer, str(action))

    def _fail(self, reason: str) -> None:
        """End the branch as failed, because its episode failed (for the runtime)."""
        if self.over:  # the branch was stopped meanwhile
            return
        if repr(self.group.task.task_id) not in reason:
            reason = f"{reason} (task {self.group.task.task_id!r})"
        self._failure = reason
        self._runtime.count_failed(reason)
        self._end("failed", reason)

    def write(self, content: Action, *, trained: bool = True, ends: bool = True, share: float = 1.0) -> None:
        """Write an action that was not sampled (an expert's step, a repair).

        Its tokens have no behaviour log-probs: a loss that reads them needs them recomputed.

        Args:
            content: a text, or tokens.
            trained: whether its tokens are trained.
            ends: whether a text ends the turn; otherwise the action stays open, and `generate` continues it.
            share: write only the first floor(share * n) of its n tokens, if it does not end the turn.

        Raises:
            InvalidInputError: the branch has ended, or has no prompt yet.
        """
        self._check_running()
        self._check_prompted()
        self.path.flush()
        self.path.write(content, self._runtime.vocabulary_size(self.agent), trained=trained, ends=ends, share=share)

    def inject(self, content: Content) -> None:
        """Inject untrained context after the last answer, or after the open action.

        An open action ends at this point and is not submitted to the environment.

        Raises:
            InvalidInputError: the branch has ended, or has no turns yet.
        """
        self._check_running()
        content = checked_content(content, "inject: content")
        if self.path.open:
            self._runtime.forest.step(self.handle, facts=self._engine_facts("step"))
            self.path.close_action(None, len(self.episode.answers))
        elif not self.path.waits:
            raise InvalidInputError(
                f"inject: branch {self.name} has no turn to inject after; await a turn, or call generate() first"
            )
        self.path.add_message(content)

    def finish(
        self,
        *,
        reward: float | None = None,
        success: bool | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        """Finish the branch, so that it is drawn, with its rewards so far or with the reward given here."""
        self._check_running()
        self.record.set_result(facts, reward=reward, success=success)
        self._end("finished")

    def stop(self, reason: str, *, status: Literal["pruned", "truncated", "aborted"] = "pruned") -> None:
        """Stop the branch, even while it is awaited. With status `truncated` it is drawn, otherwise only stored."""
        if self.over:
            return
        for name in self._waiting:
            self._runtime.stop(name)
        self.group.log_decision("stop", self, self.path.here, reason)
        self._end(status, reason)

    def mask(self, reason: str) -> None:
        """Exclude the branch's tokens from training; its score still counts in the group's statistics."""
        self._runtime.forest.prune(self.handle, reason, gradient_only=True)

    def drop(self, reason: str) -> None:
        """Remove the branch from the batch, running or ended; it stays in the store, with the reason."""
        if self.over:
            self._runtime.forest.prune(self.handle, reason)
            self.status = "pruned"
        else:
            self.stop(reason)

    def position(self, token: int) -> Position:
        """Return the position after the first `token` tokens of the branch, possibly inside a node.

        Raises:
            InvalidInputError: the path has fewer tokens, or the number is 0.
        """
        turns = sum(turn.begin.tokens + turn.length <= token for turn in self.turns)
        return self.path.position(token, turns)

    def end_of(self, turn: int) -> Position:
        """Return the position after turn number `turn` of the branch."""
        return self.path.end_of(turn)

    def position_after(self, turns: int) -> Position:
        """Return the position after the first `turns` turns; 0: the start of the first action.

        Raises:
            InvalidInputError: the branch has fewer turns.
        """
        if not 0 <= turns <= len(self.turns) or not self.turns:
            raise InvalidInputError(
                f"branch {self.name}: turns is {turns}, but the branch has {len(self.turns)} turns; "
                + (f"give a number from 0 to {len(self.turns)}" if self.turns else "await a turn first")
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
        """Fork a branch that shares all tokens before a position.

        In a multi-agent episode, its `peers` are forked with it, in their state at that time.

        Args:
            at: a position of this branch's path; None: its end. An action that it splits continues in the fork, and the
                environment gets the whole action.
            episode: `copy`: the fork gets a new episode, which is replayed to that position on first use; `keep`: it
                continues this branch's episode, which must not be stepped any more.
            train_prefix: whether the fork also trains the inherited steps.
            facts: facts of the program about the fork (and its peers), as declared in `Rollout.facts`.
            score: score of the decision, for the log of the search.

        Raises:
            InvalidInputError: the position is not on this branch's path, or its episode cannot be replayed to it.
        """
        child: Branch = branch_edits.fork(
            self, at, episode=episode, train_prefix=train_prefix, facts=facts, score=score
        )
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
        """Fork `count` branches at one position; see `fork`."""
        return [self.fork(at, train_prefix=train_prefix, facts=facts, score=score) for _ in range(count)]

    def splice(self, suffix: Branch, start: Position, *, at: Position | None = None) -> Branch:
        """Create a branch from this one's prefix and another one's suffix (a successful repair).

        The suffix has another context than when it was sampled: its log-probs are dropped, and its draws have
        `old_logprob` `none`. If the other branch has ended, the new one ends equally; otherwise it continues, with a
        copy of the other's episode. Its rewards are those of its own turns, and those of the other after `start`.

        Args:
            suffix: the other branch, of the same group.
            start: a position between two of its turns, such as `turn.begin`.
            at: a position of this branch's path; None: its end.

        Raises:
            InvalidInputError: `start` splits an action, there are no turns after it, or an action is open.
        """
        child: Branch = branch_edits.splice(self, suffix, start, at)
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
        child: Branch = branch_edits.with_prompt(self, prompt)
        return child

    def rollback(self, to: Position, *, episode: Literal["copy", "keep"] = "copy") -> None:
        """Continue from an earlier position of the branch. Later turns stay in the store but are not drawn.

        Args:
            to: the position.
            episode: `copy`: the environment is replayed to it too; `keep`: the environment keeps its state.
        """
        self._check_running()
        branch_edits.rollback(self, to, episode=episode)

    async def rewrite(self, context: Sequence[Content | Turn]) -> None:
        """Replace the context from here on: texts or messages, and turns with their sampled tokens.

        Args:
            context: starts and ends with a message; a text gets the role of its place. Turns must be in its current
                context.

        Raises:
            InvalidInputError: two turns have no message between them, or the context starts or ends with a turn.
        """
        await self._prompted()
        self._check_running()
        branch_edits.rewrite(self, context)

    async def begin(self) -> None:
        """Start the episode, and render the prompt if the branch's agent moves first, without generating."""
        if self.path.here is not None or self.over:
            return
        async with unawaited(self._awaited, self.name):
            await self._or_fail(self.episode.reset(f"{self.name}/begin"))
        if self.over:
            return
        begin: Any = self.episode.observation
        if not isinstance(self.episode, AgentView) and isinstance(begin, JointStep):
            join_episode(self)
        if self.can_act:
            await self._prompt_now()

    async def _prompted(self) -> None:
        """Start the episode if needed, and render the prompt."""
        await self.begin()
        if self.path.here is None and not self.over:
            await self._prompt_now()

    async def _prompt_now(self) -> None:
        """Render the prompt, and submit the prefix if there is one."""
        content, prompt = self.episode.observation, self._prompt
        if prompt is not None:
            content = checked_content(prompt(content) if callable(prompt) else prompt, "prompt")
        self._content = content
        contexts = self.episode.contexts
        if contexts:
            self.path.use_options(contexts[0].chat_template_kwargs)
        tokens = self.path.prompt(content, self.episode.tools, self.episode.state_key, self._runtime.context_tokens)
        self._count_tokens(shared=tokens.tobytes() in self._prompts)
        self._prompts.add(tokens.tobytes())
        if contexts:
            self._conversations = BranchConversations(self.path, self._runtime, self.agent, self.episode.title)
            self._conversations.begin(contexts)
        if self._prefix is not None:
            await submit_prefix(self._prefix, self)

    def _engine_facts(self, level: str | None = None) -> dict[str, float] | None:
        """Return the fact `PRECISION` of the open action if it is known and declared (at `level`), otherwise None."""
        if PRECISION not in self.record.levels:
            return None
        return self.record.precision(self._runtime.precision(self.agent), self.path.open, level)

    def _answer_name(self) -> str:
        """Return the name of the next answer in the rollout log."""
        return f"{self.name}/answer{self._answers}"

    def _take_result(self, answer: StepRecord | None, text: str) -> Turn:
        """Store the environment's answer to the open action (for the runtime); None: the episode failed."""
        if self.over or answer is None:  # the branch was stopped meanwhile, or its episode failed
            return self._turn(text, None, over=True)
        if PRECISION in self.record.levels and (engine_facts := self._engine_facts()) is not None:
            all_facts = {**(answer.outcome.facts or {}), **engine_facts}
            answer = replace(answer, outcome=replace(answer.outcome, facts=all_facts))
        runtime, outcome = self._runtime, answer.outcome
        runtime.progress.turns += 1
        runtime.progress.tool_results += bool(outcome.flags & StepFlag.TOOL_RESULT)
        self._count_tokens()
        facts, truncated = self.record.add(outcome) or None, outcome.truncated
        if outcome.context is not None and self._conversations is None:
            self._conversations = BranchConversations(self.path, self._runtime, self.agent, self.episode.title)
        if outcome.observation is not None:
            limit, several = runtime.turn_limit, self._conversations
            length = several.length_with(outcome) if several else self.path.length_with(outcome.observation)
            truncated = truncated or length >= runtime.context_tokens
            truncated = truncated or (limit is not None and len(self.path.acted) >= limit)
        step: dict[str, Any] = {
            "reward": outcome.reward,
            "terminated": outcome.terminated,
            "truncated": truncated,
            "flags": outcome.flags,
            "facts": facts,
        }
        turn = self._turn(text, answer, over=outcome.terminated or truncated)
        if not turn.over and self._conversations is not None:
            self.path = self._conversations.switch_to(answer, step, len(self.episode.answers))
            return turn
        runtime.forest.step(self.handle, **step)
        if turn.over:
            self.path.close(len(self.episode.answers))
            self._end("finished" if outcome.terminated else "truncated")
        else:
            self.path.close_action(answer, len(self.episode.answers))
            self.group.on_turn(self)
        return turn

    def _turn(self, text: str, answer: StepRecord | None, *, over: bool) -> Turn:
        """Create the next turn of the branch from the open action and the answer."""
        here = self.path.here or Position(None, None, 0, 0)
        outcome = StepResult() if answer is None else answer.outcome
        turn = Turn(
            branch_ref=self._reference,
            index=len(self.turns),
            begin=here,
            length=self.path.length - here.tokens,
            segments=tuple([part for part in self.path.open if isinstance(part, Segment)]),
            text=text,
            observation=outcome.observation,
            reward=outcome.reward,
            facts=dict(outcome.facts or {}),
            flags=outcome.flags,
            failed=self._failure,
            over=over,
        )
        self.path.spans[turn.index] = (here.tokens, here.tokens + turn.length)
        self.turns.append(turn)
        return turn

    def _end(self, status: Status, reason: str | None = None) -> None:
        """End the trajectory in the forest, and the branch's part in the episode."""
        self._leave(status)
        forest, ended = self._runtime.forest, self.record.ended(status, reason)
        if status == "pruned":
            for path in [self.path] if self._conversations is None else self._conversations.paths:
                forest.prune(path.handle, reason or "")
        elif self._conversations is None:
            forest.finish(self.handle, status=cast("Any", status), **ended)
        else:
            last = self.record.outcomes[-1].reward if status in ("finished", "truncated") else None
            self._conversations.end(status, last, ended)
        self.episode.close()

    def _leave(self, status: Status) -> None:
        """Set the final status of a running branch."""
        self.status = status
        self._runtime.progress.running -= 1
        self._runtime.progress.ended += 1

    def _count_tokens(self, *, shared: bool = False) -> None:
        """Count the new tokens of the branch in the progress; `shared`: they were already stored."""
        path = self.path
        new, path.counted = path.length - path.counted, path.length
        self._runtime.progress.grew(new, shared=shared)

    def _check_prompted(self) -> Position:
        """Return the start of the next action; raise an error if the branch has no prompt."""
        if self.path.here is None:
            raise InvalidInputError(f"branch {self.name} has no prompt yet; call await branch.begin() first")
        return self.path.here

    def _check_running(self) -> None:
        if self.over:
            raise InvalidInputError(
                f"branch {self.name} has ended ({self.status}); fork it to continue from one of its positions"
            )
