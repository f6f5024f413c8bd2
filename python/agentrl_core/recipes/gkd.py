"""GKD: distil a teacher's distributions on the policy's own outputs (arXiv:2306.13649).

    L = mean over tokens of D(q, p),   D = beta KL(q || m) + (1 - beta) KL(p || m),   m = beta q + (1 - beta) p

q is the teacher, p the policy; beta 0 is forward KL, 1 reverse KL. No gradient flows through sampling and no reward is
read. The recipe compares whole vocabularies: `pack.run(policy, teacher=teacher)`. For a teacher on a server use its
likeliest tokens: `GKD.replace(loss=loss.Divergence(support="top"))` after `arl.annotate(batch, "teacher_logprob",
teacher, top_k=64)`. Batches of demonstrations beside own rollouts (lambda below 1) are draws of another origin.

Needs: a teacher with the policy's tokenizer.

Equations:
    Read: the abstract, and TRL's notes and code; the paper's text was not read.

    - N1, generalised Jensen-Shannon divergence: `Divergence`.
    - N2, its limits: `Divergence` with beta 0 and 1.
    - N3, loss: mean over tokens of all sequences.

Differs:
    - Source of outputs: lambda is the share of own outputs in the notes; here the collector and replay decide.
"""

from agentrl_core import Recipe
from agentrl_core.loss import Divergence

GKD = Recipe(name="gkd", source="arXiv:2306.13649", loss=Divergence(support="vocabulary"))
