"""The environment protocol: tasks in, episodes out, one outcome for each action."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, Self, TypedDict

from agentrl_core.env.answer_form import AnswerForm, ParsedAnswer
from agentrl_core.env.image import Image

Split = Literal["train", "held_out"]


class Message(TypedDict, total=False):
    """A message of a chat, as in OpenAI's API and in chat templates.

    `role` is `system`, `user`, `assistant` or `tool`; `content` is its text, or a list of texts and images. An
    assistant's message may have `tool_calls`; a tool's message names the answered call by `tool_call_id` or `name`.
    A single message of role `prompt` is a whole context without a template: its text, or its `tokens` if given.
    """

    role: str
    content: str | Sequence[str | Image]
    tool_calls: list[dict[str, Any]]
    tool_call_id: str
    name: str
    tokens: list[int]


Content = str | Message | Sequence[Message]
"""Input of a context: a text, whose role depends on its position, or messages with roles."""


@dataclass(frozen=True)
class ExtraColumn:
    """Declares a value that an environment reports besides the reward; components read it as a column of that name.

    Args:
        level: `step`: one value for each action; `trajectory`: one for the episode, the last value reported.
        kind: `number` (stored as float32; NaN if not reported) or `key` (a text or bytes).
    """

    level: Literal["step", "trajectory"]
    kind: Literal["number", "key"] = "number"


def by_level(facts: Mapping[str, ExtraColumn]) -> dict[str, dict[str, Literal["number", "key"]]]:
    """Return declared extra columns by level, in the form that `Forest` and `Recipe.check` accept.

    Example:
        >>> from agentrl_core.env.base import ExtraColumn, by_level
        >>> by_level({"flawed": ExtraColumn("step"), "answer": ExtraColumn("trajectory", "key")})
        {'step': {'flawed': 'number'}, 'trajectory': {'answer': 'key'}}
    """
    levels: dict[str, dict[str, Literal["number", "key"]]] = {}
    for name, fact in facts.items():
        levels.setdefault(fact.level, {})[name] = fact.kind
    return levels


@dataclass(frozen=True)
class Task:
    """One problem to solve.

    `task_id` identifies the task in the whole run and in every process. `question` is the problem in words, for people
    and scripts; a model only sees `Episode.observation`, which may include it. `domain` is the kind of problem, stored
    with the statistics of the task (column `domain` of table `tasks`). `payload` is only read by the environment: plain
    JSON values, or the environment must have `task(task_id)`. `solution` is a known solution, one text for each action:
    programs use it for hints or imitation.
    """

    task_id: str
    question: str
    domain: str
    payload: object
    solution: Sequence[str] = ()


@dataclass(frozen=True)
class Context:
    """Conversation and options of an observation that does not simply continue the conversation of the last action.

    Agent programs rewrite their history, and have several conversations at a time. Each conversation is a *lane* of the
    episode: a separate trajectory in the same group and episode, so that the rewards of one are not discounted along
    the turns of another. When the episode ends, all its conversations end with the episode's reward and success.

    Args:
        conversation: number of the conversation that acts next; the first one is 0, and the next new one is 1.
        replaces_history: whether the observation is the whole context of the conversation from now on; otherwise it
            follows the conversation's last action, as the reply to it.
        tools: JSON schemas of the tools that the template renders with a whole context.
        max_tokens: most tokens of the conversation's next action, if lower than the general limit.
        observation: for a conversation that waits in parallel (`StepResult.parallel_requests`), its observation.
        state_key: for such a conversation, its state.
        chat_template_kwargs: options of the chat template for a whole context and later messages, such as
            `{"enable_thinking": False}`.
    """

    conversation: int = 0
    replaces_history: bool = False
    tools: Sequence[Mapping[str, Any]] | None = None
    max_tokens: int | None = None
    observation: Content | None = None
    state_key: bytes | str = b""
    chat_template_kwargs: Mapping[str, Any] | None = None


class Action(str):
    """The text of an action without its stop token, with its parts and finish reason: the argument of `step`.

    An action is a `str`. If `Sampling.max_tokens` or the context length cut it, its `finish_reason` is "length": its
    end is missing because of the collector's limit, not by a mistake of the policy. An environment that penalises
    malformed actions should check that first; `StepFlag.FORMAT_ERROR` of such an action is removed from the flags.

    The parts are parsed on first use, in the form of the model's chat template. A text of a script is parsed in the
    form of Hermes: `<think>...</think>` and `<tool_call>{"name": ...}</tool_call>`.

    Attributes:
        finish_reason: `stop`: the policy ended it (or a program wrote it); `length`: a limit cut it; `abort`: its
            generation was aborted.

    Example:
        >>> from agentrl_core.env import Action
        >>> action = Action("the answer is 12", finish_reason="length")
        >>> action.startswith("the"), action.finish_reason
        (True, 'length')
        >>> action = Action('<think>Add.</think><tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>')
        >>> action.reasoning, action.answer, action.tool_calls[0]["function"]
        ('Add.', '', {'name': 'add', 'arguments': {'a': 1}})
    """

    __slots__ = ("_form", "_parsed", "finish_reason")

    finish_reason: Literal["stop", "length", "abort"]
    _form: AnswerForm | Callable[[], AnswerForm] | None
    _parsed: ParsedAnswer | None

    def __new__(
        cls,
        text: str = "",
        finish_reason: Literal["stop", "length", "abort"] = "stop",
        form: AnswerForm | Callable[[], AnswerForm] | None = None,
    ) -> Self:
        """Create an action from a text.

        Args:
            text: the generated text.
            finish_reason: why the text ended.
            form: the form of the model's answers, or a function that returns it; None: the form of Hermes.
        """
        action = super().__new__(cls, text)
        action.finish_reason = finish_reason
        action._form = form
        action._parsed = None
        return action

    @property
    def reasoning(self) -> str:
        """The model's reasoning before its answer; empty if there is none."""
        return self.parsed().reasoning

    @property
    def answer(self) -> str:
        """The text of the action without reasoning and calls."""
        return self.parsed().answer

    @property
    def tool_calls(self) -> tuple[dict[str, Any], ...]:
        """The tool calls, as in a message: `{"type": "function", "function": {"name": ..., "arguments": {...}}}`.

        A malformed call has the name "", its text as arguments, and an `error` that describes the mistake.
        """
        return self.parsed().calls

    @property
    def form(self) -> AnswerForm:
        """The form in which reasoning, answer and calls are written."""
        if not isinstance(self._form, AnswerForm):
            self._form = AnswerForm() if self._form is None else self._form()
        return self._form

    def parsed(self, tools: Sequence[Mapping[str, Any]] = ()) -> ParsedAnswer:
        """Return the action divided into reasoning, answer and calls.

        Args:
            tools: JSON schemas of the tools, for forms that do not distinguish texts and numbers: a value of type
                string stays a text.
        """
        if tools:
            return self.form.parse(self, tools)
        if self._parsed is None:
            self._parsed = self.form.parse(self)
        return self._parsed

    def __getnewargs__(self) -> tuple[Any, ...]:
        """Return the arguments of `__new__` with which pickle recreates the action."""
        return str(self), self.finish_reason, None if self._form is None else self.form

    def __getstate__(self) -> None:
        """Return None: `__getnewargs__` has the whole state."""


def was_cut(action: str) -> bool:
    """Return whether a limit cut an action, so that its end is missing."""
    return getattr(action, "finish_reason", "stop") == "length"


@dataclass(frozen=True)
class StepResult:
    """Result of one action: the next observation, or the end of the episode.

    Args:
        observation: the next observation, a text or messages; None if the episode is over.
        reward: reward of this action; None if there is none yet, NaN if it is unknown. A trajectory with an unknown
            reward is counted and left out of the update.
        terminated: whether the episode is over.
        truncated: whether a limit ended the episode.
        flags: `StepFlag`s, and your own bits.
        success: whether the task was solved, without reward shaping; None during the episode.
        info: details saved as JSON with the trajectory: those of the last action unchanged, and those of earlier
            actions in a list `earlier_steps`, if there are any. If a branch ends with a reason, that is also an entry,
            by its status. Details with the name of such an entry, or `info`, are moved together under `info`.
        facts: values of the facts that the environment declares, by name.
        context: position of the observation; None: after this action.
        parallel_requests: conversations that have begun to wait for an action, which may be generated at the same time.
            Later results name these conversations, in this order, before any other.

    Example:
        >>> from agentrl_core.env import StepResult
        >>> StepResult("the door opens").terminated
        False
        >>> StepResult(reward=1.0, terminated=True, success=True).observation is None
        True
    """

    observation: Content | None = None
    reward: float | None = None
    terminated: bool = False
    truncated: bool = False
    flags: int = 0
    success: bool | None = None
    info: Mapping[str, object] | None = None
    facts: Mapping[str, float | str | bytes] | None = None
    context: Context | None = None
    parallel_requests: Sequence[Context] = ()


class Episode(Protocol):
    """Interface of episodes: one run of one task, deterministic in (task, seed, actions), so branches can replay it.

    A branch whose replay gives other observations or another `state_key` than its parent saw ends as failed.

    Optional members: `close()`, always called at the end; `tools`, a list of JSON schemas that the model's template
    renders; `contexts`, the `Context` of the first action and those of conversations that wait in parallel;
    `snapshot()`, bytes from which `Environment.restore` creates an equal episode. `step` may be async if the
    environment runs `inline`.
    """

    @property
    def observation(self) -> Content:
        """The first observation."""
        ...

    def step(self, action: str) -> StepResult:
        """Apply an action, its text without the stop token, and return the result; `Action` has its finish reason."""
        ...

    def state_key(self) -> bytes:
        """Return the state before the next action as bytes; equal bytes mean the same state (anchor of GiGPO)."""
        ...


class MultiEpisode(Protocol):
    """Interface of episodes that several agents play together: one run of one task, with the rules of `Episode`.

    Agents move one by one or several at once, as `turn_of` decides. A program starts a branch for each agent
    (`group.start(agent=..., episode=first)`) and lets those act whose turn it is (`branch.can_act`).
    """

    @property
    def observations(self) -> Mapping[str, Content]:
        """The first observation of each agent, by the agent's name."""
        ...

    def turn_of(self) -> Sequence[str]:
        """Return the agents that move next, at the same time if there are several; empty if the episode is over."""
        ...

    def step(self, actions: Mapping[str, str]) -> Mapping[str, StepResult]:
        """Apply the actions of the moving agents; return their results, and those of agents with a new observation.

        A result may have no observation yet. An observation that an agent gets while others move is added to its next
        context, and such a reward counts for its trajectory. `terminated` ends the participation of that agent.
        """
        ...

    def state_key(self) -> bytes:
        """Return the state before the next moves, as bytes."""
        ...


class Environment(Protocol):
    """Interface of environments: a source of tasks and of episodes.

    Optional members, each with a default:

    - `facts: Mapping[str, ExtraColumn]`: declarations of the values that results report besides the reward.
    - `runs`: where episodes run: `inline` (in the event loop, for pure and fast environments), `thread` (the default)
      or `process` (the environment is pickled; an episode that hangs or crashes does not affect others).
    - `replayable: bool`: False if the same actions may lead to another state; forks are then refused.
    - `patience: float`: seconds for which a step that raises, hangs or loses its process is retried, with pauses that
      double from 0.1 to 10 s: for a remote service with temporary failures. Without it, an episode is rebuilt at once,
      at most twice.
    - `imagined: bool`: True if a model simulates the environment; trajectories then have the origin `imagined`.
    - `task(task_id) -> Task`: finds a task in a new process; needed if the payload is not plain JSON.
    - `restore(task, seed, actions, snapshot) -> Episode`: creates an episode in the state after these actions, if that
      is cheaper than replaying them; `snapshot` is the value of `Episode.snapshot()` there, or None.
    - `close()`.
    """

    def tasks(self, count: int, *, split: Split = "train", start: int = 0) -> Sequence[Task]:
        """Return tasks `start` to `start + count` of a split; the same call always returns the same tasks.

        The result is a list, or any sequence that creates tasks on access; a collector reads one at a time, from any
        thread. It may have `columns`: arrays by name, with a value or a vector for each task, which phase select reads
        (`domain`: the name of the domain).

        An id names one task. A blank id, or two different tasks with one id, are refused. A task may occur several
        times: it is then selected more often in proportion, and evaluated as one task.
        """
        ...

    def reset(self, task: Task, seed: int) -> Episode | MultiEpisode:
        """Return a new episode; the same (task, seed) gives equal episodes."""
        ...


class ToolReply(NamedTuple):
    """A tool's reply to a call, and whether the call failed."""

    text: str
    error: bool


class Tool(Protocol):
    """Interface of tools: a function that a model can call with a text. It raises no error, whatever the text is.

    Optional members, each with a default:

    - `description: str`: description for the prompt.
    - `argument: str`: name of the text argument in calls with named arguments (default `text`).
    - `parameters`: JSON schema of the arguments, if the tool has others than one text; the text is then their JSON.
    - `runs`: `inline` declares the tool pure and fast; an environment with only such tools may run inline.
    - `close()`.
    """

    @property
    def name(self) -> str:
        """Name by which a call selects the tool."""
        ...

    def __call__(self, text: str) -> ToolReply:
        """Process the input `text`, and return the reply."""
        ...


def as_messages(content: Content) -> list[Message]:
    """Return a content as a list of messages; a text becomes a user's message."""
    if isinstance(content, str):
        return [{"role": "user", "content": content}]
    return [content] if isinstance(content, dict) else list(content)
