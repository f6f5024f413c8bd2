"""Environment of tasks from a list, with tools that actions call, and a function that scores the answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from agentrl_core.data.table_codes import StepFlag
from agentrl_core.env.base import Action, ExtraColumn, Message, Split, StepResult, Task, Tool, ToolReply, was_cut
from agentrl_core.env.task_list import TaskList
from agentrl_core.env.text_game import check_counts
from agentrl_core.exceptions import InvalidInputError

Tools = Sequence[Tool] | Callable[[Task, int], Sequence[Tool]]


class ToolEnvironment:
    """Environment of tasks from a list, with tools that actions call, and a function that scores the answer.

    The first observation is a list of messages: the system prompt, if there is one, and the task's question; an
    episode's `tools` are the schemas for the model's template. An action calls tools in the form of that template. If
    the template has no such form, and in scripts, calls are in the form of Hermes and Qwen,

        <tool_call>{"name": "calculator", "arguments": {"expression": "73+15"}}</tool_call>

    An action may have any number of calls; each is answered by a message of role `tool`, in order. An action without
    calls is the answer (without its reasoning) and ends the episode: its reward is the score, success a score of at
    least 1. A call that cannot be parsed is answered with the mistake and flagged `StepFlag.FORMAT_ERROR`; unknown
    tools, wrong arguments and errors of a tool are flagged `StepFlag.TOOL_ERROR`. If there is no answer after
    `max_turns` actions, the episode is truncated with reward 0.

    If a limit cut an action (`Action.finish_reason` is "length"), its form is not a mistake: an unclosed call is
    answered without a flag, and an answer is scored unchanged and truncates the episode.

    Facts: `points` (the score) and `answer` of the trajectory; `calls` (their number) and `tool` (their names) of each
    step with calls.

    Args:
        tasks: the training tasks, or a mapping of splits to tasks. The training list repeats without end; the held-out
            list does not.
        tools: tools of all episodes, or a function of (task, seed) that creates those of one episode, which are closed
            with it. Give a function if tools have a state, since shared state would break replay.
        score: a function of (task, answer) that returns a number.
        system: text of the system message.
        max_turns: most actions in an episode.
        replayable: False if tools change a state that repeating the calls does not restore.

    Raises:
        InvalidInputError: there is no task, an id occurs twice, two tools have one name, or an argument is out of
            range.

    Example:
        >>> task = Task("sum", "What is 73 + 15?", "sums", "88")
        >>> from agentrl_core.env import Calculator
        >>> world = ToolEnvironment([task], [Calculator()], lambda task, answer: float(answer == task.payload))
        >>> episode = world.reset(task, seed=0)
        >>> call = '{"name": "calculator", "arguments": {"expression": "73+15"}}'
        >>> episode.step(f"<tool_call>{call}</tool_call>").observation
        [{'role': 'tool', 'name': 'calculator', 'content': '88'}]
        >>> episode.step("88").reward
        1.0
    """

    facts: ClassVar[Mapping[str, ExtraColumn]] = {
        "points": ExtraColumn("trajectory"),
        "answer": ExtraColumn("trajectory", "key"),
        "calls": ExtraColumn("step"),
        "tool": ExtraColumn("step", "key"),
    }

    def __init__(
        self,
        tasks: Sequence[Task] | Mapping[Split, Sequence[Task]],
        tools: Tools,
        score: Callable[[Task, str], float],
        *,
        system: str | None = None,
        max_turns: int = 10,
        replayable: bool = True,
    ) -> None:
        check_counts("ToolEnvironment", max_turns=max_turns)
        self._tasks = TaskList("ToolEnvironment", tasks)
        if not callable(tools):
            _by_name(tools)
        self._tools = tools
        self._score = score
        self._system = system
        self._max_turns = max_turns
        self.replayable = replayable

    def tasks(self, count: int, *, split: Split = "train", start: int = 0) -> list[Task]:
        """Return tasks `start` to `start + count` of a split; the training list repeats without end.

        Raises:
            InvalidInputError: a negative number, an unknown split, or more held-out tasks than there are.
        """
        return self._tasks.tasks(count, split=split, start=start)

    def task(self, task_id: str) -> Task:
        """Return the task with an id.

        Raises:
            InvalidInputError: there is no such task.
        """
        return self._tasks.task(task_id)

    def reset(self, task: Task, seed: int) -> ToolEpisode:
        """Return a new episode; `seed` is passed to tools that are created for each episode."""
        close_tools = callable(self._tools)
        tools = _by_name(self._tools(task, seed) if callable(self._tools) else self._tools)
        messages: list[Message] = [{"role": "user", "content": task.question}]
        if self._system is not None:
            messages.insert(0, {"role": "system", "content": self._system})
        return ToolEpisode(task, messages, tools, self._score, max_turns=self._max_turns, close_tools=close_tools)

    def close(self) -> None:
        """Close the tools that all episodes share."""
        if not callable(self._tools):
            _close(self._tools)


class ToolEpisode:
    """One run of one task with tools; see `ToolEnvironment`."""

    def __init__(
        self,
        task: Task,
        observation: list[Message],
        tools: Mapping[str, Tool],
        score: Callable[[Task, str], float],
        *,
        max_turns: int,
        close_tools: bool,
    ) -> None:
        self.observation = observation
        self.tools = [schema_of(tool) for tool in tools.values()]
        self._task = task
        self._tools = tools
        self._score = score
        self._turns_left = max_turns
        self._close_tools = close_tools
        self._seen = observation
        self._over = False

    def step(self, action: str) -> StepResult:
        """Apply one action; see `ToolEnvironment` for its forms.

        Raises:
            InvalidInputError: the episode is over.
        """
        if self._over:
            raise InvalidInputError(f"step: the episode of task {self._task.task_id!r} is over; reset the task")
        self._turns_left -= 1
        cut = was_cut(action)
        parsed = (action if isinstance(action, Action) else Action(action)).parsed(self.tools)
        if not parsed.calls:
            return self._answered(parsed.answer.strip(), cut=cut)
        replies = [self._reply(call) for call in parsed.calls]
        if cut and "error" in parsed.calls[-1]:
            wrong = "the action was cut at the limit of its tokens; call the tool again, in fewer"
            replies[-1] = "", ToolReply(wrong, error=True), 0
        flags = 0
        for _, _, flag in replies:
            flags |= flag
        self._seen = [
            {"role": "tool", "name": name, "content": reply.text} if name else {"role": "tool", "content": reply.text}
            for name, reply, _ in replies
        ]
        self._over = self._turns_left == 0
        return StepResult(
            None if self._over else self._seen,
            reward=0.0 if self._over else None,
            truncated=self._over,
            flags=flags,
            success=False if self._over else None,
            facts={"calls": float(len(replies)), "tool": ",".join(name for name, _, _ in replies if name)},
        )

    def state_key(self) -> bytes:
        """Return the question and the last messages, as JSON."""
        return json.dumps([self._task.question, self._seen], sort_keys=True).encode()

    def close(self) -> None:
        """Close the tools that were created for this episode; a second call does nothing."""
        self._over = True
        if self._close_tools:
            self._close_tools = False
            _close(self._tools.values())

    def _answered(self, answer: str, *, cut: bool) -> StepResult:
        self._over = True
        score = float(self._score(self._task, answer))
        return StepResult(
            reward=score,
            terminated=not cut,
            truncated=cut,
            success=score >= 1,
            info={"answer": answer},
            facts={"points": score, "answer": answer},
        )

    def _reply(self, call: Mapping[str, Any]) -> tuple[str, ToolReply, int]:
        """Execute a call; return the tool's name, its reply, and flags for the step."""
        if "error" in call:
            return "", ToolReply(call["error"], error=True), StepFlag.FORMAT_ERROR
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        tool = self._tools.get(name)
        if tool is None:
            reply = ToolReply(f"no tool {name!r}; there are {', '.join(self._tools) or 'none'}", error=True)
            return "", reply, StepFlag.TOOL_RESULT | StepFlag.TOOL_ERROR
        argument = _text_for(tool, arguments)
        reply = ToolReply(_wanted(tool), error=True) if argument is None else tool(argument)
        return name, reply, StepFlag.TOOL_RESULT | (StepFlag.TOOL_ERROR if reply.error else 0)


def schema_of(tool: Tool) -> dict[str, Any]:
    """Return the JSON schema of a tool for chat templates.

    Example:
        >>> from agentrl_core.env import Calculator
        >>> from agentrl_core.env.tool_environment import schema_of
        >>> schema_of(Calculator())["function"]["parameters"]["required"]
        ['expression']
    """
    argument = getattr(tool, "argument", "text")
    text = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    function = {
        "name": tool.name,
        "description": getattr(tool, "description", ""),
        "parameters": getattr(tool, "parameters", text),
    }
    return {"type": "function", "function": function}


def _text_for(tool: Tool, arguments: Mapping[str, Any]) -> str | None:
    """Return the input text of a tool for a call's arguments; None if they are wrong."""
    if hasattr(tool, "parameters"):
        return json.dumps(arguments, ensure_ascii=False)
    (value,) = arguments.values() if list(arguments) == [getattr(tool, "argument", "text")] else (None,)
    return value if isinstance(value, str) else None


def _wanted(tool: Tool) -> str:
    return f"{tool.name} takes one argument, the text {getattr(tool, 'argument', 'text')!r}"


def _by_name(tools: Sequence[Tool]) -> dict[str, Tool]:
    by_name: dict[str, Tool] = {}
    for tool in tools:
        if tool.name in by_name:
            raise InvalidInputError(f"ToolEnvironment: two tools are named {tool.name!r}; give each its own name")
        by_name[tool.name] = tool
    return by_name


def _close(tools: Any) -> None:
    for tool in tools:
        if hasattr(tool, "close"):
            tool.close()
