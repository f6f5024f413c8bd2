"""WebAgent-R1: train an agent on live web pages by GRPO over many turns, with only the newest page in context.

    A_i = (R_i - mean R) / (std R + 1e-4)
    L = mean_i mean_turns mean_tokens [ - min(r A, clip(r, 0.8, 1.2) A) + 0.001 k3(p, p_ref) ]

Only the newest page is in the context: when a new observation arrives, a short placeholder replaces the previous one;
actions keep their tokens. Training starts from a policy that has imitated experts. The public code uses its trainer's
token loss.

Source: arXiv:2505.16421. Needs: the reference model.

Equations:
    Read: the public code, and notes on the paper.

    - C1, advantage: `GroupRelative(eps=1e-4)`.
    - C2, loss: `Policy(kl=KL(0.001))`, at ratio 1.
    - C3, mask: only policy tokens are trained; not computed: the cut of long contexts at 16382 tokens, which the engine
      makes.
    - N1, context compression: `ObservationWindow(observations=1)`; not computed: it writes text; the tests of rollouts
      cover it.
    - N2, objective of the paper: `Policy(aggregate="turn_mean")`.

Differs:
    - Aggregation: the code uses TRL's token loss; the paper and this recipe average tokens, turns and rollouts.
    - Context of early turns: the code computes their log-probs under the last, compressed context; here they have the
      context of sampling.
    - Warm start by behaviour cloning: left out, it comes before this recipe.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import KL, Policy
from agentrl_core.rollout import ObservationWindow

WEB_AGENT_R1 = Recipe(
    name="web_agent_r1",
    source="arXiv:2505.16421",
    rollout=ObservationWindow(observations=1),
    advantage=GroupRelative(eps=1e-4),
    loss=Policy(kl=KL(0.001), aggregate="turn_mean"),
)
