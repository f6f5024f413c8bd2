"""Draw the token tree of a group for a terminal."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from agentrl_core.cli._detokenize import Detokenizer
from agentrl_core.cli._terminal import number

if TYPE_CHECKING:
    import polars as pl
    from rich.tree import Tree

_PREVIEW = 24


def group_tree(nodes: pl.DataFrame, members: pl.DataFrame, shown: int, path: set[int], words: Detokenizer) -> Tree:
    """Return the branches of a group as a tree; nodes without a fork between them, and equal branches, share a line.

    Args:
        nodes: rows of the group's nodes.
        members: rows of its trajectories, with codes as words.
        shown: the displayed trajectory.
        path: nodes of its path, drawn bold.
        words: decodes tokens.
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
    pending = [(tree, equal) for equal in reversed(_equal_lines(children[None], children, leaves))]
    while pending:
        above, equal = pending.pop()
        row, line = equal[0][0], equal[0]
        last = line[-1]["node_id"]
        label = Text("", style="bold" if any(same[-1]["node_id"] in path for same in equal) else "")
        if row["parent_end"] is not None and row["parent_end"] < len(rows[row["parent_id"]]["tokens"]):
            label.append(f"after token {row['parent_end']} of {len(rows[row['parent_id']]['tokens'])}: ")
        label.append(", ".join(f"{node['kind']} {len(node['tokens'])}" for node in line))
        label.append(f"  {words.preview(line[-1]['tokens'], _PREVIEW)}", style="dim")
        if len(equal) > 1:
            label.append(f"  x {len(equal)}", style="bold")
        branch = above.add(label)
        for outcome in _equal_outcomes([member for same in equal for member in leaves[same[-1]["node_id"]]], shown):
            branch.add(_leaf(outcome, shown))
        pending.extend((branch, same) for same in reversed(_equal_lines(children[last], children, leaves)))
    return tree


def _equal_lines(rows: list[dict[str, Any]], children: Any, leaves: Any) -> list[list[list[dict[str, Any]]]]:
    """Return the lines of some nodes; equal lines that start at the same place and do not fork share a group."""
    groups: dict[object, list[list[dict[str, Any]]]] = {}
    for row in rows:
        line = _chain(row, children, leaves)
        content = (row["parent_end"], *((node["kind"], *node["tokens"]) for node in line))
        goes_on = bool(children[line[-1]["node_id"]])
        groups.setdefault(row["node_id"] if goes_on else content, []).append(line)
    return list(groups.values())


def _equal_outcomes(members: list[dict[str, Any]], displayed_id: int) -> list[list[dict[str, Any]]]:
    """Group members with equal outcomes; the displayed member is separate."""
    groups: dict[object, list[dict[str, Any]]] = {}
    for member in members:
        ended = (member["status"], member["success"], member["reward"], member["trajectory_id"] == displayed_id)
        groups.setdefault(ended, []).append(member)
    return list(groups.values())


def _chain(row: dict[str, Any], children: Any, leaves: Any) -> list[dict[str, Any]]:
    """Return the node and those after it up to the next fork or end."""
    line = [row]
    while len(children[line[-1]["node_id"]]) == 1 and not leaves[line[-1]["node_id"]]:
        (child,) = children[line[-1]["node_id"]]
        if child["parent_end"] is not None and child["parent_end"] < len(line[-1]["tokens"]):
            break
        line.append(child)
    return line


def _leaf(members: list[dict[str, Any]], displayed_id: int) -> Any:
    """Return the line of text for members with equal outcomes."""
    from rich.text import Text

    member = members[0]

    verdict = {None: "", False: ", no success", True: ", success"}[member["success"]]
    ids = ", ".join(str(each["trajectory_id"]) for each in members)
    noun = "trajectory" if len(members) == 1 else "trajectories"
    text = f"{noun} {ids}: {member['status']}{verdict}, reward {number(member['reward'])}"
    style = "green" if member["success"] else "red" if member["success"] is False else ""
    is_shown = member["trajectory_id"] == displayed_id
    return Text(text + (", shown below" if is_shown else ""), style=f"bold {style}" if is_shown else style)
