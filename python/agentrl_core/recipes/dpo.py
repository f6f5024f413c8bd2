"""DPO: of two answers, prefer the better one by its log-ratio to a reference, without a reward model.

    L = - mean over pairs of log sigmoid(0.1 (x_chosen - x_rejected)),   x = sum over the answer of log p - log p_ref

The answer of higher score is chosen: pairs are groups of two, or draws with the same number in the column `pair`; a
pair of equal scores has no gradient. `Preference` has IPO and SLiC (`kind`), label smoothing, and means over tokens.

Source: arXiv:2305.18290. Needs: the model reference.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Preference

DPO = Recipe(name="dpo", source="arXiv:2305.18290", advantage=GroupRelative(), loss=Preference())
