"""Base of the components that draw stored trajectories again."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from agentrl_core.component.state import State, Stateful

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch
    from agentrl_core.data.draws import Draws


@dataclass(frozen=True)
class Replay(Stateful, ABC):
    """Draws stored trajectories again, at two moments; a subclass overrides one of them or both."""

    phase: ClassVar[str] = "replay"

    def inject(self, state: State, group: Batch, key: int) -> Draws | None:  # noqa: ARG002 - nothing joins
        """What joins one scored group, before it is admitted and before any statistic. None: nothing."""
        return None

    def mix(self, state: State, batch: Batch, key: int) -> Draws | None:  # noqa: ARG002 - nothing joins
        """What joins the batch of admitted groups. None: nothing."""
        return None


def draw_reasons(batch: Batch) -> list[str | None]:
    """Why each draw is in the batch: `draws.reason`, in the order of the draws; None of one that was just rolled out.

    Example:
        >>> import agentrl_core as arl
        >>> from agentrl_core import replay
        >>> replay.base.draw_reasons(arl.Forest().freeze())
        []
    """
    return list(batch.draws.column("reason"))
