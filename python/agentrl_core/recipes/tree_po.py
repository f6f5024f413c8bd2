"""TreePO: rollouts that split at every segment, and credit among all that share a prefix (arXiv:2508.17445).

Branches split at the end of each 512 tokens until there are 16 (`rollout.SegmentTree`). A branch is compared with all
that go through each of its ancestors, averaged over them; the differences are whitened over the tokens of the batch.
"""

from agentrl_core.advantage import GroupRelative, TreeRelative
from agentrl_core.loss import Policy
from agentrl_core.recipe import Recipe
from agentrl_core.rollout import SegmentTree

TREE_PO = Recipe(
    name="tree_po",
    source="arXiv:2508.17445",
    rollout=SegmentTree(budget=16, tokens=512),
    advantage=(
        TreeRelative(kind="ancestors", singleton="raw"),
        GroupRelative(column="advantage", group_by="batch", voter="token", eps=0.0, variance_eps=1e-8),
    ),
    loss=Policy(),
)
