"""MindOmni (RGPO): one trajectory reasons in text and then makes an image, each with its own KL (arXiv:2505.13031).

    L = mean over tokens of [ - min(r A, clip(r, 0.8, 1.2) A) + b_t k3(p, p_ref) ],   b = 0.01 of text, 0.06 of an image
    R = similarity of image and prompt + format,   A = (R - mean) / std

The paper's KL terms are means over the tokens of each kind; here a token of either counts the same. eps is not given.

Needs: the fact `image` of steps (1 where the step made the image), the reward's component `format` (the reward itself
is the similarity), and the model reference.
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
    advantage=GroupRelative(),
    weight=MarkedScaled(column="image", level="step", marked=0.06, plain=0.01, of="kl_weight"),
    loss=Policy(kl=KL(1.0)),
)
