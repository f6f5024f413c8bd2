"""Advantages and losses of recipes in verl, and its data as a `Batch`.

verl finds this package by its entry point group `verl.plugins`, so after `pip install agentrl-core` the names
`agentrl_<recipe>` are available for `algorithm.adv_estimator` and `actor.policy_loss.loss_mode`. For inputs that verl
does not pass to estimators (tokens, log-probs, rollouts of several rows), use the trainer `integrations.verl.trainer`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl_core._util.lazy import lazy

if TYPE_CHECKING:
    from agentrl_core.integrations.verl.dataproto import from_dataproto, to_dataproto
    from agentrl_core.integrations.verl.registry import register, register_all

_HOME = {
    "from_dataproto": "dataproto",
    "register": "registry",
    "register_all": "registry",
    "to_dataproto": "dataproto",
}

__all__ = ["from_dataproto", "register", "register_all", "to_dataproto"]

__getattr__ = lazy(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
