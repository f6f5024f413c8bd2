"""MoPPS: choose tasks by a guess of their difficulty, before anything is rolled out (arXiv:2507.04632).

Groups that all succeed or all fail teach nothing, and finding them out costs their rollouts. So the success rate of
each task has a Beta posterior that every visit updates,

    alpha <- decay alpha + (1 - decay) alpha_0 + successes,    beta alike with the failures,    alpha_0 = beta_0 = 1,

and an iteration draws 16 candidates for each task that it wants, one guess p of each candidate's posterior (Thompson
sampling), and takes those with the smallest (p - 1/2)^2. Then GRPO.

`decay=1` keeps all evidence, as the public code does by default and for math; 0.5 for countdown and geometry, with 8
candidates. The success rate is that of the environment's verdict and not of a shaped reward.

Equations:
    Read: the public code and its README; the paper's text was not read.

    - C1, posterior: `Beta(decay=1.0)`, prior counts of 1 and 1.
    - C2, sampling: `TopSampler(posterior=True)`.
    - C3, selection by distance: `NearTarget(0.5)`.
    - C4, selection by band: an option, `NearTarget(0.5, width=0.2)`: any p from 0.3 to 0.7 first.
    - C5, warm start: left to the state of the tracker: three earlier visits of each task have the same effect.
    - C6, pool: `TopSampler(among=16)`.
    - C7, advantage and loss: `GroupRelative`, std of n - 1 and 1e-6 added to it; `Policy`, clip ranges 0.2 and 0.28,
      dual clip 10, mean over tokens, no KL.

Differs:
    - Optimizer steps a batch: 2 for math and geometry, as here; 4 for countdown.
    - Groups of one: the code has a slip of operator precedence, which sets both counts to 8; here one rollout counts
      one.
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
