"""OTR, one-token rollouts: every token of a demonstration is a task, and what the policy would say there an answer.

    K tokens a are sampled behind each prefix of the demonstration, R = 1 where a is its next token, -0.1 elsewhere
    L = - mean over all of R log p(a)

So supervised data teach on-policy: what the policy would never say is not forced on it. A group is a prefix, its
members are K rollouts of one token (256 in the paper, at temperature 1.3, trained at temperature 1); there is no
baseline. Where none of them is right all are pushed down, which nothing bounds. K, temperature and -0.1 are not
certain.

Source: One-Token Rollout: Guiding Supervised Fine-Tuning of LLMs with Policy Gradient (arXiv:2509.26313). Needs: the
fact success.
"""

from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy, Reinforce
from agentrl_core.recipe import Recipe
from agentrl_core.reward import Outcome

OTR = Recipe(
    name="otr",
    source="arXiv:2509.26313",
    reward=Outcome(success=1.0, failure=-0.1),
    advantage=GroupRelative(center="none", scale="none"),
    loss=Policy(clip=None, surrogate=Reinforce()),
)
