"""Tokens of paths and of actions as Polars frames, for the namespace `agentrl`.

Each function computes the requested columns, and reads only the data that these need.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from agentrl_core.data.table_codes import UNTRAINED
from agentrl_core.exceptions import InvalidInputError, NotFoundError
from agentrl_core.integrations.polars._code_names import to_enum
from agentrl_core.integrations.polars._lazy_columns import WantedColumns
from agentrl_core.integrations.polars._token_paths import Indices, NodeColumns, PathNodes, find, ranges, walk

if TYPE_CHECKING:
    from agentrl_core.integrations.polars.tables import Tables

# List columns of nodes, and the name of a single value of each.
SINGULAR = {"tokens": "token", "kinds": "kind", "logprobs": "logprob", "entropies": "entropy"}


# The node columns from which the lists of a path are built, besides computed columns.
_SOURCES = {
    "tokens": ("tokens",),
    "kinds": ("kind",),
    "trainable": ("trainable", "kind"),
    "logprobs": ("logprobs",),
    "entropies": ("entropies",),
}


class _Nodes(NamedTuple):
    """The nodes of some groups, as a frame with selected columns and as a tree."""

    frame: pl.DataFrame
    tree: NodeColumns


class _Actions(NamedTuple):
    """A row for each step, and the path of its action, without token columns."""

    rows: pl.DataFrame
    nodes: _Nodes
    found: PathNodes


def path_nodes(frame: pl.DataFrame, tables: Tables, wanted: WantedColumns) -> pl.DataFrame:
    """Return a row for each node on the path of each row; see the namespace method `agentrl.nodes`."""
    names = tables.nodes.collect_schema().names()
    prefix = {name: f"node_{name}" if name in frame.columns or name == "end" else name for name in names}
    columns = {name: other for name, other in prefix.items() if other in wanted or name == "node_id"}
    nodes, visited = _paths_of(frame, tables, columns)
    rows = frame[visited.path].with_columns(end=pl.Series(visited.end, dtype=pl.Int32))
    return pl.concat([rows, nodes.frame[visited.node].rename(columns)], how="horizontal")


def paths(frame: pl.DataFrame, tables: Tables, wanted: WantedColumns) -> pl.DataFrame:
    """Add the tokens of paths; see the namespace method `agentrl.paths`."""
    nodes, visited = _paths_of(frame, tables, _sources(wanted))
    return _with_lists(frame, nodes, visited, tables, wanted)


def steps(frame: pl.DataFrame, tables: Tables, wanted: WantedColumns) -> pl.DataFrame:
    """Return a row for each turn of each row's trajectory; see the namespace method `agentrl.steps`."""
    rows, nodes, visited = _actions(frame, tables, wanted)
    return _with_lists(rows, nodes, visited, tables, wanted)


def _actions(frame: pl.DataFrame, tables: Tables, wanted: WantedColumns) -> _Actions:
    facts = _trajectories(frame, tables)
    step_rows = tables.steps.filter(_among(facts["trajectory_id"])).collect()
    step_rows = step_rows.rename({"reward": "step_reward", "rewards": "step_rewards"})
    prefix = {name: f"step_{name}" for name in step_rows.columns if name in frame.columns and name != "trajectory_id"}
    rows = frame.join(step_rows.rename(prefix), on="trajectory_id", how="inner", maintain_order="left_right")
    nodes = _nodes(facts["group_id"], tables, _sources(wanted))
    ids = nodes.tree.node_id
    first = find(ids, rows[prefix.get("first_node_id", "first_node_id")].to_numpy())
    node_id = rows[prefix.get("node_id", "node_id")]
    last = find(ids, node_id.to_numpy())
    row_facts = rows.select("trajectory_id").join(
        facts.unique("trajectory_id"), on="trajectory_id", maintain_order="left"
    )
    # The action of a branch that was not continued ends at the end of the branch.
    end = np.where(node_id == row_facts["leaf_node_id"], row_facts["leaf_end"], -1)
    _refuse_taken(rows, "start")
    rows = rows.with_columns(start=nodes.frame["start"][first])
    return _Actions(rows, nodes, walk(nodes.tree, last, end, first))


def computed(frame: pl.LazyFrame, tables: Tables) -> pl.LazyFrame:
    """Add the computed columns; see the namespace method `agentrl.computed`."""
    names = set(frame.collect_schema().names())
    if "draw_id" in names:
        frame = _joined(frame, tables.draw_columns, "draw_id")
    if {"draw_id", "step"} <= names:
        frame = _with_steps(frame, tables)
    if "node_id" in names and "step" not in names:
        frame = _joined(frame, tables.node_columns, "node_id")
    return frame


def tokens(frame: pl.DataFrame, tables: Tables, wanted: WantedColumns) -> pl.DataFrame:
    """Return a row for each action token of each row's trajectory; see the namespace method `agentrl.tokens`."""
    input_columns = frame.columns
    frame = steps(
        frame, tables, wanted.also("tokens", *(name for name, singular in SINGULAR.items() if singular in wanted))
    )
    if "draw_id" in input_columns:
        needed = wanted.also(*frame.columns)
        computed_frame = computed(frame.lazy(), tables)
        frame = computed_frame.select(
            name for name in computed_frame.collect_schema().names() if name in needed
        ).collect()
    lists = [
        name
        for name, kind in frame.schema.items()
        if name not in input_columns
        and isinstance(kind, pl.List)
        and not kind.inner.is_nested()
        and name != "step_rewards"
    ]
    renamed = {name: SINGULAR.get(name, name) for name in lists}
    for name in ("token_position", *renamed.values()):
        if name not in lists:
            _refuse_taken(frame, name)
    position = pl.int_ranges("start", pl.col("start") + pl.col("tokens").list.len(), dtype=pl.Int32)
    count = pl.col("tokens").list.len()
    frame = frame.with_columns(*(_filled(name, count) for name in lists), token_position=position)
    return frame.explode("token_position", *lists).rename(renamed)


def _with_steps(frame: pl.LazyFrame, tables: Tables) -> pl.LazyFrame:
    """Add step columns to a frame with draw columns; missing values of a shared name are filled from the draw."""
    shared_names = _names(tables.draw_columns, "draw_id") & _names(tables.step_columns, "draw_id", "step")
    frame = _joined(frame.rename({name: f"_{name}" for name in shared_names}), tables.step_columns, "draw_id", "step")
    schema = frame.collect_schema()
    filled = []
    for name in shared_names:
        of_draw = pl.col(f"_{name}")
        if isinstance(schema[name], pl.List):
            if "tokens" not in schema:
                continue
            of_draw = of_draw.repeat_by(pl.col("tokens").list.len()).cast(schema[name])
        filled.append(pl.coalesce(name, of_draw).alias(name))
    return frame.with_columns(*filled).drop(f"_{name}" for name in shared_names)


def _names(columns: pl.LazyFrame, *keys: str) -> set[str]:
    return set(columns.collect_schema().names()).difference(keys)


def sequences(frame: pl.DataFrame, tables: Tables, wanted: WantedColumns) -> pl.DataFrame:
    """Return a row for each token sequence that a draw trains; see the namespace method `agentrl.sequences`."""
    _refuse_taken(frame, "sequence")
    # A frame may have a draw twice, so rows are identified by their number.
    keyed = frame.select("draw_id", "trajectory_id").with_row_index("row")
    of_steps = [name for name in _names(tables.step_columns, "draw_id", "step") if name in wanted]
    # Values of a draw are repeated for the tokens of a step without its own values.
    of_actions = WantedColumns.of("tokens", "trainable") if of_steps else WantedColumns.of("trainable")
    needed = wanted.also("tokens", "trainable") if of_steps else wanted
    step_rows, nodes, visited = _actions(keyed, tables, needed)
    length = np.bincount(visited.path, visited.end, minlength=len(step_rows)).astype(np.int64)
    last = find(nodes.tree.node_id, step_rows["node_id"].to_numpy())
    stop = step_rows["start"].to_numpy() + length
    ends = _last_of_context(step_rows["row"].to_numpy(), nodes.tree, last)
    sequence = np.concatenate([[0], np.cumsum(ends)[:-1]]).astype(np.int64) if len(ends) else np.zeros(0, np.int64)
    row = step_rows["row"].to_numpy()[ends]
    rows = frame[row].with_columns(sequence=pl.Series(row, dtype=pl.UInt32))
    rows = rows.with_columns(pl.int_range(pl.len(), dtype=pl.Int32).over("sequence").alias("sequence"))
    of_draws = _names(tables.draw_columns, "draw_id") - _names(tables.step_columns, "draw_id", "step")
    draw_values = tables.draw_columns.select("draw_id", *(name for name in sorted(of_draws) if name in wanted))
    rows = _joined(rows.lazy(), draw_values, "draw_id").collect()
    begin = nodes.frame["start"].to_numpy()[last[ends]]
    visited_of_rows = walk(nodes.tree, last[ends], stop[ends] - begin)
    rows = _with_lists(rows, nodes, visited_of_rows, tables, wanted)
    if not of_steps and "trainable" not in wanted:
        return rows
    total = np.bincount(visited_of_rows.path, visited_of_rows.end, minlength=len(rows)).astype(np.int64)
    step_rows = _with_lists(step_rows, nodes, visited, tables, of_actions)
    return rows.with_columns(_step_lists(step_rows, length, sequence, total, tables, of_steps))


def _last_of_context(row: Indices, tree: NodeColumns, last: Indices) -> NDArray[np.bool_]:
    """Return which steps end a sequence: those whose whole action is not in the context of the row's next step."""
    visited = walk(tree, last, np.full(len(last), -1))
    is_whole = visited.end == tree.length[visited.node]
    on_path = visited.path[is_whole] * len(tree.node_id) + visited.node[is_whole]
    goes_on = np.isin(np.arange(1, len(last)) * len(tree.node_id) + last[:-1], on_path) & (row[1:] == row[:-1])
    return ~np.append(goes_on, np.zeros(min(len(last), 1), bool))


def _step_lists(
    taken: pl.DataFrame, length: Indices, sequence: Indices, total: Indices, tables: Tables, names: list[str]
) -> pl.DataFrame:
    """Collect columns of steps' tokens into lists, one for each sequence, of `total` tokens each.

    Step `i` of `taken` has `length[i]` tokens and is in sequence `sequence[i]`.
    """
    count = pl.Series("count", length, dtype=pl.UInt32)
    computed_frame = computed(taken.lazy(), tables).collect() if names else taken
    per_token = (
        _filled(name, count) if isinstance(computed_frame.schema[name], pl.List) else pl.col(name).repeat_by(count)
        for name in names
    )
    trainable = (
        pl.when(pl.col("flags") & UNTRAINED == 0).then("trainable").otherwise(pl.lit(0, pl.UInt8).repeat_by(count))
    )
    flat = computed_frame.select(trainable.alias("trainable"), *per_token).explode("trainable", *names)
    starts = (np.cumsum(total) - total)[sequence] + taken["start"].to_numpy()
    place = ranges(starts, length)
    source = np.full(total.sum(), -1, np.int64)
    source[place] = np.arange(len(place))
    index = pl.Series(source).replace(-1, None)
    values = {name: flat[name].gather(index) for name in names}
    values["trainable"] = flat["trainable"].gather(index).fill_null(0)
    return _lists(np.repeat(np.arange(len(total)), total), values)


def _lists(row: Indices, values: dict[str, pl.Series]) -> pl.DataFrame:
    """Collect the values of each row into lists; `row` is sorted and has no gaps."""
    flat = pl.DataFrame({"_row": pl.Series(row, dtype=pl.Int64).set_sorted(), **values})
    return flat.group_by("_row", maintain_order=True).agg(pl.all()).drop("_row")


def _joined(frame: pl.LazyFrame, values: pl.LazyFrame, *keys: str) -> pl.LazyFrame:
    """Return the frame joined with computed columns by keys."""
    for name in values.collect_schema().names():
        if name not in keys:
            _refuse_taken(frame, name)
    return frame.join(values, on=list(keys), how="left", maintain_order="left")


def _sources(wanted: WantedColumns) -> list[str]:
    """Return the node columns that the wanted lists are built from."""
    return [
        "node_id",
        "start",
        *{name: None for target, names in _SOURCES.items() if target in wanted for name in names},
    ]


def _paths_of(frame: pl.DataFrame, tables: Tables, columns: Iterable[str]) -> tuple[_Nodes, PathNodes]:
    facts = _trajectories(frame, tables)
    nodes = _nodes(facts["group_id"], tables, columns)
    last = find(nodes.tree.node_id, facts["leaf_node_id"].to_numpy())
    return nodes, walk(nodes.tree, last, facts["leaf_end"].to_numpy())


def _trajectories(frame: pl.DataFrame, tables: Tables) -> pl.DataFrame:
    """Return for each row its trajectory's group, last node, and the end in that node (-1: all of its tokens).

    The group in which a draw counts can be another one.
    """
    branch = pl.col("branch_node") == pl.col("leaf_node_id")
    # A branch without its own tokens ends at its fork.
    end = pl.when(branch).then("branch_end").fill_null(-1).cast(pl.Int64)
    ids = frame.select("trajectory_id")
    columns = tables.trajectories.select("trajectory_id", "group_id", "leaf_node_id", leaf_end=end)
    facts = columns.filter(_among(ids["trajectory_id"]))
    rows = ids.join(facts.collect(), on="trajectory_id", how="left", maintain_order="left")
    missing = rows.filter(pl.col("group_id").is_null())
    if len(missing):
        raise NotFoundError(
            f"trajectory {missing['trajectory_id'][0]} of the frame is not in source; give the run, store or batch "
            "that the frame was read from"
        )
    return rows


def _nodes(groups: pl.Series, tables: Tables, columns: Iterable[str]) -> _Nodes:
    shape = {
        "tree.node": pl.col("node_id"),
        "tree.parent": pl.col("parent_id").fill_null(-1),
        "tree.parent_end": pl.col("parent_end").cast(pl.Int64).fill_null(-1),
        "tree.length": pl.col("tokens").list.len().cast(pl.Int64),
    }
    frame = tables.nodes.filter(_among(groups)).select(*columns, **shape).collect()
    return _Nodes(frame.drop(shape), NodeColumns.of(*(frame[name].to_numpy() for name in shape)))


def _among(values: pl.Series) -> pl.Expr:
    """Return an expression for whether a column has one of some values; as a filter, it skips files without any."""
    return pl.col(values.name).is_in(values.unique().implode())


def _with_lists(
    rows: pl.DataFrame, nodes: _Nodes, found: PathNodes, tables: Tables, wanted: WantedColumns
) -> pl.DataFrame:
    """Return the rows with token lists of their paths; `found` has a path for each row."""
    columns = _token_columns(nodes, tables, wanted)
    if not columns:
        return rows
    length = nodes.tree.length
    indices = ranges((np.cumsum(length) - length)[found.node], found.end)
    path = np.repeat(found.path, found.end)
    values = {name: column[indices] for name, column in columns.items()}
    for name in values:
        _refuse_taken(rows, name)
    lists = _lists(path, values)
    if "kinds" in values:
        names = to_enum(pl.element(), nodes.frame.schema["kind"])
        lists = lists.with_columns(pl.col("kinds").list.eval(names))
    return pl.concat([rows, lists], how="horizontal")


def _token_columns(nodes: _Nodes, tables: Tables, wanted: WantedColumns) -> dict[str, pl.Series]:
    """Return the token columns of all nodes, flattened to one value per token."""
    frame = nodes.frame
    computed_names = [
        name for name in tables.node_columns.collect_schema().names() if name in wanted and name != "node_id"
    ]
    if computed_names:
        values = tables.node_columns.filter(_among(frame["node_id"])).select("node_id", *computed_names).collect()
        frame = frame.join(values, on="node_id", how="left", maintain_order="left")
    count = pl.Series("count", nodes.tree.length, dtype=pl.UInt32)
    allowed = (pl.col("kind") == "action").cast(pl.UInt8).repeat_by(count)
    lists = {
        "tokens": pl.col("tokens"),
        "kinds": pl.col("kind").to_physical().repeat_by(count),  # names come last: codes are faster
        "trainable": pl.col("trainable").fill_null(allowed),
        **{name: _filled(name, count) for name in ("logprobs", "entropies", *computed_names)},
    }
    chosen = frame.select(**{name: values for name, values in lists.items() if name in wanted})
    return chosen.explode(chosen.columns).to_dict() if chosen.columns else {}


def _filled(name: str, count: pl.Expr | pl.Series) -> pl.Expr:
    """Return a list column in which missing lists are replaced by lists of `count` nulls."""
    nulls = pl.lit(None).repeat_by(count)
    return pl.when(pl.col(name).is_null()).then(nulls).otherwise(pl.col(name)).alias(name)


def _refuse_taken(frame: pl.DataFrame | pl.LazyFrame, name: str) -> None:
    if name in frame.collect_schema().names():
        raise InvalidInputError(f"the frame already has a column {name}, which this call adds; rename or drop it")
