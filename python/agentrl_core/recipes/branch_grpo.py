"""BranchGRPO: split trees at fixed depths, and compute advantages at each depth (arXiv:2509.06040).

Every branch splits before turns 0, 3, 6 and 9, so a tree has 16 leaves (`FixedDepthBranching`). The value of a node
is the mean reward of the leaves below it, weighted by the probabilities of their paths,

    V(n) = sum_l w_l r_l,   w_l = softmax_l(beta log p(l | n)),

and it is compared with the nodes of the same tree at the same depth, clipped to ±5. The loss leaves out the turns in
a window of depths, which slides to shallower depths; the window never changes values or statistics. A turn that
branches share is one edge: it is trained once, and counts once in the mean. The paper's steps are denoising steps,
here they are turns. The log p of an edge, in V and in its ratio, is the mean over the tokens of its turn, as the code
takes the mean over the numbers of an image. An episode of fewer than four turns, as in `agentrl train`, splits only
at its start: a tree of two leaves, which gives no training signal if both have the same reward.

Equations:
    Read: the code and its README, and public notes on the paper; the paper's text was not read.

    - N1, branching: left out: the paper branches by the noise of a denoiser; here tokens are sampled.
    - N2, reward fusion of the paper: `TreeRelative(fuse="leaf_path", node_logprob="mean")`, beta 1 (`alpha`).
    - C1, uniform fusion: `TreeRelative(fuse="leaves")`, the same as beta 0: an option, and the default of the script.
    - C2, weighted fusion of the code: `TreeRelative(fuse="path")`: an option, and off in the script.
    - C3, advantage by depth: `TreeRelative`, std of n - 1, 0 if the std is at most 1e-6.
    - C4, advantage of an edge: `Normalisation(at_most=5.0)`; `shared="owner"` trains a shared edge once.
    - C5, loss: `Policy(ratio=Ratio("step"), aggregate="step_mean")`: the mean over edges, each with its own ratio.
    - C6, depth pruning: `DepthWindow`, which counts turns from 0: the depth of an edge's child node is one more.
    - C7, width pruning: `FixedDepthBranching(keep="best")`, and `keep="extremes"` for its second mode: options. The
      paper prunes in depth or in width; its best results use depth pruning. The code keeps all edges before the last
      split; `extremes` drops those edges of which it keeps no branch.

Differs:
    - beta: not in the sources; 1 here, because the README weights "by path probability".
    - Window: five depths, by the table of the README: 13.6 trained edges per leaf, 8.6 after pruning; its first
      position is the example in the help text of the code.
    - Optimizer steps: one for each 12 edges in the code, one a batch here, so the clip range never acts here.
      Minibatches consist of rollouts, and would train an edge that they share several times.
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
    """Split every branch at the same turns (BranchGRPO, arXiv:2509.06040, in which a turn is a denoising step).

    A group starts with `ways` branches. Before the turns `every`, 2 `every`, ... each running branch becomes `ways`
    branches, until `splits` splits were made, the start included. So a tree has at most `ways ** splits` branches.

    Width pruning trains only some of the branches, chosen after all are scored. The pruned branches still vote in the
    statistics:

    - `all`: no branch is pruned;
    - `best`: of the branches that split from the same branch at their last split, keep the best share `ratio`, at
      least one;
    - `extremes`: of all branches of the group, keep the best and the worst, half of `ratio` each, together at least
      two.

    Args:
        splits: number of splits.
        every: turns between two splits.
        ways: branches that a branch becomes at a split.
        keep: which branches are trained.
        ratio: share of branches to train.

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
        """Return the largest number of branches, `ways` to the power of `splits`; `group_size` is not used."""
        del group_size
        return int(self.ways**self.splits)

    async def group(self, group: Group) -> None:
        """Run rounds of one turn with splits before some of them, then choose the branches to train."""
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
        """Return, for each branch, whether it is trained.

        Args:
            scores: `float64[branches]`; branches without a score come last. The earlier of equal scores is better.
            families: `int64[branches]`, equal for branches that were one branch before their last split.
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
    """Leave the turns of some depths out of the loss: `width` turns from number `first` on, counted from 0.

    The window slides if `first` is a `Schedule`.

    Args:
        first: the first turn to leave out.
        width: number of turns to leave out; 0: none.

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
        """Return `batch` with `keep` set to 0 for the tokens of the window."""
        offsets = batch.offsets("step")
        depth = np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))
        inside = (depth >= self.first) & (depth < self.first + self.width)
        return Rows(batch, "token").keep(~np.repeat(inside, np.diff(batch.offsets("token"))))


BRANCH_GRPO = Recipe(
    name="branch_grpo",
    source="arXiv:2509.06040",
    rollout=FixedDepthBranching(splits=4, every=3),
    advantage=TreeRelative(
        fuse="leaf_path",
        node_logprob="mean",
        normalisation=Normalisation(eps=1e-8, scale_above=1e-6, at_most=5.0),
    ),
    weight=DepthWindow(first=Schedule(14, 8, begin=28, iterations=180, kind="stairs", stairs=6), width=5),
    loss=Policy(ratio=Ratio("step"), clip=Clip(1e-3, 1e-3), aggregate="step_mean"),
    shared="owner",
)
