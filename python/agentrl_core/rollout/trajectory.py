"""A trajectory of a group: its state, and its turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Self, cast
from weakref import ReferenceType, ref

import numpy as np
from numpy.typing import NDArray

from agentrl_core.engine.base import Request, Sampling, Segment
from agentrl_core.env.base import Content, Message, StepResult, as_messages
from agentrl_core.env.episode import EpisodeError, JointStep, StepRecord
from agentrl_core.env.runtime.validation import checked_content
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.rollout.branch_record import PRECISION, BranchRecord
from agentrl_core.rollout.conversations import BranchConversations
from agentrl_core.rollout.multi_agent import AgentView, SharedEpisode
from agentrl_core.rollout.prefix import Action, Prefix
from agentrl_core.rollout.runtime import RunningEpisode, Runtime
from agentrl_core.rollout.tasks import OneAtATime, gather_or_cancel
from agentrl_core.rollout.token_path import Position, TokenPath
from agentrl_core.rollout.turn import Turn, dereference, uniform

Status = Literal["running", "finished", "truncated", "failed", "aborted", "pruned"]
Origin = Literal["generated", "expert", "imagined", "imported"]
Role = Literal["member", "baseline", "helper"]
Prompt = Content | Callable[[Content], Content]
"""A prompt, or a function from the environment's first observation to a prompt."""


class Trajectory:
    """One trajectory of a group, driven by a program; see `Branch`, which adds forks."""

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
        asked: Content = "",
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
        self._content = asked
        self._sampling = runtime.sampling(agent) if sampling is None else sampling
        self._policy = runtime.policy(agent)
        self._forks: dict[int, int] = {}
        """Forks made at each place."""
        self._group_name = group.name
        self._requests = Counter[str]()
        """Number of requests of each path, by which a resumed run finds the responses."""
        self._waiting: set[str] = set()
        """Names of the requests without a response."""
        self._answers = 0
        """Number of requested answers: used for names in the journal."""
        self._failure: str | None = None
        self._lanes: BranchConversations | None = None
        """Its conversations, if its episode has several."""
        self._awaited = OneAtATime(self.name)
        self._reference: ReferenceType[Any] = ref(self)
        runtime.began()

    @property
    def group(self) -> Any:
        """Its `Group`, which owns it.

        Raises:
            InvalidInputError: the group was garbage-collected.
        """
        return dereference(self._group, f"the group of branch {self.name}")

    @property
    def handle(self) -> int:
        """The trajectory in the forest; a rollback gives another one."""
        return self.path.handle

    @property
    def can_act(self) -> bool:
        """Whether it may act: it has not ended, and with several agents it is its turn."""
        if self.over or not isinstance(self.episode, AgentView):
            return not self.over
        return self.agent in self.episode.match.turn_of

    @property
    def has_open_action(self) -> bool:
        """Whether an action is open: begun, and not answered yet."""
        return bool(self.path.open)

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.status != "running"

    @property
    def reward(self) -> float:
        """Its reward: the sum over its turns, or that of `finish`."""
        return self.record.reward

    @property
    def success(self) -> bool | None:
        """Success as reported by the environment or `finish`; None if unknown."""
        return self.record.success

    @property
    def text(self) -> str:
        """Its text so far, its actions joined by blank lines."""
        return "\n\n".join([*(turn.text for turn in self.turns), *([self.path.text] if self.path.open else [])])

    @property
    def state_key(self) -> bytes | str:
        """The state before its next action."""
        states = [answer.state_key for answer in self.episode.answers if answer.state_key is not None]
        return states[-1] if states else self.episode.state_key

    def decode(self, tokens: NDArray[np.int32]) -> str:
        """Decode some of its tokens."""
        return self._runtime.chat(self.agent).decode(tokens)

    @property
    def prompt_messages(self) -> list[Message]:
        """Return its prompt as messages.

        Raises:
            InvalidInputError: its episode has not started.
        """
        self._check_prompted()
        return as_messages(self._content)

    @property
    def tokens(self) -> NDArray[np.int32]:
        """The tokens of its path: `int32[n]`."""
        self.path.flush()
        return self._runtime.forest.tokens(self.handle)

    @property
    def end(self) -> Position:
        """The place after its last answer.

        Raises:
            InvalidInputError: it has no prompt yet, or an action is open.
        """
        if self.path.open:
            raise InvalidInputError(f"branch {self.name}: an action is open; answer it first, or give a place of it")
        self.path.flush()
        return self._check_prompted()

    def __repr__(self) -> str:
        return f"Branch({self.name}, {self.agent}, {len(self.turns)} turns, {self.status})"

    def __lt__(self, other: Trajectory) -> bool:
        return (self.group.key, self.key) < (other.group.key, other.key)

    def uniform(self, *key: object) -> float:
        """Return a number in [0, 1), determined by seed, branch and key."""
        return uniform(self._runtime.seed_of("branch", self.name, *key, began=self.group.key[0]))

    def _join_episode(self, match: SharedEpisode | None = None) -> SharedEpisode:
        """Join a multi-agent episode, or create one from its own episode."""
        if not isinstance(self.episode, AgentView):
            match = SharedEpisode(self.episode, self.name) if match is None else match
            match.branches.append(self)
            self.episode = AgentView(match, self.agent)
        return self.episode.match

    @property
    def peers(self) -> Sequence[Self]:
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
        with self._awaited:
            if self._lanes is None:
                return await self._say_more(self.path, sampling, max_tokens)
            said = self._lanes.said()
            if said is None:
                asking = self._lanes.asking() if max_tokens is None else [self.path]
                wanted = [self._lanes.room(path, sampling) for path in asking]
                pairs = zip(asking, wanted, strict=True)
                said = (await gather_or_cancel([self._say_more(*pair, max_tokens) for pair in pairs]))[0]
        return said

    async def _say_more(self, path: TokenPath, sampling: Sampling, max_tokens: int | None) -> Segment | None:
        """Generate more of the open action of a path, or a new one."""
        runtime = self._runtime
        wanted = sampling.max_tokens - (path.open_length if path.open else 0)
        wanted = wanted if max_tokens is None else min(wanted, max_tokens)
        segment = None
        while wanted > 0 and not self.over:
            most = min(wanted, runtime.context_tokens - path.flush())
            if most < 1 or (path is self.path and not await self._is_ready()):
                return None
            segment = await self._sampled(path, path.request(sampling, most, self._group_name))
            if len(segment.tokens) and not self.over:
                path.sampled(segment, sampling, self._policy)
            if segment.finish_reason != "abort":
                break
            wanted -= len(segment.tokens)  # new weights arrived meanwhile: the same action continues with them
        return segment

    async def _sampled(self, path: TokenPath, request: Request) -> Segment:
        """Return the response to a request for more tokens of a path."""
        if request.images:
            self._runtime.check_images(self.agent, self.episode.title)
        name = f"{path.name}/segment{self._requests[path.name]}"
        self._requests[path.name] += 1
        self._waiting.add(name)
        try:
            return await self._runtime.generate(name, self.agent, request)
        finally:
            self._waiting.discard(name)

    async def _is_ready(self) -> bool:
        """Replay its episode if it has to answer the next action; False: the replay failed."""
        try:
            await self.episode.ready(self._answer_name())
        except EpisodeError as error:
            self._fail(str(error))
            return False
        return True

    async def submit(self) -> Turn:
        """Submit the open action to the environment; its answer is the next context.

        Raises:
            InvalidInputError: no action is open.
        """
        if self.path.here is None:
            await self._prompted()
        if not (self.path.open or self.over):
            raise InvalidInputError(f"branch {self.name}: no action is open; generate() or write() one, or use turn()")
        if isinstance(self.episode, AgentView):
            return (await self.episode.match.move([self]))[0]
        answer = None
        if not self.over:
            name = self._answer_name()
            self._answers += 1
            with self._awaited:
                try:
                    answer = await self.episode.step(name, self.path.action)
                except EpisodeError as error:
                    self._fail(str(error))
        return self._take_result(answer)

    def _take_result(self, answer: StepRecord | None) -> Turn:
        """Take the environment's answer to the open action (for the runtime); None: it failed."""
        text = self.path.text
        if self.over or answer is None:  # the branch was stopped meanwhile, or it broke down
            return self._turn(text, None, over=True)
        return self._close(text, answer)

    def _take_observation(self, answer: StepRecord) -> None:
        """Take observation and reward of other agents' moves (for the runtime)."""
        outcome = answer.outcome
        self.record.tell(outcome)
        if outcome.terminated or outcome.truncated:
            self._end_with_episode("finished" if outcome.terminated else "truncated")
        elif self.path.here is not None:
            self.path.tell(answer)

    def _end_with_episode(self, status: Status = "finished") -> None:
        """End with its episode, or its part in it (for the runtime)."""
        if not self.over:
            acted = bool(self.turns)
            self._end(status if acted else "aborted", None if acted else "it never moved")

    def _fail(self, reason: str) -> None:
        """Fail with its episode (for the runtime)."""
        if self.over:  # the branch was stopped meanwhile
            return
        if repr(self.group.task.task_id) not in reason:
            reason = f"{reason} (task {self.group.task.task_id!r})"
        self._failure = reason
        self._runtime.count_turn(0, reason)
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
            self._runtime.forest.step(self.handle, facts=self._of_engine("step") or None)
            self.path.go_on(None, len(self.episode.answers))
        elif not self.path.waits:
            raise InvalidInputError(
                f"branch {self.name}: it has no turn to inject after; await a turn, or call generate() first"
            )
        self.path.say(content)

    def finish(
        self,
        *,
        reward: float | None = None,
        success: bool | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        """Finish the branch: it is drawn, with its rewards, or with those given here."""
        self._check_running()
        self.record.say(facts, reward=reward, success=success)
        self._end("finished")

    def stop(self, reason: str, *, status: Literal["pruned", "truncated", "aborted"] = "pruned") -> None:
        """Stop the branch, even while it is awaited. It is drawn if truncated, otherwise stored with the reason."""
        if self.over:
            return
        for name in self._waiting:
            self._runtime.stop(name)
        self.group.log_decision("stop", self, self.path.here, reason)
        self._end(status, reason)

    def mask(self, reason: str) -> None:
        """Exclude its tokens from training; it still votes in its group's statistics."""
        self._runtime.forest.prune(self.handle, reason, gradient_only=True)

    def drop(self, reason: str) -> None:
        """Remove it from the batch, running or ended; it stays in the files, with the reason."""
        if self.over:
            self._runtime.forest.prune(self.handle, reason)
            self.status = "pruned"
        else:
            self.stop(reason)

    async def begin(self) -> None:
        """Start its episode, and render its prompt if it moves first, without generating."""
        if self.path.here is not None or self.over:
            return
        with self._awaited:
            try:
                await self.episode.reset(f"{self.name}/begin")
            except EpisodeError as error:
                self._fail(str(error))
        if self.over:
            return
        begin: Any = self.episode.observation
        if not isinstance(self.episode, AgentView) and isinstance(begin, JointStep):
            self._join_episode()
        if self.can_act:
            await self._prompt_now()

    async def _prompted(self) -> None:
        """Start, and render the prompt."""
        await self.begin()
        if self.path.here is None and not self.over:
            await self._prompt_now()

    async def _prompt_now(self) -> None:
        """Render the prompt and its prefix."""
        content, own = self.episode.observation, self._prompt
        content = content if own is None else checked_content(own(content) if callable(own) else own, "prompt")
        self._content = content
        contexts = self.episode.contexts
        if contexts:
            self.path.use_options(contexts[0].chat_template_kwargs)
        tokens = self.path.prompt(content, self.episode.tools, self.episode.state_key, self._runtime.context_tokens)
        self._runtime.grew(self.path.grown(), shared=self.group.shares_prompt(tokens))
        if contexts:
            self._lanes = BranchConversations(self.path, self._runtime.chat(self.agent), self.episode.title)
            self._lanes.begin(self._runtime.forest, contexts, self._new_lane, self._runtime.context_tokens)
        if self._prefix is not None:
            await self._begin(self._prefix)

    async def _begin(self, prefix: Prefix) -> None:
        """Submit the untrained actions of its prefix to the environment."""
        for place, action in enumerate(prefix.actions):
            self.path.flush()
            told = prefix.contexts[place] if place < len(prefix.contexts) else None
            if told is not None and not np.array_equal(told, self.tokens[-len(told) :]):
                self._fail(
                    f"{prefix.title}: the observation before action {place + 1} differs from the recorded one; "
                    "give the prefix the seed of its episode, and an environment with replayable=True"
                )
            if self.over:
                return
            self.path.write(action, self._runtime.vocabulary_size(self.agent), trained=False)
            await self.submit()
        if prefix.begun is not None and not self.over:
            self.path.flush()
            self.path.write(prefix.begun, self._runtime.vocabulary_size(self.agent), trained=False, ends=False)

    def _of_engine(self, level: str | None = None) -> dict[str, float]:
        """Return the engine's facts of the open action, if the program declares them (at a level)."""
        declared = self.record.levels.get(PRECISION)
        if declared is None or level not in (None, declared):
            return {}
        if not any(isinstance(part, Segment) for part in self.path.open):
            return {}
        bits = self._runtime.precision(self.agent)
        return {} if bits is None else {PRECISION: float(bits)}

    def _answer_name(self) -> str:
        """Return the name of the next answer in the journal."""
        return f"{self.name}/answer{self._answers}"

    def _close(self, text: str, answer: StepRecord) -> Turn:
        """Store the environment's answer to the open action."""
        of_engine = self._of_engine()
        if of_engine:
            facts = {**(answer.outcome.facts or {}), **of_engine}
            answer = replace(answer, outcome=replace(answer.outcome, facts=facts))
        runtime, outcome = self._runtime, answer.outcome
        runtime.count_turn(outcome.flags, None)
        runtime.grew(self.path.grown(), shared=False)
        facts = self.record.add(outcome)
        truncated = outcome.truncated
        if outcome.context is not None and self._lanes is None:
            self._lanes = BranchConversations(self.path, runtime.chat(self.agent), self.episode.title)
        if outcome.observation is not None:
            limit, lanes = runtime.turn_limit, self._lanes
            length = lanes.length_with(outcome) if lanes else self.path.length_with(outcome.observation)
            truncated = truncated or length >= runtime.context_tokens
            truncated = truncated or (limit is not None and self.path.turns + 1 >= limit)
        step: dict[str, Any] = {
            "reward": outcome.reward,
            "terminated": outcome.terminated,
            "truncated": truncated,
            "flags": outcome.flags,
            "facts": facts or None,
        }
        turn = self._turn(text, answer, over=outcome.terminated or truncated)
        if not turn.over and self._lanes is not None:
            most = runtime.context_tokens
            self.path = self._lanes.enter(runtime.forest, answer, step, len(self.episode.answers), self._new_lane, most)
            return turn
        runtime.forest.step(self.handle, **step)
        if turn.over:
            self.path.close(len(self.episode.answers))
            self._end("finished" if outcome.terminated else "truncated")
        else:
            self.path.go_on(answer, len(self.episode.answers))
            self.group.on_turn(self)
        return turn

    def _new_lane(self, state: bytes | str) -> TokenPath:
        """Create the path of another conversation of its episode, identified by its start."""
        first = cast("BranchConversations", self._lanes).paths[0]
        ordinal = cast("BranchConversations", self._lanes).number(state)
        handle = self._runtime.forest.fork(first.handle, node=first.first, end=0, ordinal=ordinal, episode=first.handle)
        return first.anew(handle, f"{self.name}.0.{ordinal}")

    def _turn(self, text: str, answer: StepRecord | None, *, over: bool) -> Turn:
        """Create the next turn of the path from the open action."""
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
        """End the trajectory in the forest, and the episode with it."""
        self.status = status
        self._runtime.ended()
        forest, ended = self._runtime.forest, self.record.ended(status, reason)
        if status == "pruned":
            for path in [self.path] if self._lanes is None else self._lanes.paths:
                forest.prune(path.handle, reason or "")
        elif self._lanes is None:
            forest.finish(self.handle, status=cast("Any", status), **ended)
        else:
            last = self.record.outcomes[-1].reward if status in ("finished", "truncated") else None
            self._lanes.end(forest, status, last, ended)
        self.episode.close()

    def _check_prompted(self) -> Position:
        """Return the start of its next action, or refuse a branch without a prompt."""
        if self.path.here is None:
            raise InvalidInputError(
                f"branch {self.name} has no prompt before its first turn; await a turn first: turn(), or turn(action)"
            )
        return self.path.here

    def _check_running(self) -> None:
        if self.over:
            raise InvalidInputError(
                f"branch {self.name} has ended ({self.status}); fork it to continue from one of its places"
            )
