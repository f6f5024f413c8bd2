"""DID: direct preference optimisation, read as the policy that moves by the information a preference holds.

Source: "Differential Information Distribution" (arXiv:2505.23761). The loss is DPO's.
"""

from __future__ import annotations

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Preference

DID = Recipe(name="did", source="arXiv:2505.23761", advantage=GroupRelative(), loss=Preference())
