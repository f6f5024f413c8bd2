"""Nim for two players: taking the last stone wins, or loses in the misère game; rewards sum to 0."""

from __future__ import annotations

from collections.abc import Mapping

from agentrl_core.env import ExtraColumn, StepFlag, StepResult, Task

PLAYERS = ("first", "second")


class Nim:
    """Tasks of two games in turn, `nim` and `misere`; a legal move pays a little, an illegal one ends the game."""

    runs = "inline"
    facts = {"env_tag": ExtraColumn("trajectory", "key")}  # noqa: RUF012 -- as an author would write it

    def __init__(self, stones: int = 5) -> None:
        self.stones = stones

    def tasks(self, count: int, *, split: str = "train", start: int = 0) -> list[Task]:
        numbers = range(start, start + count)
        return [Task(f"{split} {number}", "?", ("nim", "misere")[number % 2], None) for number in numbers]

    def reset(self, task: Task, seed: int) -> Game:
        del seed
        return Game(task.domain, self.stones)


class Game:
    """One match."""

    def __init__(self, tag: str, stones: int) -> None:
        self.tag = tag
        self.stones = stones
        self.moves: list[str] = []
        self.over = False

    @property
    def observations(self) -> Mapping[str, str]:
        return dict.fromkeys(PLAYERS, f"{self.tag}: {self.stones} stones. Take 1 or 2.")

    def turn_of(self) -> tuple[str, ...]:
        return () if self.over else (PLAYERS[len(self.moves) % 2],)

    def step(self, actions: Mapping[str, str]) -> dict[str, StepResult]:
        [(mover, action)] = actions.items()
        other = PLAYERS[1 - PLAYERS.index(mover)]
        self.moves.append(action)
        facts = {"env_tag": self.tag}
        legal = action in ("1", "2") and int(action) <= self.stones
        if legal:
            self.stones -= int(action)
            if self.stones:
                observation = f"They took {action}: {self.stones} left."
                return {mover: StepResult(reward=0.05, facts=facts), other: StepResult(observation, facts=facts)}
        self.over = True
        wins = legal and self.tag == "nim"
        # An illegal move loses, and the opponent gets nothing; a win by the opponent's move is paid outside one's own
        # turns.
        return {
            mover: StepResult(
                reward=1.0 if wins else -1.0,
                terminated=True,
                success=wins,
                flags=0 if legal else StepFlag.FORMAT_ERROR,
                facts=facts,
            ),
            other: StepResult(
                reward=0.0 if not legal else -1.0 if wins else 1.0, terminated=True, success=not wins, facts=facts
            ),
        }

    def state_key(self) -> bytes:
        return repr((self.tag, self.moves)).encode()
