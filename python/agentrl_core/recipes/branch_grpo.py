"""BranchGRPO: trees that split at fixed depths, and credit at each depth (arXiv:2509.06040).

Every branch splits before turns 0, 3, 6 and 9, so a tree has 16 leaves (`FixedDepthBranching`); of those that
were one before the last split the best half is trained. A node is worth the mean of the leaves below it and is compared
with the nodes of its tree at its depth, clipped to ±5. The gradient leaves out the depths of a window that slides to
shallower ones: it never changes values or statistics. A turn that branches share is one edge: it is trained once, and
counts once in the mean. The paper's steps are those of a denoiser. Here they are turns, and the log-ratio of an edge is
the mean over the tokens of its turn, as that of the code is a mean over the numbers of an image. An episode of fewer
than four turns, such as those of `agentrl train`, splits at its start alone: a tree of two leaves, which teaches
nothing if both are paid alike.

Equations:
    Read: the code and a public summary of the paper.

    - N1, branching: left out: it is the noise of a denoiser; tokens are sampled.
    - N2, reward fusion of the paper: left out: leaves by the probability of their path; at beta 0 it is C1.
    - C1, uniform fusion: `TreeRelative(fuse="leaves")`.
    - C2, weighted fusion of the code: `TreeRelative(fuse="path")`.
    - C3, advantage by depth: `TreeRelative`, std of n - 1, 0 if it is at most 1e-6.
    - C4, advantage of an edge: `Normalisation(at_most=5.0)`; `shared="owner"` trains a shared edge once.
    - C5, loss: `Policy(ratio=Ratio("step"), aggregate="step_mean")`: the mean over edges, each with its own ratio.
    - C6, depth pruning: `DepthWindow`.
    - C7, width pruning: `FixedDepthBranching(keep="best")`; its second mode is `keep="extremes"`.

Differs:
    - Optimizer steps: one for each 12 edges in the code, one a batch here: trees differ in the number of their turns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core import Recipe, Schedule
from agentrl_core.advantage import Normalisation, TreeRelative
from agentrl_core.component import BatchComponent, Column, Rows, option, token
from agentrl_core.loss import Clip, Policy, Ratio
from agentrl_core.rollout import Group, Rollout

if TYPE_CHECKING:
    from agentrl_core import Batch


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
        >>> from agentrl_core.recipes.branch_grpo import FixedDepthBranching
        >>> FixedDepthBranching(splits=4, every=3).final_group_size(group_size=8)
        16
    """

    splits: int = option(4, at_least=1)
    every: int = option(3, at_least=1)
    ways: int = option(2, at_least=2)
    keep: Literal["all", "best", "extremes"] = "all"
    ratio: float = option(0.5, above=0, at_most=1)

    def final_group_size(self, group_size: int) -> int:
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
            await group.turn(live)
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


@dataclass(frozen=True)
class DepthWindow(BatchComponent):
    """Leaves the turns of some depths out of the loss: `width` of them from number `first` on, counted from 0.

    A `Schedule` for `first` makes it slide.

    Args:
        first: the first turn that is left out.
        width: how many are; 0: none.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core import Schedule
        >>> from agentrl_core.recipes.branch_grpo import DepthWindow
        >>> [DepthWindow(first=Schedule(15, 9, iterations=180), width=4).at(iteration).first for iteration in (0, 60)]
        [15, 13]
    """

    phase: ClassVar[str] = "weight"
    makes: ClassVar[tuple[Column, ...]] = (token("keep"),)

    first: int = option(15, at_least=0)
    width: int = option(4, at_least=0)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with another `keep` on tokens."""
        offsets = batch.offsets("step")
        depth = np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))
        inside = (depth >= self.first) & (depth < self.first + self.width)
        return Rows(batch, "token").keep(~np.repeat(inside, np.diff(batch.offsets("token"))))


BRANCH_GRPO = Recipe(
    name="branch_grpo",
    source="arXiv:2509.06040",
    rollout=FixedDepthBranching(splits=4, every=3, keep="best", ratio=0.5),
    advantage=TreeRelative(normalisation=Normalisation(eps=1e-8, scale_above=1e-6, at_most=5.0)),
    weight=DepthWindow(first=Schedule(15, 9, begin=29, iterations=180, kind="stairs", stairs=6)),
    loss=Policy(ratio=Ratio("step"), clip=Clip(1e-3, 1e-3), aggregate="step_mean"),
    shared="owner",
)
