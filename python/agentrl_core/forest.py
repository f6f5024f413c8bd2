"""Forest: the live form of the data, while rollouts run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core._json import to_json
from agentrl_core.batch import Batch

Tokens = Sequence[int] | NDArray[np.int32] | NDArray[np.int64]
Floats = Sequence[float] | NDArray[np.float32] | NDArray[np.float64]


class Forest:
    """Groups of trajectories that grow turn by turn, fork at any token, and freeze into a `Batch`.

    A node is a run of tokens from one source; it is never cut or changed. A fork shares all that lies before it. What a
    forest freezes to depends on the place of each operation (group, member, fork path, step), never on the order in
    which trajectories took turns. Methods may be called from several threads.

    Args:
        iteration: the iteration that is collected.
        seed: the run's seed; every segment's own seed follows from it.

    Example:
        >>> import agentrl_core as arl
        >>> forest = arl.Forest(iteration=0, seed=7)
        >>> forest.add_group(0, "what is 6*7?")
        >>> trunk = forest.start(0, member=0)
        >>> _ = forest.append(trunk, [1, 2, 3], kind="prompt")
        >>> action = forest.append(trunk, [4, 5, 6], kind="action", logprobs=[-0.5, -1.0, -0.1])
        >>> branch = forest.fork(trunk, node=action, end=1)     # shares the prompt and the action's first token
        >>> _ = forest.append(branch, [7], kind="action", logprobs=[-2.0])
        >>> for trajectory in (trunk, branch):
        ...     forest.finish(trajectory, reward=1.0, success=True)
        >>> forest.freeze()
        Batch(2 draws in 1 groups, 2 trajectories, 3 nodes)
    """

    __slots__ = ("_core",)

    def __init__(self, *, iteration: int = 0, seed: int = 0) -> None:
        self._core = _core.Forest(iteration=iteration, seed=seed)

    @property
    def iteration(self) -> int:
        """The iteration that is collected."""
        return self._core.iteration

    def __len__(self) -> int:
        """Number of groups that are not frozen yet."""
        return len(self._core)

    def add_group(self, group: int, task_id: str) -> None:
        """Open group number `group`, unique in the iteration, for a task."""
        self._core.add_group(group, task_id)

    def start(self, group: int, member: int) -> int:
        """Start trajectory `member` of a group at an empty path; returns its handle."""
        return self._core.start(group, member)

    def append(
        self,
        trajectory: int,
        tokens: Tokens,
        *,
        kind: Literal["prompt", "action", "observation", "injected"],
        logprobs: Floats | None = None,
        entropies: Floats | None = None,
        trainable: Sequence[int] | NDArray[np.bool_] | NDArray[np.uint8] | None = None,
        state: bytes | str | None = None,
        policy: int = 0,
        policy_version: int | None = None,
        seed: int | None = None,
        temperature: float | None = None,
        top_p: float = 1.0,
        top_k: int = 0,
        finish_reason: Literal["stop", "length", "abort"] | None = None,
    ) -> int:
        """Append a node to the end of a trajectory's path; returns the node's handle.

        Args:
            trajectory: handle.
            tokens: token ids, int32, at least one.
            kind: `prompt`, `action` (sampled by the policy), `observation`, or `injected` (context that was not
                sampled).
            logprobs: behaviour log-prob of each token, in nats, of the distribution really sampled from; actions only.
            entropies: entropy of that distribution at each token, in nats.
            trainable: 0/1 for each token of an action; None: all of them.
            state: what the environment's state is known by, hashed into the 128-bit key of the next step; None: the
                tokens of the prompt or observation.
            policy: which policy spoke, where there are several.
            policy_version: version of the weights that sampled the tokens.
            seed: the segment's seed.
            temperature: softmax temperature of the sampling; None where nothing was sampled.
            top_p: nucleus mass, 1 keeps everything.
            top_k: number of tokens kept, 0 keeps everything.
            finish_reason: why sampling stopped.

        Raises:
            InvalidInputError: an array has another length than `tokens`, a log-prob is NaN or positive, an action is
                empty, the trajectory has ended. Nothing is stored then.
            NotFoundError: no such trajectory.
        """
        return self._core.append(
            trajectory,
            tokens,
            kind=kind,
            logprobs=logprobs,
            entropies=entropies,
            trainable=trainable,
            state=state.encode() if isinstance(state, str) else state,
            policy=policy,
            policy_version=policy_version,
            seed=seed,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            finish_reason=finish_reason,
        )

    def step(
        self,
        trajectory: int,
        *,
        reward: float | None = None,
        rewards: Sequence[float] | None = None,
        terminated: bool = False,
        truncated: bool = False,
        flags: int = 0,
    ) -> None:
        """Close the action just appended and record what the environment paid for it.

        Args:
            trajectory: handle.
            reward: reward of this step; None where none was paid.
            rewards: its components.
            terminated: the episode ended in the environment.
            truncated: a limit ended it.
            flags: facts of the turn, a bit each (`agentrl_core.env`).
        """
        self._core.step(
            trajectory, reward=reward, rewards=rewards, terminated=terminated, truncated=truncated, flags=flags
        )

    def fork(self, trajectory: int, *, node: int | None = None, end: int | None = None) -> int:
        """Start a trajectory that shares a prefix with another one, running or ended; returns its handle.

        Args:
            trajectory: the one to share with.
            node: last shared node; None: the whole path so far.
            end: how many of that node's tokens are shared; None: all.
        """
        return self._core.fork(trajectory, node=node, end=end)

    def tokens(self, trajectory: int) -> NDArray[np.int32]:
        """The tokens of a trajectory's path, `int32[n]`."""
        return self._core.tokens(trajectory)

    def segment_seed(self, trajectory: int) -> int:
        """Seed (63 bits) of the next segment of a trajectory: a hash of the run's seed and the segment's place."""
        return self._core.segment_seed(trajectory)

    def finish(
        self,
        trajectory: int,
        *,
        reward: float | None = None,
        rewards: Sequence[float] | None = None,
        success: bool | None = None,
        info: Mapping[str, Any] | None = None,
        status: Literal["finished", "truncated", "aborted", "failed"] = "finished",
    ) -> None:
        """End a trajectory. Finished and truncated ones become draws; aborted and failed ones are only kept.

        Args:
            trajectory: handle.
            reward: outcome reward of the whole trajectory; None or NaN: not known.
            rewards: its components.
            success: whether the task was solved, before any shaping.
            info: facts of the environment, saved as JSON (NaN and infinity as null).
            status: how it ended.
        """
        text = None if info is None else to_json(info, "info")
        self._core.finish(trajectory, reward=reward, rewards=rewards, success=success, info=text, status=status)

    def prune(self, trajectory: int, reason: str) -> None:
        """Take a trajectory out of training; its tokens stay in the files, with the reason."""
        self._core.prune(trajectory, reason)

    def abort(self) -> None:
        """Mark every trajectory that is still running as aborted, so that everything can freeze."""
        self._core.abort()

    def freeze(self) -> Batch:
        """Freeze every group whose trajectories have all ended, and take it out; the rest stays live.

        Rows are numbered canonically from zero; each finished or truncated trajectory is one fresh draw.
        """
        return Batch(self._core.freeze())
