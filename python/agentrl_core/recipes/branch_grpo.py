"""BranchGRPO: trees that split at fixed depths, and credit at each depth (arXiv:2509.06040).

Every branch splits before turns 0, 3, 6 and 9, so a tree has 16 leaves (`FixedDepthBranching`). A node is worth the
mean of the leaves below it by the probability of their paths,

    V(n) = sum_l w_l r_l,   w_l = softmax_l(beta log p(l | n)),

and is compared with the nodes of its tree at its depth, clipped to ±5. The gradient leaves out the depths of a window
that slides to shallower ones: it never changes values or statistics. A turn that branches share is one edge: it is
trained once, and counts once in the mean. The paper's steps are those of a denoiser. Here they are turns: log p of an
edge, in V and in its ratio, is the mean over the tokens of its turn, as that of the code is a mean over the numbers of
an image. An episode of fewer than four turns, such as those of `agentrl train`, splits at its start alone: a tree of
two leaves, which teaches nothing if both are paid alike.

Equations:
    Read: the code and its README, and public notes on the paper; the paper's text was not read.

    - N1, branching: left out: it is the noise of a denoiser; tokens are sampled.
    - N2, reward fusion of the paper: `TreeRelative(fuse="leaf_path", node_logprob="mean")`, beta 1 (`alpha`).
    - C1, uniform fusion: `TreeRelative(fuse="leaves")`, which is beta 0: an option, and the default of the script.
    - C2, weighted fusion of the code: `TreeRelative(fuse="path")`: an option, and off in the script.
    - C3, advantage by depth: `TreeRelative`, std of n - 1, 0 if it is at most 1e-6.
    - C4, advantage of an edge: `Normalisation(at_most=5.0)`; `shared="owner"` trains a shared edge once.
    - C5, loss: `Policy(ratio=Ratio("step"), aggregate="step_mean")`: the mean over edges, each with its own ratio.
    - C6, depth pruning: `DepthWindow`, which counts turns from 0: the depth of an edge's child is one more.
    - C7, width pruning: `FixedDepthBranching(keep="best")`, and `keep="extremes"` for its second mode: options. The
      paper prunes in depth or in width, and its best results are those of depth. The code keeps all edges before the
      last split; `extremes` leaves out those of which it keeps no branch.

Differs:
    - beta: not in what was read; 1 here, for which the README weighs "by path probability".
    - Window: five depths, by the table of the README: 13.6 trained edges of a leaf, 8.6 after pruning; its first place
      is the example of the code's help.
    - Optimizer steps: one for each 12 edges in the code, one a batch here, for which the clip range never acts:
      minibatches are made of rollouts, and would train an edge that they share several times.
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
