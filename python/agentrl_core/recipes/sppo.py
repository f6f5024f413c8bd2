"""SPPO: regress the log-ratio of an answer on how often it is preferred (arXiv:2405.00675).

    L = mean over answers of (log p - log p_old - (P - 1/2) / beta)^2,   beta = 0.001

P is the mean probability of beating the answers of the group, itself (a tie) included, so its mean is 1/2 if all
were compared; p_old is the previous iterate, which made the answers. The public code trains on the best and the worst
of 5: `weight.SelectDraws(kind="max_variance", count=2)`.

Needs: the facts `preference.0`, `preference.1`, ... of trajectories, as in SPO.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Regression
from agentrl_core.reward import WinRate

SPPO = Recipe(
    name="sppo",
    source="arXiv:2405.00675",
    reward=WinRate(include_self=True),
    advantage=GroupRelative(scale="none"),
    loss=Regression(beta=0.001, residual="log_ratio"),
)
