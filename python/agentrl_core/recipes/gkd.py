"""GKD: distil a teacher's distributions on the policy's own outputs (arXiv:2306.13649).

    L = mean over outputs of their mean D,   D = beta KL(q || m) + (1 - beta) KL(p || m),   m = beta q + (1 - beta) p

q is the teacher, p the policy. beta 0 is forward KL, 1 reverse KL: the paper chooses by task. Every output has the same
weight, however many tokens it has. No gradient flows through sampling, and no reward is read. The recipe compares
distributions over the whole vocabulary: `pack.run(policy, teacher=teacher)`. For a teacher on a server, use its most
likely tokens:

    recipe = GKD.replace(loss=loss.Divergence("sequence_mean", support="top"))
    batch = arl.annotate(batch, "teacher_logprob", teacher, top_k=64)

If batches also have demonstrations (lambda below 1), these are draws of another origin. To add a reward, as in the
paper's section 3.2: `loss.Sum(Policy(), GKD.loss, 1 - alpha, alpha)`.

Needs: a teacher with the policy's tokenizer.

Equations:
    Read: the abstract, notes with the paper's equations 1 to 5, and TRL's code.

    - N1, generalised Jensen-Shannon divergence: `Divergence`.
    - N2, its limits: `Divergence` with beta 0 and 1.
    - N3, divergence of an output: `Divergence("sequence_mean")`; TRL's mean over the tokens of all outputs is
      `"token_mean"`.
    - N4, mixture of outputs: one mean over the outputs of both origins, in the shares that the batch has.

Differs:
    - Source of outputs: lambda is the share of the policy's own outputs; here the collector and replay decide it.
"""

from agentrl_core import Recipe
from agentrl_core.loss import Divergence

GKD = Recipe(name="gkd", source="arXiv:2306.13649", loss=Divergence("sequence_mean", support="vocabulary"))
