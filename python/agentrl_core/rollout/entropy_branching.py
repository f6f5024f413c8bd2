"""ARPO's rollout: fork where the model becomes uncertain around a tool result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.rollout.planner import Frontier, Planner


@dataclass(frozen=True)
class EntropyBranching(Planner):
    """Entropy-triggered branching after tool calls (ARPO, arXiv:2507.19849).

    A group starts with `initial` trajectories and grows to `budget`. The entropy of a segment is

        H = sum (or mean) of the token entropies of its first `tokens` tokens / log(vocabulary)

    and a row whose segment lies at a tool result makes each of its up to `beam - 1` copies with probability
    clip(probability + entropy_weight * (H - H_initial), 0, 1) (at probability 1: always), decided by its own
    u ~ U[0, 1): p = clip(u - entropy_weight * (H - H_initial), 0, 1), copy iff p <= probability. Rows are served in
    order until the group is full. A group with nothing active and budget left starts one fresh root at a time.

    Args:
        budget: trajectories per group in the end. It takes the place of the collector's `group_size`.
        initial: trajectories that start at the prompt, at most `budget`.
        beam: a row makes at most `beam - 1` copies at one tool result; at least 2.
        probability: chance of a copy when the entropy has not changed, in [0, 1].
        entropy_weight: how much of the change in entropy is added to it, at least 0.
        tokens: how many tokens of a segment are measured, at least 1.
        reduce: `sum` (public code: short segments look less uncertain) or `mean`.
        measure: `after_tool` (paper): the segment generated after a tool result is measured and copies leave where
            it starts; `before_tool` (public code): the segment that made the tool call is measured and copies
            leave at the end, after the result.

    The public code sums over the ten most likely tokens only; here the entropies are what the engine reports.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> import numpy as np
        >>> from agentrl_core.rollout import EntropyBranching
        >>> planner = EntropyBranching(budget=4, initial=2)
        >>> planner.roots(group_size=8)
        2
        >>> planner.top_up(existing=np.array([4, 3, 3], np.uint32), active=np.array([0, 0, 1], np.uint32)).tolist()
        [0, 1, 0]
    """

    budget: int = 16
    initial: int = 8
    beam: int = 2
    probability: float = 0.5
    entropy_weight: float = 0.2
    tokens: int = 20
    reduce: Literal["sum", "mean"] = "sum"
    measure: Literal["after_tool", "before_tool"] = "after_tool"

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(self.budget >= 1, "budget", "give a whole number of at least 1")
        self.require(1 <= self.initial <= self.budget, "initial", f"give a whole number from 1 to budget={self.budget}")
        self.require(self.beam >= 2, "beam", "give at least 2, or use rollout.Independent for no branches")
        self.require(0.0 <= self.probability <= 1.0, "probability", "give a number from 0 to 1")
        self.require(self.entropy_weight >= 0.0, "entropy_weight", "give a number of at least 0")
        self.require(self.tokens >= 1, "tokens", "give a whole number of at least 1")

    @property
    def fork_at(self) -> Literal["end", "segment_start"]:
        """`segment_start` where the entropy is measured after the tool result, else `end`."""
        return "segment_start" if self.measure == "after_tool" else "end"

    @property
    def needs_entropy(self) -> bool:
        """Yes."""
        return True

    @property
    def needs_tool_results(self) -> bool:
        """Yes: without them it never forks."""
        return True

    @property
    def random_columns(self) -> int:
        """One number for each possible copy."""
        return self.beam - 1

    def roots(self, group_size: int) -> int:
        """`initial`; `group_size` is not used, `budget` takes its place."""
        del group_size
        return self.initial

    def segment_entropy(
        self, entropies: NDArray[np.float32], offsets: NDArray[np.int64], vocabulary: int
    ) -> NDArray[np.float64]:
        """H of the class formula for each segment; 0 for an empty one."""
        return _core.rollout.segment_entropy(
            entropies, offsets, limit=self.tokens, vocabulary=vocabulary, reduce=self.reduce
        )

    def plan(self, frontier: Frontier) -> NDArray[np.uint32]:
        """How many copies each row makes, `uint32[rows]`.

        Raises:
            InvalidInputError: the entropy of a row that may branch is not finite.
        """
        eligible = frontier.is_after_tool if self.measure == "after_tool" else frontier.has_tool_result
        rows = np.flatnonzero(eligible)
        unknown = rows[~np.isfinite(frontier.entropy[rows] - frontier.initial_entropy[rows])]
        if len(unknown):
            row = int(unknown[0])
            raise InvalidInputError(
                f"frontier.entropy[{row}]={frontier.entropy[row]} with "
                f"initial_entropy={frontier.initial_entropy[row]}: rollout.EntropyBranching needs finite "
                "entropies; use an engine that reports them"
            )
        copies = np.zeros(len(eligible), dtype=np.uint32)
        copies[rows] = _core.rollout.entropy_branches(
            frontier.group[rows],
            frontier.entropy[rows],
            frontier.initial_entropy[rows],
            frontier.uniform[rows].ravel(),
            frontier.existing,
            budget=self.budget,
            beam=self.beam,
            probability=self.probability,
            entropy_weight=self.entropy_weight,
        )
        return copies

    def top_up(self, existing: NDArray[np.uint32], active: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """One root for each group that has nothing active and room left."""
        starved: NDArray[np.bool_] = (active == 0) & (existing < self.budget)
        return starved.astype(np.uint32)
