"""ARPO: branch after tool results that raise the entropy of the policy (arXiv:2507.19849).

GRPO on groups of 16 trajectories. 8 of them start at the prompt; the others are branches that start after tool results.
A trajectory is copied after a tool result with a probability that grows with the entropy H of the tokens that the model
generates there:

    Pr(copy) = clip(0.5 + 0.2 (H - H_initial), 0, 1).

Credit is the paper's soft attribution: each branch has the group-relative advantage of its own outcome. A step that d
branches share is trained once for each of them (`shared="each"`), that is, with d times their mean advantage.

Equations:
    Read: the paper's sections 3.1 and 3.2, the public scripts, and notes on the code.

    - 4, change of entropy: left out: the paper divides by the size of the vocabulary; `EntropyBranching` divides by
      its logarithm, as the code does.
    - 5, branching: left out: the paper compares 0.5 + 0.2 dH with a threshold; here it is the probability of a copy, as
      in the code.
    - 3.1.1, budget: `EntropyBranching(budget=16, initial=8)`; not computed: it grows whole groups; the tests of
      rollouts check it.
    - 3.2h, hard attribution: left out: the paper's default is soft attribution, as here; `shared="split"` divides a
      shared step among its branches.
    - 6, soft attribution, objective: `Policy(aggregate="sequence_mean")`, clip range 0.2.
    - 8, reward: left out: the environment computes it.
    - N1, entropy in the code: `EntropyBranching`, over all tokens that the engine reports, not over the ten most
      likely.
    - N2, branching in the code: `EntropyBranching(probability=0.5, entropy_weight=0.2)`.
    - C1, dual clip: `Clip(dual=3.0)`.
    - C2, aggregation of the code: an option, `aggregate="token_mean"`.

Differs:
    - Aggregation: each rollout has the same weight in the paper and here, each token in the code.
    - Optimizer steps a batch: 8, as in the scripts; the paper's text does not give a number.
    - Scale of the entropy: divided by the size of the vocabulary in the paper, by its logarithm in the code and here.
    - Place of a branch: after the tool result in the paper and here; the code measures the segment before it
      (`EntropyBranching(measure="before_tool")`), and stores H_initial by row number across batches.
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
