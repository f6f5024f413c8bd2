"""What an environment says beyond its reward: how it is declared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol, TypeAlias

Declared: TypeAlias = Mapping[str, Mapping[str, str]]
"""For level `step` and level `trajectory` the kind of each name: `number` or `key`."""


class Fact(Protocol):
    """A declaration, as `env.Fact` is one."""

    @property
    def level(self) -> Literal["step", "trajectory"]:
        """Whether it is said of each action or of the episode."""
        ...

    @property
    def kind(self) -> Literal["number", "key"]:
        """What it is."""
        ...


def by_level(facts: Mapping[str, Fact]) -> dict[str, dict[str, Literal["number", "key"]]]:
    """The declarations of an environment as `Forest` and `Recipe.check` take them.

    Example:
        >>> from agentrl_core.data.facts import by_level
        >>> from agentrl_core.env import Fact
        >>> by_level({"flawed": Fact("step"), "answer": Fact("trajectory", "key")})
        {'step': {'flawed': 'number'}, 'trajectory': {'answer': 'key'}}
    """
    levels: dict[str, dict[str, Literal["number", "key"]]] = {}
    for name, fact in facts.items():
        levels.setdefault(fact.level, {})[name] = fact.kind
    return levels
