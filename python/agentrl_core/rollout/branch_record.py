"""Outcomes of a branch: rewards, success, facts and notes of the environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentrl_core.engine.base import Segment
from agentrl_core.env.base import StepResult
from agentrl_core.exceptions import DataError, InvalidInputError

JOINT_MOVE = "joint_move"
"""Fact of steps: number of the joint move of the episode in which the agent acted, from 0."""
PRECISION = "rollout_precision"
"""Fact with the engine's precision, if a program declares it; see `RecordPrecision`."""

_LARGEST_FLOAT = float(np.finfo(np.float32).max)


@dataclass
class BranchRecord:
    """Accumulated outcomes of a branch's turns.

    Attributes:
        levels: level of each declared fact.
        initial_facts: facts that the program set at the start of the branch.
        facts: facts of the whole trajectory, by name.
        reward: sum of the turns' rewards, or the program's reward.
        success: last reported success; None without one.
        outcomes: outcome of each turn.
    """

    levels: Mapping[str, str]
    initial_facts: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(init=False)
    reward: float = field(default=0.0, init=False)
    success: bool | None = field(default=None, init=False)
    outcomes: list[StepResult] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        """Copy the program's facts into the facts of the trajectory."""
        self.facts = dict(self.initial_facts)

    def begin(self, facts: Mapping[str, Any] | None) -> None:
        """Set the facts that the program gives a branch at its start."""
        self.initial_facts |= facts or {}
        self.facts |= facts or {}

    def add(self, outcome: StepResult) -> dict[str, Any]:
        """Add the outcome of a turn, and return its facts at level `step`."""
        self.outcomes.append(outcome)
        self.add_reward_and_facts(outcome)
        return self._of("step", outcome) if outcome.facts else {}

    def add_reward_and_facts(self, outcome: StepResult) -> None:
        """Add the reward and facts of an outcome, also of another agent's move."""
        self.reward += outcome.reward or 0.0
        if abs(self.reward) > _LARGEST_FLOAT:
            raise DataError(
                f"StepResult.reward: the rewards of an episode add up to {self.reward}, which does not fit 32 bits; "
                "give smaller rewards"
            )
        self.success = self.success if outcome.success is None else outcome.success
        if outcome.facts:
            self.facts |= self._of("trajectory", outcome)

    def precision(
        self, bits: int | None, action: Sequence[Segment | NDArray[np.int32]], level: str | None
    ) -> dict[str, float] | None:
        """Return the fact `PRECISION` of an action, if it is declared (at a level), known, and the action was sampled.

        Args:
            bits: bits per weight of the engine; None: unknown.
            action: parts of the action.
            level: the level at which it must be declared; None: any.
        """
        is_declared = level in (None, self.levels.get(PRECISION))
        if bits is None or not is_declared or not any(isinstance(part, Segment) for part in action):
            return None
        return {PRECISION: float(bits)}

    def set_result(self, facts: Mapping[str, Any] | None, *, reward: float | None, success: bool | None) -> None:
        """Set the reward, success and facts that the program gives a branch at its end."""
        try:
            self.reward = self.reward if reward is None else float(reward)
        except OverflowError:
            raise InvalidInputError(
                f"finish: reward {str(reward)[:40]}… is beyond the largest float; give a smaller number"
            ) from None
        self.success = self.success if success is None else bool(success)
        self.facts |= facts or {}

    def whole(self) -> BranchRecord:
        """Return a copy of the whole record, for a fork at the end of the branch."""
        copy = replace(self, initial_facts=dict(self.initial_facts))
        copy.facts, copy.outcomes = dict(self.facts), list(self.outcomes)
        copy.reward, copy.success = self.reward, self.success
        return copy

    def first_turns(self, turns: int) -> BranchRecord:
        """Return the record of a fork after `turns` turns: the program's facts, and the outcomes of these turns."""
        record = BranchRecord(self.levels, dict(self.initial_facts))
        for outcome in self.outcomes[:turns]:
            record.add(outcome)
        return record

    def append_turns(self, other: BranchRecord, turns: int) -> None:
        """Append the outcomes of another record from its turn number `turns` on."""
        self.reward += other.reward - _paid(other.outcomes[:turns])
        self.success = other.success
        self.facts |= other.facts
        self.outcomes += other.outcomes[turns:]

    def ended(self, status: str, reason: str | None) -> dict[str, Any]:
        """Return arguments of `Forest.finish`: reward, success and facts of a drawn trajectory, notes of every one."""
        info = self._notes()
        if reason is not None:
            info = _with_entry(info, status, reason)
        if status not in ("finished", "truncated"):
            return {"info": info}
        return {"reward": self.reward, "success": bool(self.success), "info": info, "facts": self.facts or None}

    def _of(self, level: str, outcome: StepResult) -> dict[str, Any]:
        """Return the facts of an outcome that are declared at a level, by name."""
        return {name: value for name, value in (outcome.facts or {}).items() if self.levels.get(name) == level}

    def _notes(self) -> dict[str, object] | None:
        """Return notes of the last turn, followed by those of earlier ones."""
        notes = [outcome.info for outcome in self.outcomes]
        last = notes[-1] if notes else None
        if not any(notes[:-1]):
            return None if last is None else dict(last)
        return _with_entry(last, "earlier_steps", notes[:-1])


def _with_entry(info: Mapping[str, object] | None, name: str, value: object) -> dict[str, object]:
    """Add an entry of this package to notes; if they have that name or `info`, all of them move to the entry `info`."""
    if info is not None and (name in info or "info" in info):
        return {name: value, "info": dict(info)}
    return {**(info or {}), name: value}


def _paid(outcomes: Sequence[StepResult]) -> float:
    return sum((outcome.reward or 0.0 for outcome in outcomes), 0.0)
