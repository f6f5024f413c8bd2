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

A method takes any frame that has its key column (`trajectory_id`, `draw_id` or `node_id`), filtered and joined as you
like, keeps the order of its rows and all its columns, and adds columns. Of a DataFrame it makes a DataFrame, of a
LazyFrame a LazyFrame. Where a name is taken by the frame, the added column gets the prefix that the method documents.
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
from agentrl_core.integrations.polars import _stored, _texts, _token_frames
from agentrl_core.integrations.polars._names import named
from agentrl_core.integrations.polars._wanted import WantedColumns, lazily
from agentrl_core.integrations.polars.tables import Tables
from agentrl_core.integrations.polars.vocabulary import Vocabulary

__all__ = ["example"]

Frame = TypeVar("Frame", pl.DataFrame, pl.LazyFrame)


Source = Tables | Store | Batch | str | PathLike[str]


def scan(source: Source) -> Tables:
    """Scan the committed tables of a run as lazy frames. Works while another process writes the run.

    Where the files have codes, the frames have names: `pl.col("kind") == "action"`, `pl.col("status") == "finished"`
    (types `Enum`); `success`, `terminated`, `truncated`, `votes` and `trained` are truth values.

    A frame reads the same rows whenever it is collected, from the files where they are then: the writer may have merged
    them. (Where it has dropped iterations since, collecting raises an error: scan again.) A new call sees new
    commits. Files are named by the manifest, not by a pattern; of a file the blocks are read that can have rows of the
    filter, and compared with their checksums.

    Args:
        source: the run's directory; or a Store or Batch that is open (or Tables, which come back as they are).

    Raises:
        NotFoundError: the directory holds no store.
        CorruptError: its manifest is damaged; or, when rows are collected, what is read of a file.

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
        field.name: named(_stored.frame(store, field.name, _of_batch(empty, field.name))) for field in fields(Tables)
    }
    return Tables(**{**stored, "metrics": _measured(stored["metrics"])})


def example() -> Batch:
    """Return a small batch to try things on: a trajectory, and a branch of it that left after the action's first token.

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
        return pl.LazyFrame(schema=_stored.METRICS)
    table = getattr(batch, name)
    return pl.LazyFrame(schema=_stored.KEYS[name]) if table is None else pl.DataFrame(table).lazy()


def _measured(metrics: pl.LazyFrame) -> pl.LazyFrame:
    """Return the metrics of a run with the names of today."""

    def renamed(names: pl.Series) -> pl.Series:
        known = names.unique().drop_nulls().to_list()
        return names.replace(known, [renames.table().metric(name) for name in known])

    return metrics.with_columns(pl.col("name").map_batches(renamed, return_dtype=pl.String(), is_elementwise=True))


class _Namespace(Generic[Frame]):
    """Methods of the frames of a run; the same for a DataFrame and a LazyFrame."""

    def __init__(self, frame: Frame) -> None:
        self._frame: Any = frame

    def trajectories(self, source: Source) -> Frame:
        """Each row with the facts of its trajectory, and the latest statistics of its task.

        Args:
            source: where the trajectories are.

        Returns:
            The frame and the columns of `trajectories` (with the prefix `trajectory_` where the frame has the name) and
            `tasks` (with the prefix `task_`); null where there is no such trajectory or task.

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

        This is also the way from a node to its trajectories: filter what comes out by `node_id`.

        Args:
            source: where the nodes and trajectories are.

        Returns:
            The frame, `end` (i32, how many of the node's tokens lie on this path: fewer than all where a branch left in
            its middle), and the columns of `nodes` (with the prefix `node_` where the frame has the name).

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
        """Each row with all tokens of its trajectory's path, from the prompt to the leaf.

        Args:
            source: where the nodes and trajectories are.

        Returns:
            The frame and lists of one length, a value for each token: `tokens` i32, `kinds` (prompt, action,
            observation, injected), `trainable` u8, `logprobs` f32 and `entropies` f32 (null where not known), and
            the columns computed for stored tokens.

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
            source: where the nodes, steps and trajectories are.

        Returns:
            The frame, the columns of `steps` (its `reward` and `rewards` as `step_reward` and `step_rewards`, others
            with the prefix `step_` where the frame has the name), `start` (i32, position of the action's first token in
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
        """Each row with what was computed for it: advantages, weights, scores.

        Args:
            source: where the computed columns are.

        Returns:
            The frame and those of `draw_columns` if it has `draw_id`, of `step_columns` if it has `step` too, of
            `node_columns` if it has `node_id` and no `step`; null where nothing was computed. Where a draw and its
            steps have a column of one name, that of the step counts, and that of the draw where there is none.

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
        """Return a row for each token of each action of each row's trajectory, with all that was computed for it.

        Args:
            source: where the nodes, steps, trajectories and computed columns are.

        Returns:
            The columns of `steps` and `computed`, with a row for each token: the lists become single values (`tokens`
            -> `token`, `kinds` -> `kind`, `logprobs` -> `logprob`, `entropies` -> `entropy`), those of draws and steps
            are repeated, and `token_position` (i32) is the token's place in the path.

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
        """Return a row for each token sequence that a draw trains: what to hand to a trainer.

        That is one for a draw whose context only grows, and one more each time its context was rewritten: steps whose
        contexts extend each other share a sequence, which ends with the action of the last of them. So every trained
        token is in one sequence.

        Args:
            source: where the nodes, steps, trajectories and computed columns are.

        Returns:
            The frame, `sequence` (i32, which of the draw's), what was computed for the draw, and lists of one length as
            in `paths`, with `trainable` 0 outside the actions of the sequence's steps; what was computed for steps or
            their tokens is a list too, null outside of them. A draw without a step has no row.

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
        """Each row with its column `tokens` as text, markers of the template included.

        Args:
            tokenizer: a run that keeps its own (`"runs/demo"`), a `tokenizer.json`, its directory, or a fast tokenizer.

        Returns:
            The frame and `text`; an id that the tokenizer does not have stands as `<id>`.

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
        found: Any
        if self._is_lazy():
            schema = {**self._frame.collect_schema(), "text": pl.String}
            found = self._frame.map_batches(lambda frame: _texts.text(frame, vocabulary), schema=schema)
        else:
            found = _texts.text(self._frame, vocabulary)
        made: Frame = found
        return made

    def chats(self, source: Source, tokenizer: Any) -> Frame:
        """Each row with the messages of its trajectory, as supervised fine-tuning takes them.

        Args:
            source: where the nodes and trajectories are.
            tokenizer: as for `text`.

        Returns:
            The frame and `messages`, a list of `role` and `content`: the prompt is a user's, what was sampled or
            inserted for the policy an assistant's, what the environment answered a tool's. Markers of the template are
            left out.

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
        """Each row with how far its score lies above its group's mean, in standard deviations (GRPO, arXiv:2402.03300).

        The frame and the column `name`; see `Expr.agentrl.group_relative`, which is what this calls.

        Args:
            score: column of the scores.
            by: column of the group ids.
            name: of the new column.
            options: those of `agentrl_core.advantage.group_relative`.

        Example:
            >>> import polars as pl
            >>> import agentrl_core.integrations.polars
            >>> frame = pl.DataFrame({"group_id": [7, 7, 8], "reward": [1.0, 0.0, 5.0]})
            >>> frame.agentrl.group_relative("reward", scale="none")["advantage"].to_list()
            [0.5, -0.5, 0.0]
        """
        made: Frame = self._frame.with_columns(_OfExpr(pl.col(score)).group_relative(by, **options).alias(name))
        return made

    def words(self) -> Frame:
        """Return a frame of a batch's table, or of the files, with names for its codes, as `scan` has them.

        These are the columns `kind`, `status`, `finish_reason`, `origin`, `role`, `source`, `old_logprob`, `drift` and
        `operation`, and the truth values.

        Example:
            >>> import polars as pl
            >>> from agentrl_core.integrations.polars import example
            >>> pl.DataFrame(example().nodes).agentrl.words().select("kind", "finish_reason").rows()
            [('prompt', 'none'), ('action', 'none'), ('action', 'none')]
        """
        made: Frame = named(self._frame)
        return made

    def _lazily(self, work: Callable[[pl.LazyFrame], Any], *keys: str) -> Frame:
        self._require(*keys)
        found = work(self._frame.lazy())
        made: Frame = found if self._is_lazy() else found.collect()
        return made

    def _eagerly(self, work: Callable[[pl.DataFrame, Tables, WantedColumns], Any], source: Source, key: str) -> Frame:
        self._require(key)
        tables = scan(source)

        def schema() -> pl.Schema:
            nothing = Tables(**{field.name: getattr(tables, field.name).clear() for field in fields(Tables)})
            return pl.Schema(work(pl.DataFrame(schema=self._frame.collect_schema()), nothing, WantedColumns()).schema)

        made: Frame = (
            lazily(self._frame, schema(), lambda frame, wanted: work(frame, tables, wanted))
            if self._is_lazy()
            else work(self._frame, tables, WantedColumns())
        )
        return made

    def _is_lazy(self) -> bool:
        return isinstance(self._frame, pl.LazyFrame)

    def _require(self, *keys: str) -> None:
        names = self._frame.collect_schema().names()
        if not any(key in names for key in keys):
            raise InvalidInputError(
                f"the frame has no column {' or '.join(keys)}; keep one of them (it has {', '.join(names)})"
            )


def _renamed(added: pl.LazyFrame, frame: pl.LazyFrame, prefix: str, *, keep: tuple[str, ...]) -> pl.LazyFrame:
    taken = set(frame.collect_schema().names()).difference(keep)
    return added.rename({name: prefix + name for name in added.collect_schema().names() if name in taken})


@pl.api.register_dataframe_namespace("agentrl")
class _OfDataFrame(_Namespace[pl.DataFrame]):
    """`DataFrame.agentrl`."""


@pl.api.register_lazyframe_namespace("agentrl")
class _OfLazyFrame(_Namespace[pl.LazyFrame]):
    """`LazyFrame.agentrl`."""


@pl.api.register_expr_namespace("agentrl")
class _OfExpr:
    """`Expr.agentrl`."""

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
        """Return by how many standard deviations each score is above the mean of its group.

        The kernel of `agentrl_core.advantage.group_relative`, which has the formula and the options. Rows whose score
        is null, NaN or infinite do not vote, and get null.

        Args:
            by: the group ids.
            scale: `std` or `none`.
            ddof: the variance divides by (count - ddof); 0 or 1.
            eps: added to the standard deviation.
            singleton: what a group of one gets: `zero` or `raw`.

        Returns:
            f32 for f32 scores, else f64.

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
