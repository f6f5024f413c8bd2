"""DID: direct preference optimisation, read as the policy that moves by the information a preference holds.

Source: "Differential Information Distribution". The loss is DPO's.
"""

from __future__ import annotations

from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Preference
from agentrl_core.recipe import Recipe

DID = Recipe(name="did", source="Differential Information Distribution", advantage=GroupRelative(), loss=Preference())
