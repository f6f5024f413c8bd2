"""ARPO: branch after tool results that raise the entropy of the policy (arXiv:2507.19849).

GRPO on groups of 16 trajectories, of which 8 start at the prompt; the rest are branches that leave where the entropy
of what the model writes after a tool result has risen:

    Pr(copy) = clip(0.5 + 0.2 (H - H_initial), 0, 1).

Credit is the paper's soft attribution: every branch has the group-relative advantage of its own outcome, and a step
that d branches share is trained once for each of them (`shared="each"`), which is their mean advantage times d.

Equations:
    Read: the paper's sections 3.1 and 3.2, the public scripts, and notes on the code.

    - 4, change of entropy: left out: the paper divides by the size of the vocabulary; `EntropyBranching` divides by
      its logarithm, as the code.
    - 5, branching: left out: the paper compares 0.5 + 0.2 dH with a threshold; here it is the chance of a copy, as in
      the code.
    - 3.1.1, budget: `EntropyBranching(budget=16, initial=8)`; not computed: it grows whole groups, in the tests of
      rollouts.
    - 3.2h, hard attribution: left out: the paper's default is the soft one, as here; `shared="split"` divides a
      shared step among its branches.
    - 6, soft attribution, objective: `Policy(aggregate="sequence_mean")`, clip range 0.2.
    - 8, reward: left out: it belongs to the environment.
    - N1, entropy in the code: `EntropyBranching`, of all tokens that the engine reports, not of the ten most likely.
    - N2, branching in the code: `EntropyBranching(probability=0.5, entropy_weight=0.2)`.
    - C1, dual clip: `Clip(dual=3.0)`.
    - C2, aggregation of the code: an option, `aggregate="token_mean"`.

Differs:
    - Aggregation: each rollout has the same weight in the paper and here, each token in the code.
    - Optimizer steps a batch: 8, as in the scripts; the paper's text does not name a number.
    - Scale of the entropy: divided by the size of the vocabulary in the paper, by its logarithm in the code and here.
    - Place of a branch: after the tool result in the paper and here; the code measures the segment before it
      (`EntropyBranching(measure="before_tool")`), and keeps H_initial by row number across batches.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Clip, Policy
from agentrl_core.rollout import EntropyBranching

ARPO = Recipe(
    name="arpo",
    source="arXiv:2507.19849",
    rollout=EntropyBranching(budget=16, initial=8, beam=2, probability=0.5, entropy_weight=0.2),
    advantage=GroupRelative(),
    loss=Policy(clip=Clip(0.2, 0.2, dual=3.0), aggregate="sequence_mean"),
    minibatches=8,
)
