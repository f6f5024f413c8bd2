"""`agentrl show`: print one trajectory turn by turn, with the tree of its group."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from agentrl_core import env
from agentrl_core._util.picture_header import picture_header
from agentrl_core.cli._detokenize import Detokenizer
from agentrl_core.cli._terminal import console, escaped, nearest, number, opened
from agentrl_core.cli._tree import group_tree
from agentrl_core.data.table_codes import UNTRAINED
from agentrl_core.exceptions import AgentRLError, NotFoundError

if TYPE_CHECKING:
    import polars as pl
    from rich.console import Console
    from rich.text import Text

    from agentrl_core.data.store import Store
    from agentrl_core.integrations.polars.tables import Tables

_FLAGS = {
    env.StepFlag.TOOL_RESULT: "tool called",
    env.StepFlag.TOOL_ERROR: "tool error",
    env.StepFlag.FORMAT_ERROR: "format error",
    UNTRAINED: "not trained",
}


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of the command: `RUN TRAJECTORY --tokenizer PATH`."""
    command.description = (
        "Show the tree of a trajectory's group, and the trajectory: each prompt, action and observation, with its "
        "images, rewards and computed columns. Action tokens are green if their advantage is positive, red if it is "
        "negative, and bold if it is large."
    )
    command.epilog = (
        "examples:\n  agentrl show runs/demo 12\n  agentrl show runs/demo 12 --tokenizer path/to/model\n"
        "  agentrl show runs/demo 12 | less"
    )
    command.add_argument("path", metavar="RUN", help="directory of the run")
    command.add_argument("trajectory", type=int, metavar="TRAJECTORY", help="its number, as listed by agentrl ls")
    command.add_argument(
        "--tokenizer",
        metavar="PATH",
        help="tokenizer.json, or its directory, to decode tokens (default: that of the run, else show ids)",
    )


def run(path: str, trajectory: int, tokenizer: str | None) -> int:
    """Print the tree of a trajectory's group, and the trajectory's path."""
    out = console()
    from agentrl_core.integrations.polars import scan

    with opened(path) as store:
        _show(out, store, scan(store), trajectory, Detokenizer.find(path, tokenizer))
    return 0


def _show(out: Console, store: Store, tables: Tables, trajectory: int, words: Detokenizer) -> None:
    import polars as pl
    from rich.text import Text

    trajectory_row: Any = tables.trajectories.filter(pl.col("trajectory_id") == trajectory).collect()
    if trajectory_row.is_empty():
        ids = tables.trajectories.select("trajectory_id").collect()["trajectory_id"].to_list()
        raise NotFoundError(f"the run has no trajectory {trajectory}; {nearest(trajectory, ids)}")
    facts = trajectory_row.row(0, named=True)
    members: Any = tables.trajectories.filter(pl.col("group_id") == facts["group_id"]).collect()
    nodes = tables.nodes.filter(pl.col("group_id") == facts["group_id"]).collect()
    path: Any = trajectory_row.select("trajectory_id").agentrl.nodes(tables)
    draws: Any = tables.draws.filter(pl.col("trajectory_id") == trajectory).sort("iteration", "position").collect()
    for line in _facts(facts):
        out.print(Text(line))
    for draw in _draws(draws, tables):
        out.print(Text(draw))
    out.print()
    out.print(group_tree(nodes, members, trajectory, set(path["node_id"]), words))
    # Computed columns are those of the last draw.
    rows: Any = (
        draws.select("draw_id", "trajectory_id").tail(1) if len(draws) else trajectory_row.select("trajectory_id")
    )
    tokens = rows.agentrl.tokens(tables).rows(named=True)
    strongest = max((abs(token.get("advantage") or 0.0) for token in tokens), default=0.0)
    for item in _items(path, rows.agentrl.steps(tables)):
        out.print()
        if "step" in item:
            of_step = [token for token in tokens if token["step"] == item["step"]]
            out.print(Text(_of_step(item, of_step), style="bold cyan"))
            out.print(_coloured(of_step, strongest, words))
        else:
            title = f"{item['kind']}: {len(item['tokens'])} tokens"
            out.print(Text(title, style="bold"))
            for image in item["blobs"] or () if item["is_whole"] else ():
                out.print(Text(_image(store, image), style="magenta"))
            out.print(Text("".join(words.pieces(item["tokens"]))))


def _facts(facts: dict[str, Any]) -> Iterator[str]:
    yield f"trajectory {facts['trajectory_id']}, group {facts['group_id']}, iteration {facts['iteration']}"
    yield f"task {escaped(facts['task_id'])}"
    success = {None: "", False: ", no success", True: ", success"}[facts["success"]]
    parts = f" of {', '.join(map(number, facts['rewards']))}" if facts["rewards"] is not None else ""
    yield f"{facts['status']}{success}, reward {number(facts['reward'])}{parts}"
    if facts["min_policy_version"] is not None:
        versions = sorted({facts["min_policy_version"], facts["max_policy_version"]})
        yield f"policy version {' to '.join(map(str, versions))}"
    if facts["parent_trajectory"] is not None:
        yield f"branch of trajectory {facts['parent_trajectory']}"
    if facts["info"]:
        yield f"info {escaped(facts['info'])}"


def _image(store: Store, digest: bytes) -> str:
    """Name an image in one line: its type, its size and its hash."""
    try:
        content = store.blob(digest)
    except AgentRLError as error:
        return f"[image sha256 {digest.hex()}: {escaped(str(error))}]"
    header = picture_header(content)
    kind = "unknown type" if header is None else f"{header.type.upper()} {header.width} x {header.height}"
    return f"[image {kind}, {len(content)} bytes, sha256 {digest.hex()}]"


def _draws(draws: Any, tables: Tables) -> Iterator[str]:
    for draw in draws.agentrl.computed(tables).rows(named=True):
        computed = [f"{name} {number(value)}" for name, value in draw.items() if name not in draws.columns]
        yield ", ".join(
            [f"drawn in iteration {draw['iteration']} ({draw['source']}, draw {draw['draw_id']})", *computed]
        )


def _items(path: pl.DataFrame, steps: pl.DataFrame) -> list[dict[str, Any]]:
    """Return steps and the nodes between them; steps of contexts that were rewritten later come last."""
    on_path = set(path["node_id"])
    turns = [step | {"off": step["node_id"] not in on_path} for step in steps.rows(named=True)]
    inside = [(step["start"], step["start"] + len(step["tokens"])) for step in turns if not step["off"]]
    others = [
        node
        | {
            "off": False,
            "is_whole": node["end"] in (None, len(node["tokens"])),
            "tokens": node["tokens"][: node["end"]],
        }
        for node in path.rows(named=True)
        if not any(begin <= node["start"] < end for begin, end in inside)
    ]
    return sorted([*turns, *others], key=lambda item: (item["off"], item["start"]))


def _of_step(step: dict[str, Any], tokens: Sequence[dict[str, Any]]) -> str:
    """Format a step in one line."""
    where = ", in a context that was rewritten later" if step["off"] else ""
    parts = [f"step {step['step']}: action, {len(tokens)} tokens{where}"]
    if step["origin_trajectory_id"] != step["trajectory_id"]:
        parts.append(f"inherited from trajectory {step['origin_trajectory_id']}")
    if step["step_reward"] is not None:
        parts.append(f"reward {number(step['step_reward'])}")
    for name in ("advantage", "weight", "entropy"):
        values = [token[name] for token in tokens if token.get(name) is not None]
        if values:
            low, high = number(min(values)), number(max(values))
            parts.append(f"{name} {low}" if low == high else f"{name} {low} to {high}")
    parts.append(f"state {step['state_key'].hex()[:8]}")
    parts += [name for bit, name in _FLAGS.items() if step["flags"] & bit]
    parts += [name for name in ("terminated", "truncated") if step[name]]
    if step.get("drift") is not None:
        parts.append(f"drift {step['drift']}")
    return ", ".join(parts)


def _coloured(tokens: Sequence[dict[str, Any]], strongest: float, words: Detokenizer) -> Text:
    from rich.text import Text

    text = Text()
    for piece, token in zip(words.pieces([token["token"] for token in tokens]), tokens, strict=True):
        advantage = token.get("advantage") or 0.0
        style = "green" if advantage > 0 else "red" if advantage < 0 else ""
        text.append(piece, style=f"bold {style}" if abs(advantage) > strongest / 2 else style)
    return text
