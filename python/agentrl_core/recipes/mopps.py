"""MoPPS: choose tasks by a guess of their difficulty, before anything is rolled out (arXiv:2507.04632).

Groups that all succeed or all fail teach nothing, and finding them out costs their rollouts. So the success rate of
each task has a Beta posterior that every visit updates,

    alpha <- decay alpha + (1 - decay) alpha_0 + successes,    beta alike with the failures,    alpha_0 = beta_0 = 1,

and an iteration draws 16 candidates for each task that it wants, one guess p of each candidate's posterior (Thompson
sampling), and takes those with the smallest (p - 1/2)^2. Then GRPO.

`decay=1`, as in the paper's mathematics; 0.5 for countdown and geometry, with 8 candidates. Its variant `threshold` is
`score=NearTarget(0.5, width=0.2)`: any p from 0.3 to 0.7 first. The success rate is that of the environment's verdict
and not of a shaped reward. The public code has a slip of precedence for groups of one, which is not here.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy
from agentrl_core.select import Beta, ComposedSelector, NearTarget, TopSampler

MOPPS = Recipe(
    name="mopps",
    source="arXiv:2507.04632",
    select=ComposedSelector(track=Beta(decay=1.0), score=NearTarget(0.5), sample=TopSampler(posterior=True, among=16)),
    advantage=GroupRelative(),
    loss=Policy(),
)
