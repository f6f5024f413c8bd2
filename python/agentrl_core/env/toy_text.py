"""Four small games of gymnasium in words: FrozenLake, Taxi, Blackjack and CliffWalking."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


def _as_it_is(_environment: Any, observation: Any) -> str:
    values = observation.tolist() if hasattr(observation, "tolist") else observation
    return f"Observation: {values}"


def _paid_at_the_end(_score: float, last: float) -> bool:
    return last > 0


def _by_ending(_score: float, _last: float) -> bool:
    return True


def _nothing(_environment: Any) -> str:
    return ""


@dataclass(frozen=True)
class GameText:
    """Texts of a gymnasium game and its success rule; by default observations are shown unchanged."""

    instruction: Callable[[Any], str] = _nothing
    actions: Sequence[str] = ()
    describe: Callable[[Any, Any], str] = _as_it_is
    solved: Callable[[float, float], bool] = _paid_at_the_end


def _lake_instruction(lake: Any) -> str:
    # Only the transition probabilities show whether the ice is slippery.
    slippery = any(len(outcomes) > 1 for moves in lake.P.values() for outcomes in moves.values())
    ice = "The ice is slippery: you may slide sideways." if slippery else "The ice is not slippery."
    return f"Walk over the frozen lake from S to the goal G; in a hole H you drown. {ice}"


def _lake(lake: Any, observation: Any) -> str:
    here = divmod(int(observation), int(lake.ncol))
    rows = []
    for row in range(int(lake.nrow)):
        cells = [lake.desc[row, column].decode() for column in range(int(lake.ncol))]
        line = " " + " ".join(cells) + " "
        if here[0] == row:
            place = 2 * here[1]
            line = f"{line[:place]}[{cells[here[1]]}]{line[place + 3 :]}"
        rows.append(line.rstrip())
    return "\n".join(rows)


_STOPS = ("red", "green", "yellow", "blue")


def _taxi(taxi: Any, observation: Any) -> str:
    row, column, passenger, goal = taxi.decode(int(observation))
    where = "in the taxi" if passenger == len(_STOPS) else f"waiting at {_STOPS[passenger]}"
    field = "\n".join(line.tobytes().decode() for line in taxi.desc)
    return (
        f"{field}\nYou are at row {row}, column {column}. The passenger is {where} and wants to go to {_STOPS[goal]}."
    )


def _taxi_instruction(taxi: Any) -> str:
    stops = ", ".join(
        f"{name} (row {row}, column {column})" for name, (row, column) in zip(_STOPS, taxi.locs, strict=True)
    )
    return (
        "Drive a taxi: pick the passenger up and drop them where they want to go. "
        f"Stops, by their first letter on the map: {stops}. A bar | is a wall, a colon is none."
    )


def _blackjack_instruction(_table: Any) -> str:
    return "Blackjack: come as near to 21 as you can without passing it, and nearer than the dealer."


def _blackjack(_table: Any, observation: Any) -> str:
    total, dealer, usable = (int(value) for value in observation)
    ace = ", one of them an ace that counts eleven" if usable else ""
    return f"Your cards make {total}{ace}. The dealer shows {'an ace' if dealer == 1 else dealer}."


def _cliff(cliff: Any, observation: Any) -> str:
    rows, columns = cliff.shape
    row, column = divmod(int(observation), columns)
    return f"You are at row {row} of {rows}, column {column} of {columns}, counted from 0 at the top left."


def _cliff_instruction(cliff: Any) -> str:
    rows, columns = cliff.shape
    return (
        f"Walk from row {rows - 1}, column 0 to row {rows - 1}, column {columns - 1}. Between them, in that row, is "
        "a cliff: who falls starts again and pays 100. Each step costs 1."
    )


TOY_TEXT: Mapping[str, GameText] = {
    "FrozenLake": GameText(_lake_instruction, ("left", "down", "right", "up"), _lake),
    "Taxi": GameText(_taxi_instruction, ("south", "north", "east", "west", "pick up", "drop off"), _taxi),
    "Blackjack": GameText(_blackjack_instruction, ("stick", "hit"), _blackjack),
    "CliffWalking": GameText(_cliff_instruction, ("up", "right", "down", "left"), _cliff, solved=_by_ending),
}
"""Texts of the games, by the environment's id without its version."""
