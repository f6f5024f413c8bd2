"""Forest: the live form of the data, while rollouts run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agentrl_core import _columns, _core
from agentrl_core._core import Tree
from agentrl_core._json import to_json
from agentrl_core.batch import Batch
from agentrl_core.ingest import ByColumn

Tokens = Sequence[int] | NDArray[np.int32] | NDArray[np.int64]
Floats = Sequence[float] | NDArray[np.float32] | NDArray[np.float64]
Kind = Literal["prompt", "action", "observation", "injected"]
Operation = Literal["start", "fork", "continue", "inject", "splice", "rollback", "replace", "prune", "stop", "resume"]

UNTRAINED = 1 << 31
"""Bit of a step's `flags`: its tokens are in the data but not trained."""


@dataclass(frozen=True)
class RunningTrajectories:
    """Trajectories that are running, one row each, by group and then in the order in which they were started.

    Attributes:
        trajectory: `int64[rows]`, handle.
        group: `uint32[rows]`, number of the group.
        node: `int64[rows]`, handle of the path's last node; -1 before the first.
        end: `uint32[rows]`, how many of that node's tokens the path uses.
        length: `uint32[rows]`, tokens of the path.
        steps: `uint32[rows]`, steps that were closed.
        context: `uint32[rows]`, how many times the context was rewritten.
    """

    trajectory: NDArray[np.int64]
    group: NDArray[np.uint32]
    node: NDArray[np.int64]
    end: NDArray[np.uint32]
    length: NDArray[np.uint32]
    steps: NDArray[np.uint32]
    context: NDArray[np.uint32]


class Forest(ByColumn):
    """Groups of trajectories that grow turn by turn, fork at any token, and freeze into a `Batch`.

    A node is a run of tokens from one source; it is never cut or changed. A fork shares all that lies before it. What a
    forest freezes to depends on the place of each operation (group, member, branch position, ordinal, content), never on
    the order in which trajectories took turns. Methods may be called from several threads and from asyncio tasks.

    Args:
        iteration: the iteration that is collected.
        seed: the run's seed; every segment's own seed follows from it.
        reward_components: names of the values in `rewards`, kept with the tables; then each list has one value for each.
        entropies: how entropies are estimated (`exact`, `top_10`, ...), kept with the tables.
        max_blob_bytes: the largest blob that `add_blob` takes; None: 64 MiB.

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

    __slots__ = ()

    def __init__(
        self,
        *,
        iteration: int = 0,
        seed: int = 0,
        reward_components: Sequence[str] | None = None,
        entropies: str = "exact",
        max_blob_bytes: int | None = None,
    ) -> None:
        self._core = _core.Forest(
            iteration=iteration,
            seed=seed,
            reward_components=None if reward_components is None else list(reward_components),
            entropies=entropies,
            max_blob_bytes=max_blob_bytes,
        )

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

    def add_blob(self, blob: bytes) -> bytes:
        """Keep an image or the like; returns its SHA-256 (32 bytes), by which nodes refer to it.

        The same bytes are kept once. They travel with the batch that holds the nodes.

        Raises:
            InvalidInputError: larger than `max_blob_bytes`.

        Example:
            >>> import agentrl_core as arl
            >>> forest = arl.Forest()
            >>> screenshot = forest.add_blob(b"a picture")
            >>> forest.add_group(0, "task")
            >>> node = forest.append(forest.start(0, 0), [7, 7], kind="prompt", blobs=[screenshot])
        """
        return self._core.add_blob(blob)

    def start(
        self,
        group: int,
        member: int,
        *,
        agent: int = 0,
        episode: int | None = None,
        parent: int | None = None,
        origin: Literal["generated", "expert", "imagined", "imported"] = "generated",
    ) -> int:
        """Start a trajectory of a group at an empty path; returns its handle.

        Args:
            group: number of the group.
            member: number of the trajectory among those of its agent in the group, chosen by the caller.
            agent: which role it plays, where several share an episode.
            episode: a trajectory of the same episode, in any group; None: it begins one.
            parent: the trajectory that it answers without sharing tokens, in any group (observer and pioneer, solver and
                proposer, recovery and failure). Groups that are linked so freeze together.
            origin: where it comes from.

        Raises:
            InvalidInputError: the member of that agent was started already.
            NotFoundError: no such group or trajectory.

        Example:
            >>> import agentrl_core as arl
            >>> forest = arl.Forest()
            >>> forest.add_group(0, "debate")
            >>> pioneer = forest.start(0, member=0)
            >>> observer = forest.start(0, member=0, agent=1, episode=pioneer, parent=pioneer)
        """
        return self._core.start(group, member, agent=agent, episode=episode, parent=parent, origin=origin)

    def adopt(
        self,
        group: int,
        batch: Batch,
        trajectory_id: int,
        *,
        source: Literal["replay", "expert", "failed", "imagined"] | None = None,
    ) -> int:
        """Take a stored trajectory into the tree of a live group; returns its handle.

        Its row, its steps and the nodes of its paths keep their ids and come with the frozen batch; new rows are numbered
        behind them. It can be forked at any token and spliced. A partial trajectory is resumed by `fork(handle)`, which
        inherits its steps and goes on with the action that it was in the middle of.

        Args:
            group: number of the group.
            batch: a batch that holds the trajectory, from a store.
            trajectory_id: its id there.
            source: how it is drawn into the frozen batch, as a member of the group; None: it is not.

        Raises:
            NotFoundError: no such group or trajectory.
            InvalidInputError: the group adopted it already.

        Example:
            >>> import agentrl_core as arl
            >>> first = arl.Forest(iteration=0)
            >>> first.add_group(0, "task")
            >>> cut_off = first.start(0, 0)
            >>> _ = first.append(cut_off, [1, 2], kind="prompt")
            >>> _ = first.append(cut_off, [3], kind="action", logprobs=[-0.5], policy_version=0)
            >>> stored = first.freeze(partial=True)
            >>> later = arl.Forest(iteration=1)
            >>> later.add_group(0, "task")
            >>> resumed = later.fork(later.adopt(0, stored, 0))
            >>> _ = later.append(resumed, [4], kind="action", logprobs=[-0.1], policy_version=1)
            >>> later.finish(resumed, reward=1.0)
            >>> later.freeze().column("token", "token").tolist()
            [3, 4]
        """
        return self._core.adopt(group, batch._core, trajectory_id, source=source)

    def append(
        self,
        trajectory: int,
        tokens: Tokens,
        *,
        kind: Kind,
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
        origin: int | None = None,
        blobs: Sequence[bytes] | None = None,
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
            origin: the node of the same group that these tokens repeat or rewrite.
            blobs: images and the like that belong to the tokens, by the hash that `add_blob` returned.

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
            origin=origin,
            blobs=None if blobs is None else list(blobs),
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
            flags: facts of the turn, a bit each (`agentrl_core.env`); `forest.UNTRAINED` keeps its tokens out of the
                gradient.
        """
        self._core.step(
            trajectory, reward=reward, rewards=rewards, terminated=terminated, truncated=truncated, flags=flags
        )

    @overload
    def fork(
        self,
        trajectory: int,
        *,
        node: int | None = ...,
        end: int | None = ...,
        count: None = ...,
        ordinal: int | None = ...,
    ) -> int: ...

    @overload
    def fork(
        self,
        trajectory: int,
        *,
        node: int | None = ...,
        end: int | None = ...,
        count: int,
        ordinal: int | None = ...,
    ) -> list[int]: ...

    def fork(
        self,
        trajectory: int,
        *,
        node: int | None = None,
        end: int | None = None,
        count: int | None = None,
        ordinal: int | None = None,
    ) -> int | list[int]:
        """Start a trajectory that shares a prefix with another one, running, ended or adopted; returns its handle.

        Args:
            trajectory: the one to share with.
            node: last shared node; None: the whole path so far. Where the context was rewritten and several contexts hold
                the node, the earliest counts.
            end: how many of that node's tokens are shared; None: all.
            count: fork so many ways, and return a list; None: one way.
            ordinal: number of the (first) fork among those that leave the trajectory at the same token, which gives it its
                seeds and its place among the rows. None: in order of arrival for seeds, by content for rows; give one where
                several threads fork at the same place and seeds must not depend on which comes first.

        Raises:
            InvalidInputError: pruned, more tokens than the path uses of the node, or an ordinal that is taken.
            NotFoundError: no such trajectory, or the node is not on its path.

        Example:
            >>> import agentrl_core as arl
            >>> forest = arl.Forest()
            >>> forest.add_group(0, "task")
            >>> trunk = forest.start(0, 0)
            >>> node = forest.append(trunk, [1, 2, 3], kind="prompt")
            >>> [forest.tokens(way).tolist() for way in forest.fork(trunk, node=node, end=2, count=2)]
            [[1, 2], [1, 2]]
        """
        ways = self._core.fork(trajectory, node=node, end=end, count=1 if count is None else count, ordinal=ordinal)
        return ways[0] if count is None else ways

    def splice(
        self,
        prefix: int,
        suffix: int,
        *,
        from_node: int,
        start: int = 0,
        node: int | None = None,
        end: int | None = None,
    ) -> int:
        """Start a trajectory with the beginning of one and the end of another of the same group; returns its handle.

        The suffix is copied: nodes of the same kinds with `origin_node_id` and without log-probs, because they were not
        sampled behind this prefix, and its steps with what they were paid. The trajectory goes on running.

        Args:
            prefix: the trajectory whose beginning is shared.
            suffix: the trajectory whose end is copied.
            from_node: first node that is copied, on the path of `suffix`.
            start: how many of its tokens are left out.
            node: last shared node of `prefix`; None: all of its path so far.
            end: how many of that node's tokens are shared; None: all.

        Example:
            >>> import agentrl_core as arl
            >>> forest = arl.Forest()
            >>> forest.add_group(0, "task")
            >>> failed, solved = forest.start(0, 0), forest.start(0, 1)
            >>> for trajectory, token in ((failed, 1), (solved, 2)):
            ...     _ = forest.append(trajectory, [0], kind="prompt")
            ...     action = forest.append(trajectory, [token], kind="action", logprobs=[-0.5])
            >>> forest.tokens(forest.splice(failed, solved, from_node=action)).tolist()
            [0, 1, 2]
        """
        return self._core.splice(prefix, node, end, suffix, from_node, start)

    def rollback(self, trajectory: int, node: int, end: int | None = None) -> int:
        """Go back to an earlier token; returns the handle of the trajectory that goes on from there.

        What is left behind stays in the files, pruned as "rolled back".

        Args:
            trajectory: handle.
            node: the last node to keep.
            end: how many of its tokens; None: all.

        Example:
            >>> import agentrl_core as arl
            >>> forest = arl.Forest()
            >>> forest.add_group(0, "task")
            >>> trajectory = forest.start(0, 0)
            >>> prompt = forest.append(trajectory, [1, 2], kind="prompt")
            >>> _ = forest.append(trajectory, [3], kind="action", logprobs=[-0.5])
            >>> forest.tokens(forest.rollback(trajectory, prompt)).tolist()
            [1, 2]
        """
        return self._core.rollback(trajectory, node, end)

    def replace(self, trajectory: int, by: int) -> None:
        """Put another trajectory of the group in the place of this one, which stays in the files, pruned.

        Its `info` says `{"replaced_by": trajectory_id, ...}`.

        Example:
            >>> import agentrl_core as arl
            >>> forest = arl.Forest()
            >>> forest.add_group(0, "task")
            >>> first, better = forest.start(0, 0), forest.start(0, 1)
            >>> forest.replace(first, by=better)
        """
        self._core.replace(trajectory, by)

    def rewrite(self, trajectory: int, tokens: Tokens, *, state: bytes | str | None = None) -> int:
        """Give a trajectory another context (memory, summary, window, sub-agent); returns how many tokens are shared.

        The context enters the tree where it first differs from the trajectory's own path. The rest is one node of kind
        `injected`: generated text that it repeats is not trained again. Steps taken before keep their own context, and the
        trajectory trains as one sequence for each context.

        Args:
            trajectory: handle; an action that is open is closed.
            tokens: the whole context, at least one token.
            state: what the state acted on next is known by; None: as it was.

        Example:
            >>> import agentrl_core as arl
            >>> forest = arl.Forest()
            >>> forest.add_group(0, "task")
            >>> trajectory = forest.start(0, 0)
            >>> _ = forest.append(trajectory, [1, 2], kind="prompt")
            >>> _ = forest.append(trajectory, [3, 4, 5], kind="action", logprobs=[-0.5, -0.5, -0.5])
            >>> forest.rewrite(trajectory, [1, 2, 9])
            2
            >>> _ = forest.append(trajectory, [6], kind="action", logprobs=[-0.5])
            >>> forest.finish(trajectory, reward=1.0)
            >>> pack = forest.freeze().plan([0], max_tokens=100)[0]
            >>> pack.input_ids.tolist(), pack.cu_seqlens.tolist()
            ([1, 2, 3, 4, 1, 2, 9], [0, 4, 7])
        """
        return self._core.rewrite(trajectory, tokens, state.encode() if isinstance(state, str) else state)

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

    def prune(self, trajectory: int, reason: str, *, gradient_only: bool = False) -> None:
        """Take a trajectory out of training; its tokens stay in the files, with the reason in `info`.

        Args:
            trajectory: handle, running or ended.
            reason: why.
            gradient_only: it still goes on, is drawn and votes in its group's statistics; only its tokens are not trained
                (flag `UNTRAINED` on its steps). Tokens that it shares are trained by the other branches.

        Raises:
            InvalidInputError: an adopted trajectory, which is stored and never changes.
        """
        self._core.prune(trajectory, reason, gradient_only=gradient_only)

    def abort(self) -> None:
        """Mark every trajectory that is still running as aborted, so that everything can freeze."""
        self._core.abort()

    def decide(
        self,
        operation: Operation,
        trajectory: int,
        *,
        round: int,
        ordinal: int | None = None,
        node: int | None = None,
        end: int | None = None,
        result: int | None = None,
        score: float | None = None,
        reason: str | None = None,
    ) -> None:
        """Log a planner's decision in the table `decisions`, so that the search can be replayed. Nothing is done.

        Args:
            operation: what was decided.
            trajectory: the trajectory acted on.
            round: round of the search, from 0.
            ordinal: place within the round of the group, where the order matters; None: in the order of what is acted on.
            node: the node acted at.
            end: how many of its tokens come before the place acted at.
            result: the trajectory that came of it.
            score: what the planner decided by.
            reason: why, in words.

        Example:
            >>> import agentrl_core as arl
            >>> forest = arl.Forest()
            >>> forest.add_group(0, "task")
            >>> trunk = forest.start(0, 0)
            >>> _ = forest.append(trunk, [1], kind="prompt")
            >>> branch = forest.fork(trunk, ordinal=0)
            >>> forest.decide("fork", trunk, round=0, result=branch, score=1.25)
        """
        self._core.decide(
            operation,
            trajectory,
            round=round,
            ordinal=ordinal,
            node=node,
            end=end,
            result=result,
            score=score,
            reason=reason,
        )

    def frontier(self, group: int | None = None) -> RunningTrajectories:
        """The trajectories of a group, or of all, that are running, as columns."""
        return RunningTrajectories(**self._core.frontier(group))

    def tree(self, group: int) -> Tree:
        """The token tree of a group as it is now; nodes are known by their handles.

        Example:
            >>> import agentrl_core as arl
            >>> forest = arl.Forest()
            >>> forest.add_group(0, "task")
            >>> trunk = forest.start(0, 0)
            >>> prompt = forest.append(trunk, [1, 2], kind="prompt")
            >>> branches = [forest.fork(trunk), trunk]
            >>> left, right = (forest.append(branch, [3], kind="observation") for branch in branches)
            >>> tree = forest.tree(0)
            >>> tree.lowest_common_ancestor(left, right) == prompt, tree.depth.tolist(), tree.leaf_count.tolist()
            (True, [0, 1, 1], [2, 1, 1])
        """
        return self._core.tree(group)

    def freeze(self, *, partial: bool = False) -> Batch:
        """Freeze every group whose trajectories have all ended, and take it out; the rest stays live.

        Groups with trajectories that answer each other freeze together. Rows are numbered canonically, from zero or behind
        what was adopted; each finished or truncated trajectory is one draw. Other threads go on with the groups that stay.

        Args:
            partial: freeze the others too: trajectories that are running get status `partial`, are not drawn, and can be
                resumed by `adopt` and `fork` in a later forest.
        """
        return Batch(self._core.freeze(partial))


def _float32(values: ArrayLike | None, name: str) -> NDArray[np.float32] | None:
    return None if values is None else _columns.numbers(values, name).astype(np.float32, copy=False)
