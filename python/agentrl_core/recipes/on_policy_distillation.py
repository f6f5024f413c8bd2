"""On-policy distillation: score every token that the policy samples with a teacher model.

    A_t = r - mean of the group's r + log q(y_t) - log p_old(y_t),   L = - mean of A_t exp(log p(y_t) - log p_old(y_t))

q is the teacher. Its term is the negative estimate of the reverse KL at each token, from the one sampled token. Groups
with equal rewards stay in the batch. If the environment's rewards are all 0, only the teacher's term is left. Annotate
the batch before its credit phases: `arl.annotate(batch, "teacher_logprob", teacher)`. A teacher may see more than the
policy (`prompts`), and each domain may have a separate teacher (`draws`).

Source: On-Policy Distillation (Thinking Machines Lab, https://thinkingmachines.ai/blog/on-policy-distillation) and its
code, thinking-machines-lab/tinker-cookbook. Needs: a model `teacher` with the policy's tokenizer.

Equations:
    Read: the authors' code.

    - C1, reverse KL of a sampled token: `ImplicitProcess`, of the teacher and the policy that sampled, beta 1.
    - C2, advantage: `Discounted` of these rewards, gamma 0, plus `GroupRelative` of the environment's scores.
    - C3, loss: `Policy` without a clip range.

Differs:
    - Denominator: the code sums over the tokens of a step; here the loss is their mean, a factor that does not affect
      Adam.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import Discounted, GroupRelative
from agentrl_core.loss import Policy
from agentrl_core.reward import ImplicitProcess, OutcomeScore

ON_POLICY_DISTILLATION = Recipe(
    name="on_policy_distillation",
    source="https://thinkingmachines.ai/blog/on-policy-distillation",
    reward=(OutcomeScore(), ImplicitProcess(beta=1.0, model="teacher_logprob", reference="behaviour_logprob")),
    advantage=(
        Discounted(column="process_reward", level="token", gamma=0.0),
        GroupRelative(scale="none", add=True),
    ),
    loss=Policy(clip=None),
    frozen=("teacher",),
)
