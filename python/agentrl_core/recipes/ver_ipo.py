"""VerIPO: rounds of GRPO, between which a verifier's pairs of rollouts are learned by DPO.

    rounds:   GRPO on the outcome
    between:  L = - mean over pairs of log sigmoid(0.1 (x_chosen - x_rejected)),   x = sum of log p - log p_ref

A judge scores accuracy, consistency of reasoning and answer, reflection and length; chosen is what is right, consistent
and long, rejected what is right and inconsistent, repeats itself or is wrong. The stage `pairs` trains a batch with the
draw columns `pair` (the two of a pair have one number) and `advantage` (1 for the chosen, -1 for the rejected); a group
without both gives no pair. In later rounds a fifth of the tasks that were always solved stay. The training code is not
public.

Source: VerIPO: Cultivating Long Reasoning in Video-LLMs via Verifier-Guided Iterative Policy Optimization
(arXiv:2505.19000). Needs: the judge's pairs; the model reference.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy, Preference, Train
from agentrl_core.select import ComposedSelector, PoolFilter

VER_IPO = Recipe(
    name="ver_ipo",
    source="arXiv:2505.19000",
    select=ComposedSelector(pool=PoolFilter(below=1.0, spare=0.2, newest=True)),
    advantage=GroupRelative(),
    loss=(Train(Policy()), Train(Preference(beta=0.1), stage="pairs")),
)
