"""The environment protocol: tasks in, episodes out, one outcome for each action."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, Self, TypedDict

from agentrl_core.env.answer_form import AnswerForm, ParsedAnswer
from agentrl_core.env.image import Image

Split = Literal["train", "held_out"]


class Message(TypedDict, total=False):
    """A message of a chat, as OpenAI and the templates of models have it.

    `role` is `system`, `user`, `assistant` or `tool`; `content` its text, or its parts in order, texts and images; an
    assistant's message may have `tool_calls`, and a tool's says by `tool_call_id` or `name` which call it answers. A
    message of role `prompt` stands alone and is a whole context as it is, without a template: its text, or its `tokens`
    where it has any.
    """

    role: str
    content: str | Sequence[str | Image]
    tool_calls: list[dict[str, Any]]
    tool_call_id: str
    name: str
    tokens: list[int]


Content = str | Message | Sequence[Message]
"""Input of a context: a text, whose role follows from its place, or messages with roles."""


@dataclass(frozen=True)
class ExtraColumn:
    """A value that an environment reports beside its reward; components read it as a column of the same name.

    Args:
        level: `step`: of each action; `trajectory`: of the episode, of which the last value given counts.
        kind: `number` (kept as float32; NaN if it was not reported) or `key` (a text or bytes).
    """

    level: Literal["step", "trajectory"]
    kind: Literal["number", "key"] = "number"


@dataclass(frozen=True)
class Task:
    """One problem to solve.

    `task_id` names it for the whole run and in every process; `question` is the problem in words, for people and for
    scripts (a model sees `Episode.observation`, and the question where that says it); `domain` is the kind of problem,
    kept with the statistics of the task (column `domain` of table `tasks`); `payload` is the environment's own and
    is read by it alone: plain JSON values, or the environment has `task(task_id)`; `solution` is how it is solved
    where that is known, one text an action: programs give hints of it, or let it be imitated.
    """

    task_id: str
    question: str
    domain: str
    payload: object
    solution: Sequence[str] = ()


@dataclass(frozen=True)
class Context:
    """Position of an observation that does not follow the action that it answers.

    Agent programs rewrite their history, and hold several conversations at a time. Each of these is a
    *lane* of the episode: a trajectory of its own, in the group and the episode of the first, so that what one lane
    earned is not discounted along the turns of another. When the episode ends all its lanes do, and each gets the
    episode's reward and verdict.

    Args:
        conversation: number of the conversation that acts next; the episode begins in 0, and the next new one is 1.
        replaces_history: the observation is the whole context of the lane from here on; else it stands behind the
            lane's last action, as what that action is answered.
        tools: JSON schemas of the tools that the template shows with a whole context.
        max_tokens: most tokens of the action that comes next in the lane, where it may have fewer than others.
        observation: of a lane that waits beside another one (`StepResult.parallel_requests`): what stands there.
        state_key: of such a lane: the state that it is in.
        chat_template_kwargs: options of the chat template for a whole context and what follows it, such as
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
    """The text of an action, without its stop token, its parts, and why it ended: what an episode's `step` gets.

    It is a text like any other. An action that `Sampling.max_tokens` or the context cut has `finish_reason` "length":
    its end is missing by the collector's own limit, which is no mistake of the policy. So an environment that charges
    for malformed actions looks at it first; `StepFlag.FORMAT_ERROR` of such an action is taken out of the
    outcome's flags.

    The parts are read when they are first asked for, in the form in which the model's chat template writes answers. A
    text of a script is read in the form of Hermes: `<think>...</think>` and `<tool_call>{"name": ...}</tool_call>`.

    Attributes:
        finish_reason: `stop`: the policy ended it (or a program wrote it); `length`: a limit cut it; `abort`: its
            generation was ended.

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
        """Make an action of a text.

        Args:
            text: the generated text.
            finish_reason: why it ended.
            form: the form of the model's answers, or a function that returns it; None: that of Hermes.
        """
        action = super().__new__(cls, text)
        action.finish_reason = finish_reason
        action._form = form
        action._parsed = None
        return action

    @property
    def reasoning(self) -> str:
        """The model's reasoning before its answer; empty: none."""
        return self.parsed().reasoning

    @property
    def answer(self) -> str:
        """The text without reasoning and calls."""
        return self.parsed().answer

    @property
    def tool_calls(self) -> tuple[dict[str, Any], ...]:
        """The calls, as in a message: `{"type": "function", "function": {"name": ..., "arguments": {...}}}`.

        A call that is not in its form has the name "", its text as arguments, and an `error` that describes the fault.
        """
        return self.parsed().calls

    @property
    def form(self) -> AnswerForm:
        """The form in which its parts are written."""
        if not isinstance(self._form, AnswerForm):
            self._form = AnswerForm() if self._form is None else self._form()
        return self._form

    def parsed(self, tools: Sequence[Mapping[str, Any]] = ()) -> ParsedAnswer:
        """Return its parts.

        Args:
            tools: JSON schemas of the tools, for forms that write a text and a number alike: a value whose type is
                string stays a text.
        """
        if tools:
            return self.form.parse(self, tools)
        if self._parsed is None:
            self._parsed = self.form.parse(self)
        return self._parsed

    def __getnewargs__(self) -> tuple[Any, ...]:
        """Of its pickle, as it goes to a process."""
        return str(self), self.finish_reason, None if self._form is None else self.form

    def __getstate__(self) -> None:
        """Nothing beside `__getnewargs__`."""


def was_cut(action: str) -> bool:
    """Return whether a limit cut an action, so that its end is missing."""
    return getattr(action, "finish_reason", "stop") == "length"


@dataclass(frozen=True)
class StepResult:
    """Result of one action: the next observation, or the end of the episode.

    Args:
        observation: the next observation, a text or messages; None where the episode is over.
        reward: what this action was paid; None where nothing was paid yet, NaN where it is not known. A trajectory with
            a reward that is not known is counted and left out of the update.
        terminated: the episode is over.
        truncated: a limit ended the episode.
        flags: `StepFlag`s, and bits of your own.
        success: the unshaped verdict on the episode; None while it goes on.
        info: facts for the record, saved as JSON with the trajectory: those of the last action as they are, and under
            `earlier_steps` a list of those of each action before it, where there are any. If a branch ends with a
            reason, that is an entry too, by its status. Facts with the name of such an entry, or `info`, stand together
            under `info`.
        facts: values of what the environment declares in `facts`, by name.
        context: where the observation stands; None: after this action.
        parallel_requests: lanes that have begun to wait for an action of theirs: their actions may be generated at the
            same time. The outcomes that follow name these lanes, in this order, before any other.

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
    """One run of one task. Deterministic in (task, seed, actions), so that a branch can replay its actions.

    A branch whose replay gives other observations or another `state_key` than its parent saw ends as failed.

    It may have more: `close()`, always called in the end; `tools`, a list of JSON schemas that the model's template
    shows; `contexts`, the `Context` of the first action and those of lanes that wait beside it; `snapshot()`, bytes
    from which `Environment.restore` makes an equal episode. `step` may be async where the environment runs `inline`.
    """

    @property
    def observation(self) -> Content:
        """The first observation."""
        ...

    def step(self, action: str) -> StepResult:
        """Give the text of an action, without its stop token, to the environment; see `Action` for why it ended."""
        ...

    def state_key(self) -> bytes:
        """Return the state before the next action, as bytes: equal bytes are the same state (anchor of GiGPO)."""
        ...


class MultiEpisode(Protocol):
    """One run of one task that several agents play together, with the rules of `Episode`.

    Agents move in turn or several at once, as `turn_of` returns. A program starts a branch for each of them
    (`group.start(agent=..., episode=first)`) and lets those move whose turn it is (`branch.can_act`).
    """

    @property
    def observations(self) -> Mapping[str, Content]:
        """The first observation of each agent, by the agent's name."""
        ...

    def turn_of(self) -> Sequence[str]:
        """Return the agents that move next, together where they are several; none: the episode is over."""
        ...

    def step(self, actions: Mapping[str, str]) -> Mapping[str, StepResult]:
        """Apply the actions of the agents that move; return their results, and those of others that get an observation.

        A result may have no observation yet. An observation that an agent gets while others move comes into its next
        context, and such a reward counts for its trajectory. `terminated` ends the part of that agent.
        """
        ...

    def state_key(self) -> bytes:
        """Return the state that the next moves are chosen from, as bytes."""
        ...


class Environment(Protocol):
    """A source of tasks and of episodes.

    It may have more, each with a default:

    - `facts: Mapping[str, ExtraColumn]`: what its results report beside the reward.
    - `runs`: where its episodes run: `inline` (in the loop itself, for what is pure and fast), `thread` (the default)
      or `process` (it is pickled; an episode that hangs or crashes harms no other).
    - `replayable: bool`: False where the same actions do not lead to the same place again; forks are refused then.
    - `patience: float`: seconds for which a step that raises, hangs or loses its process is retried, with pauses that
      double from 0.1 to 10 s: for a remote service that fails for a while. Without it, an episode is rebuilt twice, at
      once.
    - `imagined: bool`: True where a model makes up what happens; trajectories have the origin `imagined` then.
    - `task(task_id) -> Task`: finds a task again in a new process, where the payload is not plain JSON.
    - `restore(task, seed, actions, snapshot) -> Episode`: an episode as it is after these actions, if that is
      cheaper than playing them again; `snapshot` is what `Episode.snapshot()` gave there, or None.
    - `close()`.
    """

    def tasks(self, count: int, *, split: Split = "train", start: int = 0) -> Sequence[Task]:
        """Tasks `start` to `start + count` of a split; the same call always gives the same tasks.

        A list, or any sequence that makes a task when it is asked for; a collector asks for one at a time, from
        whatever thread. It may have `columns`: arrays by name, with a value or a vector for each task, which phase
        select reads (`domain`: its name).

        An id names one task. A blank id, and one id of two different tasks, are refused wherever tasks are taken. One
        task may be given several times: it is then chosen that much more often, and evaluated as one task.
        """
        ...

    def reset(self, task: Task, seed: int) -> Episode | MultiEpisode:
        """Return a fresh episode; the same (task, seed) gives equal episodes."""
        ...


class ToolReply(NamedTuple):
    """The text with which a tool answers, and whether the call failed."""

    text: str
    error: bool


class Tool(Protocol):
    """Something a model can call with text. It never raises on account of that text.

    It may have more, each with a default:

    - `description: str`: its description in the prompt.
    - `argument: str`: what the text is called where a call names its arguments (default `text`).
    - `parameters`: the JSON schema of its arguments, where it has others than one text; the text is their JSON then.
    - `runs`: `inline` means that it is pure and fast, so that an environment that only has such tools may run inline.
    - `close()`.
    """

    @property
    def name(self) -> str:
        """Name of the tool in a call, if there is more than one."""
        ...

    def __call__(self, text: str) -> ToolReply:
        """Do what `text` asks for."""
        ...


def as_messages(content: Content) -> list[Message]:
    """Return a content as messages; a text is a user's."""
    if isinstance(content, str):
        return [{"role": "user", "content": content}]
    return [content] if isinstance(content, dict) else list(content)
