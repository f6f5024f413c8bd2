"""Runs in Polars: `import agentrl_core.integrations.polars` gives frames a namespace `agentrl`, and `scan` reads a run.

    from agentrl_core.integrations.polars import scan

    run = scan("runs/demo")                                     # lazy frames of what is committed now
    failed = run.trajectories.filter(~pl.col("success"))
    failed.agentrl.paths(run)                                   # with all tokens of each
    failed.agentrl.steps(run)                                   # a row for each turn, with the tokens of its action
    run.draws.agentrl.tokens(run)                               # a row for each token of an action, with its advantage
    run.draws.agentrl.trajectories(run)                         # with task, reward, success
    failed.agentrl.paths(run).agentrl.text("runs/demo")         # as text, by the tokenizer that the run keeps
    failed.agentrl.chats(run, "runs/demo")                      # as messages
    run.trajectories.agentrl.group_relative("reward")           # with the advantage of GRPO

A method accepts any frame with its key column (`trajectory_id`, `draw_id` or `node_id`), even filtered and joined. It
keeps all columns and the order of rows, and adds columns. The result is a DataFrame or a LazyFrame like the input. If
the frame already has a column of the same name, the added column gets the prefix that the method documents.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from os import PathLike
from typing import Any, Generic, Literal, TypeVar

import numpy as np

from agentrl_core.exceptions import InvalidInputError, MissingDependencyError

try:
    import polars as pl
except ImportError as error:
    raise MissingDependencyError("agentrl_core.polars needs Polars: pip install 'agentrl-core[polars]'") from error

from agentrl_core import renames
from agentrl_core.advantage import group_relative
from agentrl_core.data.batch import Batch
from agentrl_core.data.forest import Forest
from agentrl_core.data.store import Store
from agentrl_core.integrations.polars import _stored_table, _texts, _token_frames
from agentrl_core.integrations.polars._code_names import named
from agentrl_core.integrations.polars._lazy_columns import WantedColumns, lazily
from agentrl_core.integrations.polars.tables import Tables
from agentrl_core.integrations.polars.vocabulary import Vocabulary

__all__ = ["example"]

Frame = TypeVar("Frame", pl.DataFrame, pl.LazyFrame)


Source = Tables | Store | Batch | str | PathLike[str]


def scan(source: Source) -> Tables:
    """Return the committed tables of a run as lazy frames, even while another process writes the run.

    Codes in the files become names in the frames: `pl.col("kind") == "action"`, `pl.col("status") == "finished"`
    (type `Enum`); `success`, `terminated`, `truncated`, `votes` and `trained` become booleans.

    A frame always reads the rows of this snapshot, even if the writer has merged their files since. If the writer has
    dropped iterations, collecting raises an error: scan again. A new call sees new commits. The manifest lists the
    files. From each file, only the blocks that can have rows of the filter are read, with their checksums verified.

    Args:
        source: the run's directory; or an open Store or Batch (or Tables, which are returned unchanged).

    Raises:
        NotFoundError: the directory has no store.
        CorruptError: the manifest is damaged; or, when rows are collected, the read part of a file.

    Example:
        >>> from agentrl_core.integrations.polars import example, scan
        >>> scan(example()).nodes.select("kind", "tokens").collect().rows()
        [('prompt', [1, 2]), ('action', [3, 4, 5]), ('action', [7])]
    """
    if isinstance(source, Tables):
        return source
    if isinstance(source, Batch):
        return Tables(**{field.name: named(_of_batch(source, field.name)) for field in fields(Tables)})
    store = source.snapshot() if isinstance(source, Store) else Store.open(source, read_only=True)
    empty = Batch.concat([])
    stored = {
        field.name: named(_stored_table.frame(store, field.name, _of_batch(empty, field.name)))
        for field in fields(Tables)
    }
    return Tables(**{**stored, "metrics": _measured(stored["metrics"])})


def example() -> Batch:
    """Return a small example batch: a trajectory, and a branch that forks after the first token of its action.

    Example:
        >>> from agentrl_core.integrations.polars import example
        >>> example()
        Batch(2 draws in 1 groups, 2 trajectories, 3 nodes)
    """
    forest = Forest()
    forest.add_group(0, "6*7")
    trunk = forest.start(0, member=0)
    forest.append(trunk, [1, 2], kind="prompt")
    action = forest.append(trunk, [3, 4, 5], kind="action", logprobs=[-0.25, -0.5, -0.125])
    branch = forest.fork(trunk, node=action, end=1)
    forest.append(branch, [7], kind="action", logprobs=[-2.0])
    for trajectory, reward in ((trunk, 1.0), (branch, 0.0)):
        forest.finish(trajectory, reward=reward, success=reward > 0)
    return forest.freeze().with_columns("draw", advantage=[0.5, -0.5])


def _of_batch(batch: Batch, name: str) -> pl.LazyFrame:
    if name == "metrics":
        return pl.LazyFrame(schema=_stored_table.METRICS)
    table = getattr(batch, name)
    return pl.LazyFrame(schema=_stored_table.KEYS[name]) if table is None else pl.DataFrame(table).lazy()


def _measured(metrics: pl.LazyFrame) -> pl.LazyFrame:
    """Return the metrics of a run with old names replaced by current ones."""

    def renamed(names: pl.Series) -> pl.Series:
        known = names.unique().drop_nulls().to_list()
        return names.replace(known, [renames.table().metric(name) for name in known])

    return metrics.with_columns(pl.col("name").map_batches(renamed, return_dtype=pl.String(), is_elementwise=True))


class _Namespace(Generic[Frame]):
    """Methods of the namespace `agentrl`, the same for DataFrames and LazyFrames."""

    def __init__(self, frame: Frame) -> None:
        self._frame: Any = frame

    def trajectories(self, source: Source) -> Frame:
        """Add to each row the columns of its trajectory, and the latest statistics of its task.

        Args:
            source: the run with the trajectories, see `scan`.

        Returns:
            The frame with the columns of `trajectories` (with the prefix `trajectory_` if the frame has the name) and
            `tasks` (with the prefix `task_`); null if there is no such trajectory or task.

        Raises:
            InvalidInputError: the frame has no column `trajectory_id`.

        Example:
            >>> from agentrl_core.integrations.polars import example, scan
            >>> run = scan(example())
            >>> run.draws.agentrl.trajectories(run).select("draw_id", "task_id", "reward").collect().rows()
            [(0, '6*7', 1.0), (1, '6*7', 0.0)]
        """
        tables = scan(source)

        def join(frame: pl.LazyFrame) -> pl.LazyFrame:
            facts = _renamed(tables.trajectories, frame, "trajectory_", keep=("trajectory_id",))
            tasks = tables.latest_tasks.select("task_id", pl.exclude("task_id").name.prefix("task_"))
            return frame.join(facts, on="trajectory_id", how="left", maintain_order="left").join(
                tasks, on="task_id", how="left", maintain_order="left"
            )

        return self._lazily(join, "trajectory_id")

    def nodes(self, source: Source) -> Frame:
        """Return a row for each node on the path of each row's trajectory, from the prompt to the leaf.

        To find the trajectories of a node, filter the result by `node_id`.

        Args:
            source: the run with the nodes and trajectories, see `scan`.

        Returns:
            The frame, `end` (i32, number of the node's tokens on this path, fewer than all if the branch forked inside
            the node), and the columns of `nodes` (with the prefix `node_` if the frame has the name).

        Raises:
            InvalidInputError: the frame has no column `trajectory_id`.
            NotFoundError: there is no such trajectory, or a node of its path is missing.

        Example:
            >>> from agentrl_core.integrations.polars import example, scan
            >>> run = scan(example())
            >>> nodes = run.trajectories.agentrl.nodes(run)
            >>> nodes.select("trajectory_id", "node_id", "end").collect().rows()
            [(0, 0, 2), (0, 1, 3), (1, 0, 2), (1, 1, 1), (1, 2, 1)]
        """
        return self._eagerly(_token_frames.path_nodes, source, "trajectory_id")

    def paths(self, source: Source) -> Frame:
        """Add to each row all tokens of its trajectory's path, from the prompt to the leaf.

        Args:
            source: the run with the nodes and trajectories, see `scan`.

        Returns:
            The frame and lists with a value for each token: `tokens` i32, `kinds` (prompt, action, observation,
            injected), `trainable` u8, `logprobs` f32 and `entropies` f32 (null if unknown), and the columns computed
            for stored tokens.

        Raises:
            InvalidInputError: the frame has no column `trajectory_id`, or has one that would be added.
            NotFoundError: there is no such trajectory, or a node of its path is missing.

        Example:
            >>> from agentrl_core.integrations.polars import example, scan
            >>> run = scan(example())
            >>> run.trajectories.agentrl.paths(run).select("tokens", "trainable").collect().rows()
            [([1, 2, 3, 4, 5], [0, 0, 1, 1, 1]), ([1, 2, 3, 7], [0, 0, 1, 1])]
        """
        return self._eagerly(_token_frames.paths, source, "trajectory_id")

    def steps(self, source: Source) -> Frame:
        """Return a row for each turn of each row's trajectory, with the tokens of its action.

        Args:
            source: the run with the nodes, steps and trajectories, see `scan`.

        Returns:
            The frame, the columns of `steps` (`reward` and `rewards` as `step_reward` and `step_rewards`, others with
            the prefix `step_` if the frame has the name), `start` (i32, position of the action's first token in
            the path), and lists as in `paths`: `tokens`, `kinds`, `trainable`, `logprobs`, `entropies`, … of the
            action. A trajectory without a step has no row.

        Raises:
            InvalidInputError: the frame has no column `trajectory_id`, or has one that would be added.
            NotFoundError: a node of an action is missing.

        Example:
            >>> from agentrl_core.integrations.polars import example, scan
            >>> run = scan(example())
            >>> run.draws.agentrl.steps(run).select("draw_id", "step", "start", "tokens").collect().rows()
            [(0, 0, 2, [3, 4, 5]), (1, 0, 2, [3, 7])]
        """
        return self._eagerly(_token_frames.steps, source, "trajectory_id")

    def computed(self, source: Source) -> Frame:
        """Add to each row the columns computed for it: advantages, weights, scores.

        Args:
            source: the run with the computed columns, see `scan`.

        Returns:
            The frame with the columns of `draw_columns` if it has `draw_id`, of `step_columns` if it also has `step`,
            of `node_columns` if it has `node_id` and no `step`; null if nothing was computed. If a draw and its steps
            have a column of the same name, the step's value is used, and the draw's if the step has none.

        Raises:
            InvalidInputError: the frame has neither `draw_id` nor `node_id`, or has a column that would be added.

        Example:
            >>> from agentrl_core.integrations.polars import example, scan
            >>> run = scan(example())
            >>> run.draws.agentrl.computed(run).select("draw_id", "advantage").collect().rows()
            [(0, 0.5), (1, -0.5)]
        """
        tables = scan(source)
        return self._lazily(lambda frame: _token_frames.computed(frame, tables), "draw_id", "node_id")

    def tokens(self, source: Source) -> Frame:
        """Return a row for each token of each action of each row's trajectory, with all computed columns.

        Args:
            source: the run with the nodes, steps, trajectories and computed columns, see `scan`.

        Returns:
            The columns of `steps` and `computed`, with a row for each token: lists become single values (`tokens`
            -> `token`, `kinds` -> `kind`, `logprobs` -> `logprob`, `entropies` -> `entropy`), values of draws and steps
            are repeated, and `token_position` (i32) is the token's position in the path.

        Raises:
            InvalidInputError: the frame has no column `trajectory_id`, or has one that would be added.
            NotFoundError: a node of an action is missing.

        Example:
            >>> from agentrl_core.integrations.polars import example, scan
            >>> run = scan(example())
            >>> tokens = run.draws.agentrl.tokens(run)
            >>> tokens.select("draw_id", "token_position", "token", "advantage").collect().rows()
            [(0, 2, 3, 0.5), (0, 3, 4, 0.5), (0, 4, 5, 0.5), (1, 2, 3, -0.5), (1, 3, 7, -0.5)]
        """
        return self._eagerly(_token_frames.tokens, source, "trajectory_id")

    def sequences(self, source: Source) -> Frame:
        """Return a row for each token sequence that a draw trains, ready for a trainer.

        A draw whose context only grows has one sequence, and one more for each time its context was rewritten. Steps
        whose contexts extend each other share a sequence, which ends with the last of their actions. So every trained
        token is in exactly one sequence.

        Args:
            source: the run with the nodes, steps, trajectories and computed columns, see `scan`.

        Returns:
            The frame, `sequence` (i32, number of the sequence in its draw), the columns computed for the draw, and
            lists as in `paths`, with `trainable` 0 outside the actions of the sequence's steps. Columns computed for
            steps or their tokens are lists too, null outside of them. A draw without a step has no row.

        Raises:
            InvalidInputError: the frame has no column `draw_id` or `trajectory_id`, or has one that would be added.
            NotFoundError: a node of a path is missing.

        Example:
            >>> from agentrl_core.integrations.polars import example, scan
            >>> run = scan(example())
            >>> run.draws.agentrl.sequences(run).select("tokens", "trainable", "advantage").collect().rows()
            [([1, 2, 3, 4, 5], [0, 0, 1, 1, 1], 0.5), ([1, 2, 3, 7], [0, 0, 1, 1], -0.5)]
        """
        self._require("draw_id")
        return self._eagerly(_token_frames.sequences, source, "trajectory_id")

    def text(self, tokenizer: Any) -> Frame:
        """Add the text of each row's column `tokens`, including markers of the template.

        Args:
            tokenizer: a run with its tokenizer (`"runs/demo"`), a `tokenizer.json`, its directory, or a fast tokenizer.

        Returns:
            The frame and `text`; an id that the tokenizer does not have becomes `<id>`.

        Raises:
            InvalidInputError: there is no such tokenizer, or the frame has no `tokens`, or has a column `text`.

        Example:
            >>> import polars as pl
            >>> from agentrl_core import env, warm_start
            >>> _, tokenizer = warm_start.build(env.ReasoningGym(["lcm"], seed=0, held_out=0), seed=0)
            >>> frame = pl.DataFrame({"tokens": [tokenizer("least common")["input_ids"]]})
            >>> frame.agentrl.text(tokenizer)["text"].to_list()
            ['least common']
        """
        vocabulary = Vocabulary.of(tokenizer)
        self._require("tokens")
        text_frame: Any
        if self._is_lazy():
            schema = {**self._frame.collect_schema(), "text": pl.String}
            text_frame = self._frame.map_batches(lambda frame: _texts.text(frame, vocabulary), schema=schema)
        else:
            text_frame = _texts.text(self._frame, vocabulary)
        result: Frame = text_frame
        return result

    def chats(self, source: Source, tokenizer: Any) -> Frame:
        """Add the messages of each row's trajectory, in the form for supervised fine-tuning.

        Args:
            source: the run with the nodes and trajectories, see `scan`.
            tokenizer: as for `text`.

        Returns:
            The frame and `messages`, a list of `role` and `content`: the prompt becomes a user's message, actions and
            injected tokens an assistant's, observations a tool's. Markers of the template are left out.

        Raises:
            InvalidInputError: there is no such tokenizer; the frame has no `trajectory_id`, or has a column `messages`.

        Example:
            >>> from agentrl_core.integrations.polars import example, scan
            >>> from agentrl_core.integrations.polars.vocabulary import Vocabulary
            >>> words = Vocabulary.from_bytes({1: b"6*", 2: b"7=", 3: b"4", 4: b"2", 5: b".", 7: b"6"}, special={5})
            >>> run = scan(example())
            >>> run.trajectories.agentrl.chats(run, words).collect()["messages"][0].to_list()
            [{'role': 'user', 'content': '6*7='}, {'role': 'assistant', 'content': '42'}]
        """
        vocabulary = Vocabulary.of(tokenizer)
        return self._eagerly(lambda frame, tables, _: _texts.chats(frame, tables, vocabulary), source, "trajectory_id")

    def group_relative(
        self, score: str = "reward", by: str = "group_id", *, name: str = "advantage", **options: Any
    ) -> Frame:
        """Add the number of standard deviations of each score above its group's mean (GRPO, arXiv:2402.03300).

        It calls `Expr.agentrl.group_relative`.

        Args:
            score: column of the scores.
            by: column of the group ids.
            name: name of the new column.
            options: options of `agentrl_core.advantage.group_relative`.

        Example:
            >>> import polars as pl
            >>> import agentrl_core.integrations.polars
            >>> frame = pl.DataFrame({"group_id": [7, 7, 8], "reward": [1.0, 0.0, 5.0]})
            >>> frame.agentrl.group_relative("reward", scale="none")["advantage"].to_list()
            [0.5, -0.5, 0.0]
        """
        result: Frame = self._frame.with_columns(_OfExpr(pl.col(score)).group_relative(by, **options).alias(name))
        return result

    def words(self) -> Frame:
        """Return a frame of a batch's table, or of the files, with names in place of codes, as in `scan`.

        It converts the columns `kind`, `status`, `finish_reason`, `origin`, `role`, `source`, `old_logprob`, `drift`
        and `operation`, and the booleans.

        Example:
            >>> import polars as pl
            >>> from agentrl_core.integrations.polars import example
            >>> pl.DataFrame(example().nodes).agentrl.words().select("kind", "finish_reason").rows()
            [('prompt', 'none'), ('action', 'none'), ('action', 'none')]
        """
        result: Frame = named(self._frame)
        return result

    def _lazily(self, work: Callable[[pl.LazyFrame], Any], *keys: str) -> Frame:
        self._require(*keys)
        lazy_result = work(self._frame.lazy())
        result: Frame = lazy_result if self._is_lazy() else lazy_result.collect()
        return result

    def _eagerly(self, work: Callable[[pl.DataFrame, Tables, WantedColumns], Any], source: Source, key: str) -> Frame:
        self._require(key)
        tables = scan(source)

        def schema() -> pl.Schema:
            nothing = Tables(**{field.name: getattr(tables, field.name).clear() for field in fields(Tables)})
            return pl.Schema(work(pl.DataFrame(schema=self._frame.collect_schema()), nothing, WantedColumns()).schema)

        result: Frame = (
            lazily(self._frame, schema(), lambda frame, wanted: work(frame, tables, wanted))
            if self._is_lazy()
            else work(self._frame, tables, WantedColumns())
        )
        return result

    def _is_lazy(self) -> bool:
        return isinstance(self._frame, pl.LazyFrame)

    def _require(self, *keys: str) -> None:
        names = self._frame.collect_schema().names()
        if not any(key in names for key in keys):
            kept = "this column" if len(keys) == 1 else "one of these"
            raise InvalidInputError(
                f"the frame has no column {' or '.join(keys)}; keep {kept} (the frame has {', '.join(names)})"
            )


def _renamed(added: pl.LazyFrame, frame: pl.LazyFrame, prefix: str, *, keep: tuple[str, ...]) -> pl.LazyFrame:
    existing = set(frame.collect_schema().names()).difference(keep)
    return added.rename({name: prefix + name for name in added.collect_schema().names() if name in existing})


@pl.api.register_dataframe_namespace("agentrl")
class _OfDataFrame(_Namespace[pl.DataFrame]):
    """Namespace `DataFrame.agentrl`."""


@pl.api.register_lazyframe_namespace("agentrl")
class _OfLazyFrame(_Namespace[pl.LazyFrame]):
    """Namespace `LazyFrame.agentrl`."""


@pl.api.register_expr_namespace("agentrl")
class _OfExpr:
    """Namespace `Expr.agentrl`."""

    def __init__(self, expression: pl.Expr) -> None:
        self._expression = expression

    def group_relative(
        self,
        by: str | pl.Expr = "group_id",
        *,
        scale: Literal["std", "none"] = "std",
        ddof: int = 1,
        eps: float = 1e-6,
        singleton: Literal["zero", "raw"] = "zero",
    ) -> pl.Expr:
        """Return the number of standard deviations of each score above the mean of its group.

        It uses the kernel of `agentrl_core.advantage.group_relative`, which documents the formula and the options. Rows
        whose score is null, NaN or infinite do not count, and get null.

        Args:
            by: the group ids.
            scale: `std` or `none`.
            ddof: the variance divides by (count - ddof); 0 or 1.
            eps: number added to the standard deviation.
            singleton: result of a group of one: `zero` or `raw`.

        Returns:
            f32 for f32 scores, otherwise f64.

        Example:
            >>> import polars as pl
            >>> import agentrl_core.integrations.polars
            >>> frame = pl.DataFrame({"group_id": ["a", "a", "a"], "reward": [1.0, 0.0, None]})
            >>> frame.select(pl.col("reward").agentrl.group_relative("group_id", scale="none"))["reward"].to_list()
            [0.5, -0.5, None]
        """
        score = self._expression / 1  # whole numbers become f64

        def kernel(columns: Any) -> pl.Series:
            scores = columns[0].to_numpy()
            valid = np.isfinite(scores)
            advantage = group_relative(
                scores, columns[1], scale=scale, ddof=ddof, eps=eps, singleton=singleton, valid=valid
            )
            return pl.Series(columns[0].name, np.where(valid, advantage, np.nan), nan_to_null=True)

        group = pl.col(by) if isinstance(by, str) else by
        return pl.map_batches([score, group], kernel, return_dtype=pl.dtype_of(score))
