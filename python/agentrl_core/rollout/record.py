"""What a branch was paid and told: its rewards, the verdict, facts, and the notes of the environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl_core.env.base import Outcome


@dataclass
class Record:
    """The outcomes of a branch's turns, summed up.

    Attributes:
        reward: the sum of what the turns were paid, or what the program said.
        success: the last verdict; None where there was none.
        facts: those of the whole trajectory, by name.
        rewards: what each turn was paid, or None.
        info: the notes of each turn, or None.
    """

    reward: float = 0.0
    success: bool | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    rewards: list[float | None] = field(default_factory=list)
    info: list[Mapping[str, object] | None] = field(default_factory=list)

    def add(self, outcome: Outcome, levels: Mapping[str, str]) -> dict[str, Any]:
        """Take another turn's outcome; returns the facts of its step."""
        self.rewards.append(outcome.reward)
        self.info.append(outcome.info)
        self.reward += outcome.reward or 0.0
        self.success = self.success if outcome.success is None else outcome.success
        facts = outcome.facts or {}
        self.facts.update({name: value for name, value in facts.items() if levels.get(name) == "trajectory"})
        return {name: value for name, value in facts.items() if levels.get(name) == "step"}

    def say(self, facts: Mapping[str, Any] | None, *, reward: float | None, success: bool | None) -> None:
        """Take a program's word."""
        self.reward = self.reward if reward is None else float(reward)
        self.success = self.success if success is None else bool(success)
        self.facts.update(facts or {})

    def copy(self, turns: int | None) -> Record:
        """That of a branch which leaves behind so many turns; None: of one that has all that this one has."""
        if turns is None:
            return Record(self.reward, self.success, dict(self.facts), list(self.rewards), list(self.info))
        rewards = self.rewards[:turns]
        return Record(reward=_paid(rewards), rewards=rewards, info=self.info[:turns])

    def go_on(self, other: Record, turns: int) -> None:
        """Take what another has behind so many turns."""
        self.reward += other.reward - _paid(other.rewards[:turns])
        self.success = other.success
        self.facts.update(other.facts)
        self.rewards += other.rewards[turns:]
        self.info += other.info[turns:]

    def ended(self, status: str, reason: str | None) -> dict[str, Any]:
        """What the forest keeps of it: rewards and facts of what is drawn, notes of all."""
        info = self._notes()
        if reason is not None:
            info = {**(info or {}), status: reason}
        if status not in ("finished", "truncated"):
            return {"info": info}
        return {"reward": self.reward, "success": bool(self.success), "info": info, "facts": self.facts or None}

    def _notes(self) -> dict[str, object] | None:
        """Those of the last turn, and of the earlier ones behind them."""
        earlier = {"earlier_steps": self.info[:-1]} if any(self.info[:-1]) else {}
        last = self.info[-1] if self.info else None
        return {**(last or {}), **earlier} if earlier or last is not None else None


def _paid(rewards: Sequence[float | None]) -> float:
    return sum((reward for reward in rewards if reward is not None), 0.0)
