"""Call each method of a forest with odd arguments, and check that a reopened store has them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from odd_inputs import EntryPoint, same

from agentrl_core import Batch, Forest, Store
from agentrl_core._util.json_text import to_json

FACTS: Any = {"step": {"n": "number", "k": "key"}, "trajectory": {"m": "number", "l": "key"}}
ACTION = {"kind": "action", "logprobs": [-0.5, -0.25], "entropies": [0.5, 0.25], "policy_version": 3}
Read = Callable[[dict[str, pl.DataFrame]], Any]
Reads = Mapping[str, tuple[Read, Callable[[Any], Any]]]
SAMPLED = ("temperature", "top_p", "top_k")


def stored(batch: Batch, folder: Path) -> dict[str, pl.DataFrame]:
    """Return the tables of a batch from a reopened store, which equal those before."""
    with Store.open(folder / "run", sync="never") as store:
        batch = store.rebase(batch)
        store.append(batch, iteration=0)
        store.close_iteration(batch, {})
    with Store.open(folder / "run", read_only=True) as store:
        assert store.verify() == []
        again = store.batch(0)
        names = ("nodes", "steps", "trajectories", "draws", "decisions")
        for name in names:
            before, after = pl.DataFrame(getattr(batch, name)), pl.DataFrame(getattr(again, name))
            assert before.drop("draw_id", strict=False).equals(after.drop("draw_id", strict=False)), name
        return {name: pl.DataFrame(getattr(again, name)) for name in names}


def grown() -> tuple[Forest, list[int], list[int]]:
    """Return two trajectories of a group that have acted, and their actions."""
    forest = Forest(facts=FACTS, reward_components=["a", "b"])
    forest.add_group(0, "task")
    paths, nodes = [], []
    for member in range(2):
        path = forest.start(0, member)
        forest.append(path, [1, 2], kind="prompt", state=b"s")
        nodes.append(forest.append(path, [3, 4 + member], **ACTION))  # type: ignore[arg-type]
        paths.append(path)
    return forest, paths, nodes


def ended(forest: Forest, folder: Path) -> dict[str, pl.DataFrame]:
    """Return the stored tables of a forest, with running trajectories aborted."""
    forest.abort()
    return stored(forest.freeze(), folder)


def fact(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else value


def number(value: Any) -> Any:
    """Return a number rounded to 32 bits; None and NaN are equal."""
    return np.nan if value is None else np.float32(float(value))


def last(table: str, column: str, row: int = -1) -> Read:
    def read(tables: dict[str, pl.DataFrame]) -> Any:
        value = tables[table][column][row]
        return value.to_list() if isinstance(value, pl.Series) else value

    return read


def check(
    tables: dict[str, pl.DataFrame],
    arguments: Mapping[str, Any],
    reads: Mapping[str, tuple[Read, Callable[[Any], Any]]],
) -> None:
    """Assert that each argument equals the stored value."""
    for name, (read, expected) in reads.items():
        value = arguments.get(name)
        if value is not None and not (isinstance(value, list) and not value):  # an empty row has no value
            actual, right = read(tables), expected(arguments[name])
            assert same(actual, right), (name, actual, right)


def integers(value: Any) -> Any:
    return [int(each) for each in np.asarray(value).reshape(-1).tolist()]


def numbers(value: Any) -> Any:
    return [number(each) for each in np.asarray(value, object).reshape(-1).tolist()]


NODE = {
    "tokens": (last("nodes", "tokens"), integers),
    "logprobs": (last("nodes", "logprobs"), numbers),
    "entropies": (last("nodes", "entropies"), numbers),
    "trainable": (last("nodes", "trainable"), integers),
    "policy": (last("nodes", "policy"), int),
    "policy_version": (last("nodes", "policy_version"), int),
    "seed": (last("nodes", "seed"), int),
    "temperature": (lambda tables: tables["nodes"]["sampling"][-1]["temperature"], number),
    "top_p": (lambda tables: tables["nodes"]["sampling"][-1]["top_p"], number),
    "top_k": (lambda tables: tables["nodes"]["sampling"][-1]["top_k"], int),
}


def append(arguments: dict[str, Any], folder: Path) -> None:
    forest, (path, _), _ = grown()
    forest.step(path)
    forest.append(path, **arguments)
    forest.step(path)
    forest.finish(path, reward=1.0)
    tables = ended(forest, folder)
    row = (
        tables["nodes"]
        .with_row_index()
        .filter(pl.col("parent_id").is_in(tables["nodes"].filter(pl.col("kind") == 1)["node_id"]))
    )
    node = {"nodes": row if len(row) else tables["nodes"].tail(1)}
    check(node, arguments, {key: value for key, value in NODE.items() if key in arguments})


def observe(arguments: dict[str, Any], folder: Path) -> None:
    forest, (path, _), _ = grown()
    forest.step(path)
    blob = forest.add_blob(arguments.pop("blob"))
    forest.append(path, arguments["tokens"], kind="observation", state=arguments["state"], blobs=[blob])
    forest.append(path, [9], kind="action", logprobs=[-1.0])
    forest.finish(path, reward=1.0)
    tables = ended(forest, folder)
    row = tables["nodes"].filter(pl.col("kind") == 2)
    assert same(row["tokens"][0].to_list(), integers(arguments["tokens"]))
    assert row["blobs"][0].to_list() == [blob]


STEP = {
    "reward": (last("steps", "reward", 0), number),
    "rewards": (last("steps", "rewards", 0), numbers),
    "flags": (last("steps", "flags", 0), int),
    "terminated": (last("steps", "terminated", 0), int),
    "facts": (last("steps", "facts", 0), lambda facts: {"k": fact(facts.get("k")), "n": number(facts.get("n"))}),
}
END = {
    "reward": (last("trajectories", "reward", 0), number),
    "rewards": (last("trajectories", "rewards", 0), numbers),
    "success": (last("trajectories", "success", 0), int),
    "facts": (last("trajectories", "facts", 0), lambda facts: {"l": fact(facts.get("l")), "m": number(facts.get("m"))}),
    "info": (
        lambda tables: json.loads(tables["trajectories"]["info"][0]),
        lambda info: json.loads(to_json(info, "info")),
    ),
}


def step(arguments: dict[str, Any], folder: Path) -> None:
    forest, (path, _), _ = grown()
    forest.step(path, **arguments)
    forest.finish(path, reward=1.0)
    check(ended(forest, folder), arguments, STEP)


def finish(arguments: dict[str, Any], folder: Path) -> None:
    forest, (path, _), _ = grown()
    forest.step(path)
    forest.finish(path, **arguments)
    check(ended(forest, folder), arguments, END)


def add_group(arguments: dict[str, Any], folder: Path) -> None:
    forest, _, _ = grown()
    forest.add_group(arguments["group"], arguments["task_id"], key=arguments["key"])
    path = forest.start(arguments["group"], arguments["member"], agent=arguments["agent"])
    forest.append(path, [1], kind="prompt")
    forest.append(path, [2], kind="action", logprobs=[-1.0])
    forest.finish(path, reward=1.0)
    tables = ended(forest, folder)
    row = tables["trajectories"].filter(pl.col("status") == 0)
    assert row["task_id"].to_list() == [arguments["task_id"]]
    assert row["agent"].to_list() == [int(arguments["agent"])]


def log_decision(arguments: dict[str, Any], folder: Path) -> None:
    forest, (path, other), (node, _) = grown()
    forest.log_decision("stop", path, node=node, result=other, **arguments)
    row = ended(forest, folder)["decisions"].rows(named=True)[-1]
    assert row["reason"] == arguments["reason"]
    assert row["round"] == arguments["in_round"]
    # The prompt of a node's first token is the node above.
    assert row["end"] == arguments["end"] or arguments["end"] == 0
    try:
        expected = float(arguments["score"])
    except OverflowError:
        expected = math.inf if arguments["score"] > 0 else -math.inf
    if math.isnan(expected):
        assert row["score"] is None or math.isnan(row["score"])
    else:
        assert same(row["score"], expected)


def fork(arguments: dict[str, Any], folder: Path) -> None:
    forest, (path, _), (node, _) = grown()
    ways = forest.fork(path, node=node, **arguments)
    for number_, way in enumerate(ways):
        forest.append(way, [7, number_], kind="action", logprobs=[-0.5, -0.5])
        forest.finish(way, reward=1.0)
    tables = ended(forest, folder)
    assert (tables["trajectories"]["status"] == 0).sum() == int(arguments["count"])


def rollback(arguments: dict[str, Any], folder: Path) -> None:
    forest, (path, _), (node, _) = grown()
    again = forest.rollback(path, node, **arguments)
    assert len(forest.tokens(again)) == 2 + arguments["end"]
    forest.append(again, [7], kind="action", logprobs=[-0.5])
    ended(forest, folder)


def splice(arguments: dict[str, Any], folder: Path) -> None:
    forest, (path, other), (node, from_node) = grown()
    forest.step(other)
    spliced = forest.splice(path, other, from_node=from_node, node=node, **arguments)
    assert len(forest.tokens(spliced)) == 2 + arguments["end"] + 2 - arguments["start"]
    forest.finish(spliced)
    ended(forest, folder)


def replaced(change: Callable[[Forest, int, dict[str, Any]], int | None]) -> Callable[[dict[str, Any], Path], None]:
    """Give a trajectory other tokens, which then belong to its path."""

    def run(arguments: dict[str, Any], folder: Path) -> None:
        forest, (path, _), _ = grown()
        forest.step(path)
        changed = change(forest, path, arguments)
        assert forest.tokens(changed or path).tolist()[: len(arguments["tokens"])] == integers(arguments["tokens"])
        ended(forest, folder)

    return run


def rewrite(forest: Forest, path: int, arguments: dict[str, Any]) -> None:
    forest.rewrite(path, **arguments)
    forest.append(path, [5], kind="action", logprobs=[-0.5])


def prune(arguments: dict[str, Any], folder: Path) -> None:
    forest, (path, _), _ = grown()
    forest.prune(path, **arguments)
    forest.finish(path) if arguments["gradient_only"] else None
    row = ended(forest, folder)["trajectories"].filter(pl.col("info").is_not_null())
    assert arguments["reason"] in json.loads(row["info"][0]).values()


def declare(arguments: dict[str, Any], folder: Path) -> None:
    forest = Forest(
        iteration=arguments["iteration"],
        seed=arguments["seed"],
        reward_components=arguments["reward_components"],
        entropies=arguments["entropies"],
        facts={"step": {arguments["fact"]: "number"}, "trajectory": {}},
        max_blob_bytes=arguments["max_blob_bytes"],
    )
    assert forest.iteration == arguments["iteration"]
    forest.add_group(0, "task")
    path = forest.start(0, 0)
    forest.append(path, [1], kind="prompt")
    forest.append(path, [2], kind="action", logprobs=[-1.0])
    forest.step(path, facts={arguments["fact"]: 2.0}, rewards=[0.5] * len(arguments["reward_components"]))
    forest.finish(path, reward=1.0)
    batch = forest.freeze()
    with Store.open(folder / "run", sync="never") as store:
        store.append(batch, iteration=arguments["iteration"])
        store.flush()
    with Store.open(folder / "run") as store:
        again = store.batch(int(arguments["iteration"]))
        assert again.reward_components == list(arguments["reward_components"])
        assert again.entropies == arguments["entropies"]
        assert again.facts["step"] == {arguments["fact"]: "number"}
        assert again.column(arguments["fact"], "step").tolist() == [2.0]


def ingest(arguments: dict[str, Any], folder: Path) -> None:
    forest, _, _ = grown()
    path = forest.start(0, 5)
    facts = {name: [value] for name, value in arguments["facts"].items()}
    rows = {
        name: [value]
        for name, value in arguments.items()
        if name not in ("facts", "temperature", "top_p", "top_k", "realign")
    }
    forest.ingest(
        [path], facts=facts, **{key: arguments[key] for key in ("temperature", "top_p", "top_k", "realign")}, **rows
    )
    forest.finish(path)
    tables = ended(forest, folder)
    trajectory = tables["trajectories"].filter(pl.col("status") == 0)["trajectory_id"][0]
    rows_ = {"steps": tables["steps"].filter(pl.col("trajectory_id") == trajectory)}
    node = tables["nodes"].filter(pl.col("node_id") == rows_["steps"]["node_id"][0])
    check({"nodes": node}, {**arguments, "tokens": arguments["outputs"]}, NODE)
    check(rows_, arguments, STEP)


def append_many(arguments: dict[str, Any], folder: Path) -> None:
    forest, _, _ = grown()
    path = forest.start(0, 5)
    forest.append(path, [1], kind="prompt")
    facts = {name: [value] for name, value in arguments["facts"].items()}
    rows = {name: [value] for name, value in arguments.items() if name not in ("facts", *SAMPLED)}
    forest.append_many(
        [path], kind="action", facts=facts, **{key: arguments[key] for key in ("temperature", "top_p", "top_k")}, **rows
    )
    forest.finish(path)
    tables = ended(forest, folder)
    trajectory = tables["trajectories"].filter(pl.col("status") == 0)["trajectory_id"][0]
    rows_ = {"steps": tables["steps"].filter(pl.col("trajectory_id") == trajectory)}
    node = tables["nodes"].filter(pl.col("node_id") == rows_["steps"]["node_id"][0])
    check({"nodes": node}, arguments, NODE)
    check(rows_, arguments, STEP)


def append_chats(arguments: dict[str, Any], folder: Path) -> None:
    forest, _, _ = grown()
    path = forest.start(0, 5, origin="imported")
    forest.append_chats([path], **{name: [value] for name, value in arguments.items()})
    assert forest.tokens(path).tolist() == integers(arguments["tokens"])
    forest.finish(path)
    tables = ended(forest, folder)
    row = tables["trajectories"].filter(pl.col("status") == 0)
    assert len(row) == 1


TURN = {
    "logprobs": [-0.5, -0.25],
    "entropies": [0.5, 0.25],
    "trainable": [1, 1],
    "policy": 1,
    "policy_version": 3,
    "seed": 5,
    "temperature": 0.75,
    "top_p": 0.5,
    "top_k": 5,
}
ENDED = {"m": 1.5, "l": "x"}
PAID = {"reward": 0.5, "rewards": [0.25, 0.25], "flags": 1, "terminated": True, "facts": {"n": 1.5, "k": "x"}}

ENTRY_POINTS: dict[str, EntryPoint] = {
    "Forest": EntryPoint(
        {"iteration": 0, "seed": 1, "reward_components": ["a"], "entropies": "exact", "fact": "n", "max_blob_bytes": 9},
        declare,
    ),
    "Forest.add_group": EntryPoint({"group": 7, "task_id": "t", "key": [0, 1], "member": 0, "agent": 0}, add_group),
    "Forest.start": EntryPoint({"group": 7, "task_id": "t", "key": [3], "member": 2, "agent": 1}, add_group),
    "Forest.append": EntryPoint(
        {"tokens": [5, 6], "kind": "action", "finish_reason": "stop", **TURN}, append, words={"temperature": "sampling"}
    ),
    "Forest.add_blob": EntryPoint({"tokens": [5, 6], "state": b"s", "blob": b"image"}, observe),
    "Forest.step": EntryPoint(PAID, step),
    "Forest.finish": EntryPoint(
        {"reward": 0.5, "rewards": [0.25, 0.25], "success": True, "info": {"a": 1.0}, "facts": {"m": 1.5, "l": "x"}},
        finish,
    ),
    "Forest.log_decision": EntryPoint(
        {"in_round": 0, "ordinal": 1, "end": 1, "score": 0.5, "reason": "r"}, log_decision
    ),
    "Forest.fork": EntryPoint({"end": 1, "count": 2, "ordinal": 0, "train_prefix": True}, fork),
    "Forest.rollback": EntryPoint({"end": 1}, rollback),
    "Forest.splice": EntryPoint({"start": 0, "end": 1}, splice),
    "Forest.rewrite": EntryPoint({"tokens": [1, 2, 9], "state": b"s"}, replaced(rewrite)),
    "Forest.with_prompt": EntryPoint(
        {"tokens": [8, 9], "state": b"s"},
        replaced(lambda forest, path, arguments: forest.with_prompt(path, **arguments)),
    ),
    "Forest.prune": EntryPoint({"reason": "why", "gradient_only": False}, prune),
    "Forest.ingest": EntryPoint(
        {"prompts": [1, 2], "outputs": [3, 4], "state": b"s", "realign": 1, **TURN, **PAID}, ingest
    ),
    "Forest.append_many": EntryPoint({"tokens": [3, 4], **TURN, **PAID}, append_many),
    "Forest.append_chats": EntryPoint(
        {
            "tokens": [1, 2, 3],
            "sampled": [0, 1, 1],
            "logprobs": [0.0, -0.5, -0.25],
            "entropies": [0.0, 0.5, 0.25],
            "trainable": [0, 1, 1],
            "policy_version": 3,
            "reward": 1.0,
        },
        append_chats,
    ),
}
