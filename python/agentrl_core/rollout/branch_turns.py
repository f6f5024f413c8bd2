"""The turns of a branch: generate actions, submit them, and end the branch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal, Self, cast

import numpy as np
from numpy.typing import NDArray

from agentrl_core._util.json_text import is_unicode
from agentrl_core.engine.base import Request, Sampling, Segment
from agentrl_core.env.base import Content, StepResult
from agentrl_core.env.episode import EpisodeError, JointStep, StepRecord
from agentrl_core.env.runtime.validation import checked_content
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.operators import columns
from agentrl_core.rollout.branch_record import PRECISION
from agentrl_core.rollout.branch_state import Status, View
from agentrl_core.rollout.conversations import BranchConversations
from agentrl_core.rollout.multi_agent import AgentView, SharedEpisode
from agentrl_core.rollout.prefix import Action, Prefix
from agentrl_core.rollout.tasks import gather_or_cancel
from agentrl_core.rollout.token_path import Position, TokenPath
from agentrl_core.rollout.turn import Turn


class Trajectory(View):
    """One trajectory of a group, driven by a program; see `Branch`, which adds forks."""

    def _join_episode(self, match: SharedEpisode | None = None) -> SharedEpisode:
        """Join a multi-agent episode, or create one from its own episode."""
        if not isinstance(self._episode, AgentView):
            match = SharedEpisode(self._episode, self.name) if match is None else match
            match.branches.append(self)
            self._episode = AgentView(match, self.agent)
        return self._episode.match

    @property
    def peers(self) -> Sequence[Self]:
        """Other branches of the same episode, in the order of their start."""
        if not isinstance(self._episode, AgentView):
            return []
        return [branch for branch in self._episode.match.branches if branch is not self]  # type: ignore[misc]

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
        if self._path.here is None:
            await self._prompted()
        sampling = self._sampling if sampling is None else sampling
        sampling = self._runtime.sampling(self.agent) if sampling is None else sampling
        with self._awaited:
            if self._lanes is None:
                return await self._say_more(self._path, sampling, max_tokens)
            said = self._lanes.said()
            if said is None:
                asking = self._lanes.asking() if max_tokens is None else [self._path]
                wanted = [self._lanes.room(path, sampling) for path in asking]
                pairs = zip(asking, wanted, strict=True)
                said = (await gather_or_cancel([self._say_more(*pair, max_tokens) for pair in pairs]))[0]
        return said

    async def _say_more(self, path: TokenPath, sampling: Sampling, max_tokens: int | None) -> Segment | None:
        """Generate more of the open action of a path, or a new one."""
        wanted = sampling.max_tokens - (sum(map(_length, path.open)) if path.open else 0)
        wanted = wanted if max_tokens is None else min(wanted, max_tokens)
        segment = None
        while wanted > 0 and not self.over:
            segment = await self._generate(path, sampling, wanted)
            if segment is None or segment.finish_reason != "abort":
                break
            wanted -= len(segment.tokens)  # new weights arrived meanwhile: the same action continues with them
        return segment

    async def submit(self) -> Turn:
        """Submit the open action to the environment; its answer is the next context.

        Raises:
            InvalidInputError: no action is open.
        """
        if self._path.here is None:
            await self._prompted()
        if not (self._path.open or self.over):
            raise InvalidInputError(f"branch {self.name}: no action is open; generate() or write() one, or use turn()")
        if isinstance(self._episode, AgentView):
            return (await self._episode.match.move([self]))[0]
        answer = None
        if not self.over:
            name = self._answer_name()
            self._answers += 1
            with self._awaited:
                try:
                    answer = await self._episode.step(name, self._path.action)
                except EpisodeError as error:
                    self._fail(str(error))
        return self._take_result(answer)

    def _take_result(self, answer: StepRecord | None) -> Turn:
        """Take the environment's answer to the open action (for the runtime); None: it failed."""
        text = self._path.text
        if self.over or answer is None:  # the branch was stopped meanwhile, or it broke down
            return self._turn(text, None, over=True)
        return self._close(text, answer)

    def _take_observation(self, answer: StepRecord) -> None:
        """Take observation and reward of other agents' moves (for the runtime)."""
        outcome = answer.outcome
        self.record.tell(outcome)
        if outcome.terminated or outcome.truncated:
            self._end_with_episode("finished" if outcome.terminated else "truncated")
        elif self._path.here is not None:
            self._path.tell(answer)

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
        if self._path.here is None:
            raise InvalidInputError(f"branch {self.name} has no prompt before its first turn; use turn(action=...)")
        self._path.flush()
        self._say(content, trained=trained, ends=ends, share=share)

    def inject(self, content: Content) -> None:
        """Inject untrained context after the last answer, or after the open action.

        An open action ends at this point and is not submitted to the environment.

        Raises:
            InvalidInputError: the branch has ended, or has no turns yet.
        """
        self._check_running()
        content = checked_content(content, "inject: content")
        if self._path.open:
            self._runtime.forest.step(self.handle, facts=self._of_engine("step") or None)
            self._path.go_on(None, len(self._episode.answers))
        elif not self._path.waits:
            raise InvalidInputError(
                f"branch {self.name}: it has no turn to inject after; await a turn, or call generate() first"
            )
        self._path.say(content)

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
        for asking in self._asking:
            self._runtime.stop(asking)
        self.group.log_decision("stop", self, self._path.here, reason)
        self._end(status, reason)

    def _truncate(self, reason: str) -> None:
        """Draw it in its current state, while it continues later (for the runtime); success is unknown."""
        if self.over:
            return
        if self._path.open:
            of_engine = self._of_engine("step")
            self._path.flush()
            self._runtime.forest.step(self.handle, truncated=True, facts=of_engine or None)
        self.status = "truncated"
        self._runtime.ended()
        ended = {**self.record.ended("truncated", reason), "success": None}
        self._runtime.forest.finish(self.handle, status="truncated", **ended)
        self._episode.close()

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
        if self._path.here is not None or self.over:
            return
        with self._awaited:
            try:
                await self._episode.reset(f"{self.name}/begin")
            except EpisodeError as error:
                self._fail(str(error))
        if self.over:
            return
        begin: Any = self._episode.observation
        if not isinstance(self._episode, AgentView) and isinstance(begin, JointStep):
            self._join_episode()
        if self.can_act:
            await self._prompt_now()

    async def _prompted(self) -> None:
        """Start, and render the prompt."""
        await self.begin()
        if self._path.here is None and not self.over:
            await self._prompt_now()

    async def _prompt_now(self) -> None:
        """Render the prompt and its prefix."""
        content, own = self._episode.observation, self._prompt
        content = content if own is None else checked_content(own(content) if callable(own) else own, "prompt")
        self._content = content
        contexts = self._episode.contexts
        if contexts:
            self._path.use_options(contexts[0].chat_template_kwargs)
        tokens = self._path.prompt(content, self._episode.tools, self._episode.state_key, self._runtime.context_tokens)
        self._runtime.grew(self._path.grown(), shared=self.group.shares_prompt(tokens))
        if contexts:
            self._lanes = BranchConversations(self._path, self._runtime.chat(self.agent), self._episode.title)
            self._lanes.begin(self._runtime.forest, contexts, self._new_lane, self._runtime.context_tokens)
        if self._prefix is not None:
            await self._begin(self._prefix)

    async def _begin(self, prefix: Prefix) -> None:
        """Submit the untrained actions of its prefix to the environment."""
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
            await self.submit()
        if prefix.begun is not None and not self.over:
            self._path.flush()
            self._say(prefix.begun, trained=False, ends=False)

    def _say(self, action: Action, *, trained: bool, ends: bool = True, share: float = 1.0) -> None:
        """Tokens of an action that were not sampled, as a part of the open one."""
        if not 0 <= share <= 1:
            raise InvalidInputError(f"write: share is {share!r}; give a number from 0 to 1")
        tokens = self._action_tokens(action, ends=ends)
        tokens = tokens if ends else tokens[: int(share * len(tokens))]
        if len(tokens):
            self._path.act(tokens, trainable=None if trained else np.zeros(len(tokens), np.uint8))

    def _action_tokens(self, action: Action, *, ends: bool) -> NDArray[np.int32]:
        """The tokens of an action that was not sampled."""
        if isinstance(action, str):
            if not is_unicode(action):
                raise InvalidInputError(f"write: content {action!r:.80} is not Unicode (a lone surrogate)")
            tokens = self._runtime.chat(self.agent).action(action)
            return np.asarray(tokens if ends else tokens[:-1], np.int32)
        numbers, size = columns.integers(action, "write: content"), self._runtime.vocabulary_size(self.agent)
        wrong = numbers[(numbers < 0) | (numbers >= size)]
        if len(wrong):
            raise InvalidInputError(f"write: content has {wrong[0]}, outside the vocabulary of {size} tokens")
        return numbers.astype(np.int32)

    async def _generate(self, path: TokenPath, sampling: Sampling, wanted: int) -> Segment | None:
        """Send one request to the engine."""
        runtime = self._runtime
        path.flush()
        tokens = runtime.forest.tokens(path.handle)
        most = min(wanted, runtime.context_tokens - len(tokens))
        if most < 1:
            return None
        if path is self._path and not runtime.will_answer(self._answer_name()):
            try:
                await self._episode.ready()
            except EpisodeError as error:
                self._fail(str(error))
                return None
        sampling = _sampled(sampling, most, path.stop_tokens)
        number = self._segments.get(path.name, 0)
        self._segments[path.name] = number + 1
        asking = f"{path.name}/segment{number}"
        images = path.images
        if images:
            runtime.check_images(self.agent, self._episode.title)
        seed = runtime.forest.segment_seed(path.handle)
        request = Request(tokens, seed, sampling, self.group.name, images)
        self._asking.add(asking)
        try:
            segment = await runtime.generate(asking, self.agent, request)
        finally:
            self._asking.discard(asking)
        if len(segment.tokens) and not self.over:
            path.act(
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

    def _of_engine(self, level: str | None = None) -> dict[str, float]:
        """Return the engine's facts of the open action, if the program declares them (at a level)."""
        declared = self.record.levels.get(PRECISION)
        if declared is None or level not in (None, declared):
            return {}
        if not any(isinstance(part, Segment) for part in self._path.open):
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
        runtime.grew(self._path.grown(), shared=False)
        facts = self.record.add(outcome)
        truncated = outcome.truncated
        if outcome.context is not None and self._lanes is None:
            self._lanes = BranchConversations(self._path, runtime.chat(self.agent), self._episode.title)
        if outcome.observation is not None:
            limit, lanes = runtime.turn_limit, self._lanes
            length = lanes.length_with(outcome) if lanes else self._path.length_with(outcome.observation)
            truncated = truncated or length >= runtime.context_tokens
            truncated = truncated or (limit is not None and self._path.turns + 1 >= limit)
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
            self._path = self._lanes.enter(
                runtime.forest, answer, step, len(self._episode.answers), self._new_lane, most
            )
            return turn
        runtime.forest.step(self.handle, **step)
        if turn.over:
            self._path.close(len(self._episode.answers))
            self._end("finished" if outcome.terminated else "truncated")
        else:
            self._path.go_on(answer, len(self._episode.answers))
            self.group.on_turn(self)
        return turn

    def _new_lane(self, state: bytes | str) -> TokenPath:
        """Create the path of another conversation of its episode, identified by its start."""
        first = cast("BranchConversations", self._lanes).paths[0]
        ordinal = cast("BranchConversations", self._lanes).number(state)
        handle = self._runtime.forest.fork(first.handle, node=first.first, end=0, ordinal=ordinal, episode=first.handle)
        return first.anew(handle, f"{self.name}.0.{ordinal}")

    def _ordinal_at(self, tokens: int) -> int:
        """Return the number of the next fork after n tokens."""
        ordinal = self._forks[tokens] = self._forks.get(tokens, -1) + 1
        return ordinal

    def _turn(self, text: str, answer: StepRecord | None, *, over: bool) -> Turn:
        """Create the next turn of the path from the open action."""
        here = self._path.here or Position(None, None, 0, 0)
        outcome = StepResult() if answer is None else answer.outcome
        turn = Turn(
            branch_ref=self._reference,
            index=len(self.turns),
            begin=here,
            length=self._path.length - here.tokens,
            segments=tuple([part for part in self._path.open if isinstance(part, Segment)]),
            text=text,
            observation=outcome.observation,
            reward=outcome.reward,
            facts=dict(outcome.facts or {}),
            flags=outcome.flags,
            failed=self._failure,
            over=over,
        )
        self._path.spans[turn.index] = (here.tokens, here.tokens + turn.length)
        self.turns.append(turn)
        return turn

    def _end(self, status: Status, reason: str | None = None) -> None:
        """End the trajectory in the forest, and the episode with it."""
        self.status = status
        self._runtime.ended()
        forest, ended = self._runtime.forest, self.record.ended(status, reason)
        if status == "pruned":
            for path in [self._path] if self._lanes is None else self._lanes.paths:
                forest.prune(path.handle, reason or "")
        elif self._lanes is None:
            forest.finish(self.handle, status=cast("Any", status), **ended)
        else:
            last = self.record.outcomes[-1].reward if status in ("finished", "truncated") else None
            self._lanes.end(forest, status, last, ended)
        self._episode.close()

    def _check_one_lane(self, what: str) -> None:
        if self._lanes is not None and len(self._lanes.paths) > 1:
            raise InvalidInputError(
                f"branch {self.name}: its episode has {len(self._lanes.paths)} conversations, so it cannot be {what}; "
                f"use a rollout without forks, such as Independent"
            )

    def _check_running(self) -> None:
        if self.over:
            raise InvalidInputError(
                f"branch {self.name} has ended ({self.status}); fork it to continue from one of its places"
            )


@lru_cache(maxsize=256)
def _sampled(sampling: Sampling, most: int, stops: tuple[int, ...]) -> Sampling:
    return replace(sampling, max_tokens=most, stop_token_ids=tuple(dict.fromkeys((*sampling.stop_token_ids, *stops))))


def _length(part: Segment | NDArray[np.int32]) -> int:
    return len(part.tokens) if isinstance(part, Segment) else len(part)
