"""Group-in-group advantages: an episode part over the group, a step part over steps from the same state."""

from __future__ import annotations

from typing import Any, Literal

from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.operators import columns


def gigpo(
    rewards: object,
    group_ids: object,
    trajectory_ids: object,
    steps: object,
    state_keys: object,
    step_rewards: object,
    *,
    gamma: float = 0.95,
    step_weight: float = 1.0,
    scale: Literal["std", "none"] = "none",
    voter: Literal["step", "trajectory"] = "step",
    ddof: int = 1,
    eps: float = 1e-6,
    valid: object | None = None,
) -> NDArray[Any]:
    """Return step advantages: the trajectory's reward relative to its group, plus the return relative to its state.

    For step t of trajectory i with episode reward R_i and return G_t = sum_{k >= t} gamma^(k - t) r_k:

        A = (R_i - mean(R of the group)) [/ (std + eps)] + step_weight * (G_t - mean(G of the anchor)) [/ (std + eps)]

    The anchor of a step is the set of all steps of its group at the same state, in any trajectory at any time. The
    divisions apply with `scale="std"`. A step alone at its anchor gets no step part; a group of one counts as mean 0
    and std 1. From GiGPO, arXiv:2505.10978.

    Args:
        rewards: n numbers, the episode reward of each step's trajectory. Columns may be NumPy, Arrow, Polars, torch on
            the CPU, or lists; all have one row per step, in any order.
        group_ids: n group ids, whole numbers or strings.
        trajectory_ids: n trajectory ids, whole numbers or strings.
        steps: n whole numbers, the position of each step in its trajectory.
        state_keys: n keys of the states acted on: whole numbers, strings, bytes, or hashes as `uint8[n, 16]`.
        step_rewards: n numbers, the environment's reward for each step.
        gamma: discount, 0 to 1.
        step_weight: weight of the step part.
        scale: `none` or `std`.
        voter: unit that votes once in the statistics of the group: each `step` (public code) or each `trajectory`.
        ddof: the variance divides by (count - ddof); 0 or 1.
        eps: added to the standard deviation.
        valid: n booleans; rows that are False neither vote nor get a value (0). None: all rows are valid.

    Returns:
        `float64[n]`.

    Raises:
        InvalidInputError: lengths differ, a value is not finite, or an option is not possible.

    Example:
        >>> from agentrl_core import advantage
        >>> advantage.gigpo(
        ...     rewards=[1.0, 1.0, 0.0, 0.0],
        ...     group_ids=["g", "g", "g", "g"],
        ...     trajectory_ids=[0, 0, 1, 1],
        ...     steps=[0, 1, 0, 1],
        ...     state_keys=["door", "hall", "door", "cellar"],
        ...     step_rewards=[0.0, 1.0, 0.0, 0.0],
        ...     gamma=0.5,
        ... ).tolist()
        [0.75, 0.5, -0.75, -0.5]
    """
    scores = columns.doubles(rewards, "rewards")
    count = len(scores)
    return _core.advantage.gigpo(
        scores,
        columns.ids(group_ids, "group_ids", length=count, first="rewards"),
        columns.ids(trajectory_ids, "trajectory_ids", length=count, first="rewards"),
        columns.integers(steps, "steps", length=count, first="rewards"),
        columns.ids(state_keys, "state_keys", length=count, first="rewards"),
        columns.doubles(step_rewards, "step_rewards", length=count, first="rewards"),
        gamma,
        step_weight,
        scale,
        voter,
        ddof,
        eps,
        None if valid is None else columns.flags(valid, "valid", length=count, first="rewards"),
    )
