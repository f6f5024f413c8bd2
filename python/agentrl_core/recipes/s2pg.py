"""S2PG: what an agent remembers is sampled like an action, so that no gradient goes back through time.

A policy with a state z of its own draws both, (a_t, z_{t+1}) ~ p( . | s_t, z_t), and its gradient needs one step at a
time:

    grad J = E sum_t grad log p(a_t, z_{t+1} | s_t, z_t) A_t,   A = (R - mean) / std of the group

Of a language model z is what it writes for itself: an action thinks, writes what is to be remembered, and acts. The
next one sees the question, that turn and what it was answered, and nothing else; all of its tokens are trained alike.

Source: Time-Efficient Reinforcement Learning with Stochastic Stateful Policies (arXiv:2311.04082). It is about
continuous states of small recurrent networks, with critics; that memory is a text, and GRPO in the place of the
critics, is ours.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy
from agentrl_core.rollout import ObservationWindow

S2PG = Recipe(
    name="s2pg",
    source="arXiv:2311.04082",
    rollout=ObservationWindow(turns=1),
    advantage=GroupRelative(),
    loss=Policy(),
)
