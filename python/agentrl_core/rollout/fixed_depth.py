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

    A group starts with `ways` branches if 0 is among `splits`, else with one. Before the turn of each other number in
    `splits` every branch that lives becomes `ways` branches. So a tree with n splits has at most `ways ** n` branches.

    Width pruning keeps the gradient on some of them, once all are scored; the others vote and are not trained:

    - `all`: none is pruned;
    - `best`: of those that were one before the last split that they went through, the best `ratio`, at least one;
    - `extremes`: of the group, the best and the worst, half of `ratio` each, together at least two.

    Args:
        splits: the turns before which branches split, ascending.
        ways: what becomes of a branch at a split.
        keep: which branches are trained.
        ratio: share of them.

    Raises:
        RecipeError: an option is out of range, or `splits` is empty or does not ascend.

    Example:
        >>> from agentrl_core.rollout import FixedDepthBranching
        >>> FixedDepthBranching(splits=(0, 3, 6, 9)).branches(group_size=8)
        16
    """

    splits: tuple[int, ...] = (0, 3, 6, 9)
    ways: int = option(2, at_least=2)
    keep: Literal["all", "best", "extremes"] = "all"
    ratio: float = option(0.5, above=0, at_most=1)

    def check_options(self) -> None:
        """Splits ascend."""
        ascend = all(first < second for first, second in zip(self.splits, self.splits[1:], strict=False))
        self.require(bool(self.splits) and self.splits[0] >= 0 and ascend, "splits", "give turns from 0 on, ascending")

    def branches(self, group_size: int) -> int:
        """`ways` to the power of the number of splits, at most; `group_size` is not used."""
        del group_size
        return int(self.ways ** len(self.splits))

    async def group(self, group: Group) -> None:
        """Rounds of one turn; splits before some of them; then what is trained."""
        live = group.start_many(self.ways if self.splits[0] == 0 else 1)
        families = dict.fromkeys(live, 0)
        depth = 0
        while live:
            if depth in self.splits and depth:
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
