"""The token tree of a group, drawn for a terminal."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from agentrl_core.cli._view import number
from agentrl_core.cli._words import Words
from agentrl_core.data.codes import CODES

if TYPE_CHECKING:
    import polars as pl
    from rich.tree import Tree

_PREVIEW = 24


def group_tree(nodes: pl.DataFrame, members: pl.DataFrame, shown: int, path: set[int], words: Words) -> Tree:
    """The branches of a group; nodes without a fork between them share a line.

    Args:
        nodes: rows of the group's nodes.
        members: rows of its trajectories, codes as words.
        shown: the trajectory that is shown.
        path: nodes of its path, drawn bold.
        words: makes text of tokens.
    """
    from rich.text import Text
    from rich.tree import Tree

    rows = {row["node_id"]: row for row in nodes.sort("node_id").rows(named=True)}
    children = defaultdict(list)
    for row in rows.values():
        children[row["parent_id"]].append(row)
    leaves = defaultdict(list)
    for member in members.sort("trajectory_id").rows(named=True):
        leaves[member["leaf_node_id"]].append(member)
    tree = Tree(Text(f"group of {len(members)} trajectories, {nodes['tokens'].list.len().sum()} tokens"))
    pending: list[tuple[Tree, dict[str, Any]]] = [(tree, row) for row in reversed(children[None])]
    while pending:
        above, row = pending.pop()
        line = _chain(row, children, leaves)
        last = line[-1]["node_id"]
        label = Text("", style="bold" if last in path else "")
        if row["parent_end"] is not None and row["parent_end"] < len(rows[row["parent_id"]]["tokens"]):
            label.append(f"after token {row['parent_end']} of {len(rows[row['parent_id']]['tokens'])}: ")
        label.append(", ".join(f"{CODES['kind'][node['kind']]} {len(node['tokens'])}" for node in line))
        label.append(f"  {words.preview(line[-1]['tokens'], _PREVIEW)}", style="dim")
        branch = above.add(label)
        for member in leaves[last]:
            branch.add(_leaf(member, shown))
        pending.extend((branch, child) for child in reversed(children[last]))
    return tree


def _chain(row: dict[str, Any], children: Any, leaves: Any) -> list[dict[str, Any]]:
    """The node and those after it up to the next fork or end."""
    line = [row]
    while len(children[line[-1]["node_id"]]) == 1 and not leaves[line[-1]["node_id"]]:
        (child,) = children[line[-1]["node_id"]]
        if child["parent_end"] is not None and child["parent_end"] < len(line[-1]["tokens"]):
            break
        line.append(child)
    return line


def _leaf(member: dict[str, Any], shown: int) -> Any:
    from rich.text import Text

    verdict = {None: "", 0: ", no success", 1: ", success"}[member["success"]]
    text = f"trajectory {member['trajectory_id']}: {member['status']}{verdict}, reward {number(member['reward'])}"
    style = "green" if member["success"] else "red" if member["success"] == 0 else ""
    is_shown = member["trajectory_id"] == shown
    return Text(text + (", shown below" if is_shown else ""), style=f"bold {style}" if is_shown else style)
