"""Records of steps and of joint moves of several agents, and the error of a failed episode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentrl_core.env.base import StepResult


@dataclass(frozen=True)
class StepRecord:
    """The environment's reply to an action, and the state after it (None: the episode has ended)."""

    outcome: StepResult
    state_key: bytes | str | None


@dataclass(frozen=True)
class JointStep:
    """First observations of the agents of an episode, or their results of a joint move, by agent.

    Attributes:
        of: first observation, outcome or answer, by agent name.
        turn_of: the agents that move next; empty: the episode has ended.
        state_key: the current state; None: the episode has ended, or unknown.
    """

    of: Mapping[str, Any]
    turn_of: tuple[str, ...]
    state_key: bytes | str | None = None


class EpisodeError(Exception):
    """An episode failed; the message has the reason. Its branch ends as failed."""


def agent_state_key(agent: str, state: bytes | str) -> bytes:
    """Return the state of one agent in a joint episode: its name and the joint state."""
    raw = state.encode() if isinstance(state, str) else state
    return agent.encode() + b"\0" + raw
