"""Tasks of the package `reasoning-gym`, solved in several turns with tools and scored by the package."""

from __future__ import annotations

import contextlib
import random
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np

from agentrl_core._util.near_names import near_names
from agentrl_core.data.table_codes import StepFlag
from agentrl_core.env.base import Action, ExtraColumn, Message, Split, StepResult, Task, Tool, was_cut
from agentrl_core.env.calculator import Calculator
from agentrl_core.exceptions import InvalidInputError, MissingDependencyError

DEFAULT_FAMILIES: Mapping[str, Mapping[str, object]] = {
    "chain_sum": {"min_terms": 2, "max_terms": 3, "min_digits": 1, "max_digits": 2},
    "products": {"min_digits": 1, "max_digits": 2},
    "lcm": {"min_value": 2, "max_value": 99},
}
"""Families that a very small model can learn with a calculator, and the settings used when only their name is given.

`gcd` (guessing 1 often wins) and `fraction_simplification` (always some credit) make poor tasks.
"""

UNLEARNABLE: Mapping[str, str] = {
    "coin_flip": 'reasoning-gym 0.1.25 accepts any prefix of the answer, so "0" or "1" is always right',
    "game_of_life_halting": "reasoning-gym 0.1.25 compares bool(answer) with bool(truth), and every text is true",
}
"""Families that cannot be learnt, each with the reason: the scorer accepts any text, or nearly always the same one."""

# An item of reasoning-gym is drawn from seed + index, so item i of seed s is item i - 1 of seed s + 1. Each split of
# each environment seed therefore gets a range of seeds of its own, and an index never leaves it.
_SEEDS_PER_SPLIT = 1 << 20
# Sizes for families that create all their questions at once, or refuse such a large number.
_SIZES = {"acre": 1 << 10, "word_ladder": 20_000}
# After this many draws in a row without a usable question, the family counts as exhausted.
_DRAWS_WITHOUT_NEWS = 2000

_OF_EPISODES = ("answer_cluster", "answer_parsed", "tool_calls", "reward.format", "reward.correct", "reward.answer")


class _Dataset(Protocol):
    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> dict[str, object]: ...

    def score_answer(self, answer: str | None, entry: dict[str, object]) -> float: ...


@dataclass(frozen=True)
class _Payload:
    family: str
    entry: dict[str, object]


class ReasoningGym:
    """Environment of reasoning-gym's tasks and scorers, with tools.

    The first observation is the question, after a system message if there are `instructions`. An action ends in one of
    two forms, with any text before it:

        <call>73+15</call>      the tool replies: the next observation is `<result>88</result>`
        <answer>88</answer>     the episode ends: reward 1.0 if reasoning-gym's score is exactly 1.0, else 0.0

    Partial credit of the scorers is kept in `info["score"]` and as the fact `points` only. The other facts of an
    episode: `answer`, the text that was answered; `answer_parsed`, 1 where there is one, and `answer_cluster`, a number
    that equal answers share; `tool_calls`, how many calls a tool answered; `reward.format`, the share of actions in one
    of the two forms, or cut by a limit; `reward.correct` and `reward.answer`, the verdict. Of a step: `tool`, the name
    of the tool that it called, and `executed`, 1 where that did not fail.

    A call that fails is answered with `<result>error text</result>` and flagged `StepFlag.TOOL_ERROR`; an action in
    neither form is answered with `<result>no call or answer</result>` and flagged `StepFlag.FORMAT_ERROR`. The action
    number `max_turns` that does not answer truncates the episode with reward 0.0. With several tools a call begins with
    the tool's name: `<call>calculator 1+2</call>`. The text of a form begins after its last opening tag, and may hold <
    and >. Reasoning before the form (`Action.reasoning`) does not count.

    A model that was not trained on these forms has to learn them from the prompt: `instructions=True` describes them,
    with an example of each, in a system message.

    Tasks: the families in turn (`task i` is of family `i mod len(families)`). Held-out questions are distinct; training
    questions repeat as they are drawn, each under one task_id. The held-out questions are drawn from seeds far from
    those of training, and a training task never has the text of a held-out question.

    All families of the package work; `composite` needs its settings. Families whose scorer accepts any text, or nearly
    always the same one (`env.reasoning_gym.UNLEARNABLE`), are refused unless `allow_unlearnable` is set. Episodes run
    inline if all tools declare that they are pure and fast (`runs = "inline"`, like the calculator), else in threads.

    Args:
        families: names of reasoning-gym families, or names with settings. A name without settings uses those of
            `DEFAULT_FAMILIES`, or else the defaults of the package.
        tools: the tools that `<call>` can use. Default: one `Calculator()`.
        seed: seed of the tasks; two seeds share no range of reasoning-gym's seeds.
        max_turns: most actions in an episode.
        held_out: number of held-out tasks (over all families).
        instructions: text of a system message; True: a description of the two forms with examples; False: none.
        allow_unlearnable: also accept the families in `UNLEARNABLE`.

    Raises:
        MissingDependencyError: reasoning-gym is not installed.
        InvalidInputError: an unknown family, one whose scorer accepts any answer, a setting that the family refuses, or
            an argument out of range.

    Example:
        >>> world = ReasoningGym(["chain_sum"], seed=0)
        >>> [task] = world.tasks(1)
        >>> task.question
        'State the final answer to the following arithmetic problem: 15 - 43 - 75 ='
        >>> episode = world.reset(task, seed=0)
        >>> episode.step("<call>15-43-75</call>").observation
        '<result>-103</result>'
        >>> episode.step("<answer>-103</answer>").reward
        1.0
    """

    def __init__(
        self,
        families: Sequence[str] | Mapping[str, Mapping[str, object]] = tuple(DEFAULT_FAMILIES),
        tools: Sequence[Tool] | None = None,
        *,
        seed: int = 0,
        max_turns: int = 3,
        held_out: int = 512,
        instructions: bool | str = False,
        allow_unlearnable: bool = False,
    ) -> None:
        if isinstance(families, str) or not families:
            raise InvalidInputError(f"ReasoningGym: families is {families!r}; give at least one name in a list")
        if len(set(families)) != len(families):
            names = list(families)
            twice = next(name for name in names if names.count(name) > 1)
            raise InvalidInputError(f"ReasoningGym: families has {twice!r} twice; give each name once")
        if seed < 0:
            raise InvalidInputError(f"ReasoningGym: seed is {seed}; give an integer of at least 0")
        if max_turns < 1:
            raise InvalidInputError(f"ReasoningGym: max_turns is {max_turns}; give at least 1")
        if held_out < 0:
            raise InvalidInputError(f"ReasoningGym: held_out is {held_out}; give at least 0")
        flawed = [name for name in families if name in UNLEARNABLE]
        if flawed and not allow_unlearnable:
            raise InvalidInputError(
                f"ReasoningGym: family {flawed[0]!r} cannot be learnt from ({UNLEARNABLE[flawed[0]]}); take another, "
                "or give allow_unlearnable=True"
            )
        self.tools: dict[str, Tool] = {}
        for tool in (Calculator(),) if tools is None else tools:
            if tool.name in self.tools:
                raise InvalidInputError(f"ReasoningGym: two tools are named {tool.name!r}; give each its own name")
            self.tools[tool.name] = tool
        inline = all(getattr(tool, "runs", "thread") == "inline" for tool in self.tools.values())
        self.runs = "inline" if inline else "thread"
        self.facts = {"points": ExtraColumn("trajectory"), "answer": ExtraColumn("trajectory", "key")}
        self.facts |= dict.fromkeys(_OF_EPISODES, ExtraColumn("trajectory"))
        if self.tools:
            self.facts |= {"tool": ExtraColumn("step", "key"), "executed": ExtraColumn("step")}
        self.seed = seed
        self.max_turns = max_turns
        self.instructions = _instructions(list(self.tools)) if instructions is True else instructions or ""
        settings = families if isinstance(families, Mapping) else {n: DEFAULT_FAMILIES.get(n, {}) for n in families}
        self._families = tuple(settings)
        self._held_out_count = held_out
        self._streams: dict[Split, list[_Stream]] = {}
        per_family = -(-held_out // len(settings))
        held_out_streams, train_streams = [], []
        for name, options in settings.items():
            held_out_stream = _Stream(
                name, _dataset(name, options, self._first_seed("held_out")), "held_out", frozenset()
            )
            questions = frozenset(held_out_stream[i].question for i in range(per_family))
            held_out_streams.append(held_out_stream)
            train_streams.append(_Stream(name, _dataset(name, options, self._first_seed("train")), "train", questions))
        self._streams = {"train": train_streams, "held_out": held_out_streams}

    def tasks(self, count: int, *, split: Split = "train", start: int = 0) -> list[Task]:
        """Return tasks `start` to `start + count` of a split; the same call always returns the same tasks.

        Raises:
            InvalidInputError: a negative number, an unknown split, more held-out tasks than there are, or more training
                tasks than a family has questions.
        """
        if count < 0 or start < 0:
            name, value = ("count", count) if count < 0 else ("start", start)
            raise InvalidInputError(f"tasks: {name} is {value}; give at least 0")
        if split not in self._streams:
            raise InvalidInputError(f"tasks: split is {split!r}; give 'train' or 'held_out'")
        if split == "held_out" and start + count > self._held_out_count:
            raise InvalidInputError(
                f"tasks: count + start is {start + count}, but split 'held_out' has {self._held_out_count} tasks; "
                f"request at most {self._held_out_count}, or build ReasoningGym with a larger held_out"
            )
        streams = self._streams[split]
        return [streams[i % len(streams)][i // len(streams)] for i in range(start, start + count)]

    def task(self, task_id: str) -> Task:
        """Return the task with an id, which `tasks` returned in this process or another one.

        Raises:
            InvalidInputError: this environment has no such task.
        """
        family, _, rest = task_id.partition("/")
        split, _, number = rest.partition("/")
        if family in self._families and split in ("train", "held_out") and number.isdecimal():
            stream = self._streams[cast(Split, split)][self._families.index(family)]
            if int(number) < len(stream.dataset):
                return stream.drawn(int(number))
        raise InvalidInputError(
            f"task: {task_id!r} is not a task of this ReasoningGym; give an id of tasks(), such as "
            f"'{self._families[0]}/train/0'"
        )

    def reset(self, task: Task, seed: int) -> ReasoningGymEpisode:  # noqa: ARG002 -- the protocol's argument
        """Return a new episode. Nothing in it is random, so `seed` has no effect.

        Raises:
            InvalidInputError: the task is not one of this environment's.
        """
        payload = task.payload
        if not isinstance(payload, _Payload) or payload.family not in self._families:
            raise InvalidInputError(
                f"reset: task {task.task_id!r} is not of this ReasoningGym; take one from its tasks()"
            )
        return ReasoningGymEpisode(self, task, self._streams["train"][self._families.index(payload.family)].dataset)

    def called(self, text: str) -> tuple[str, str]:
        """Return the name of the called tool, and its input."""
        if len(self.tools) > 1:
            name, _, text = text.strip().partition(" ")
            return name, text
        return next(iter(self.tools), ""), text

    def _first_seed(self, split: Split) -> int:
        return (2 * self.seed + (split == "held_out")) * _SEEDS_PER_SPLIT


class ReasoningGymEpisode:
    """One run of one reasoning-gym task; see `ReasoningGym`."""

    def __init__(self, environment: ReasoningGym, task: Task, dataset: _Dataset) -> None:
        self.observation: str | list[Message] = task.question
        if environment.instructions:
            system: Message = {"role": "system", "content": environment.instructions}
            self.observation = [system, {"role": "user", "content": task.question}]
        self._environment = environment
        self._task = task
        self._dataset = dataset
        self._seen = task.question
        self._turns = 0
        self._formed = 0
        self._called = 0
        self._over = False

    def step(self, action: str) -> StepResult:
        """Apply one action; see `ReasoningGym` for its two forms.

        Raises:
            InvalidInputError: the episode is over.
        """
        if self._over:
            raise InvalidInputError(f"step: the episode of task {self._task.task_id!r} is over; reset the task")
        self._turns += 1
        kind, text = _form(action.answer if isinstance(action, Action) else action)
        self._formed += bool(kind) or was_cut(action)
        if kind == "answer":
            self._over = True
            score = self._score(text.strip())
            success = score == 1.0
            return StepResult(
                reward=float(success),
                terminated=True,
                success=success,
                info={"answer": text.strip(), "score": score},
                facts={"answer": text.strip(), "points": score, **self._summary(text.strip(), success=success)},
            )
        facts: dict[str, float | str] = {"executed": 0.0} if self._environment.tools else {}
        if kind == "call":
            name, text = self._environment.called(text)
            tool = self._environment.tools.get(name)
            reply, failed = ("no such tool", True) if tool is None else tool(text)
            flags = StepFlag.TOOL_RESULT | (StepFlag.TOOL_ERROR if failed else 0)
            if tool is not None:
                self._called += 1
                facts = {"tool": name, "executed": float(not failed)}
        else:
            reply, flags = "no call or answer", StepFlag.FORMAT_ERROR
        self._over = self._turns == self._environment.max_turns
        if self._over:
            facts |= self._summary("", success=False)
        else:
            self._seen = f"<result>{reply}</result>"
        return StepResult(
            observation=None if self._over else self._seen,
            reward=0.0 if self._over else None,
            truncated=self._over,
            flags=flags,
            success=False if self._over else None,
            facts=facts,
        )

    def _summary(self, answer: str, *, success: bool) -> dict[str, float]:
        """Return the facts of an ended episode; clusters are numbers that f32 represents exactly."""
        numbers = (
            float(zlib.crc32(answer.encode()) % (1 << 24)),
            float(bool(answer)),
            float(self._called),
            self._formed / self._turns,
            float(success),
            float(success),
        )
        return dict(zip(_OF_EPISODES, numbers, strict=True))

    def _score(self, answer: str) -> float:
        try:
            return self._dataset.score_answer(answer, cast("_Payload", self._task.payload).entry)
        except Exception:  # noqa: BLE001 - some scorers raise on what they cannot parse, which is a wrong answer
            return 0.0

    def state_key(self) -> bytes:
        """Return the question and the last observation, as UTF-8."""
        return f"{self._task.question}\n{self._seen}".encode()


def _form(action: str) -> tuple[str, str]:
    """Return the form at the end of an action, `call` or `answer`, and its text; both empty if there is none."""
    for kind in ("answer", "call"):
        body = action.rstrip().removesuffix(f"</{kind}>")
        _, opening, text = body.rpartition(f"<{kind}>")
        if opening and body != action.rstrip() and f"</{kind}>" not in text:
            return kind, text
    return "", ""


def _instructions(tools: Sequence[str]) -> str:
    """Return instructions for a model that was not trained on the two forms."""
    use, example = "", ""
    if tools:
        whose = "the tool" if len(tools) == 1 else f"a tool ({', '.join(tools)})"
        what = "its input" if len(tools) == 1 else "its name and input"
        use = f"To use {whose}, end your message with <call>{what}</call>. The next message is its result.\n"
    if "calculator" in tools:
        call = "73+15" if len(tools) == 1 else "calculator 73+15"
        example = f"<call>{call}</call>, which is answered by <result>88</result>; then "
    return (
        f"Solve the task.\n{use}When you know the answer, end your message with <answer>the answer</answer>, and write "
        "nothing after it. Only the text between the tags counts.\n"
        f"For example, to the question 'What is 73 + 15?': {example}<answer>88</answer>"
    )


class _Stream:
    """The questions of one family and one split, drawn on access.

    Held-out questions are distinct. Training questions repeat as they are drawn (a repeated question is the same task):
    without repetition short numbers, of which there are few, would be rare in training and common in the held-out set.
    """

    def __init__(self, family: str, dataset: _Dataset, split: Split, excluded: frozenset[str]) -> None:
        self.dataset = dataset
        self._family = family
        self._split = split
        self._excluded = excluded
        self._known: dict[str, Task] = {}
        self._tasks: list[Task] = []
        self._drawn = 0

    def __getitem__(self, index: int) -> Task:
        quiet = 0
        while len(self._tasks) <= index:
            if quiet == _DRAWS_WITHOUT_NEWS or self._drawn == len(self.dataset):
                raise InvalidInputError(
                    f"ReasoningGym: {self._family} has only {len(self._tasks)} questions for split "
                    f"{self._split!r} with these settings; request at most that many tasks, or widen the settings"
                )
            task = self.drawn(self._drawn)
            known = self._known.get(task.question)
            if task.question in self._excluded or (known is not None and self._split == "held_out"):
                quiet += 1
            else:
                quiet = 0
                self._tasks.append(self._known.setdefault(task.question, task))
            self._drawn += 1
        return self._tasks[index]

    def drawn(self, number: int) -> Task:
        """Return the question drawn at `number`, as a task."""
        with _own_chances(f"{self._family} {number}"):
            entry = self.dataset[number]
        task_id = f"{self._family}/{self._split}/{number}"
        return Task(task_id, str(entry["question"]), self._family, _Payload(self._family, entry))


@contextlib.contextmanager
def _own_chances(seed: str) -> Iterator[None]:
    """Seed `random` inside the block, and restore it and NumPy's global generator: some families draw from them."""
    before, numpy_before = random.getstate(), np.random.get_state()  # noqa: NPY002 -- to give it back
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)
        np.random.set_state(numpy_before)  # noqa: NPY002 -- see above


def _dataset(family: str, options: Mapping[str, object], seed: int) -> _Dataset:
    try:
        with warnings.catch_warnings():
            # A package that reasoning-gym imports compares with literals by `is`; Python warns when it compiles it.
            warnings.simplefilter("ignore", SyntaxWarning)
            import reasoning_gym
            from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise MissingDependencyError(
            "ReasoningGym needs the package reasoning-gym: pip install 'agentrl-core[reasoning-gym]'"
        ) from error
    if family not in DATASETS:
        hint = near_names(family, DATASETS, f"use one of: {', '.join(sorted(DATASETS))}")
        raise InvalidInputError(f"ReasoningGym: there is no family {family!r}; {hint}")
    try:
        dataset = reasoning_gym.create_dataset(family, seed=seed, size=_SIZES.get(family, _SEEDS_PER_SPLIT), **options)
    except (ValueError, TypeError, AssertionError) as error:
        raise InvalidInputError(
            f"ReasoningGym: family {family!r} with {dict(options)} is refused ({error}); correct its settings"
        ) from error
    return cast(_Dataset, dataset)
