"""MindOmni (RGPO): reason in text, then generate an image, with separate KL penalties for both (arXiv:2505.13031).

    L = mean over draws of [ - mean over tokens of min(r A, clip(r, 0.8, 1.2) A)
                             + 0.01 mean over text tokens of k3 + 0.06 mean over image tokens of k3 ]
    R = similarity of image and prompt + format,   A = (R - mean) / (std + 1e-4)

In the paper a diffusion decoder generates the image, and the KL of the image compares hidden states. Here an image
consists of sampled tokens, and their k3 replaces this KL. Each KL term is a mean over the tokens of its kind, and
does not depend on the number of other tokens: `MarkedScaled(own_mean=True)`.

Equations:
    Read: the public code of the training, and translated notes with the paper's equation 7.

    - 7, objective: `Policy` with the two KL terms; the ratio is of tokens, as in the code; not computed: its parts C2
      to C4 are entries of their own.
    - C1, reward: `OutcomeScore` of the similarity, and `CombineReward(column="reward.format")`.
    - C2, advantage: `GroupRelative(eps=1e-4)`, std with divisor n - 1.
    - C3, text loss: `Policy("sequence_mean")` with `kl_weight` 0.01 for text tokens.
    - C4, KL of the image: left out: it is a divergence of hidden states in the diffusion decoder; see above.
    - C5, sum: `kl_weight` 0.06 for image tokens; not computed: it is a column of the batch.
    - C6, reference: the model `reference`, which is never updated; not computed: it is not a number.

Differs:
    - Coefficient of the image: 0.06 in script and notes and here; the code passes on the trainer's default 0.01.
    - Clip range: not given; 0.2 here. A batch has a single optimizer step, as in the code, so the clip range never
      acts.

Needs: the fact `image` of steps (1 if the step generated the image), the reward's component `format` (the reward
itself is the similarity), and the model reference.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import KL, Policy
from agentrl_core.reward import CombineReward, OutcomeScore
from agentrl_core.weight import MarkedScaled

MIND_OMNI = Recipe(
    name="mind_omni",
    source="arXiv:2505.13031",
    reward=(OutcomeScore(), CombineReward(column="reward.format")),
    advantage=GroupRelative(eps=1e-4),
    weight=MarkedScaled(column="image", level="step", marked=0.06, plain=0.01, of="kl_weight", own_mean=True),
    loss=Policy("sequence_mean", kl=KL(1.0)),
)
