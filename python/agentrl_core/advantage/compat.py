"""Compute group-relative advantages as other projects do."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from agentrl_core.exceptions import InvalidInputError

_STD: dict[str, Any] = {"center": "mean", "scale": "std", "ddof": 1, "eps": 1e-6}
_RAW: dict[str, Any] = {**_STD, "singleton": "raw"}
_CENTRED: dict[str, Any] = {"center": "mean", "scale": "none"}

COMPAT: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "verl-0.9/grpo": _RAW,
        "verl-0.9/grpo_vectorized": _RAW,
        "verl-0.9/dr_grpo": {**_CENTRED, "singleton": "raw"},
        "verl-0.9/rloo": {"center": "leave_one_out", "scale": "none", "singleton": "raw"},
        "verl-0.9/rloo_vectorized": {"center": "leave_one_out", "scale": "none"},
        "verl-0.9/opo": {**_CENTRED, "singleton": "raw"},
        "verl-agent/episode": {**_CENTRED, "singleton": "raw"},
        "verl-agent/episode_std": _RAW,
        "verl-agent/step": _CENTRED,
        "verl-agent/step_std": _STD,
        "roll": {**_STD, "scale_above": 1e-6},
        "skyrl": _RAW,
        "trl-sync": {**_STD, "eps": 1e-4},
        "trl-async": {**_STD, "ddof": 0, "eps": 1e-8},
        "openrlhf": {**_STD, "eps": 1e-9},
        "rllm": {**_RAW, "ddof": 0},
        "art": {**_STD, "ddof": 0},
        "prime-rl": _CENTRED,
        "torchrl": {**_STD, "eps": 0.0, "scale_at_least": 1e-6},
        "trinity-stepwise": _RAW,
        "rlinf": _STD,
        "slime": _STD,
        "tree-grpo/prompt": _RAW,
        "igpo": {"center": "mean", "scale": "std", "ddof": 0, "eps": 0.0, "variance_eps": 1e-8},
        "istar/step": _CENTRED,
    }
)
"""Options of `group.normalise` by project. `compat` documents rules that need more columns."""


def compat(name: str) -> dict[str, Any]:
    """Return options of `group.normalise` that reproduce another project's advantage.

    | name | centre and spread | eps | a group of one |
    |---|---|---|---|
    | `verl-0.9/grpo`, `verl-0.9/grpo_vectorized`, `skyrl` | mean, std (n - 1) | + 1e-6 | x / (1 + eps) |
    | `trinity-stepwise`, `tree-grpo/prompt` | mean, std (n - 1) | + 1e-6 | x / (1 + eps) |
    | `rlinf`, `slime` | mean, std (n - 1) | + 1e-6 | 0 |
    | `verl-0.9/dr_grpo` | mean | | x |
    | `verl-0.9/rloo`, `verl-0.9/rloo_vectorized` | mean of the others | | x, 0 |
    | `verl-0.9/opo` | mean weighted by length: give `weights` | | x |
    | `verl-agent/episode` | mean over steps; once a trajectory: give `voter_ids` | | x |
    | `verl-agent/episode_std` | the same, std (n - 1) | + 1e-6 | x / (1 + eps) |
    | `verl-agent/step`, `verl-agent/step_std` | mean over the anchor's steps (std n - 1) | + 1e-6 | 0 |
    | `roll` | mean, std (n - 1) | + 1e-6, std of at most 1e-6 gives 0 | 0 |
    | `trl-sync` | mean, std (n - 1); NaN rewards: give `valid` | + 1e-4 | 0 |
    | `trl-async` | mean, std (n) | + 1e-8 | 0 |
    | `openrlhf` | mean, std (n - 1) | + 1e-9 | 0 |
    | `rllm` | mean, std (n) | + 1e-6 | x / (1 + eps) |
    | `art` | mean, std (n) | + 1e-6 | 0 |
    | `prime-rl` | mean | | 0 |
    | `torchrl` | mean, std (n - 1) | at least 1e-6 | 0 |
    | `igpo` | mean, std (n); turns without gain do not vote: give `valid` | root of variance + 1e-8 | 0 |
    | `istar/step` | mean; only the first step of a trajectory votes: give `weights` | | 0 |

    Args:
        name: one of the names above.

    Returns:
        A new dictionary of options.

    Raises:
        InvalidInputError: the name is unknown.

    Example:
        >>> from agentrl_core import advantage, group
        >>> group.normalise([1.0, 0.0, 5.0], [0, 0, 1], **advantage.compat("prime-rl")).tolist()
        [0.5, -0.5, 0.0]
    """
    if name not in COMPAT:
        raise InvalidInputError(f"compat: name is {name!r}; use one of: {', '.join(COMPAT)}")
    return dict(COMPAT[name])
