"""Episodes of published text games, with the words of a tiny model's tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from teachable import Turns

from agentrl_core import env


class Played(Turns):
    """An episode of a game of the package: its texts as words, one reward of 1 at the end.

    Args:
        game: the episode, which can be closed.
        max_turns: actions in it; the game itself must allow more.
        words_of: turns a text of the game into words with a space between two.
    """

    def __init__(self, game: Any, max_turns: int, words_of: Callable[[str], str]) -> None:
        super().__init__(max_turns)
        self._game, self._words_of = game, words_of
        self.observation = words_of(str(game.observation))

    def step(self, action: str) -> env.StepResult:
        """Take an action; an action that the game rejects costs a turn."""
        result = self._game.step(action)
        if result.observation is None:
            ours = self.ended(success=bool(result.success))
        else:
            answer = self.refused if result.flags & env.StepFlag.FORMAT_ERROR else self.answered
            ours = answer(self._words_of(str(result.observation)))
        if ours.observation is None:
            self.close()
        return ours

    def state_key(self) -> bytes:
        """Return the state of the game."""
        key: bytes = self._game.state_key()
        return key

    def close(self) -> None:
        """Close the game."""
        self._game.close()
