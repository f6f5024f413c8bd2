"""OmniQuality-R: a score is paid by its nearness to the true one; only uncertain tokens are trained (arXiv:2510.10609).

    R = exp(-error^2 / (2 * 0.8^2)),   A = (R - mean) / std;   groups with std <= 0.001 leave the loss
    L = mean over each sequence's fifth of tokens with the highest entropy of - min(r A, clip(r, 0.8, 1.2) A), >= 3 A
        + 0.001 k3(p, p_ref) over all tokens

The tokens of a sequence that are kept weigh what all of it did. An answer without a score has no error: no reward.
The gate belongs to the second stage; the first is the same without `mask`.

Needs: the fact `error` of trajectories, predicted less true; the model reference.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import KL, Clip, Policy, TopTokens
from agentrl_core.reward import GaussianProximity
from agentrl_core.select import Band
from agentrl_core.weight import GroupFilter

OMNI_QUALITY_R = Recipe(
    name="omni_quality_r",
    source="arXiv:2510.10609",
    reward=GaussianProximity(column="error", width=0.8),
    advantage=GroupRelative(),
    weight=GroupFilter(band=Band(std_above=1e-3)),
    loss=Policy(
        clip=Clip(dual=3.0), mask=TopTokens("entropy", 0.2, scope="sequence", denominator="kept"), kl=KL(0.001)
    ),
)
