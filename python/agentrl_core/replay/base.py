"""Base class of the components that replay stored trajectories."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from agentrl_core.component.state import State, Stateful

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch
    from agentrl_core.data.replayed_draws import Draws


@dataclass(frozen=True)
class Replay(Stateful, ABC):
    """Draw stored trajectories again, at two points of collection. A subclass overrides one or both methods."""

    phase: ClassVar[str] = "replay"

    def inject(self, state: State, group: Batch, key: int) -> Draws | None:  # noqa: ARG002 - by default no draws join
        """Return draws that join one scored group, before admission and all statistics. None: no draws."""
        return None

    def mix(self, state: State, batch: Batch, key: int) -> Draws | None:  # noqa: ARG002 - by default no draws join
        """Return draws that join the batch of admitted groups. None: no draws."""
        return None


def draw_reasons(batch: Batch) -> list[str | None]:
    """Return why each draw is in the batch (`draws.reason`), in the order of draws; None for fresh draws.

    Example:
        >>> import agentrl_core as arl
        >>> from agentrl_core import replay
        >>> replay.base.draw_reasons(arl.Forest().freeze())
        []
    """
    return list(batch.draws.column("reason"))
