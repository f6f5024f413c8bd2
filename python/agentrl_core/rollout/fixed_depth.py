"""Branches at fixed depths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core.component.options import option
from agentrl_core.rollout.group import Group
from agentrl_core.rollout.program import Rollout


@dataclass(frozen=True)
class FixedDepthBranching(Rollout):
    """Every branch splits at the same turns (BranchGRPO, arXiv:2509.06040, where a turn is a denoising step).

    A group starts with `ways` branches. Before the turns `every`, 2 `every`, ... each branch that lives becomes `ways`
    branches, until there were `splits` splits, the start included. So a tree has at most `ways ** splits` branches.

    Width pruning keeps the gradient on some of them, once all are scored; the others vote and are not trained:

    - `all`: none is pruned;
    - `best`: of those that were one before the last split that they went through, the best `ratio`, at least one;
    - `extremes`: of the group, the best and the worst, half of `ratio` each, together at least two.

    Args:
        splits: how many there are.
        every: turns from one to the next.
        ways: what becomes of a branch at a split.
        keep: which branches are trained.
        ratio: share of them.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.rollout import FixedDepthBranching
        >>> FixedDepthBranching(splits=4, every=3).branches(group_size=8)
        16
    """

    splits: int = option(4, at_least=1)
    every: int = option(3, at_least=1)
    ways: int = option(2, at_least=2)
    keep: Literal["all", "best", "extremes"] = "all"
    ratio: float = option(0.5, above=0, at_most=1)

    def branches(self, group_size: int) -> int:
        """`ways` to the power of `splits`, at most; `group_size` is not used."""
        del group_size
        return int(self.ways**self.splits)

    async def group(self, group: Group) -> None:
        """Rounds of one turn; splits before some of them; then what is trained."""
        live = group.start_many(self.ways)
        families = dict.fromkeys(live, 0)
        depth = 0
        while live:
            if depth and depth % self.every == 0 and depth < self.splits * self.every:
                families.update({branch: len(families) + place for place, branch in enumerate(live)})
                forks = {branch: branch.fork_many(self.ways - 1) for branch in live}
                families.update({fork: families[branch] for branch, others in forks.items() for fork in others})
                live = [each for branch in live for each in (branch, *forks[branch])]
            await group.round(live)
            live = [branch for branch in live if not branch.over]
            depth += 1
        if self.keep == "all":
            return
        ended = [branch for branch in group.branches if branch.status in ("finished", "truncated")]
        scores = await group.score(branches=ended)
        kept = self.kept(scores, np.array([families[branch] for branch in ended], np.int64))
        for branch, stays in zip(ended, kept, strict=True):
            if not stays:
                branch.mask("width")

    def kept(self, scores: NDArray[np.float64], families: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which branches are trained.

        Args:
            scores: `float64[branches]`; those without one come last. The earlier one of equals is better.
            families: `int64[branches]`, equal where they were one before the last split.
        """
        kept = np.zeros(len(scores), bool)
        worth = np.where(np.isnan(scores), -np.inf, scores)
        best_first = np.lexsort((np.arange(len(scores)), -worth))
        if self.keep == "extremes":
            half = max(1, round(self.ratio * len(scores) / 2))
            kept[best_first[:half]] = kept[best_first[::-1][:half]] = True
            return kept
        for family in np.unique(families):
            rows = best_first[families[best_first] == family]
            kept[rows[: max(1, int(self.ratio * len(rows)))]] = True
        return kept
