"""Validate the results of an environment: each error names place, value and remedy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any, NoReturn

import numpy as np

from agentrl_core._util.json_text import is_unicode, to_json
from agentrl_core.env.base import Content, Context, ExtraColumn, StepResult
from agentrl_core.env.image import is_content
from agentrl_core.env.runtime.worker import RawStart
from agentrl_core.env.step_record import JointStep, StepRecord, agent_state_key
from agentrl_core.exceptions import DataError, InvalidInputError

_LARGEST_FLAGS = 2**32 - 1
_LARGEST_FLOAT = float(np.finfo(np.float32).max)
_LARGEST_TOKEN = 2**31 - 1


class EnvironmentChecks:
    """Validates the results of an environment.

    Args:
        title: title of the environment, for messages.
        task: id of the task, for messages.
        facts: declared facts of the environment.

    Attributes:
        step: number of the checked step; 0: the reset.
    """

    def __init__(self, title: str, task: str, facts: Mapping[str, ExtraColumn]) -> None:
        self.step = 0
        self._title = title
        self._task = task
        self._agent: str | None = None
        self._facts = facts

    @property
    def place(self) -> str:
        """The checked step or reset, for messages."""
        return f"step {self.step}" if self.step else "reset"

    def start(self, first: RawStart) -> tuple[Any, bytes | str, list[dict[str, Any]] | None, tuple[Context, ...]]:
        """Check the start of an episode; return its observation, state, tools and contexts."""
        self.step = 0
        remedy = "give a text, or messages with role and content"
        observation = first.observation
        if isinstance(observation, JointStep):
            checked = {
                agent: self.content(each, f"observations[{agent!r}]", remedy) for agent, each in observation.of.items()
            }
            observation = JointStep(checked, observation.turn_of)
        else:
            observation = self.content(observation, "Episode.observation", remedy)
        tools = None if first.tools is None else self.tools(first.tools)
        contexts = self.contexts(first.contexts, "RecordedEpisode.contexts") if first.contexts else ()
        return observation, self.state(first.state_key), tools, contexts

    def content(self, value: Any, name: str, remedy: str) -> Content:
        """Check that a value is a text or messages, and return it."""
        messages = [value] if isinstance(value, Mapping) else value
        if isinstance(value, str):
            return self._text(value, name)
        if not isinstance(messages, Sequence) or not messages:
            self.fail(f"{name} is {shown(value)}", remedy)
        for place, message in enumerate(messages):
            content = message.get("content") if isinstance(message, Mapping) else None
            if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
                self.fail(f"{_item(name, None if message is value else place)} is {shown(message)}", remedy)
            if not is_content(content) and (content is not None or not message.get("tool_calls")):
                where = _item(name, None if message is value else place)
                self.fail(f"{where} is {shown(message)}, without a text in content", remedy)
            for part in [content] if isinstance(content, str) else content or ():
                if isinstance(part, str):
                    self._text(part, name)
            self._json({key: each for key, each in message.items() if key != "content"}, f"{name}, a message,")
            self._tokens(message.get("tokens"), name)
        # In the form that the rollout log returns.
        return [
            {name: list(part) if isinstance(part, tuple) else part for name, part in message.items()}  # type: ignore[misc]
            for message in messages
        ]

    def state(self, key: object) -> bytes | str:
        """Check the result of state_key()."""
        if not isinstance(key, (bytes, str)):
            self.fail(f"state_key() gave {shown(key)}", "return bytes: equal bytes are the same state")
        return self._text(key, "state_key()") if isinstance(key, str) else key

    def tools(self, tools: Any) -> list[dict[str, Any]] | None:
        """Return the schemas of tools after checking them."""
        if tools is None:
            return None
        if isinstance(tools, (str, bytes, Mapping)) or not isinstance(tools, Sequence):
            self.fail(f"tools is {shown(tools)}", "give a list of JSON schemas, or None")
        for place, tool in enumerate(tools):
            if not isinstance(tool, Mapping):
                self.fail(f"tools[{place}] is {shown(tool)}", "give a list of JSON schemas, or None")
            self._json(tool, "tools")
        return [dict(tool) for tool in tools]

    def joint(self, joint: Any, state: object, actions: Mapping[str, str], agents: Mapping[str, Content]) -> JointStep:
        """Check the result of step() of a multi-agent episode, and the state after it."""
        remedy = "return a table with an env.StepResult for each agent that acted or gets an observation"
        if not isinstance(joint, JointStep):
            self.fail(f"step gave {shown(joint)}", remedy)
        for agent in (*joint.of, *joint.turn_of):
            if agent not in agents:
                self.fail(f"step gave agent {agent!r}, which does not exist", f"use one of: {', '.join(agents)}")
        for agent in actions:
            if agent not in joint.of:
                self.fail(f"step gave no result for agent {agent!r}, which acted", remedy)
        over = not joint.turn_of
        state = None if over else self.state(state)
        state_keys = {agent: None if state is None else agent_state_key(agent, state) for agent in joint.of}
        answers: dict[str, StepRecord] = {}
        try:
            for agent, outcome in joint.of.items():
                self._agent = agent
                answers[agent] = self.answer(outcome, state_keys[agent], waits=True)
        finally:
            self._agent = None
        return JointStep(answers, joint.turn_of, state)

    def answer(self, outcome: Any, state: object, *, waits: bool = False) -> StepRecord:
        """Check the result of step(), and the state after it; `waits`: other agents may move first."""
        if not isinstance(outcome, StepResult):
            gym = ": observation, reward, terminated, truncated and info, by name" if isinstance(outcome, tuple) else ""
            self.fail(f"step gave {shown(outcome)}", f"return an env.StepResult{gym}")
        terminated = self._verdict(outcome.terminated, "terminated")
        truncated = self._verdict(outcome.truncated, "truncated")
        over, observation = terminated or truncated, None
        if outcome.observation is not None:
            remedy = "give a text or messages with role and content, or None if the episode is over"
            observation = self.content(outcome.observation, "StepResult.observation", remedy)
        elif not over and not waits:
            self.fail(
                "StepResult.observation is None, but the episode goes on (terminated and truncated are False)",
                "give the next observation, or end the episode with terminated=True or truncated=True",
            )
        flags: object = outcome.flags
        if not isinstance(flags, (int, Integral)) or not 0 <= int(flags) <= _LARGEST_FLAGS:
            self.fail(
                f"StepResult.flags is {shown(flags)}", "give env.StepFlag bits, a whole number from 0 to 2^32 - 1"
            )
        if outcome.info is not None and not isinstance(outcome.info, Mapping):
            self.fail(f"StepResult.info is {shown(outcome.info)}", "give a table of facts, or None")
        if outcome.info is not None:
            self._json(outcome.info, "StepResult.info")
        reward, flags = self._reward(outcome.reward), int(flags)
        success = None if outcome.success is None else self._verdict(outcome.success, "success")
        facts = None if outcome.facts is None else self._checked_facts(outcome.facts)
        context, parallel_requests = outcome.context, outcome.parallel_requests
        if context is not None:
            context = self._context(context, "StepResult.context", alone=not waits)
        if parallel_requests != ():
            parallel_requests = self.contexts(parallel_requests, "StepResult.parallel_requests", alone=not waits)
        # Most results are valid as they are, and need no copy.
        if not (
            observation is outcome.observation
            and reward is outcome.reward
            and terminated is outcome.terminated
            and truncated is outcome.truncated
            and flags is outcome.flags
            and success is outcome.success
            and facts is outcome.facts
            and context is outcome.context
            and parallel_requests is outcome.parallel_requests
        ):
            outcome = StepResult(
                observation,
                reward,
                terminated,
                truncated,
                flags,
                success,
                outcome.info,
                facts,
                context,
                parallel_requests,
            )
        return StepRecord(outcome, None if over or (waits and state is None) else self.state(state))

    def contexts(self, contexts: Any, name: str, *, alone: bool = True) -> tuple[Context, ...]:
        """Check the contexts of waiting conversations; an episode's first one is that of its own observation."""
        if not isinstance(contexts, Sequence):
            self.fail(
                f"{name} is {shown(contexts)}", "give a list of env.Context, one for each conversation that waits"
            )
        checked = []
        for place, each in enumerate(contexts):
            if each is None:
                self.fail(f"{name}[{place}] is None", "give an env.Context for each conversation that waits")
            context = self._context(each, name, place, alone=alone)
            if each.observation is None:
                checked.append(context)
                continue
            remedy = "give a text, or messages with role and content"
            observation = self.content(each.observation, f"{name}[{place}].observation", remedy)
            checked.append(replace(context, observation=observation, state_key=self.state(each.state_key)))
        return tuple(checked)

    def _context(self, context: Any, name: str, place: int | None = None, *, alone: bool) -> Context:
        if not alone:
            self.fail(
                f"{_item(name, place)} is {shown(context)} in an episode of several agents",
                "leave it out, as each agent has one conversation",
            )
        lane: Any = getattr(context, "conversation", None)
        if not isinstance(context, Context):
            remedy = "give an env.Context, or None" if place is None else "give an env.Context"
            self.fail(f"{_item(name, place)} is {shown(context)}", remedy)
        if isinstance(lane, bool) or not isinstance(lane, int) or lane < 0:
            self.fail(f"{_item(name, place)}.conversation is {shown(lane)}", "give a whole number of at least 0")
        tools = self.tools(context.tools)
        max_tokens: Any = context.max_tokens
        if max_tokens is not None and (
            isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1
        ):
            remedy = "give a whole number of at least 1, or None"
            self.fail(f"{_item(name, place)}.max_tokens is {shown(max_tokens)}", remedy)
        options: Any = context.chat_template_kwargs
        if options is not None and not isinstance(options, Mapping):
            self.fail(f"{_item(name, place)}.chat_template_kwargs is {shown(options)}", "give options by name, or None")
        replaces_history = self._verdict(context.replaces_history, "replaces_history", name, place)
        return Context(
            lane, replaces_history, tools, max_tokens, chat_template_kwargs=None if options is None else dict(options)
        )

    def fail(self, found: str, remedy: str) -> NoReturn:
        """Raise a `DataError` that names environment, step and task."""
        agent = "" if self._agent is None else f", agent {self._agent!r}"
        raise DataError(f"environment {self._title}, {self.place} of task {self._task!r}{agent}: {found}; {remedy}")

    def _reward(self, value: Any) -> float | None:
        if value is None:
            return None
        try:
            number = math.inf if isinstance(value, (str, bytes)) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.inf
        if abs(number) > _LARGEST_FLOAT:
            self.fail(
                f"StepResult.reward is {shown(value)}",
                "give a finite number that fits 32 bits, None if nothing was paid, or NaN if the reward is not known",
            )
        return number

    def _text(self, text: str, name: str) -> str:
        if not text.isascii() and not is_unicode(text):
            self.fail(
                f"{name} is {shown(text)}, which is not Unicode (a lone surrogate)",
                'give text.encode("utf-8", "replace").decode()',
            )
        return text

    def _json(self, value: Any, name: str) -> None:
        try:
            to_json(value, name)
        except InvalidInputError as error:
            self.fail(str(error).partition(";")[0], "give numbers, texts, lists and tables of them")

    def _tokens(self, tokens: object, name: str) -> None:
        """Check the tokens of a message of role `prompt`."""
        if tokens is None:
            return
        if not isinstance(tokens, (list, tuple)) or not tokens:
            self.fail(f"{name} has a message with tokens {shown(tokens)}", "give a list of token ids, at least one")
        for place, token in enumerate(tokens):
            if isinstance(token, bool) or not isinstance(token, Integral) or not 0 <= int(token) <= _LARGEST_TOKEN:
                self.fail(
                    f"{name} has a message whose tokens[{place}] is {shown(token)}",
                    f"give token ids, whole numbers from 0 to {_LARGEST_TOKEN}",
                )

    def _verdict(self, value: object, name: str, of: str = "StepResult", place: int | None = None) -> bool:
        if isinstance(value, bool):
            return value
        if not (isinstance(value, np.bool_) or (isinstance(value, Integral) and value in (0, 1))):
            self.fail(f"{_item(of, place)}.{name} is {shown(value)}", "give True or False")
        return bool(value)

    def _checked_facts(self, facts: Any) -> dict[str, float | str | bytes]:
        if not isinstance(facts, Mapping):
            self.fail(f"StepResult.facts is {shown(facts)}", "give a table of values by name, or None")
        checked: dict[str, float | str | bytes] = {}
        for name, value in facts.items():
            if name not in self._facts:
                known = ", ".join(self._facts) or "none"
                self.fail(
                    f"StepResult.facts has {name!r}, which the environment does not declare (it declares: {known})",
                    "add it to the environment's facts: {name: env.ExtraColumn(level, kind)}",
                )
            if self._facts[name].kind == "key":
                if not isinstance(value, (str, bytes)):
                    self.fail(f"the fact {name!r} is {shown(value)}", "give a text or bytes, as it is declared a key")
                checked[name] = self._text(value, f"the fact {name!r}") if isinstance(value, str) else value
                continue
            try:
                number = float("x" if isinstance(value, (str, bytes)) else value)
            except (TypeError, ValueError, OverflowError):
                number = math.inf
            if abs(number) > _LARGEST_FLOAT:
                self.fail(f"the fact {name!r} is {shown(value)}", "give a finite number that fits 32 bits, or NaN")
            checked[name] = number
        return checked


class _ProgramChecks(EnvironmentChecks):
    """Validates content from a rollout program, whose errors are mistakes in the program."""

    def fail(self, found: str, remedy: str) -> NoReturn:
        """Raise an `InvalidInputError`."""
        raise InvalidInputError(f"{found}; {remedy}")


def checked_content(value: object, name: str) -> Content:
    """Return a content given by a program, checked and in the form that a rollout log restores.

    Raises:
        InvalidInputError: the value is neither a text nor messages; the message names it.
    """
    return _ProgramChecks("", "", {}).content(value, name, "give a text, or messages with role and content")


def _item(name: str, place: int | None) -> str:
    """Return the name of a value, or of an item of a list."""
    return name if place is None else f"{name}[{place}]"


def shown(value: object) -> str:
    """Return a value and its type, short enough for one line."""
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:59] + '…'} (a {type(value).__name__})"
