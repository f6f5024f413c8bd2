"""ARPO's rollout: fork where the model becomes uncertain around a tool result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.component.options import option
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.rollout.group import Group
from agentrl_core.rollout.program import BudgetedRollout
from agentrl_core.rollout.turn import Turn


@dataclass(frozen=True)
class EntropyBranching(BudgetedRollout):
    """Entropy-triggered branching after tool calls (ARPO, arXiv:2507.19849).

    A group starts with `initial` trajectories and grows to `budget`. The entropy of a segment is

        H = sum (or mean) of the token entropies of its first `tokens` tokens / log(vocabulary)

    and a branch whose segment lies at a tool result makes each of its up to `beam - 1` copies with probability
    clip(probability + entropy_weight * (H - H_initial), 0, 1) (at probability 1: always), decided by an independent
    u ~ U[0, 1): p = clip(u - entropy_weight * (H - H_initial), 0, 1), copy iff p <= probability. Branches make copies
    in order until the group is full. If no branch is running and budget is left, one fresh branch starts at a time.

    Args:
        budget: final number of trajectories per group. It replaces the collector's `group_size`.
        initial: trajectories that start at the prompt, at most `budget`.
        beam: a branch makes at most `beam - 1` copies at one tool result.
        probability: chance of a copy when the entropy has not changed.
        entropy_weight: how much of the change in entropy is added to it.
        tokens: number of measured tokens of a segment.
        reduce: `sum` (public code: short segments look less uncertain) or `mean`.
        measure: `after_tool` (paper): the segment after a tool result is measured, and copies fork at its start;
            `before_tool` (public code): the segment with the tool call is measured, and copies fork at the end, after
            the result.

    The public code sums over the ten most likely tokens only; here the entropies are those that the engine reports.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.rollout import EntropyBranching
        >>> EntropyBranching(budget=16, initial=8).final_group_size(group_size=4)
        16
    """

    forks_at_tools: ClassVar[bool] = True

    beam: int = option(2, at_least=2)
    probability: float = option(0.5, at_least=0, at_most=1)
    entropy_weight: float = option(0.2, at_least=0)
    tokens: int = option(20, at_least=1)
    reduce: Literal["sum", "mean"] = "sum"
    measure: Literal["after_tool", "before_tool"] = "after_tool"

    async def group(self, group: Group) -> None:
        """Run rounds of one turn per live branch, each followed by copies within the budget."""
        live = group.start_many(self.initial)
        while live:
            branches = live
            turns = await group.turn(branches)
            firsts = [branch.turns[0] for branch in branches]
            entropies, initial = np.split(self.entropies([*turns, *firsts], group.vocabulary_size), 2)
            copies = self.copies(turns, entropies - initial, group.count)
            live = [branch for branch in branches if not branch.over]
            for branch, turn, entropy, count in zip(branches, turns, entropies, copies, strict=True):
                place = turn.begin if self.measure == "after_tool" else turn.end
                live += branch.fork_many(count, at=place, score=float(entropy))
            if not live and group.count < self.budget:
                live = [group.start()]

    def entropies(self, turns: Sequence[Turn], vocabulary: int) -> NDArray[np.float64]:
        """Return H of the class formula for the first segment of each turn; 0 if it is empty, NaN if unknown."""
        empty = np.empty(0, np.float32)
        known = [turn.segments[0].entropies if turn.segments else None for turn in turns]
        tokens = [empty if values is None else values for values in known]
        offsets = np.cumsum([0, *map(len, tokens)], dtype=np.int64)
        entropies = _core.rollout.segment_entropy(
            np.concatenate(tokens).astype(np.float32, copy=False),
            offsets,
            limit=self.tokens,
            vocabulary=vocabulary,
            reduce=self.reduce,
        )
        return np.where([values is None for values in known], np.nan, entropies)

    def copies(self, turns: Sequence[Turn], change: NDArray[np.float64], count: int) -> list[int]:
        """Return how many copies each turn gets, within the budget.

        Args:
            turns: turns of a round, in the order of the branches.
            change: `float64[turns]`, entropy of the segment minus that of the branch's first.
            count: number of branches of the group.

        Raises:
            InvalidInputError: the entropy at a possible fork is unknown.
        """
        after_tool = self.measure == "after_tool"
        places = [
            row
            for row, turn in enumerate(turns)
            if not turn.failed and (turn.follows_tool if after_tool else turn.used_tool and not turn.over)
        ]
        for row in places:
            if not np.isfinite(change[row]):
                raise InvalidInputError(
                    f"{self.title()}: the entropy of turn {turns[row].index} of branch {turns[row].branch.name} is "
                    "unknown; use an engine that reports entropies (for VllmServer, entropies=True)"
                )
        uniform = [[turns[row].uniform(copy) for copy in range(self.beam - 1)] for row in places]
        copies = [0] * len(turns)
        planned = _core.rollout.entropy_branches(
            np.zeros(len(places), np.uint32),
            change[places],
            np.zeros(len(places)),
            np.array(uniform, np.float64).ravel(),
            np.array([count], np.uint32),
            budget=self.budget,
            beam=self.beam,
            probability=self.probability,
            entropy_weight=self.entropy_weight,
        )
        for row, number in zip(places, planned.tolist(), strict=True):
            copies[row] = number
        return copies
