"""A trajectory as a program drives it, turn by turn: what it says, what it is answered, and how it ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from agentrl_core.engine.base import Request, Sampling, Segment
from agentrl_core.env.base import Content, Outcome
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.rollout.path import Path, Place
from agentrl_core.rollout.prefix import Action, Prefix
from agentrl_core.rollout.record import Record
from agentrl_core.rollout.runtime import Answer, EpisodeError, Family, OneAtATime, RunningEpisode, Runtime
from agentrl_core.rollout.turn import Turn, uniform

Status = Literal["running", "finished", "truncated", "failed", "aborted", "pruned"]
Role = Literal["member", "baseline", "helper"]


class Trajectory:
    """One trajectory of a group while its program drives it; see `Branch`, which can be forked too.

    Attributes:
        group: the group that it belongs to.
        key: agent, member and the places of the forks that lead to it: unique in the group.
        name: the key as a text that is unique in the run.
        agent: who speaks.
        role: `member` (drawn and trained), `baseline` (scored, never trained) or `helper` (kept, never drawn).
        parent: the branch that it was forked from or that it answers, or None.
        turns: what was done and answered on its path, inherited turns included.
        status: `running`, or how it ended.
        record: what it was paid and told.
        seed: 63 bits that its episode begins with.
    """

    def __init__(
        self,
        runtime: Runtime,
        group: Family,
        key: tuple[int, ...],
        path: Path,
        episode: RunningEpisode,
        *,
        agent: str,
        seed: int,
        role: Role = "member",
        parent: Any = None,
        prompt: Content | None = None,
        prefix: Prefix | None = None,
        sampling: Sampling | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self.group = group
        self.key = key
        self.name = path.name
        self.agent = agent
        self.role: Role = role
        self.parent = parent
        self.turns: list[Turn] = []
        self.status: Status = "running"
        self.record = Record(facts=dict(facts or {}))
        self.seed = seed
        self._runtime = runtime
        self._path = path
        self._episode = episode
        self._prompt = prompt
        self._prefix = prefix
        self._sampling = sampling
        self._forks: dict[int, int] = {}
        """Forks made at each place."""
        self._segments = 0
        """How many segments were asked for, and answers below: what names them in the journal."""
        self._answers = 0
        self._asking = ""
        self._failure: str | None = None
        self._awaited = OneAtATime(self.name)

    @property
    def handle(self) -> int:
        """The trajectory in the forest; a rollback gives another one."""
        return self._path.handle

    @property
    def path(self) -> Path:
        """Its tokens, piece by piece."""
        return self._path

    @property
    def episode(self) -> RunningEpisode:
        """What answers it."""
        return self._episode

    @property
    def open(self) -> bool:
        """Whether an action is open: begun, and not answered yet."""
        return bool(self._path.open)

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.status != "running"

    @property
    def reward(self) -> float:
        """What it was paid: the sum of its turns, or what `finish` said."""
        return self.record.reward

    @property
    def success(self) -> bool | None:
        """The verdict of the environment or of `finish`; None where there is none."""
        return self.record.success

    @property
    def text(self) -> str:
        """What it said so far, its actions joined by blank lines."""
        return "\n\n".join([*(turn.text for turn in self.turns), *([self._path.text] if self._path.open else [])])

    @property
    def state_key(self) -> bytes | str:
        """The state that its next action is chosen in."""
        states = [answer.state_key for answer in self._episode.answers if answer.state_key is not None]
        return states[-1] if states else self._episode.state_key

    @property
    def tokens(self) -> NDArray[np.int32]:
        """The tokens of its path: `int32[n]`."""
        self._path.flush()
        return self._runtime.forest.tokens(self.handle)

    @property
    def end(self) -> Place:
        """The place where it goes on: behind its last answer.

        Raises:
            InvalidInputError: its prompt is not there yet, or an action is open.
        """
        if self._path.open:
            raise InvalidInputError(f"branch {self.name}: an action is open; answer it first, or give a place of it")
        self._path.flush()
        if self._path.here is None:
            raise InvalidInputError(f"branch {self.name} has no prompt before its first turn; await a turn first")
        return self._path.here

    def __repr__(self) -> str:
        return f"Branch({self.name}, {self.agent}, {len(self.turns)} turns, {self.status})"

    def __lt__(self, other: Trajectory) -> bool:
        return (self.group.key, self.key) < (other.group.key, other.key)

    def uniform(self, *key: object) -> float:
        """A number in [0, 1): the same for the same seed, branch and key, whatever ran before."""
        return uniform(self._runtime.seed_of("branch", self.name, *key))

    async def turn(self, action: str | None = None, *, sampling: Sampling | None = None) -> Turn:
        """Generate an action (or take `action` as it) and let the environment answer it.

        Args:
            action: what is said, in place of what would be generated; see `write`.
            sampling: of this action; None: the branch's own.

        Raises:
            InvalidInputError: the branch is over, or another task awaits it.
        """
        self._check_running()
        if action is None:
            await self.generate(sampling=sampling)
        else:
            await self._prompted()
            self.write(action)
        return await self.answer()

    async def generate(self, *, sampling: Sampling | None = None, max_tokens: int | None = None) -> Segment | None:
        """More of the open action, or a new one.

        Args:
            sampling: of this action; None: the branch's own.
            max_tokens: stop after so many tokens, and leave the action open.

        Returns:
            What was generated last; None where nothing could be: the episode failed, or there is no room.
        """
        await self._prompted()
        sampling = self._sampling if sampling is None else sampling
        sampling = self._runtime.sampling(self.agent) if sampling is None else sampling
        wanted = sampling.max_tokens - sum(map(_length, self._path.open))
        wanted = wanted if max_tokens is None else min(wanted, max_tokens)
        segment = None
        while wanted > 0 and not self.over:
            segment = await self._generate(sampling, wanted)
            if segment is None or segment.finish_reason != "abort":
                break
            wanted -= len(segment.tokens)  # new weights came in between: the same action goes on under them
        return segment

    async def answer(self) -> Turn:
        """Give the open action to the environment; its answer is the context of the next.

        Raises:
            InvalidInputError: no action is open.
        """
        await self._prompted()
        if not (self._path.open or self.over):
            raise InvalidInputError(f"branch {self.name}: no action is open; generate() or write() one, or use turn()")
        answer, text = None, self._path.text
        if not self.over:
            name = self._answer_name()
            self._answers += 1
            with self._awaited:
                try:
                    answer = await self._episode.step(name, text)
                except EpisodeError as error:
                    self._fail(str(error))
        if self.over or answer is None:  # it was stopped meanwhile, or it broke down
            return self._turn(text, None, over=True)
        return self._close(text, answer)

    def write(self, content: Action, *, trained: bool = True, ends: bool = True) -> None:
        """Say something that was not sampled, as an action of the branch (an expert's step, a repair).

        Its tokens have no behaviour log-probs: a loss that reads them needs them recomputed.

        Args:
            content: a text, or tokens.
            trained: whether its tokens are trained.
            ends: whether a text ends the turn; else the action stays open and can be generated on.

        Raises:
            InvalidInputError: the branch is over, or has no prompt yet.
        """
        self._check_running()
        if self._path.here is None:
            raise InvalidInputError(f"branch {self.name} has no prompt before its first turn; use turn(action=...)")
        self._path.flush()
        self._say(content, trained=trained, ends=ends)

    def inject(self, content: Content) -> None:
        """Put something into the context, which is never trained: behind the last answer, or behind the open action.

        Behind an open action the action ends as it stands, and the environment never sees it.

        Raises:
            InvalidInputError: the branch is over, or nothing was said yet.
        """
        self._check_running()
        if self._path.open:
            self._runtime.forest.step(self.handle)
            self._path.go_on(None, len(self._episode.answers))
        elif not self._path.waits:
            raise InvalidInputError(
                f"branch {self.name}: there is nothing to inject behind; await a turn, or generate() first"
            )
        self._path.say(content)

    def finish(
        self,
        *,
        reward: float | None = None,
        success: bool | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        """End it by the program's word: it is drawn, and has what it was paid, or what is said here."""
        self._check_running()
        self.record.say(facts, reward=reward, success=success)
        self._end("finished")

    def stop(self, reason: str, *, status: Literal["pruned", "truncated", "aborted"] = "pruned") -> None:
        """End it where it stands, also while it is awaited. Truncated it is drawn; else only kept, with the reason."""
        if self.over:
            return
        self._runtime.stop(self._asking)
        self.group.log("stop", self, self._path.here, reason)
        self._end(status, reason)

    def mask(self, reason: str) -> None:
        """It votes in its group's statistics, and its tokens are not trained."""
        self._runtime.forest.prune(self.handle, reason, gradient_only=True)

    def drop(self, reason: str) -> None:
        """Take it out of the batch, running or ended; it stays in the files, with the reason."""
        if self.over:
            self._runtime.forest.prune(self.handle, reason)
            self.status = "pruned"
        else:
            self.stop(reason)

    def place(self, token: int) -> Place:
        """The place behind so many tokens of its path, inside whatever node that is.

        Raises:
            InvalidInputError: the path has fewer tokens, or none comes before the place.
        """
        turns = sum(turn.begin.tokens + turn.length <= token for turn in self.turns)
        return self._path.place(token, turns)

    def end_of(self, turn: int) -> Place:
        """The place behind a turn of its path."""
        return self._path.end_of(turn)

    async def _prompted(self) -> None:
        """Begin: the episode says what is asked, and the prompt is there."""
        if self._path.here is not None or self.over:
            return
        with self._awaited:
            try:
                await self._episode.reset(f"{self.name}/begin")
            except EpisodeError as error:
                self._fail(str(error))
        if not self.over:
            content = self._episode.observation if self._prompt is None else self._prompt
            self._path.prompt(content, self._episode.tools, self._episode.state_key, self._runtime.context_tokens)
            await self._begin(self._prefix or Prefix())

    async def _begin(self, prefix: Prefix) -> None:
        """Take the actions that it begins with, which are not trained, and let the environment answer them."""
        for place, action in enumerate(prefix.actions):
            self._path.flush()
            told = prefix.contexts[place] if place < len(prefix.contexts) else None
            if told is not None and not np.array_equal(told, self.tokens[-len(told) :]):
                self._fail(
                    f"{prefix.title}: what the environment says before action {place + 1} is not what it said then; "
                    "give the prefix the seed of its episode, and a world that replays"
                )
            if self.over:
                return
            self._say(action, trained=False)
            await self.answer()
        if prefix.begun is not None and not self.over:
            self._path.flush()
            self._say(prefix.begun, trained=False, ends=False)

    def _say(self, action: Action, *, trained: bool, ends: bool = True) -> None:
        """Tokens of an action that were not sampled, as a part of the open one."""
        chat = self._runtime.chat(self.agent)
        tokens = action
        if isinstance(action, str):
            tokens = chat.action(action) if ends else chat.action(action)[:-1]
        tokens = np.asarray(tokens, np.int32)
        self._path.act(tokens, trainable=None if trained else np.zeros(len(tokens), np.uint8))

    async def _generate(self, sampling: Sampling, wanted: int) -> Segment | None:
        """One request to the engine."""
        runtime = self._runtime
        tokens = self.tokens
        most = min(wanted, runtime.context_tokens - len(tokens))
        if most < 1:
            return None
        with self._awaited:
            if not runtime.will_answer(self._answer_name()):
                try:
                    await self._episode.ready()
                except EpisodeError as error:
                    self._fail(str(error))
                    return None
            sampling = _sampled(sampling, most, runtime.chat(self.agent).stop_token_ids)
            self._asking = f"{self.name}/segment{self._segments}"
            self._segments += 1
            request = Request(tokens, runtime.forest.segment_seed(self.handle), sampling)
            segment = await runtime.generate(self._asking, self.agent, request)
        if len(segment.tokens) and not self.over:
            self._path.act(
                segment,
                logprobs=segment.logprobs,
                entropies=segment.entropies,
                policy=runtime.policy(self.agent),
                policy_version=segment.policy_version,
                seed=segment.seed,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                finish_reason=segment.finish_reason,
            )
        return segment

    def _answer_name(self) -> str:
        """The name of the next answer in the journal."""
        return f"{self.name}/answer{self._answers}"

    def _close(self, text: str, answer: Answer) -> Turn:
        """Store what the environment answered to the open action."""
        runtime, outcome = self._runtime, answer.outcome
        runtime.turned(outcome.flags, None)
        facts = self.record.add(outcome, self.group.fact_levels)
        truncated = outcome.truncated
        if outcome.observation is not None:
            limit = runtime.turn_limit
            truncated = truncated or self._path.length_with(outcome.observation) >= runtime.context_tokens
            truncated = truncated or (limit is not None and self._path.turns + 1 >= limit)
        runtime.forest.step(
            self.handle,
            reward=outcome.reward,
            terminated=outcome.terminated,
            truncated=truncated,
            flags=outcome.flags,
            facts=facts or None,
        )
        turn = self._turn(text, answer, over=outcome.terminated or truncated)
        if turn.over:
            self._path.close(len(self._episode.answers))
            self._end("finished" if outcome.terminated else "truncated")
        else:
            self._path.go_on(answer, len(self._episode.answers))
        return turn

    def _turn(self, text: str, answer: Answer | None, *, over: bool) -> Turn:
        """Another turn of the path, of the open action."""
        here = self._path.here or Place(None, None, 0, 0)
        outcome = Outcome() if answer is None else answer.outcome
        turn = Turn(
            branch=self,
            index=len(self.turns),
            begin=here,
            length=self._path.length - here.tokens,
            segments=tuple(part for part in self._path.open if isinstance(part, Segment)),
            text=text,
            observation=outcome.observation,
            reward=outcome.reward,
            facts=dict(outcome.facts or {}),
            flags=outcome.flags,
            failed=self._failure,
            over=over,
        )
        self.turns.append(turn)
        return turn

    def _fail(self, reason: str) -> None:
        self._failure = reason
        self._runtime.turned(0, reason)
        self._end("failed", reason)

    def _end(self, status: Status, reason: str | None = None) -> None:
        """End the trajectory in the forest, and the episode with it."""
        self.status = status
        if status == "pruned":
            self._runtime.forest.prune(self.handle, reason or "")
        else:
            self._runtime.forest.finish(self.handle, status=cast("Any", status), **self.record.ended(status, reason))
        self._episode.close()

    def _check_running(self) -> None:
        if self.over:
            raise InvalidInputError(f"branch {self.name} is over ({self.status}); fork it to go on from a place of it")


@lru_cache(maxsize=256)
def _sampled(sampling: Sampling, most: int, stops: tuple[int, ...]) -> Sampling:
    return replace(sampling, max_tokens=most, stop_token_ids=tuple(dict.fromkeys((*sampling.stop_token_ids, *stops))))


def _length(part: Segment | NDArray[np.int32]) -> int:
    return len(part.tokens) if isinstance(part, Segment) else len(part)
