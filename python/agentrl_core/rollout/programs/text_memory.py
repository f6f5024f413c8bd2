"""Programs that learn from iteration to iteration: what they note of one is what they know in the next."""

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
    """Base of the programs that keep a library of texts: experiences, skills, instructions.

    A program reads what it knows (`recall`), which is as of the iteration's begin, and writes down what it found
    out (`note`). After the iteration, `next` turns the notes (`read_notes`) into knowledge for the next one. So it is
    kept with the batches, and is the same after any kill.

    Example:
        A program that shows each task what was said last:

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
        """What is known as of the iteration's begin; to be read."""
        known: State = group.state.get(f"rollout[0].{type(self).__name__}") or self.initial_state()
        return known

    def note(self, group: Group, name: str, value: Any, branch: Branch) -> None:
        """Write something down, in the table `decisions` of the batch.

        Args:
            group: in which it came up.
            name: what it is.
            value: made of plain JSON values.
            branch: what it came of.

        Raises:
            InvalidInputError: the value is not made of plain JSON values.
        """
        try:
            text = json.dumps({"note": name, "value": value}, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise InvalidInputError(f"note {name!r} cannot be kept: {error}; give plain JSON values") from None
        group.log_decision("continue", branch, None, text)


def read_notes(batch: Batch, name: str) -> list[Any]:
    """The values that the programs of a batch noted under a name (`TextMemory.note`), in the order of their groups.

    Example:
        >>> import agentrl_core as arl
        >>> from agentrl_core.rollout import read_notes
        >>> read_notes(arl.Forest().freeze(), "heard")
        []
    """
    return [said["value"] for _, said in decision_payloads(batch, "continue") if said.get("note") == name]
