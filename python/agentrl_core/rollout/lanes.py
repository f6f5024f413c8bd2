"""Lanes: the conversations of one episode, each a trajectory of its own that one branch drives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from agentrl_core.data.forest import Forest
from agentrl_core.env.base import Context, Outcome
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.rollout.path import Path
from agentrl_core.rollout.runtime import Answer

if TYPE_CHECKING:
    from agentrl_core.engine.chat import Chat


class Lanes:
    """The paths of a branch, one for each conversation (see `env.Context`); one of them acts.

    The last action of a lane that waits is not closed: when the episode ends in another lane, it is paid there what the
    episode's end was paid, as the last action of every lane is.

    Args:
        path: that of lane 0.
        chat: how text becomes tokens.
        title: of the environment, for messages.
    """

    def __init__(self, path: Path, chat: Chat, title: str) -> None:
        self.paths = [path]
        self._chat = chat
        self._title = title
        self._now = 0
        self._unclosed: dict[int, tuple[dict[str, Any], int]] = {}
        """The steps of lanes that wait: what is said of them, and how many actions the episode had answered then."""

    def length_with(self, outcome: Outcome) -> int:
        """The tokens of the lane that acts next, before its action.

        Raises:
            InvalidInputError: there is no such lane, or a new one has no whole context.
        """
        context = outcome.context or Context(self._now)
        if context.lane > len(self.paths) or (context.lane == len(self.paths) and not context.whole):
            raise InvalidInputError(
                f"environment {self._title}: Outcome.context names lane {context.lane}, and there are "
                f"{len(self.paths)}; go on with one of them, or begin lane {len(self.paths)} with a whole context"
            )
        observation = outcome.observation or ""
        if context.whole:
            return len(self._chat.prompt(observation, tools=context.tools))
        return self.paths[context.lane].length_with(observation)

    def enter(
        self,
        forest: Forest,
        answer: Answer,
        step: dict[str, Any],
        acted: int,
        begin: Callable[[], Path],
        most: int,
    ) -> Path:
        """Have the lane act that the answer names; returns its path.

        Args:
            forest: where they are.
            answer: what the action of the lane that acted was answered.
            step: what is said of that action.
            acted: how many actions the episode has answered.
            begin: makes the empty path of a new lane.
            most: tokens of a path.
        """
        outcome, context = answer.outcome, answer.outcome.context or Context(self._now)
        self._unclosed[self._now] = step, acted
        observation, self._now = outcome.observation or "", context.lane
        if context.lane == len(self.paths):
            path = begin()
            path.prompt(observation, context.tools, answer.state_key or b"", most)
            self.paths.append(path)
            return path
        path = self.paths[context.lane]
        step, acted = self._unclosed.pop(context.lane)
        forest.step(path.handle, **step)
        if context.whole:
            tokens = self._chat.prompt(observation, tools=context.tools)
            path.restart(answer, acted, len(tokens))
            forest.rewrite(path.handle, tokens, state=answer.state_key)
        else:
            path.go_on(answer, acted)
        return path

    def end(self, forest: Forest, status: str, reward: float | None, ended: Mapping[str, Any]) -> None:
        """End all of them: `reward` is what the episode's last action was paid, where it came to its end."""
        for lane, path in enumerate(self.paths):
            if lane in self._unclosed:
                step, acted = self._unclosed[lane]
                paid = step["reward"] if reward is None else (step["reward"] or 0.0) + reward
                ends = {"terminated": status == "finished", "truncated": status == "truncated"}
                forest.step(path.handle, **(step | ends | {"reward": paid}))
                path.close(acted)
            if path.turns:
                forest.finish(path.handle, status=cast("Any", status), **ended)
            else:
                forest.finish(path.handle, status="aborted", info={"aborted": "it never acted"})
