"""Operations that derive a trajectory of a forest from another one, or remove one; no tokens are ever lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.data.batch import Batch
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.operators import columns

Tokens = Sequence[int] | NDArray[np.int32] | NDArray[np.int64]
Floats = Sequence[float] | NDArray[np.float32] | NDArray[np.float64]


MOST_FORKS = 1 << 20
"""How many ways one call forks: each takes memory."""


class ForestCore(Protocol):
    """Interface of `Forest` for its methods in other files."""

    _core: _core.Forest


def adopt(
    forest: ForestCore,
    group: int,
    batch: Batch,
    trajectory_id: int,
    *,
    source: Literal["replay", "expert", "failed", "imagined"] | None = None,
) -> int:
    """Add a stored trajectory to the tree of a live group, and return its handle.

    Its row, its steps and the nodes of its paths keep their ids and are part of the frozen batch; new rows get later
    numbers. It can be forked at any token and spliced. `fork(handle)` resumes a partial trajectory: it inherits its
    steps and continues its unfinished action.

    Args:
        group: number of the group.
        batch: a batch that holds the trajectory, from a store.
        trajectory_id: its id there.
        source: source of its draw in the frozen batch, as a member of the group; None: no draw.

    Raises:
        NotFoundError: the group or trajectory does not exist.
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
    return forest._core.adopt(group, batch._core, trajectory_id, source=source)


@overload
def fork(
    forest: ForestCore,
    trajectory: int,
    *,
    node: int | None = ...,
    end: int | None = ...,
    count: None = ...,
    ordinal: int | None = ...,
    train_prefix: bool = ...,
    episode: int | None = ...,
) -> int: ...


@overload
def fork(
    forest: ForestCore,
    trajectory: int,
    *,
    node: int | None = ...,
    end: int | None = ...,
    count: int,
    ordinal: int | None = ...,
    train_prefix: bool = ...,
    episode: int | None = ...,
) -> list[int]: ...


def fork(
    forest: ForestCore,
    trajectory: int,
    *,
    node: int | None = None,
    end: int | None = None,
    count: int | None = None,
    ordinal: int | None = None,
    train_prefix: bool = True,
    episode: int | None = None,
) -> int | list[int]:
    """Start a trajectory that shares a prefix with another one, and return its handle.

    The other one may be running, ended, pruned, rolled back or adopted: all its tokens still exist.

    Args:
        trajectory: the one to share with.
        node: last shared node; None: the whole path so far. Where the context was rewritten and several contexts
            hold the node, the earliest counts.
        end: how many of that node's tokens are shared; None: all.
        count: fork so many ways, at most 2^20, and return a list; None: one way.
        ordinal: number of the (first) fork among those that leave the trajectory at the same token, which gives it
            its seeds and its place among the rows. None: in order of arrival for seeds, by content for rows; give
            one where several threads fork at the same place and seeds must not depend on which comes first.
        train_prefix: whether the steps that are inherited count as this branch's to train. False: they carry flag
            `UNTRAINED` here, and here alone: a correction is learned, not the mistake before it, which the branch that
            made it trains or not as ever, and so does a fork of this branch. An action that the fork cuts in two is a
            step of the branch itself, and is trained whole.
        episode: a trajectory of the group whose episode it is part of, where several agents play one that was forked;
            None: it begins one.

    Raises:
        InvalidInputError: `end` exceeds the path's tokens of the node, the ordinal is taken, or the episode is of
            another group.
        NotFoundError: the trajectory does not exist, or the node is not on its path.

    Example:
        >>> import agentrl_core as arl
        >>> forest = arl.Forest()
        >>> forest.add_group(0, "task")
        >>> trunk = forest.start(0, 0)
        >>> node = forest.append(trunk, [1, 2, 3], kind="prompt")
        >>> [forest.tokens(way).tolist() for way in forest.fork(trunk, node=node, end=2, count=2)]
        [[1, 2], [1, 2]]
        >>> wrong = forest.append(trunk, [4], kind="action", logprobs=[-0.5])
        >>> forest.finish(trunk, reward=0.0)
        >>> mended = forest.fork(trunk, train_prefix=False)
        >>> _ = forest.append(mended, [5], kind="observation")
        >>> _ = forest.append(mended, [6], kind="action", logprobs=[-0.5])
        >>> forest.finish(mended, reward=1.0)
        >>> forest.abort()
        >>> batch = forest.freeze()
        >>> batch.column("token", "token").tolist(), batch.column("trainable", "token").tolist()
        ([4, 4, 6], [1, 0, 1])
    """
    if count is not None and count > MOST_FORKS:
        raise InvalidInputError(f"count is {str(count)[:40]}; fork at most {MOST_FORKS} ways at a time")
    ways = forest._core.fork(
        trajectory,
        node=node,
        end=end,
        count=1 if count is None else count,
        ordinal=ordinal,
        train_prefix=train_prefix,
        episode=episode,
    )
    return ways[0] if count is None else ways


def splice(
    forest: ForestCore,
    prefix: int,
    suffix: int,
    *,
    from_node: int,
    start: int = 0,
    node: int | None = None,
    end: int | None = None,
) -> int:
    """Start a trajectory from the prefix of one and the suffix of another of the same group, and return its handle.

    The suffix is copied: nodes of the same kinds with `origin_node_id` and without log-probs, because they were not
    sampled after this prefix, and its steps with their rewards. The trajectory keeps running.

    Args:
        prefix: the trajectory with the shared prefix.
        suffix: the trajectory with the copied suffix.
        from_node: first copied node, on the path of `suffix`.
        start: number of its tokens to skip.
        node: last shared node of `prefix`; None: all of its path so far.
        end: number of shared tokens of that node; None: all.

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
    return forest._core.splice(prefix, node, end, suffix, from_node, start)


def with_prompt(
    forest: ForestCore,
    trajectory: int,
    tokens: Tokens,
    *,
    blobs: Sequence[bytes] | None = None,
    state: bytes | str | None = None,
) -> int:
    """Copy the actions of a trajectory after another prompt, and return the handle of the new trajectory.

    Use it to train actions sampled with a demonstration or a hint as if they were sampled without. All nodes from the
    first action on are copied as by `splice`: with the same kinds and `origin_node_id`, but without log-probs, because
    they were not sampled after this prompt (`old_logprob` is `none` until they are recomputed), and with the steps and
    rewards. The trajectory keeps running; `parent_trajectory` names the old one, which does not change.

    Args:
        trajectory: handle, running or ended.
        tokens: the other prompt, at least one token.
        blobs: blobs of its tokens, such as images, by the hash from `add_blob`.
        state: identity of the state before the first action; None: unchanged.

    Raises:
        InvalidInputError: the trajectory has no action yet, or its context was rewritten.

    Example:
        >>> import agentrl_core as arl
        >>> forest = arl.Forest()
        >>> forest.add_group(0, "task")
        >>> shown = forest.start(0, 0)
        >>> _ = forest.append(shown, [7, 7, 7, 1], kind="prompt")    # a demonstration, then the task
        >>> _ = forest.append(shown, [2, 3], kind="action", logprobs=[-0.5, -0.5])
        >>> forest.finish(shown, reward=1.0)
        >>> forest.tokens(forest.with_prompt(shown, [1])).tolist()
        [1, 2, 3]
    """
    key = None if state is None else columns.as_bytes(state, "state")
    return forest._core.under(trajectory, tokens, None if blobs is None else list(blobs), key)


def rollback(forest: ForestCore, trajectory: int, node: int, end: int | None = None) -> int:
    """Go back to an earlier token, and return the handle of the trajectory that continues from it.

    The abandoned trajectory stays in the files, pruned as "rolled back".

    Args:
        trajectory: handle.
        node: the last node to keep.
        end: number of its tokens to keep; None: all.

    Raises:
        InvalidInputError: the trajectory is pruned (fork it) or adopted.

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
    return forest._core.rollback(trajectory, node, end)


def replace(forest: ForestCore, trajectory: int, by: int) -> None:
    """Replace this trajectory by another one of the group; this one stays in the files, pruned.

    Its `info` is `{"replaced_by": trajectory_id, ...}`.

    Example:
        >>> import agentrl_core as arl
        >>> forest = arl.Forest()
        >>> forest.add_group(0, "task")
        >>> first, better = forest.start(0, 0), forest.start(0, 1)
        >>> forest.replace(first, by=better)
    """
    forest._core.replace(trajectory, by)


def rewrite(
    forest: ForestCore,
    trajectory: int,
    tokens: Tokens,
    *,
    images: Sequence[tuple[int, bytes]] = (),
    state: bytes | str | None = None,
) -> int:
    """Change the context of a trajectory (memory, summary, window, sub-agent), and return the number of shared tokens.

    The context forks from the trajectory's path at the first differing token. Its rest is one node of kind `injected`:
    repeated generated text is not trained again. Earlier steps keep their context, and the trajectory trains as one
    sequence per context.

    Args:
        trajectory: handle; an open action is closed.
        tokens: the whole context, at least one token.
        images: images that the context shows, in order: the place of the first token of each, and its hash from
            `add_blob`. A node with images is shared whole, with the same images, or not at all.
        state: identity of the next state; None: unchanged.

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
    key = None if state is None else columns.as_bytes(state, "state")
    return forest._core.rewrite(trajectory, tokens, list(images), key)


def prune(forest: ForestCore, trajectory: int, reason: str, *, gradient_only: bool = False) -> None:
    """Remove a trajectory from training; its tokens stay in the files, with the reason in `info`.

    Args:
        trajectory: handle, running or ended.
        reason: the reason.
        gradient_only: whether it continues, is drawn and votes in its group's statistics, and only its tokens are not
            trained (flag `UNTRAINED` on its steps). Other branches train the tokens that it shares.

    Raises:
        InvalidInputError: the trajectory is adopted: stored trajectories never change.
    """
    forest._core.prune(trajectory, reason, gradient_only=gradient_only)
