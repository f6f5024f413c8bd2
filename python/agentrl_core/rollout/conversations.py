"""Lanes: the conversations of one episode, each a trajectory of its own that one branch drives."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from agentrl_core.data.forest import Forest
from agentrl_core.engine.base import Sampling, Segment
from agentrl_core.env.base import Content, Context, StepResult
from agentrl_core.env.episode import StepRecord
from agentrl_core.exceptions import DataError
from agentrl_core.rollout.token_path import TokenPath

if TYPE_CHECKING:
    from agentrl_core.engine.chat import Chat


class BranchConversations:
    """The paths of a branch, one for each conversation (see `env.Context`); one of them acts.

    The last action of a lane that waits is not closed: when the episode ends in another lane, it is paid there what the
    episode's end was paid, as the last action of every lane is.

    Lanes that ask at the same time have their actions generated at the same time, and the episode gets these one after
    the other. Which of them asked first is chance: what is stored of a lane hangs on what it began with instead.

    Args:
        path: that of lane 0.
        chat: how text becomes tokens.
        title: of the environment, for messages.
    """

    def __init__(self, path: TokenPath, chat: Chat, title: str) -> None:
        self.paths = [path]
        self._chat = chat
        self._title = title
        self._now = 0
        self._unclosed: dict[int, tuple[dict[str, Any], int]] = {}
        """The steps of lanes that wait: what is said of them, and how many actions the episode had answered then."""
        self._ready: list[int] = []
        """Lanes that ask beside the one that acts: their contexts are there."""
        self._most: dict[TokenPath, int] = {}
        """Most tokens of the next action, where a lane says so."""
        self._numbers: set[int] = set()
        self._ahead = False
        """Whether the action of the lane that acts was generated beside those of others."""

    def said(self) -> Segment | None:
        """The action of the lane that acts, where it was generated before."""
        last = self.paths[self._now].open[-1:]
        return last[0] if self._ahead and last and isinstance(last[0], Segment) else None

    def asking(self) -> list[TokenPath]:
        """The lane that acts, and those whose actions can be generated beside its own."""
        return [self.paths[self._now], *(path for lane in self._ready if not (path := self.paths[lane]).open)]

    def room(self, path: TokenPath, sampling: Sampling) -> Sampling:
        """The sampling of the next action of a lane."""
        most = self._most.get(path, sampling.max_tokens)
        return sampling if most >= sampling.max_tokens else replace(sampling, max_tokens=most)

    def number(self, state: bytes | str) -> int:
        """What a new lane is known by: not by a count, since which of several begins first is chance."""
        raw = state.encode() if isinstance(state, str) else state
        number = int.from_bytes(hashlib.blake2b(raw, digest_size=4).digest(), "little") >> 1
        while number in self._numbers:
            number += 1
        self._numbers.add(number)
        return number

    def begin(
        self, forest: Forest, contexts: Sequence[Context], begin: Callable[[bytes | str], TokenPath], most: int
    ) -> None:
        """The episode begins with the first of these contexts, and those of other lanes beside it."""
        self._limit(contexts[0])
        self._listen(forest, contexts[1:], 0, begin, most)

    def length_with(self, outcome: StepResult) -> int:
        """The tokens of the lane that acts next, before its action.

        Raises:
            DataError: there is no such lane, or a new one has no whole context.
        """
        context = outcome.context or Context(self._now)
        if context.conversation in self._ready:
            return self.paths[context.conversation].length
        return self._length(context, outcome.observation or "")

    def _length(self, context: Context, observation: Content) -> int:
        if context.conversation > len(self.paths) or (
            context.conversation == len(self.paths) and not context.replaces_history
        ):
            raise DataError(
                f"environment {self._title}: StepResult.context names conversation {context.conversation}, and there "
                f"are {len(self.paths)}; go on with one of them, or begin lane {len(self.paths)} with a whole context"
            )
        if context.replaces_history:
            return len(self._whole(context, observation))
        return self.paths[context.conversation].length_with(observation)

    def enter(
        self,
        forest: Forest,
        answer: StepRecord,
        step: dict[str, Any],
        acted: int,
        begin: Callable[[bytes | str], TokenPath],
        most: int,
    ) -> TokenPath:
        """Have the lane act that the answer names; returns its path.

        Args:
            forest: where they are.
            answer: what the action of the lane that acted was answered.
            step: what is said of that action.
            acted: how many actions the episode has answered.
            begin: makes the empty path of a new lane, which begins in a state.
            most: tokens of a path.
        """
        outcome, context = answer.outcome, answer.outcome.context or Context(self._now)
        self._unclosed[self._now] = step, acted
        self._now, self._ahead = context.conversation, context.conversation in self._ready
        if self._ahead:
            self._ready.remove(context.conversation)
        else:
            self._enter(forest, answer, context, acted, begin, most)
        self._listen(forest, outcome.parallel_requests, acted, begin, most)
        return self.paths[context.conversation]

    def _listen(
        self,
        forest: Forest,
        contexts: Sequence[Context],
        acted: int,
        begin: Callable[[bytes | str], TokenPath],
        most: int,
    ) -> None:
        """Have the contexts of lanes that ask beside the one that acts there."""
        for context in contexts:
            observation = context.observation or ""
            if self._length(context, observation) >= most:
                return  # it ends the episode when it is its turn
            answer = StepRecord(StepResult(observation), context.state_key)
            self._enter(forest, answer, context, acted, begin, most)
            self._ready.append(context.conversation)

    def _whole(self, context: Context, observation: Content) -> NDArray[np.int32]:
        """The tokens of a whole context."""
        options = context.chat_template_kwargs
        chat = self._chat.with_options(options) if options else self._chat
        return chat.prompt(observation, tools=context.tools)

    def _limit(self, context: Context) -> None:
        path = self.paths[context.conversation]
        self._most.pop(path, None)
        if context.max_tokens is not None:
            self._most[path] = context.max_tokens

    def _enter(
        self,
        forest: Forest,
        answer: StepRecord,
        context: Context,
        acted: int,
        begin: Callable[[bytes | str], TokenPath],
        most: int,
    ) -> None:
        """Have the context of a lane there."""
        observation = answer.outcome.observation or ""
        if context.conversation == len(self.paths):
            path = begin(answer.state_key or b"")
            path.use_options(context.chat_template_kwargs)
            path.prompt(observation, context.tools, answer.state_key or b"", most)
            self.paths.append(path)
            self._limit(context)
            return
        path = self.paths[context.conversation]
        self._limit(context)
        step, acted = self._unclosed.pop(context.conversation)
        forest.step(path.handle, **step)
        if context.replaces_history:
            path.use_options(context.chat_template_kwargs)
            tokens = self._whole(context, observation)
            path.restart(answer, acted, len(tokens))
            forest.rewrite(path.handle, tokens, state=answer.state_key)
        else:
            path.go_on(answer, acted)

    def end(self, forest: Forest, status: str, reward: float | None, ended: Mapping[str, Any]) -> None:
        """End all of them: `reward` is what the episode's last action was paid, where it came to its end."""
        finished, truncated = status == "finished", status == "truncated"
        for lane, path in enumerate(self.paths):
            if lane in self._unclosed:
                step, acted = self._unclosed[lane]
                paid = step["reward"] if reward is None else (step["reward"] or 0.0) + reward
                forest.step(path.handle, **(step | {"terminated": finished, "truncated": truncated, "reward": paid}))
                path.close(acted)
            elif path.open and lane != self._now:  # nobody heard what it said
                forest.step(path.handle, terminated=finished, truncated=truncated, reward=reward)
                path.close(path.acted[-1] or 0)
            if path.turns or path.open:
                forest.finish(path.handle, status=cast("Any", status), **ended)
            else:
                forest.finish(path.handle, status="aborted", info={"aborted": "it never acted"})
