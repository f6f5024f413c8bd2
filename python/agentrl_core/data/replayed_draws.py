"""`Draws`: stored trajectories that replay chose; `Contexts`: the tokens before each action."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agentrl_core.data.table_codes import CODES
from agentrl_core.exceptions import InvalidInputError

OldLogprob = Literal["behaviour", "recomputed", "none"]
"""Denominator of a draw's ratio: recorded when sampling, recomputed before the first update, or none (ratio 1)."""

Source = Literal["fresh", "replay", "expert", "failed", "imagined"]
"""Source of a draw."""


@dataclass(frozen=True, eq=False)
class Draws:
    """Draws of stored trajectories, one row each. `Draws.of` fills in defaults.

    Attributes:
        trajectory_ids: ids in the store; -1 - i repeats the trajectory of draw i of the batch itself.
        votes_in: the group of the batch in which each votes, or `Draws.OWN_GROUP`, or `Draws.NEW_GROUP`.
        new_group: rows with the same number share a new group.
        replaces: the draw of the batch that it replaces (which stays stored but is not drawn), or -1.
        votes: whether it counts in statistics.
        trained: whether losses train it.
        source: code of table `draws`.
        old_logprob: code of table `draws`: behaviour, recomputed or none.
        probability: probability of each draw, if known.
        columns: numbers of the draws by name.
        reason: reason for each draw, in words.

    Example:
        >>> import tempfile
        >>> import agentrl_core as arl
        >>> from agentrl_core.replay import Draws
        >>> def rollouts(iteration):
        ...     forest = arl.Forest(iteration=iteration)
        ...     forest.add_group(0, "task")
        ...     for member in range(2):
        ...         path = forest.start(0, member)
        ...         _ = forest.append(path, [1, 2], kind="prompt")
        ...         _ = forest.append(path, [3 + member], kind="action", logprobs=[-0.5])
        ...         forest.finish(path, reward=1.0 - iteration)
        ...     return forest.freeze()
        >>> store = arl.Store.open(tempfile.mkdtemp())
        >>> first = store.rebase(rollouts(0))
        >>> _ = store.append(first, iteration=0), store.close_iteration(first, {})
        >>> batch = rollouts(1)
        >>> draws = Draws.of([0], votes_in=batch.column("group_id", "draw")[:1], replaces=[1], reason="a success")
        >>> joined = batch.with_stored_draws(store.trajectory_batch([0]), draws)
        >>> joined.column("reward", "draw").tolist(), joined.column("source", "draw").tolist()
        ([0.0, 1.0], [0, 1])
    """

    OWN_GROUP: ClassVar[int] = -1
    """In `votes_in`: the original group of a trajectory, intact."""
    NEW_GROUP: ClassVar[int] = -2
    """In `votes_in`: a new group, by `new_group`."""

    trajectory_ids: NDArray[np.int64]
    votes_in: NDArray[np.int64]
    new_group: NDArray[np.int32]
    replaces: NDArray[np.int64]
    votes: NDArray[np.bool_]
    trained: NDArray[np.bool_]
    source: NDArray[np.uint8]
    old_logprob: NDArray[np.uint8]
    probability: NDArray[np.float64] | None = None
    columns: dict[str, NDArray[Any]] = field(default_factory=dict)
    reason: list[str] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        trajectory_ids: ArrayLike,
        *,
        votes_in: ArrayLike = -1,
        new_group: ArrayLike = 0,
        replaces: ArrayLike = -1,
        votes: ArrayLike = True,
        trained: ArrayLike = True,
        source: Source = "replay",
        old_logprob: OldLogprob = "behaviour",
        probability: ArrayLike | None = None,
        columns: dict[str, NDArray[Any]] | None = None,
        reason: str | Sequence[str] = "",
    ) -> Self:
        """Create draws; a single value applies to all rows, and names replace codes."""
        ids = np.asarray(trajectory_ids, np.int64).reshape(-1)

        def rows(name: str, value: ArrayLike, kind: type[np.generic]) -> NDArray[Any]:
            values = np.asarray(value, kind)
            if values.ndim and len(values) != len(ids):
                raise InvalidInputError(
                    f"{name} has {len(values)} values for {len(ids)} trajectory_ids; give one per row, or one for all"
                )
            return np.array(np.broadcast_to(values, ids.shape))

        return cls(
            trajectory_ids=ids,
            votes_in=rows("votes_in", votes_in, np.int64),
            new_group=rows("new_group", new_group, np.int32),
            replaces=rows("replaces", replaces, np.int64),
            votes=rows("votes", votes, np.bool_),
            trained=rows("trained", trained, np.bool_),
            source=rows("source", CODES["source"].index(source), np.uint8),
            old_logprob=rows("old_logprob", CODES["old_logprob"].index(old_logprob), np.uint8),
            probability=None if probability is None else rows("probability", probability, np.float64),
            columns=dict(columns or {}),
            reason=[reason] * len(ids) if isinstance(reason, str) else list(reason),
        )

    def __len__(self) -> int:
        """Number of draws."""
        return len(self.trajectory_ids)

    def columns_of_core(self) -> dict[str, Any]:
        """Return the columns besides the ids for the core."""
        count = len(self)
        types = {
            "votes_in": np.int64,
            "new_group": np.int32,
            "replaces": np.int64,
            "votes": np.bool_,
            "trained": np.bool_,
            "source": np.uint8,
            "old_logprob": np.uint8,
        }
        chances = np.full(count, np.nan) if self.probability is None else np.asarray(self.probability, np.float64)
        return {
            **{name: np.ascontiguousarray(getattr(self, name), kind) for name, kind in types.items()},
            "probability": np.ascontiguousarray(chances),
            "reason": self.reason or [""] * count,
            "columns": list(self.columns.items()),
        }


class Contexts(NamedTuple):
    """Contexts of actions: a draw has one, plus one for each rewrite of its history.

    Attributes:
        tokens: `int32[tokens]` of all contexts, each from its start to its last action, or to the trajectory's end.
        offsets: `int64[contexts + 1]`, the start of each in `tokens`.
        draws: `int64[contexts]`, the draw of each.
        steps: `int64[contexts + 1]`: context k is that of the rows `steps[k]:steps[k + 1]` at level `step`.
        begins: `int64[steps]`, number of context tokens before each step's action; -1: it has no tokens.
    """

    tokens: NDArray[np.int32]
    offsets: NDArray[np.int64]
    draws: NDArray[np.int64]
    steps: NDArray[np.int64]
    begins: NDArray[np.int64]
