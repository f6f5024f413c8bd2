"""Base of text-game environments: one command per action, a score, a turn limit, seeds as tasks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from agentrl_core.data.table_codes import StepFlag
from agentrl_core.env.base import Content, ExtraColumn, Split, StepResult, Task
from agentrl_core.exceptions import InvalidInputError

GAME_FACTS: Mapping[str, ExtraColumn] = {"points": ExtraColumn("trajectory"), "command": ExtraColumn("step", "key")}
"""Facts of every game: its score so far, and the command of the action."""

SEEDS_PER_SPLIT = 1 << 20
"""Number of seeds reserved for each split of each environment seed."""

# Text that is not a command may be as long as the token limit.
_LONGEST_FACT = 200
_COMMAND = re.compile(r"<action>(.*?)</action>", re.DOTALL)


@dataclass(frozen=True)
class GameStep:
    """Result of one command; `refused` is true if the game does not accept it in this state."""

    observation: Content
    score: float
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    success: bool = False
    refused: bool = False
    facts: Mapping[str, float | str | bytes] = field(default_factory=dict)


class Game(Protocol):
    """Interface of running games."""

    def play(self, command: str) -> GameStep:
        """Execute a command in the game, and return the result."""
        ...

    def state(self) -> str:
        """Return the state of the game as text."""
        ...

    def close(self) -> None:
        """Release the resources of the game."""
        ...


class GameEpisode:
    """An episode that is one run of a text game.

    The command of an action is the text between its last `<action>` and `</action>`, otherwise the whole action. The
    game's reply to a refused command is flagged `StepFlag.FORMAT_ERROR`. If the game has not ended after `max_turns`
    actions, the episode is truncated. The game's last text is saved in `info["end"]`.
    """

    def __init__(self, game: Game, observation: Content, *, max_turns: int) -> None:
        self.observation = observation
        self._game = game
        self._turns_left = max_turns
        self._over = False

    def step(self, action: str) -> StepResult:
        """Apply one action, and return the result.

        Raises:
            InvalidInputError: the episode is over.
        """
        if self._over:
            raise InvalidInputError("step: the episode is over; reset its task for a new one")
        self._turns_left -= 1
        command = command_of(action)
        move = self._game.play(command)
        truncated = not move.terminated and (move.truncated or self._turns_left == 0)
        self._over = move.terminated or truncated
        return StepResult(
            observation=None if self._over else move.observation,
            reward=move.reward,
            terminated=move.terminated,
            truncated=truncated,
            flags=StepFlag.FORMAT_ERROR if move.refused else 0,
            success=move.success if self._over else None,
            info={"end": move.observation} if self._over and isinstance(move.observation, str) else None,
            facts={"points": move.score, "command": command[:_LONGEST_FACT], **move.facts},
        )

    def state_key(self) -> bytes:
        """Return the state of the game, as UTF-8."""
        return self._game.state().encode()

    def close(self) -> None:
        """Release the resources of the game; idempotent."""
        self._over = True
        self._game.close()


def command_of(action: str) -> str:
    """Return the command in an action, with single spaces; see `GameEpisode`.

    Example:
        >>> from agentrl_core.env.text_game import command_of
        >>> command_of("The door is shut. <action>open door</action>"), command_of(" look ")
        ('open door', 'look')
    """
    found = _COMMAND.findall(action)
    return " ".join((found[-1] if found else action).split())


def seed_of(seed: int, split: Split, index: int) -> int:
    """Return the seed of a task, which differs for all tasks, splits and environment seeds."""
    return (2 * seed + (split == "held_out")) * SEEDS_PER_SPLIT + index


def seeded_tasks(
    name: str, question: str, *, seed: int, split: Split, count: int, start: int, held_out: int
) -> list[Task]:
    """Return the requested tasks of a split, which differ only in their seed.

    Raises:
        InvalidInputError: the split has no such range.
    """
    limit = held_out if split == "held_out" else SEEDS_PER_SPLIT
    return [
        Task(f"{name}/{split}/{index}", question, name, {"seed": seed_of(seed, split, index)})
        for index in checked_range(count, split, start, limit)
    ]


def checked_range(count: int, split: Split, start: int, limit: int) -> range:
    """Return the numbers of the requested tasks, after checking their range.

    Raises:
        InvalidInputError: a negative number, an unknown split, or more tasks than there are.
    """
    if count < 0 or start < 0:
        name, value = ("count", count) if count < 0 else ("start", start)
        raise InvalidInputError(f"tasks: {name} is {value}; give at least 0")
    if split not in ("train", "held_out"):
        raise InvalidInputError(f"tasks: split is {split!r}; give 'train' or 'held_out'")
    if start + count > limit:
        remedy = f"request at most {limit}" if limit else "use the other split"
        raise InvalidInputError(
            f"tasks: count + start is {start + count}, but split {split!r} has {limit} tasks; {remedy}"
        )
    return range(start, start + count)


def payload_of(task: Task, owner: str, names: Sequence[str]) -> list[object]:
    """Return values of a task's payload by name.

    Raises:
        InvalidInputError: the task is not one of the environment `owner`.
    """
    payload = task.payload
    if not isinstance(payload, Mapping) or any(name not in payload for name in names):
        raise InvalidInputError(f"reset: task {task.task_id!r} is not of this {owner}; take one from its tasks()")
    return [payload[name] for name in names]


def check_counts(owner: str, **counts: int) -> None:
    """Check that seeds and held_out are at least 0, and other counts at least 1.

    Raises:
        InvalidInputError: a seed or held_out below 0, or another number below 1.
    """
    for name, value in counts.items():
        least = 0 if name in ("seed", "held_out") else 1
        untyped: object = value  # regardless of the caller's types
        if isinstance(untyped, bool) or not isinstance(untyped, int) or value < least:
            raise InvalidInputError(f"{owner}: {name} is {value!r}; give an integer of at least {least}")
