"""TreePO: split rollouts at every segment, and compare all that share a prefix (arXiv:2508.17445).

Branches split after every 512 tokens until there are 16 (`SegmentTree`). A branch is compared with all branches through
each of its ancestors, including the prompt, and the differences are averaged:

    a = mean over j of (R - mean of R below node j),   A = a / std(a over the tokens of the batch)

The public code whitens, so it also subtracts the mean of a: use `GroupRelative(center="mean")` as the last link of the
advantage chain.

Equations:
    Read: the paper's sections 2.2 to 4.2 and the public code.

    - 1, objective: `Policy`, clip ranges 0.2 and 0.28, mean over tokens; `DynamicSampling` replaces groups with equal
      scores.
    - 5, advantage: `TreeRelative(kind="ancestors")`, the plain mean over depths, and `GroupRelative(center="none")`.
    - 6, advantage weighted by the number of leaves: left out: an option, `TreeRelative(weighting="group_size")`; the
      paper finds the plain mean better.
    - 7, rejection of subgroups: left out: an option, `drop_constant=True`; the paper finds that it hurts.
    - C1, advantage in a subtree: `TreeRelative(kind="ancestors")`.
    - C2, subtrees that count: `TreeRelative`, those with more than one leaf; a group of one keeps its score.
    - C4, whitening: an option, see above.
    - C5, loss: `Policy`, with the dual clip of 10 of the training script.

Differs:
    - Overlong penalty: left out: the script has it, the paper does not; for 14 segments of 512 tokens it is
      `LengthPenalty(free=6656, full_at=7168, at_most=1.0)`.
    - Branches at the root: 2 to 8 in the script, at random. Here there is 1, and each branch becomes 2 at the end of a
      segment, which is the second setting of the paper ("fixed").
    - Budget of branches that ended: the paper gives it evenly to the remaining branches of the depth; here each branch
      becomes two.
    - Early stop: left out: the paper ends branches that repeat themselves; an environment or `stop` can do this.
    - Fallback: from ended branches with an answer in the paper; from the end of any segment here.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative, TreeRelative
from agentrl_core.component import option
from agentrl_core.loss import Clip, Policy
from agentrl_core.rollout import Branch, BudgetedRollout, Group, Position, gather_or_cancel
from agentrl_core.select import DynamicSampling


@dataclass(frozen=True)
class SegmentTree(BudgetedRollout):
    """Split branches after each segment of `tokens` tokens, until the group is full (TreePO, arXiv:2508.17445).

    A group starts with `initial` branches. All branches generate a segment concurrently: `tokens` tokens, or fewer if
    the action ends. The environment responds to an action that ended. Then each running branch becomes `ways` branches,
    in order, as long as the group has fewer than `budget`. If all branches have ended before that, one more starts at
    the end of a random earlier segment (the fallback), or at the prompt if there is none.

    Args:
        budget: final number of branches of a group. It replaces the collector's `group_size`.
        initial: branches that start at the prompt.
        tokens: length of a segment, in tokens.
        ways: number of branches that one branch becomes.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.tree_po import SegmentTree
        >>> SegmentTree(budget=16, tokens=512).final_group_size(group_size=4)
        16
    """

    initial: int = option(1, at_least=1)
    tokens: int = option(512, at_least=1)
    ways: int = option(2, at_least=2)

    async def group(self, group: Group) -> None:
        """Run one segment of all branches concurrently, then split the running ones; repeat."""
        live = group.start_many(self.initial)
        ends: list[tuple[Branch, Position]] = []
        while live:
            await gather_or_cancel([self._segment(branch) for branch in live])
            live = [branch for branch in live if not branch.over]
            for branch in list(live):
                place = branch.position(len(branch.tokens)) if branch.has_open_action else branch.end
                ends.append((branch, place))
                live += branch.fork_many(min(self.ways - 1, self.budget - group.count), at=place)
            if not live and group.count < self.budget:
                live = [self._fallback(group, ends)]

    async def _segment(self, branch: Branch) -> None:
        """Generate one segment, and submit the action if it ended."""
        segment = await branch.generate(max_tokens=self.tokens)
        is_complete = segment is None or segment.finish_reason == "stop" or len(segment.tokens) < self.tokens
        if is_complete and not branch.over:
            await branch.submit()

    def _fallback(self, group: Group, ends: list[tuple[Branch, Position]]) -> Branch:
        """Return one more branch, after all branches have ended."""
        if not ends:
            return group.start()
        branch, place = ends[int(group.uniform("fallback", group.count) * len(ends))]
        return branch.fork(place)


TREE_PO = Recipe(
    name="tree_po",
    source="arXiv:2508.17445",
    rollout=SegmentTree(budget=16, tokens=512),
    admit=DynamicSampling(),
    advantage=(
        TreeRelative(kind="ancestors", singleton="raw"),
        GroupRelative(column="advantage", group_by="batch", voter="token", center="none", eps=0.0, variance_eps=1e-8),
    ),
    loss=Policy(clip=Clip(0.2, 0.28, dual=10.0)),
    minibatches=16,
)
