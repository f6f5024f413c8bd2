"""An instruction search that begins with a free place."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl_core.component import State
from agentrl_core.recipes.inspo import InstructionSearch


@dataclass(frozen=True)
class FreePlace(InstructionSearch):
    """An instruction search whose first iteration has one free place after its instructions."""

    def initial_state(self) -> State:
        """Return the instructions, and a place without one."""
        state = super().initial_state()
        return {
            "texts": [*state["texts"], ""],
            "weights": [*state["weights"], 0.0],
            "rollouts": [*state["rollouts"], 0],
        }
