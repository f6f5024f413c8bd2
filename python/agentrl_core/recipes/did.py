"""DID: direct preference optimisation, and how much information its log-ratios hold.

Source: "Differential Information Distribution". The loss is DPO's; the entropy of the softmax of the log-ratios over a
set of candidates says whether an update reinforced one answer or smoothed over them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Preference
from agentrl_core.recipe import Recipe

if TYPE_CHECKING:
    from torch import Tensor


def differential_information(log_ratio: Tensor) -> Tensor:
    """Entropy in nats of the softmax of sequence log-ratios log p - log q over a set of candidates, a scalar.

    Low: an update on the set reinforces one answer; high: it smooths over them. One candidate gives 0.

    Args:
        log_ratio: `[k]`.

    Example:
        >>> import torch
        >>> from agentrl_core.recipes.did import differential_information
        >>> differential_information(torch.zeros(2)).item()
        0.693
    """
    logprob = log_ratio.log_softmax(0)
    return -(logprob.exp() * logprob).sum()


DID = Recipe(name="did", source="Differential Information Distribution", advantage=GroupRelative(), loss=Preference())
