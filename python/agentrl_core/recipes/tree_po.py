"""TreePO: rollouts that split at every segment, and credit among all that share a prefix (arXiv:2508.17445).

Branches split at the end of each 512 tokens until there are 16 (`SegmentTree`). A branch is compared with all
that go through each of its ancestors, averaged over them; the differences are whitened over the tokens of the batch.

Equations:
    Read: the public code and the abstract; the paper's text was not read.

    - C1, advantage in a subtree: `TreeRelative(kind="ancestors")`.
    - C2, subtrees that count: `TreeRelative`, those of more than one leaf; a group of one keeps its score.
    - C3, advantage of the leaf: `TreeRelative`, the plain mean over depths, as the training script.
    - C4, whitening: the last `GroupRelative`, by tokens.
    - C5, loss: `Policy`, clip ranges 0.2 and 0.28, dual clip 10, mean over tokens; `DynamicSampling` replaces groups
      without a difference.

Differs:
    - Overlong penalty: left out: it depends on the longest answer; for 14 segments of 512 tokens it is
      `LengthPenalty(free=6656, full_at=7168, at_most=1.0)`.
    - Branches at the root: 2 to 8 in the script, drawn by chance; 1 here, and 2 at the end of each segment.
    - Weight of a subtree: its number of leaves by the default of the code's function; the script and this recipe
      average.
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
    """Branches split at the end of each segment of `tokens` tokens, until the group is full (TreePO, arXiv:2508.17445).

    A group starts with `initial` branches. Side by side each generates a segment: `tokens` tokens, or fewer where its
    action ends; the environment answers an action that ended. Then every branch that goes on becomes `ways` branches,
    in their order, as long as the group has fewer than `budget`. If all have ended before it has, one more leaves at
    the end of an earlier segment, drawn by chance (the fallback); if there is none, at the prompt.

    Args:
        budget: branches of a group in the end. It takes the place of the collector's `group_size`.
        initial: branches that start at the prompt.
        tokens: of a segment.
        ways: what becomes of a branch.

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
        """Segments side by side; then splits."""
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
        """Some tokens, and the answer to the action that they end."""
        segment = await branch.generate(max_tokens=self.tokens)
        whole = segment is None or segment.finish_reason == "stop" or len(segment.tokens) < self.tokens
        if whole and not branch.over:
            await branch.submit()

    def _fallback(self, group: Group, ends: list[tuple[Branch, Position]]) -> Branch:
        """One more branch, where none goes on."""
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
        GroupRelative(column="advantage", group_by="batch", voter="token", eps=0.0, variance_eps=1e-8),
    ),
    loss=Policy(clip=Clip(0.2, 0.28, dual=10.0)),
    minibatches=16,
)
