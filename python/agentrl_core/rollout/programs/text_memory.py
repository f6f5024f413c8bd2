"""Programs that learn texts over iterations: notes of one iteration become the memory of the next."""

from __future__ import annotations

import json
from abc import ABC
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentrl_core.component.state import State, Stateful
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.rollout.branch import Branch
from agentrl_core.rollout.group import Group
from agentrl_core.rollout.program import Rollout
from agentrl_core.rollout.programs.deferred_tasks import decision_payloads

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class TextMemory(Rollout, Stateful, ABC):
    """Base class of programs with a memory of texts: experiences, skills, instructions.

    A program reads its memory as of the start of the iteration (`recall`), and writes notes (`note`). After the
    iteration, `next` turns the notes (`read_notes`) into the next memory. Notes are stored with the batches, so they
    survive a kill.

    Example:
        A program that shows each task the last note:

        >>> from dataclasses import dataclass
        >>> from agentrl_core.rollout import Group, TextMemory, read_notes
        >>> @dataclass(frozen=True)
        ... class Gossip(TextMemory):
        ...     def initial_state(self):
        ...         return {"heard": "nothing"}
        ...     def next(self, state, closed):
        ...         return {"heard": [state["heard"], *read_notes(closed.finished, "heard")][-1]}
        ...     async def group(self, group: Group) -> None:
        ...         shown = self.recall(group)["heard"]
        ...         [branch] = await group.run([group.start(f"{shown}. {group.prompt}")])
        ...         self.note(group, "heard", branch.text, branch)
        >>> Gossip().initial_state()
        {'heard': 'nothing'}
    """

    def recall(self, group: Group) -> State:
        """Return the memory as of the start of the iteration; read-only."""
        known: State = group.state.get(f"rollout[0].{type(self).__name__}") or self.initial_state()
        return known

    def note(self, group: Group, name: str, value: Any, branch: Branch) -> None:
        """Write a note, in the table `decisions` of the batch.

        Args:
            group: the group of the note.
            name: name of the note.
            value: plain JSON values.
            branch: source of the note.

        Raises:
            InvalidInputError: the value does not consist of plain JSON values.
        """
        try:
            text = json.dumps({"note": name, "value": value}, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise InvalidInputError(f"note {name!r} cannot be stored: {error}; give plain JSON values") from None
        group.log_decision("continue", branch, None, text)


def read_notes(batch: Batch, name: str) -> list[Any]:
    """Return the values that a batch's programs noted under a name (`TextMemory.note`), in the order of their groups.

    Example:
        >>> import agentrl_core as arl
        >>> from agentrl_core.rollout import read_notes
        >>> read_notes(arl.Forest().freeze(), "heard")
        []
    """
    return [payload["value"] for _, payload in decision_payloads(batch, "continue") if payload.get("note") == name]
