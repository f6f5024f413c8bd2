"""MoPPS: choose tasks by their predicted difficulty, before any rollout (arXiv:2507.04632).

Groups in which all or no rollouts succeed have no learning signal, and their rollouts are wasted. So each task has a
Beta posterior of its success rate, which every visit updates:

    alpha <- decay alpha + (1 - decay) alpha_0 + successes,    beta likewise with failures,    alpha_0 = beta_0 = 1.

For each task that it needs, an iteration draws 16 candidates. It samples one success rate p from the posterior of each
candidate (Thompson sampling), and takes the candidates with the smallest (p - 1/2)^2. Training is GRPO.

`decay=1` keeps all evidence, as the public code does by default and for math. For countdown and geometry it uses 0.5,
with 8 candidates. The success rate counts the environment's verdicts, not a shaped reward.

Equations:
    Read: the public code and its README; the paper's text was not read.

    - C1, posterior: `Beta(decay=1.0)`, prior counts of 1 and 1.
    - C2, sampling: `TopSampler(posterior=True)`.
    - C3, selection by distance: `NearTarget(0.5)`.
    - C4, selection by band: an option, `NearTarget(0.5, width=0.2)`, which prefers all p from 0.3 to 0.7 equally.
    - C5, warm start: left to the state of the tracker: three earlier visits of each task have the same effect.
    - C6, pool: `TopSampler(among=16)`.
    - C7, advantage and loss: `GroupRelative`, std with divisor n - 1, plus 1e-6; `Policy`, clip ranges 0.2 and 0.28,
      dual clip 10, mean over tokens, no KL.

Differs:
    - Optimizer steps a batch: 2 for math and geometry, as here; 4 for countdown.
    - Groups of one: an error of operator precedence in the code sets both counts to 8; here one rollout counts once.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Clip, Policy
from agentrl_core.select import Beta, ComposedSelector, NearTarget, TopSampler

MOPPS = Recipe(
    name="mopps",
    source="arXiv:2507.04632",
    select=ComposedSelector(track=Beta(decay=1.0), score=NearTarget(0.5), sample=TopSampler(posterior=True, among=16)),
    advantage=GroupRelative(),
    loss=Policy(clip=Clip(0.2, 0.28, dual=10.0)),
    minibatches=2,
)
