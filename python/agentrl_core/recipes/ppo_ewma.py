"""PPO-EWMA: hold each step near an average of past policies, whichever policy sampled the data (arXiv:2110.00641).

    L = - mean over tokens of min(r A, clip(u, 0.8, 1.2) c A) + 0.01 entropy
    r = p / p_behaviour,  u = p / p_average,  c = p_average / p_behaviour
    A: GAE with gamma 0.999, lambda 0.95, then (A - mean) / (std + 1e-8) over all tokens
    average <- mean of all weights so far, weights of n steps ago times 0.99^n, after every optimizer step of the policy

So the distance between the policy and the average that limits it does not depend on the batch size: with batches c
times smaller, use the c-th root of the decay and 1 / sqrt(c) of Adam's rate. The public code holds r at 100 at most;
here log r is held within 20. The decay is a proposal (the paper scales it with the batch). In the penalty form, drift
is `KL(1.0, "k2", column="proximal_logprob")` and there is no clip range.

Needs: token columns `value` and `proximal_logprob`, from the models `critic` and `proximal` (the average; give it to
`recipe.updates` under that name).

Equations:
    Read: the introduction and the abstract of the paper, its public code, and notes.

    - C1, cap of the importance ratio: left out: the code holds it at 100; here log r is held within 20.
    - C2, decoupled objective: `Policy(clip=Clip(center="proximal"))`, clip range 0.2.
    - C3, KL form: an option, `drift=KL(1.0, "k2", column="proximal_logprob")` and no clip range.
    - C4, proximal network: `SyncModel(mix=0.01, corrected=True, unit="steps", own_steps=True)`: the critic's steps do
      not count; the reset of PPG is not part of it.
    - C5, advantages: `Gae`, then the batch's own mean and std (of n), the default of the code; moving moments are left
      to the user.
    - C6, stale data: `old_logprob` and `replay` of a recipe; not computed: an experiment of the paper.
    - N1, rule for the batch size: left out: the user sets decay and rate; the rule is stated above.

Differs:
    - Value coefficient: 0.5 in the code, where both losses train one network; here the critic has its own optimizer.
    - Log-probs of the average: the code computes them again for each minibatch; here they are computed once, before
      the first step of a batch.
    - Decay: no number is public for language models; 0.99 here.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import Gae, GroupRelative
from agentrl_core.loss import Clip, Policy, Train, Value
from agentrl_core.schedule import SyncModel

PPO_EWMA = Recipe(
    name="ppo_ewma",
    source="arXiv:2110.00641",
    advantage=(
        Gae(gamma=0.999, lam=0.95),
        GroupRelative(column="advantage", level="token", group_by="batch", ddof=0, eps=1e-8),
    ),
    loss=(Train(Value("token_mean"), model="critic"), Train(Policy(clip=Clip(center="proximal"), entropy=0.01))),
    hooks=SyncModel("policy", "proximal", mix=0.01, corrected=True, unit="steps", own_steps=True),
    minibatches=8,
)
