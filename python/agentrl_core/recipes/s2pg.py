"""S2PG: sample an agent's memory like an action, so that no gradient flows back through time.

A policy with its own state z samples the action and the next state together, (a_t, z_{t+1}) ~ p( . | s_t, z_t). Its
gradient needs only one step at a time. It is trained by PPO, with a critic V that also sees the state:

    delta_t = r_t + 0.99 V_{t+1} - V_t,   A_t = delta_t + 0.99 * 0.95 A_{t+1},   then (A - mean) / std over the batch
    L = - mean over steps of min(r A, clip(r, 0.8, 1.2) A),   r = p(a_t, z_{t+1} | s_t, z_t) / p_old of the same

For a language model z is text that it writes for itself: an action contains reasoning, the memory to keep, and the
move. The next action sees the question, that turn and the observation after it, and nothing else; all tokens of a turn
have one ratio. The paper is about continuous states of small recurrent networks; memory as text is our choice.

Equations:
    Read: the public code and the abstract; the paper's text was not read.

    - C1, joint policy: `ObservationWindow(turns=1)`, and `Ratio("step", "sum")`: the log-prob of a turn includes all
      its tokens, action and memory. The recipe has no densities of numeric states.
    - C2, advantage: `Gae(level="step", gamma=0.99, lam=0.95)` and `GroupRelative` over the batch, std with denominator
      n.
    - C3, PPO: `Policy("step_mean")`, no entropy term; `Value` of the model `critic`.
    - C4, stored states anew: left out: off by default in the code.
    - C5, GPOMDP: left out: another variant of the paper; it has a baseline for each parameter.
    - C6, TD3: left out: another variant of the paper, for actions that are numbers.

Differs:
    - Clip range: 0.05 to 0.2 by task in the code; 0.2 here.
    - Old log-probs: computed at the update in the code, at sampling here; `old_logprob="recomputed"` follows the code.
    - Optimizer steps: 10 epochs of minibatches of 32 steps, which are 63 minibatches for the code's 2000 steps; the
      same number here.

Source: Time-Efficient Reinforcement Learning with Stochastic Stateful Policies (arXiv:2311.04082). Needs: rewards of
steps; step columns `value` of the critic and, for truncated rollouts, `next_value`.
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
