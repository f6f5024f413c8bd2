"""BFS-Prover-V2: best-first search for proofs, whose steps train the prover (arXiv:2509.06493).

A tree of each theorem grows where the log-prob of the path is largest; `rollout.BestFirst` has the rules. A branch that
ends is worth 1 where the theorem is proved and 0 else, and what is worth something is imitated: steps of proofs. The
paper keeps the steps whose mean negative log-prob lies in a middle band (its bounds are not published), and prefers
the actions of the shortest proof to siblings that end in an error (`SearchTree.pairs`). Both are made of the stored
batch and are not part of this recipe; nor are the planner of its inference and the restart from the base model.
"""

from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Imitation
from agentrl_core.recipe import Recipe
from agentrl_core.rollout import BestFirst

BFS_PROVER_V2 = Recipe(
    name="bfs_prover_v2",
    source="arXiv:2509.06493",
    rollout=BestFirst(samples=8, width=1, budget=128),
    advantage=GroupRelative(center="none", scale="none"),
    loss=Imitation(tokens="positive"),
)
