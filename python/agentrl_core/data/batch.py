"""Batch: frozen, immutable data of one iteration's draws, in Arrow tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pickle import PickleBuffer
from typing import Any, Literal, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agentrl_core import _core
from agentrl_core._core import Plan, Table, Tree
from agentrl_core._util.json_text import to_json
from agentrl_core.data.replayed_draws import Contexts, Draws
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.operators.columns import column, doubles, flat, integers, mask

Level = Literal["draw", "step", "token", "node_token"]
Layout = Literal["sequence", "tree"]
Balance = Literal["tokens", "work"]


class Batch:
    """The rollouts of one training batch. It is immutable: methods that add data return a new Batch.

    The tables (`nodes`, `steps`, `trajectories`, `draws`, `tasks`, `decisions`) support the Arrow C stream interface,
    so `pl.DataFrame(batch.nodes)` works, without pyarrow. Numbers for training are columns at four levels:

    - `draw`: one value per draw, a use of a trajectory in this batch, in the order of the table `draws`;
    - `step`: one for each step of a draw (draws in order, each with its trajectory's steps in order);
    - `token`: one for each action token of a step of a draw;
    - `node_token`: one per stored token, even if several draws share it.

    Create one with `Forest.freeze`, `Store.batch` or `Batch.concat`. A Batch can be pickled.

    Example:
        >>> import agentrl_core as arl
        >>> forest = arl.Forest()
        >>> forest.add_group(0, "task")
        >>> trajectory = forest.start(0, member=0)
        >>> _ = forest.append(trajectory, [1, 2], kind="prompt")
        >>> _ = forest.append(trajectory, [3, 4], kind="action", logprobs=[-0.5, -0.1])
        >>> forest.finish(trajectory, reward=1.0)
        >>> batch = forest.freeze()
        >>> batch.column("token", "token").tolist(), batch.column("reward", "draw").tolist()
        ([3, 4], [1.0])
    """

    __slots__ = ("_core",)

    def __init__(self, core: _core.Batch) -> None:
        self._core = core

    @property
    def nodes(self) -> Table:
        """Nodes: runs of tokens from one source, each stored once."""
        return self._core.nodes

    @property
    def steps(self) -> Table:
        """Turns of trajectories: the nodes of the action, and the rewards."""
        return self._core.steps

    @property
    def trajectories(self) -> Table:
        """Agents' views of episodes: task, leaf of the tree, reward, status."""
        return self._core.trajectories

    @property
    def draws(self) -> Table:
        """Draws: the uses of trajectories in this batch."""
        return self._core.draws

    @property
    def tasks(self) -> Table:
        """Statistics of this batch's tasks, over the whole run."""
        return self._core.tasks

    @property
    def decisions(self) -> Table:
        """Decisions of programs during rollouts, so that a search can be replayed."""
        return self._core.decisions

    @property
    def reward_components(self) -> list[str] | None:
        """Names of the values in `rewards`, if the forest named them."""
        return self._core.reward_components

    @property
    def facts(self) -> dict[str, dict[str, str]]:
        """Facts of the environment: the kind of each by name, for `step` and `trajectory`."""
        return self._core.facts

    @property
    def entropies(self) -> str | None:
        """How entropies were estimated: `exact`, `top_10`, ..."""
        return self._core.entropies

    def blob(self, sha256: bytes) -> bytes:
        """Return the content of a blob, such as an image, by its hash in column `blobs` of `nodes`.

        The batch has the contents from `Forest.freeze` on, also when pickled. A batch from a store reads them from the
        store's files, one by one; pickled, it has none.

        Args:
            sha256: the 32 bytes of the hash.

        Raises:
            NotFoundError: the batch does not contain it.
            CorruptError: the content in the store differs from the stored one.

        Example:
            >>> import agentrl_core as arl
            >>> forest = arl.Forest()
            >>> forest.add_group(0, "task")
            >>> screenshot = forest.add_blob(b"a picture")
            >>> _ = forest.append(forest.start(0, 0), [7, 7], kind="prompt", blobs=[screenshot])
            >>> forest.abort()
            >>> forest.freeze().blob(screenshot)
            b'a picture'
        """
        return self._core.blob(sha256)

    def tree(self) -> Tree:
        """Return the token trees, with nodes identified by their ids. See `Tree` for columns and methods."""
        return self._core.tree()

    @property
    def draw_columns(self) -> Table | None:
        """Columns computed for draws, keyed by `draw_id`; None without any."""
        return self._core.draw_columns

    @property
    def step_columns(self) -> Table | None:
        """Columns computed for steps and (as lists) their tokens, keyed by `draw_id` and `step`."""
        return self._core.step_columns

    @property
    def node_columns(self) -> Table | None:
        """Columns computed for stored tokens (as lists), keyed by `node_id`."""
        return self._core.node_columns

    @property
    def num_draws(self) -> int:
        """Number of draws."""
        return self._core.num_draws

    @property
    def num_groups(self) -> int:
        """Number of groups that the draws belong to."""
        return len(np.unique(self.keys("group_id", "draw")))

    @property
    def sharing_ratio(self) -> float:
        """Tokens of the drawn paths over stored tokens: 1 without sharing, 2 if every token is on two paths."""
        return self._core.path_tokens / max(self._core.level_len("node_token"), 1)

    def column(self, name: str, level: Level) -> NDArray[Any]:
        """Return a column as a new NumPy array.

        A computed column of that level comes first, then one of a level above (broadcast downwards), then the facts:
        at `draw` the columns of `draws` and `trajectories`, at `step` those of `steps`, at both `reward.<name>` (a
        component of `rewards` that the forest gave a name, of the trajectory or the step) and the facts that the forest
        declares (`facts`; those of trajectories at `step` and `token` too), at `token` and `node_token`:
        `token` i32, `behaviour_logprob` f32, `entropy` f32, `trainable` u8, `inverse_temperature` f32,
        `policy_version` i64; at `token` also `node_token` i64 (index into that level) and `position` i32 (in the path).
        Both have the token columns that a forest recorded (`Forest.append`), too. Where a token has no row they hold
        the greatest number of an unsigned type, -1, or NaN, and `<name>.known` (uint8) is 0.

        Args:
            name: name of the column.
            level: `draw`, `step`, `token` or `node_token`.

        Returns:
            One value for each row of the level, or `[rows, width]`. Unknown floats are NaN.

        Raises:
            NotFoundError: the column does not exist; the message lists computed columns.
            InvalidInputError: the column is text or has unknown integers; use `keys`, or read its table.
        """
        return self._core.column(name, level)

    def keys(self, name: str, level: Level) -> NDArray[np.uint32]:
        """Return dense ids 0 … k-1 of an id, key or text column, in order of first appearance: `uint32[rows]`.

        A computed column comes first, as in `column`. A missing key of the environment (`facts`) equals no other: its
        trajectory or step is a separate group.

        Raises:
            NotFoundError: the column does not exist.
            InvalidInputError: the column has floats or nulls.
        """
        return self._core.keys(name, level)

    def texts(self, name: str, level: Literal["draw", "step"]) -> list[str]:
        """Return a text column of the tables, such as `task_id`, for keys that are valid beyond the batch.

        Raises:
            NotFoundError: the column does not exist.
            InvalidInputError: the column is not text, or has nulls.
        """
        return self._core.texts(name, level)

    def offsets(self, level: Literal["step", "token", "node_token"]) -> NDArray[np.int64]:
        """Return offsets of a level's rows in the level above: steps in draws, tokens in steps, tokens in nodes."""
        return self._core.offsets(level)

    def has(self, name: str, level: Level) -> bool:
        """Return whether `column(name, level)` finds a column."""
        return self._core.has(name, level)

    def with_columns(self, level: Level, **columns: ArrayLike) -> Batch:
        """Return the batch with computed columns: one value per row of the level, floats or integers.

        A name is unique: it replaces an earlier column at any level. Columns of tokens may also be Arrow or Polars
        columns of lists: one list per step of a draw (`token`) or per node (`node_token`). At `node_token` a column may
        have several values for each token, `[rows, k]`, such as a teacher's likeliest tokens: in tables it is a list of
        lists of size k, and `column` returns `[rows, k]`.

        Raises:
            InvalidInputError: a column has another length or type, or the name of a key (`draw_id`, `step`, `node_id`).
        """
        read = column
        if level in ("token", "node_token"):
            dimensions = (1, 2) if level == "node_token" else (1,)
            read = partial(flat, offsets=self.offsets(level), dimensions=dimensions)
        arrays = {
            name: read(values, name if name.strip() and name.isprintable() else f"the column of name {name!r}")
            for name, values in columns.items()
        }
        return Batch(self._core.with_columns(level, **arrays))

    def with_recipe(self, recipe: str, options: str | Mapping[str, Any]) -> Batch:
        """Return the batch with a record of the recipe that computed its columns; the record is saved with them."""
        text = options if isinstance(options, str) else to_json(options, "options")
        return Batch(self._core.with_source(recipe, text))

    @property
    def state(self) -> dict[str, Any]:
        """States of the components that made the computed columns, by place; see `StatefulComponent`."""
        found: dict[str, Any] = json.loads(self._core.state or "{}")
        return found

    def with_state(self, state: Mapping[str, Any]) -> Batch:
        """Return the batch with another component state, a table of plain values that JSON can represent."""
        try:
            text = json.dumps(state)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidInputError(
                f"state cannot be saved as JSON: {error}; give numbers, texts, lists and dicts of them"
            ) from None
        return Batch(self._core.with_state(text))

    def select_draws(self, indices: ArrayLike) -> Batch:
        """Return the batch with only some draws, in the given order; all nodes, steps and trajectories stay.

        Args:
            indices: integers, each draw at most once; for a mask use `np.flatnonzero(mask)`.

        Raises:
            InvalidInputError: a draw does not exist, or is given twice.
        """
        return Batch(self._core.select_draws(integers(indices, "indices")))

    def token_weights(
        self,
        draws: ArrayLike,
        *,
        denominator: str = "token_mean",
        constant: float | None = None,
        shared: str = "each",
        valid: ArrayLike | None = None,
        keep: ArrayLike | None = None,
    ) -> NDArray[np.float64]:
        """Return loss weights of the action tokens in an update: `float64[tokens]`, zero for untrained tokens.

        With m = trainable · keep · share, share = 1 (`each`), 1 / number of these draws that train the same stored
        token (`split`), or 1 in the first of them only (`owner`), and K draws with sum m > 0:

        - `token_mean`: m / sum of m over all tokens;
        - `sequence_mean`: m / sum of m in its draw / K;
        - `sequence_mean_sum`: m / sum of m in its draw / constant, 1 if none is given (OTM of DCPO, arXiv:2509.02333);
        - `turn_mean`: m / sum of m in its turn / turns of its draw / K; `step_mean`: m / sum of m in its turn / turns;
        - `episode_mean`: m / sum of m in its episode / episodes: trajectories of one episode count as one;
        - `constant`: m / (constant · K) (Dr. GRPO, arXiv:2503.20783).

        Args:
            draws: indices of the update's draws.
            denominator: one of these.
            constant: for `constant`, which needs it, and `sequence_mean_sum`.
            shared: `each`, `split` or `owner`.
            valid: `bool[draws of the batch]`; others neither train nor count. None: all.
            keep: `bool[action tokens of the batch]`; others neither train nor count. None: all.

        Raises:
            InvalidInputError: a draw does not exist or is given twice, a mask has another length, or an option is not
                possible.
        """
        return self._core.token_weights(
            integers(draws, "draws"),
            denominator=denominator,
            constant=constant,
            shared=shared,
            valid=mask(valid, "valid"),
            keep=mask(keep, "keep"),
        )

    def plan(
        self,
        draws: ArrayLike,
        max_tokens: int,
        *,
        layout: Layout = "sequence",
        unit_of: ArrayLike | None = None,
        trained: ArrayLike | None = None,
        fold: Sequence[NDArray[np.float32]] | None = None,
        shards: int | None = None,
        balance: Balance = "tokens",
    ) -> Plan:
        """Plan packs of at most `max_tokens` tokens for the paths of some draws, first-fit decreasing by length.

        A path ends with its last trained token, which is predicted but not an input. Each trained token has one
        prediction pair; `pack.token` is its index at level `token`.

        In the layout `sequence` each path is separate. In the layout `tree` common prefixes occur once, even if stored
        several times. Paths are sorted lexicographically, so that tokens are depth-first and row `q` attends to row `k`
        if and only if `k <= q < pack.subtree_end[k]`. A tree with more than `max_tokens` tokens is split over several
        packs, each with the shared prefix of its branches.

        Args:
            draws: indices of draws.
            max_tokens: largest number of tokens of a pack; at least the longest path or unit.
            layout: `sequence` or `tree`.
            unit_of: the unit of each draw of the batch, integers: the draws of one unit are in one pack. None: each
                path may be in any pack.
            trained: `bool[action tokens of the batch]`, the predicted tokens. None: the trainable ones.
            fold: columns of action tokens, float32: identical trained tokens (in layout `tree` with equal prefixes, in
                `sequence` stored once) with equal values in all columns are one pair. None: each is a separate pair.
            shards: number of ranks that run packs at the same time: pack `round * shards + rank` is for a rank in a
                round, and some packs may have no pairs. None: one.
            balance: cost of a row when packs are distributed to ranks; see `Update.pack`.

        Returns:
            The packs, to iterate over or to index; the arrays of each are created on access.

        Raises:
            InvalidInputError: a path or unit is longer than `max_tokens`, a draw does not exist or is given twice, or a
                column has another length.

        Example:
            >>> import agentrl_core as arl
            >>> forest = arl.Forest()
            >>> forest.add_group(0, "task")
            >>> trunk = forest.start(0, member=0)
            >>> _ = forest.append(trunk, [1, 2], kind="prompt")
            >>> branch = forest.fork(trunk)
            >>> for trajectory, tokens in ((trunk, [3, 4]), (branch, [5, 6])):
            ...     _ = forest.append(trajectory, tokens, kind="action", logprobs=[-0.5, -0.1])
            ...     forest.finish(trajectory, reward=1.0)
            >>> (pack,) = forest.freeze().plan([0, 1], max_tokens=100, layout="tree")
            >>> pack.input_ids.tolist(), pack.position_ids.tolist(), pack.subtree_end.tolist()
            ([1, 2, 3, 5], [0, 1, 2, 2], [4, 4, 3, 4])
            >>> pack.source_row.tolist(), pack.target.tolist()
            ([1, 2, 1, 3], [3, 4, 5, 6])
        """
        return self._core.plan(
            integers(draws, "draws"),
            max_tokens,
            layout=layout,
            unit_of=None if unit_of is None else integers(unit_of, "unit_of"),
            trained=mask(trained, "trained"),
            fold=fold,
            shards=shards,
            balance=balance,
        )

    def contexts(self) -> Contexts:
        """Return the contexts of the draws' actions: one of each draw, plus one for each rewrite of its history.

        Example:
            >>> import agentrl_core as arl
            >>> forest = arl.Forest()
            >>> forest.add_group(0, "task")
            >>> trajectory = forest.start(0, member=0)
            >>> _ = forest.append(trajectory, [1, 2], kind="prompt")
            >>> _ = forest.append(trajectory, [3, 4], kind="action", logprobs=[-0.5, -0.1])
            >>> forest.finish(trajectory, reward=1.0)
            >>> contexts = forest.freeze().contexts()
            >>> contexts.tokens.tolist(), contexts.begins.tolist()
            ([1, 2, 3, 4], [2])
        """
        tokens, columns = self._core.contexts()
        return Contexts(tokens, *columns)

    def locate_tokens(self, tokens: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return for each action token its draw, the row of its step at level `step`, and its position in the action.

        Args:
            tokens: indices at level `token`, such as `pack.token`, the first token of each prediction pair.

        Raises:
            InvalidInputError: a token does not exist.

        Example:
            >>> import agentrl_core as arl
            >>> forest = arl.Forest()
            >>> forest.add_group(0, "task")
            >>> trajectory = forest.start(0, member=0)
            >>> _ = forest.append(trajectory, [1, 2], kind="prompt")
            >>> _ = forest.append(trajectory, [3, 4], kind="action", logprobs=[-0.5, -0.1])
            >>> forest.finish(trajectory, reward=1.0)
            >>> batch = forest.freeze()
            >>> (pack,) = batch.plan([0], max_tokens=100)
            >>> [rows.tolist() for rows in batch.locate_tokens(pack.token)]
            [[0, 0], [0, 0], [0, 1]]
        """
        indices = integers(tokens, "tokens")
        of_steps, of_draws = self.offsets("token"), self.offsets("step")
        beyond = np.flatnonzero((indices < 0) | (indices >= of_steps[-1]))
        if len(beyond):
            raise InvalidInputError(
                f"tokens[{beyond[0]}] is {indices[beyond[0]]}, but the batch has {of_steps[-1]} action tokens; give "
                f"row numbers of its level 'token', at least 0 and below {of_steps[-1]}"
            )
        steps = np.searchsorted(of_steps, indices, side="right") - 1
        draws = np.searchsorted(of_draws, steps, side="right") - 1
        return draws, steps, indices - of_steps[steps]

    @staticmethod
    def concat(parts: Iterable[Batch]) -> Batch:
        """Concatenate the rows of several batches; ids of each part's new rows follow those of earlier parts.

        Rows of a store keep their ids and occur once, even if several parts contain them. Task statistics of
        independent collectors are added up in iteration 0.

        Raises:
            InvalidInputError: two parts have task statistics of one later iteration, each the totals of its own run,
                which do not add up; or the columns of the parts do not fit together.
        """
        return Batch(_core.Batch.concat([part._core for part in parts]))

    def with_draws(
        self,
        trajectory_ids: ArrayLike,
        *,
        group_ids: ArrayLike | None = None,
        source: Literal["fresh", "replay", "expert", "failed", "imagined"] = "replay",
        probability: ArrayLike | None = None,
        old_logprob: Literal["behaviour", "recomputed", "none"] = "behaviour",
        reason: str | None = None,
        iteration: int | None = None,
    ) -> Batch:
        """Return the batch with more draws of its trajectories, after the existing draws.

        One trajectory can be drawn into several groups and iterations; its tokens are stored once. Columns computed for
        draws, their steps and tokens do not cover new draws and are removed.

        Args:
            trajectory_ids: `int64[draws]`, from table `trajectories` of this batch.
            group_ids: the group in which each draw votes, `int64[draws]`; None: that of its trajectory.
            source: source of the trajectories.
            probability: probability of each draw, `float64[draws]`, if known.
            old_logprob: denominator of the ratio: as sampled, recomputed with the policy before the update, or none.
            reason: reason in words.
            iteration: the iteration that trains on the draws; None: that of the existing draws.

        Raises:
            InvalidInputError: the batch does not have a trajectory, a length differs, or `iteration` is missing.
        """
        groups = None if group_ids is None else integers(group_ids, "group_ids")
        for name, wrong in (("group_ids", groups), ("iteration", iteration)):
            found = np.atleast_1d([] if wrong is None else wrong)
            if len(found) and not 0 <= min(found) <= max(found) < 1 << 62:
                row = next(row for row, value in enumerate(found) if not 0 <= value < 1 << 62)
                place = name if name == "iteration" else f"{name}[{row}]"
                raise InvalidInputError(f"{place} is {str(found[row])[:80]}; give whole numbers from 0 to 2^62 - 1")
        chances = None if probability is None else doubles(probability, "probability")
        return Batch(
            self._core.draw(
                integers(trajectory_ids, "trajectory_ids"),
                group_ids=groups,
                source=source,
                probability=chances,
                old_logprob=old_logprob,
                reason=reason,
                iteration=iteration,
            )
        )

    def with_stored_draws(self, stored: Batch, draws: Draws) -> Batch:
        """Return the batch with draws of stored trajectories.

        Rows of the store are appended. A replaced draw is removed, its trajectory stays. Columns of draws are kept,
        with missing values (NaN, -1) in the new ones; those of steps and tokens are removed.

        Args:
            stored: `store.trajectory_batch(ids)` with the drawn trajectories.
            draws: output of phase replay; see the example of `Draws`.

        Raises:
            InvalidInputError: lengths differ, a trajectory, group or draw does not exist, a stored group is already in
                the batch, two draws replace the same one, or a draw with old log-probs `behaviour` trains tokens that
                were not sampled.
        """
        ids = np.ascontiguousarray(draws.trajectory_ids, np.int64)
        return Batch(self._core.join(stored._core, ids, **draws.columns_of_core()))

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Callable[[list[Any]], Batch], tuple[list[Any]]]:
        """Pickle as Arrow IPC files, from protocol 5 on with out-of-band buffers."""
        parts = self._core.to_bytes()
        buffers = [PickleBuffer(part.data) if protocol.__index__() >= 5 else part.tobytes() for part in parts]
        return _from_bytes, (buffers,)

    def __repr__(self) -> str:
        """Show the sizes of the batch."""
        return (
            f"Batch({self.num_draws} draws in {self.num_groups} groups, {len(self.trajectories)} trajectories, "
            f"{len(self.nodes)} nodes)"
        )


def _from_bytes(parts: list[Any]) -> Batch:
    return Batch(_core.Batch.from_bytes([np.frombuffer(part, np.uint8) for part in parts]))
