"""What an episode of several agents exchanges: observations, answers and joint moves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentrl_core.env.base import StepResult


@dataclass(frozen=True)
class StepRecord:
    """What the environment answered to an action, and the state that the episode went on in (None: it is over)."""

    outcome: StepResult
    state_key: bytes | str | None


@dataclass(frozen=True)
class JointStep:
    """What an episode of several agents says, by agent.

    Attributes:
        of: by the name of the agent: what it begins with, an outcome, or an answer.
        turn_of: the agents that move next; nobody: the episode is over.
        state_key: the state that it is in; None: it is over, or not said.
    """

    of: Mapping[str, Any]
    turn_of: tuple[str, ...]
    state_key: bytes | str | None = None


class EpisodeError(Exception):
    """An episode that cannot go on; the message says why. Its branch is over, as failed."""


def agent_state_key(agent: str, state: bytes | str) -> bytes:
    """The state of a joint episode as the state of one agent."""
    raw = state.encode() if isinstance(state, str) else state
    return agent.encode() + b"\0" + raw
