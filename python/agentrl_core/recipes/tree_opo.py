"""Tree-OPO: let a student complete prefixes of a teacher's searches (arXiv:2509.09284).

The teacher's searches are groups of an earlier run. Each branch of a student's group starts after a different turn that
the teacher tried for the task. Some turns are near the end and some near the beginning, so one group has easy and hard
starts. The advantage therefore measures by how much an answer is better than its start:

    a = r - alpha V(prefix),    A = a - mean(a)

with V the mean reward of the teacher's branches through the prefix, or with `value="best"` the largest one. Prefixes
are not trained. This is the heuristic form of the paper's staged advantage estimation. The second form, which projects
rewards onto an order of the tree, is left out: without margins, and for rewards of 0 and 1, it is the centred reward
(`PrefixBaseline(alpha=0)`), and the sources disagree about margins and the direction of the order.

Equations:
    Read: notes of others; the paper's text was not read.

    - N1, staged group: `TeacherPrefixes`.
    - N2, advantage with a baseline of the prefix: `PrefixBaseline(alpha=0.5)`, not divided by a std.
    - N3, value of a prefix: `SearchTree.value`; optimistic: `SearchTree.best`; the pessimistic value is left out,
      because the paper finds the mean best.
    - N4, projection: left out: see above.
    - N5, order: left out: see above.
    - N6, ratio to the teacher: left out: an option; prefixes have no loss here.

Differs:
    - Clip range: not stated; 0.2 here.
    - KL: an option of the paper, to the teacher; none here.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import Normalisation
from agentrl_core.component import BatchComponent, Column, Rows, draw, option
from agentrl_core.env import ExtraColumn
from agentrl_core.exceptions import AgentRLWarning
from agentrl_core.loss import Policy
from agentrl_core.rollout import Group, Rollout, SearchTree, StoredSearches

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class TeacherPrefixes(Rollout):
    """Start the branches of a group after turns of a stored search of the same task.

    Possible starts are the prompt, and all turns of the search that did not end their episode and have a known value.
    Each branch gets a random start; no start is used twice before all were used once. If no closed iteration of the
    store has the task, all branches start at the prompt, as in GRPO, with a warning.

    Args:
        teacher: folder of the store with the searches; empty: none.
        value: value of a start: the `mean` of the rewards of the branches through it, or the largest (`best`).

    Example:
        >>> from agentrl_core.recipes.tree_opo import TeacherPrefixes
        >>> TeacherPrefixes().facts
        {'prefix_value': ExtraColumn(level='trajectory', kind='number')}
    """

    facts: ClassVar[Mapping[str, ExtraColumn]] = {"prefix_value": ExtraColumn("trajectory")}

    teacher: str = ""
    value: Literal["mean", "best"] = "mean"

    async def group(self, group: Group) -> None:
        """Run branches to their ends, each from a start in the search."""
        search = StoredSearches(self.teacher).find(group.task.task_id)
        if search is None:
            warnings.warn(
                f"tree_opo.TeacherPrefixes: teacher={self.teacher!r} has no search of some tasks, whose branches start "
                "at the prompt; give the folder of a run whose closed iterations have searches of these tasks",
                AgentRLWarning,
                stacklevel=2,
            )
            await group.run(group.start_many(group.size, facts={"prefix_value": 0.0}))
            return
        batch, group_id = search
        tree = SearchTree.of(batch, group_id)
        values = tree.value if self.value == "mean" else tree.best
        first = (tree.parent < 0) & np.isfinite(values)
        if not first.any():
            begin = 0.0
        elif self.value == "mean":
            begin = float(np.average(values[first], weights=tree.visits[first]))
        else:
            begin = float(values[first].max())
        places = [(-1, begin), *((row, float(values[row])) for row in tree.expandable() if np.isfinite(values[row]))]
        order = sorted(range(len(places)), key=lambda row: group.uniform("place", row))
        branches = []
        for member in range(group.size):
            turn, worth = places[order[member % len(order)]]
            prefix = None if turn < 0 else tree.prefix(batch, turn)
            branches.append(group.start(prefix=prefix, facts={"prefix_value": worth}))
        await group.run(branches)


@dataclass(frozen=True)
class PrefixBaseline(BatchComponent):
    """Compare the draws of a group by how much each one is better than its start.

        a = score - alpha * prefix_value,   advantage = a - mean(a)

    Args:
        alpha: factor of the value of the prefix.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.tree_opo import PrefixBaseline
        >>> PrefixBaseline().needs
        (draw('score'), draw('group_id'), draw('prefix_value'))
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (draw("score"), draw("group_id"), draw("prefix_value"))
    makes: ClassVar[tuple[Column, ...]] = (draw("advantage"),)

    alpha: float = option(0.5, at_least=0)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `advantage` on draws."""
        rows = Rows(batch, "draw")
        shifted_scores = rows.values("score") - self.alpha * np.nan_to_num(rows.values("prefix_value"))
        advantages = Normalisation(scale="none").compare(shifted_scores, rows.keys("group_id"), valid=rows.valid)
        return rows.write(advantage=advantages)


TREE_OPO = Recipe(
    name="tree_opo", source="arXiv:2509.09284", rollout=TeacherPrefixes(), advantage=PrefixBaseline(), loss=Policy()
)
