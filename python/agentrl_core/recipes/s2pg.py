"""S2PG: what an agent remembers is sampled like an action, so that no gradient goes back through time.

A policy with a state z of its own draws both, (a_t, z_{t+1}) ~ p( . | s_t, z_t), and its gradient needs one step at a
time. As PPO, with a critic V that sees the state too:

    delta_t = r_t + 0.99 V_{t+1} - V_t,   A_t = delta_t + 0.99 * 0.95 A_{t+1},   then (A - mean) / std over the batch
    L = - mean over steps of min(r A, clip(r, 0.8, 1.2) A),   r = p(a_t, z_{t+1} | s_t, z_t) / p_old of the same

Of a language model z is what it writes for itself: an action thinks, writes what is to be remembered, and acts. The
next one sees the question, that turn and what it was answered, and nothing else; all tokens of a turn have one ratio.
The paper is about continuous states of small recurrent networks; that memory is a text is ours.

Equations:
    Read: the public code and the abstract; the paper's text was not read.

    - C1, joint policy: `ObservationWindow(turns=1)`, and `Ratio("step", "sum")`: the log-prob of a turn is that of all
      it writes, action and memory. Densities of numbers are not here.
    - C2, advantage: `Gae(level="step", gamma=0.99, lam=0.95)` and `GroupRelative` over the batch, std of n.
    - C3, PPO: `Policy("step_mean")`, no entropy term; `Value` of the model `critic`.
    - C4, stored states anew: left out: off by default in the code.
    - C5, GPOMDP: left out: another variant of the paper; its baseline is one for each parameter.
    - C6, TD3: left out: another variant of the paper, for actions that are numbers.

Differs:
    - Clip range: 0.05 to 0.2 by task in the code; 0.2 here.
    - Old log-probs: computed at the update in the code, those of sampling here; `old_logprob="recomputed"` does as the
      code.
    - Optimizer steps: 10 epochs of minibatches of 32 steps, 63 for the 2000 steps of the code, as many here.

Source: Time-Efficient Reinforcement Learning with Stochastic Stateful Policies (arXiv:2311.04082). Needs: rewards of
steps; step columns `value` of the critic and, where a rollout was cut off, `next_value`.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import Gae, GroupRelative
from agentrl_core.loss import Policy, Ratio, Train, Value
from agentrl_core.rollout import ObservationWindow

S2PG = Recipe(
    name="s2pg",
    source="arXiv:2311.04082",
    rollout=ObservationWindow(turns=1),
    advantage=(
        Gae(level="step", gamma=0.99, lam=0.95, column="reward", outcome="", at_truncation="bootstrap"),
        GroupRelative(column="advantage", level="step", group_by="batch", ddof=0, eps=1e-8),
    ),
    loss=(
        Train(Value("step_mean", level="step"), model="critic"),
        Policy("step_mean", ratio=Ratio("step", "sum", "segment")),
    ),
    epochs=10,
    minibatches=63,
)
