"""Conversations of one episode, each a separate trajectory, driven by one branch."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from agentrl_core._util.stable_hash import stable_hash
from agentrl_core.engine.base import Sampling, Segment
from agentrl_core.env.base import Content, Context, StepResult
from agentrl_core.env.image import images_in
from agentrl_core.env.step_record import StepRecord
from agentrl_core.exceptions import DataError
from agentrl_core.rollout.async_tasks import gather_or_cancel
from agentrl_core.rollout.runtime import Runtime
from agentrl_core.rollout.token_path import TokenPath

GenerateMore = Callable[[TokenPath, Sampling, int | None], Coroutine[Any, Any, Segment | None]]


class BranchConversations:
    """The paths of a branch, one for each conversation (see `env.Context`); one of them acts.

    The last action of a waiting conversation stays open: when the episode ends in another one, it gets the episode's
    final reward, like the last action of every conversation.

    Actions of concurrent conversations are generated in parallel, and the episode gets them one after the other. The
    order of requests depends on timing, so a conversation is identified by its first context instead.

    Args:
        path: path of conversation 0.
        runtime: interface of the collector, with the forest and the length limit of the paths.
        agent: name of the branch's agent.
        title: title of the environment, for messages.
    """

    def __init__(self, path: TokenPath, runtime: Runtime, agent: str, title: str) -> None:
        self.paths = [path]
        self._forest = runtime.forest
        self._chat = runtime.chat(agent)
        self._title = title
        self._most_tokens = runtime.context_tokens
        self._now = 0
        self._unclosed: dict[int, tuple[dict[str, Any], int]] = {}
        """Open steps of waiting conversations: their facts, and the number of answered actions at that time."""
        self._ready: list[int] = []
        """Conversations with a ready context besides the acting one."""
        self._most: dict[TokenPath, int] = {}
        """Largest number of tokens of the next action, if a conversation limits it."""
        self._numbers: set[int] = set()
        self._ahead = False
        """Whether the action of the acting conversation was generated in parallel with others."""

    async def generate(self, generate_more: GenerateMore, sampling: Sampling, max_tokens: int | None) -> Segment | None:
        """Generate the action of the acting conversation and, without `max_tokens`, those of all ready ones.

        Args:
            generate_more: generates more of the open action of a path.
            sampling: sampling of the branch.
            max_tokens: stop after this many tokens, and leave the action open.
        """
        acting = self.paths[self._now]
        last = acting.open[-1:]
        if self._ahead and last and isinstance(last[0], Segment):  # generated in parallel
            return last[0]
        ready = [] if max_tokens is not None else [path for lane in self._ready if not (path := self.paths[lane]).open]
        paths = [acting, *ready]
        segments = await gather_or_cancel(
            [generate_more(path, self._room(path, sampling), max_tokens) for path in paths]
        )
        return segments[0]

    def _room(self, path: TokenPath, sampling: Sampling) -> Sampling:
        """Return the sampling of a conversation's next action."""
        max_tokens = self._most.get(path, sampling.max_tokens)
        return sampling if max_tokens >= sampling.max_tokens else replace(sampling, max_tokens=max_tokens)

    def _new_path(self, state: bytes | str) -> TokenPath:
        """Create the path of another conversation, which starts in a state."""
        # The number of a conversation is not a count, since the order of conversations depends on timing.
        raw = state.encode() if isinstance(state, str) else state
        number = stable_hash(raw, size=4)
        while number in self._numbers:
            number += 1
        self._numbers.add(number)
        first = self.paths[0]
        handle = self._forest.fork(first.handle, node=first.first, end=0, ordinal=number, episode=first.handle)
        return first.new_path(handle, f"{first.name}.0.{number}")

    def begin(self, contexts: Sequence[Context]) -> None:
        """Start with the first of these contexts; the others belong to concurrent conversations."""
        self._limit(contexts[0])
        self._render_waiting(contexts[1:], 0)

    def length_with(self, outcome: StepResult) -> int:
        """Return the number of tokens that the next acting conversation would have before its action.

        Raises:
            DataError: the conversation does not exist, or a new one has no whole context.
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
                f"environment {self._title}: StepResult.context names conversation {context.conversation}, but the "
                f"episode has {len(self.paths)}, numbered from 0; continue one of these, or start conversation "
                f"{len(self.paths)} with replaces_history=True"
            )
        if context.replaces_history:
            return len(self._whole(context, observation))
        return self.paths[context.conversation].length_with(observation)

    def switch_to(self, answer: StepRecord, step: dict[str, Any], acted: int) -> TokenPath:
        """Switch to the conversation that the answer names, and return its path.

        Args:
            answer: answer to the last action.
            step: facts of that action.
            acted: number of answered actions of the episode.
        """
        outcome, context = answer.outcome, answer.outcome.context or Context(self._now)
        self._unclosed[self._now] = step, acted
        self._now, self._ahead = context.conversation, context.conversation in self._ready
        if self._ahead:
            self._ready.remove(context.conversation)
        else:
            self._render_context(answer, context, acted)
        self._render_waiting(outcome.parallel_requests, acted)
        return self.paths[context.conversation]

    def _render_waiting(self, contexts: Sequence[Context], acted: int) -> None:
        """Render the contexts of other waiting conversations."""
        for context in contexts:
            observation = context.observation or ""
            if self._length(context, observation) >= self._most_tokens:
                return  # it ends the episode when it acts
            answer = StepRecord(StepResult(observation), context.state_key)
            self._render_context(answer, context, acted)
            self._ready.append(context.conversation)

    def _whole(self, context: Context, observation: Content) -> NDArray[np.int32]:
        """Return the tokens of a context rendered from scratch."""
        options = context.chat_template_kwargs
        chat = self._chat.with_options(options) if options else self._chat
        return chat.prompt(observation, tools=context.tools)

    def _limit(self, context: Context) -> None:
        path = self.paths[context.conversation]
        self._most.pop(path, None)
        if context.max_tokens is not None:
            self._most[path] = context.max_tokens

    def _render_context(self, answer: StepRecord, context: Context, acted: int) -> None:
        """Render a context of a conversation, as a new path or as the answer to its open action."""
        observation = answer.outcome.observation or ""
        if context.conversation == len(self.paths):
            path = self._new_path(answer.state_key or b"")
            path.use_options(context.chat_template_kwargs)
            path.prompt(observation, context.tools, answer.state_key or b"", self._most_tokens)
            self.paths.append(path)
            self._limit(context)
            return
        path = self.paths[context.conversation]
        self._limit(context)
        step, acted = self._unclosed.pop(context.conversation)
        self._forest.step(path.handle, **step)
        if context.replaces_history:
            path.use_options(context.chat_template_kwargs)
            tokens = self._whole(context, observation)
            path.restart(answer, acted, len(tokens))
            images = [(0, blob) for blob in path.blobs(images_in(observation))]
            self._forest.rewrite(path.handle, tokens, images=images, state=answer.state_key)
        else:
            path.close_action(answer, acted)

    def end(self, status: str, reward: float | None, ended: Mapping[str, Any]) -> None:
        """End all conversations; `reward` is that of the episode's last action, if the episode ended."""
        finished, truncated = status == "finished", status == "truncated"
        for lane, path in enumerate(self.paths):
            if lane in self._unclosed:
                step, acted = self._unclosed[lane]
                total_reward = step["reward"] if reward is None else (step["reward"] or 0.0) + reward
                self._forest.step(
                    path.handle, **(step | {"terminated": finished, "truncated": truncated, "reward": total_reward})
                )
                path.close(acted)
            elif path.open and lane != self._now:  # the last action was not used
                self._forest.step(path.handle, terminated=finished, truncated=truncated, reward=reward)
                path.close(path.acted[-1] or 0)
            if path.turns or path.open:
                self._forest.finish(path.handle, status=cast("Any", status), **ended)
            else:
                self._forest.finish(path.handle, status="aborted", info={"aborted": "it never acted"})
