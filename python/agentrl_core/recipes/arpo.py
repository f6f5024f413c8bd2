"""ARPO: branch after tool results that raise the entropy of the policy (arXiv:2507.19849).

GRPO on groups of 16 trajectories, of which 8 start at the prompt; the rest are branches that leave where the entropy
of what the model writes after a tool result has risen:

    Pr(copy) = clip(0.5 + 0.2 (H - H_initial), 0, 1).

Credit is the paper's soft attribution: every branch has the group-relative advantage of its own outcome, and a step
that d branches share is trained once for each of them (`shared="each"`), which is their mean advantage times d.

Equations:
    Read: the paper's sections 3.1 and 3.2, the public code's scripts, and notes on its rollouts by others.

    - 4, change of entropy: `EntropyBranching`, as a mean over the tokens.
    - 5, branching: left out: a threshold in the paper; the code's chance is N2.
    - 3.1.1, budget: `EntropyBranching(budget=16, initial=8)`.
    - 3.2h, hard attribution: `ARPO.replace(shared="split")` trains a shared step once, with the mean advantage.
    - 6, soft attribution: `Policy` with `shared="each"`.
    - 8, reward: left out: the environment computes it from format, answer and tools.
    - N1, entropy in the code: left out: its sum over the ten likeliest tokens; here the whole distribution counts.
    - N2, branching in the code: `EntropyBranching(probability=0.5, entropy_weight=0.2)`.
    - C1, dual clip: `Clip(dual=3.0)`.
    - C2, aggregation: `Policy`, token mean.

Differs:
    - Aggregation: a mean over each response first in equation 6, a token mean in the code and here.
    - Scale of the entropy: divided by the size of the vocabulary in the paper, by its logarithm in the code; nats here.
    - Optimizer steps a batch: 8 in the scripts, 1 here. `ARPO.replace(minibatches=8)` makes 8; clip ranges and the dual
      clip act from the second one on.

The public code measures the segment before the tool result and branches after the result
(`EntropyBranching(measure="before_tool")`), keeps H_initial by row number across batches, and sums the entropy over
the ten most likely tokens only; this recipe does none of the three. Its reward (-1 for a bad format, a bonus for using
two tools) belongs to its tasks, not to the recipe.
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
    loss=Policy(clip=Clip(0.2, 0.2, dual=3.0)),
)
