"""A turn of a live trajectory in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core.data.branches import Floats, Tokens
from agentrl_core.data.live import Live
from agentrl_core.operators import columns


def turn(
    forest: Live,
    trajectory: int,
    action: Tokens,
    *,
    logprobs: Floats | None = None,
    entropies: Floats | None = None,
    trainable: Sequence[int] | NDArray[np.bool_] | NDArray[np.uint8] | None = None,
    policy: int = 0,
    policy_version: int | None = None,
    seed: int | None = None,
    temperature: float | None = None,
    top_p: float = 1.0,
    top_k: int = 0,
    finish_reason: Literal["stop", "length", "abort"] | None = None,
    reward: float | None = None,
    rewards: Sequence[float] | None = None,
    terminated: bool = False,
    truncated: bool = False,
    flags: int = 0,
    end_of_turn: Tokens | None = None,
    observation: Tokens | None = None,
    state: bytes | str | None = None,
    blobs: Sequence[bytes] | None = None,
) -> tuple[int, int | None]:
    """Store a whole turn: what the policy said, what it was paid, and what the environment answered.

    The same as `append` of the action, `step`, `append` of `end_of_turn` as `injected` and `append` of the observation,
    in one call: all of it is stored or, where anything is wrong, nothing. An action of several segments is appended but
    for its last one, which is given here.

    Args:
        trajectory: handle.
        action: token ids, at least one.
        logprobs: of the action, as those below, as in `append`.
        entropies: see `append`.
        trainable: see `append`.
        policy: see `append`.
        policy_version: see `append`.
        seed: see `append`.
        temperature: see `append`.
        top_p: see `append`.
        top_k: see `append`.
        finish_reason: see `append`.
        reward: what was paid for the step, as in `step`; so are the four below.
        rewards: see `step`.
        terminated: see `step`.
        truncated: see `step`.
        flags: see `step`.
        end_of_turn: tokens that end the turn where the action did not (it ran into its limit); they are not trained.
        observation: what the environment answered; None: nothing.
        state: what its state is known by then; None: the tokens of the observation.
        blobs: images and the like of the observation, by the hash that `add_blob` returned.

    Returns:
        Handles of the nodes of the action and of the observation (None: there is none).

    Raises:
        InvalidInputError: as `append` and `step`, or `state` or `blobs` without an observation.
        NotFoundError: no such trajectory or blob.

    Example:
        >>> import agentrl_core as arl
        >>> forest = arl.Forest()
        >>> forest.add_group(0, "task")
        >>> trajectory = forest.start(0, 0)
        >>> _ = forest.append(trajectory, [1, 2], kind="prompt")
        >>> _ = forest.turn(trajectory, [3, 4], logprobs=[-0.5, -0.5], reward=0.0, end_of_turn=[0], observation=[5])
        >>> _ = forest.turn(trajectory, [6], logprobs=[-0.5], reward=1.0, terminated=True)
        >>> forest.tokens(trajectory).tolist()
        [1, 2, 3, 4, 0, 5, 6]
        >>> forest.finish(trajectory, reward=1.0)
        >>> forest.freeze().column("reward", "step").tolist()
        [0.0, 1.0]
    """
    return forest._core.turn(
        trajectory,
        action,
        logprobs=logprobs,
        entropies=entropies,
        trainable=trainable,
        policy=policy,
        policy_version=policy_version,
        seed=seed,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        finish_reason=finish_reason,
        reward=reward,
        rewards=rewards,
        terminated=terminated,
        truncated=truncated,
        flags=flags,
        end_of_turn=end_of_turn,
        observation=observation,
        state=None if state is None else columns.as_bytes(state, "state"),
        blobs=None if blobs is None else list(blobs),
    )
