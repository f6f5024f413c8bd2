"""PPO-EWMA: the step is held near an average of past policies, whoever sampled the data (arXiv:2110.00641).

    L = - mean over tokens of min(r A, clip(u, 0.8, 1.2) c A) + 0.01 entropy
    r = p / p_behaviour,  u = p / p_average,  c = p_average / p_behaviour
    A: GAE with gamma 0.999, lambda 0.95, then (A - mean) / (std + 1e-8) over all tokens
    average <- the mean of all weights so far, those of n steps ago by 0.99^n, after every optimizer step of the policy

So a policy is as far from what limits it whatever the size of a batch: with batches c times smaller the decay is its
c-th root and Adam's rate 1 / sqrt(c) of itself. Public code holds r at 100 at most; here log r is held within 20. The
decay is a proposal (the paper scales it with the batch). In the penalty form, drift is `KL(1.0, "k2",
column="proximal_logprob")` and there is no clip.

Needs: token columns `value` and `proximal_logprob`, by the models critic and proximal (the average, given to
`recipe.updates` by that name).

Equations:
    Read: the introduction and the abstract of the paper, its public code, and notes.

    - C1, cap of the importance ratio: left out: the code holds it at 100; here log r is held within 20.
    - C2, decoupled objective: `Policy(clip=Clip(center="proximal"))`, clip range 0.2.
    - C3, KL form: an option, `drift=KL(1.0, "k2", column="proximal_logprob")` and no clip.
    - C4, proximal network: `SyncModel(mix=0.01, corrected=True, unit="steps", own_steps=True)`: the critic's steps do
      not count; the reset of PPG is no part of it.
    - C5, advantages: `Gae`, then the batch's own mean and std (of n), as by default in the code; moving moments are
      left to the user.
    - C6, stale data: `old_logprob` and `replay` of a recipe; not computed: an experiment of the paper.
    - N1, rule for the batch size: left out: decay and rate are the user's; the rule is stated above.

Differs:
    - Value coefficient: 0.5 in the code, where both losses move one network; the critic has its own optimizer here.
    - Log-probs of the average: computed anew for each minibatch in the code; here before the first step of a batch.
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
