"""Inputs of a store and a batch, options of recipes and of a collector, imported rollouts, and sessions."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from odd_forest import grown, integers, numbers, stored
from odd_inputs import EntryPoint, same
from odd_rollouts import World
from tool_agents import endpoint

from agentrl_core import Batch, Collector, Store, recipes
from agentrl_core._util.json_text import to_json
from agentrl_core.engine import Sampling
from agentrl_core.integrations.trajectories import from_atif, from_verifiers
from agentrl_core.recipe import Recipe


def plain(value: Any) -> Any:
    """Return a value as JSON stores it: numbers that are not finite are null."""
    return json.loads(to_json(value, "value"))


def grow() -> Batch:
    """Return two draws of a group."""
    forest, paths, _ = grown()
    for path in paths:
        forest.finish(path, reward=1.0)
    return forest.freeze()


def closed(batch: Batch, state: dict[str, Any], arrays: Mapping[str, Any], folder: Path) -> tuple[Batch, Store]:
    """Return the batch of a closed iteration from a reopened store, and the store."""
    with Store.open(folder / "run", sync="never") as store:
        batch = store.rebase(batch)
        store.append(batch, iteration=0)
        store.close_iteration(batch, state, arrays)
    store = Store.open(folder / "run", read_only=True)
    assert store.verify() == []
    return store.batch(0), store


def columns(arguments: dict[str, Any], folder: Path) -> None:
    batch = grow()
    draws = np.asarray(arguments["values"])
    changed = batch.with_columns(
        "draw", **{arguments["name"]: np.resize(draws, batch.num_draws) if draws.size else draws}
    )
    again, _ = closed(changed, {}, {}, folder)
    assert same(again.column(arguments["name"], "draw"), changed.column(arguments["name"], "draw"))
    assert same(changed.column(arguments["name"], "draw"), np.resize(draws, batch.num_draws).tolist())


def recipe_of(arguments: dict[str, Any], folder: Path) -> None:
    batch = grow().with_columns("draw", x=np.zeros(grow().num_draws))
    again, store = closed(batch.with_recipe(arguments["recipe"], arguments["options"]), {}, {}, folder)
    assert again.num_draws == batch.num_draws
    files = [path.read_bytes() for path, *_ in store.files("draw_columns")]
    assert any(arguments["recipe"].encode() in file for file in files)


def state_of(arguments: dict[str, Any], folder: Path) -> None:
    again, _ = closed(grow().with_state(arguments["state"]), {}, {}, folder)
    assert same(again.state, arguments["state"])


def with_draws(arguments: dict[str, Any], folder: Path) -> None:
    batch = grow()
    ids = np.asarray(batch.trajectories.column("trajectory_id"))[:2]
    extended = batch.with_draws(ids, **arguments)
    again, _ = closed(extended, {}, {}, folder)
    rows = pl.DataFrame(again.draws).tail(2)
    assert same(rows["probability"].to_list(), numbers64(arguments["probability"]))
    assert rows["reason"].to_list() == [arguments["reason"]] * 2
    assert rows["group_id"].to_list() == integers(arguments["group_ids"])


def numbers64(value: Any) -> Any:
    return [float(each) for each in np.asarray(value, object).reshape(-1).tolist()]


def close_iteration(arguments: dict[str, Any], folder: Path) -> None:
    state = {"components": arguments["state"], "metrics": arguments["metrics"], "checkpoint": arguments["checkpoint"]}
    _, store = closed(grow(), state, arguments["arrays"], folder)
    assert same(store.state, plain(state))
    assert store.arrays.keys() == arguments["arrays"].keys()
    for name, array in arguments["arrays"].items():
        assert store.arrays[name].tolist() == array.tolist() or np.isnan(array).any()
    for name, value in arguments["metrics"].items():
        if isinstance(value, float):
            rows = pl.DataFrame(store.metrics).filter(pl.col("name") == name)["value"].to_list()
            assert any(same(row, float(value)) for row in rows), (name, value, rows)


def end_iteration(arguments: dict[str, Any], folder: Path) -> None:
    world = World()
    with Store.open(folder, sync="never") as store:
        collect = Collector(world, world, recipes.GRPO, store=store, task_pool=2)
        batch = recipes.GRPO.credit(collect(tasks=2, group_size=2))
        collect.end_iteration(batch, arguments["metrics"], checkpoint=arguments["checkpoint"])
    with Store.open(folder, sync="never") as store:
        metrics, stored_metrics = plain(arguments["metrics"]), store.state["metrics"]
        assert all(same(stored_metrics[name], value) for name, value in metrics.items())
        assert store.state["checkpoint"] == arguments["checkpoint"]
        collect = Collector(world, world, recipes.GRPO, store=store, task_pool=2)
        assert collect(tasks=2, group_size=2).num_draws == 4


def log(arguments: dict[str, Any], folder: Path) -> None:
    with Store.open(folder, sync="never") as store:
        store.rollout_log(arguments["iteration"]).append(arguments["name"], arguments["payload"])
    with Store.open(folder, sync="never") as store:
        assert store.rollout_log(arguments["iteration"]).records() == [(arguments["name"], arguments["payload"])]


def appended(arguments: dict[str, Any], folder: Path) -> None:
    batch = grow()
    with Store.open(folder, sync="never") as store:
        store.append(batch, iteration=arguments["iteration"], partial=arguments["partial"])
        store.flush()
    with Store.open(folder, sync="never") as store:
        assert store.verify() == []
        if not arguments["partial"]:
            assert store.batch(arguments["iteration"]).num_draws == batch.num_draws
        assert len(store.trajectories) == len(batch.trajectories)


@cache
def tables() -> dict[str, Any]:
    """Return every recipe as a table."""
    return {name: recipes.get(name).to_dict() for name in recipes.names()}


def from_dict(arguments: dict[str, Any], folder: Path) -> None:
    del folder
    for name, table in arguments.items():
        if table is tables()[name] or table == tables()[name]:
            continue
        recipe = Recipe.from_dict(table)
        assert Recipe.from_toml(recipe.to_toml()) == recipe or has_nan(recipe.to_dict())
        assert same(Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))).to_dict(), recipe.to_dict())


def has_nan(value: Any) -> bool:
    entries = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return (isinstance(value, float) and math.isnan(value)) or any(map(has_nan, entries))


def from_toml(arguments: dict[str, Any], folder: Path) -> None:
    text = f"# {arguments['before']}\n{recipes.GRPO.to_toml()}"
    recipe = Recipe.from_toml(arguments["whole"] if arguments["whole"] != "ok" else text)
    path = folder / "recipe.toml"
    path.write_text(recipe.to_toml())
    assert Recipe.from_toml(path) == recipe


def collector(arguments: dict[str, Any], folder: Path) -> None:
    world, sampling = World(), {name: arguments[name] for name in SAMPLING}
    options = {name: value for name, value in arguments.items() if name not in SAMPLING}

    def new_collector(store: Store) -> Collector:
        return Collector(world, world, recipes.GRPO, store=store, sampling=Sampling(**sampling), **options)

    with Store.open(folder, sync="never") as store:
        batch = new_collector(store)(tasks=2, group_size=2)
    with Store.open(folder, sync="never") as store:
        again = new_collector(store)(tasks=2, group_size=2)
    assert again.column("token", "token").tolist() == batch.column("token", "token").tolist()


def atif(arguments: dict[str, Any], folder: Path) -> None:
    batch = from_atif([arguments])
    rows = stored(batch, folder)
    actions = rows["nodes"].filter(pl.col("kind") == 1)
    metrics = arguments["steps"][1]["metrics"]
    assert actions["tokens"].to_list() == [integers(metrics["completion_token_ids"])]
    assert same(actions["logprobs"][0].to_list(), numbers(metrics["logprobs"]))
    assert rows["trajectories"]["task_id"].to_list() == [
        task_id if (task_id := str(arguments["extra"].get("task", ""))).strip() else arguments["session_id"]
    ]
    assert same(rows["trajectories"]["reward"][0], np.float32(arguments["extra"].get("reward", np.nan)))


def verifiers(arguments: dict[str, Any], folder: Path) -> None:
    batch = from_verifiers([arguments])
    rows = stored(batch, folder)
    assert rows["nodes"]["tokens"].explode().to_list() == [
        token for node in arguments["nodes"] for token in integers(node["token_ids"])
    ]
    score = {"score": math.nan, "weight": 1.0} | arguments["rewards"].get("right", {})
    assert same(rows["trajectories"]["reward"][0], np.float32(score["score"] * score["weight"]))


def session(arguments: dict[str, Any], folder: Path) -> None:
    """Open, use, pay and close a session, commit it, and read the store of a restarted endpoint."""
    import asyncio

    from tool_agents import client

    with Store.open(folder, sync="never") as store:
        served = endpoint(lambda request: f"answer {request.seed}", store=store)
        served.open("innocent", task=arguments["task"], group=arguments["group"])
        name = served.open(arguments["session"], task=arguments["task"], group=arguments["group"])["session_id"]

        async def talk() -> None:
            async with client(served) as agent:
                for each in ("innocent", name):
                    body = {"messages": [{"role": "user", "content": "hi"}], "model": "m"}
                    assert (await agent.post(f"/s/{each}/v1/chat/completions", json=body)).status_code == 200

        asyncio.run(talk())
        served.reward(name, arguments["paid"], arguments["turn"])
        served.close(name, **{key: arguments[key] for key in ("reward", "success", "status", "info")})
        served.close("innocent", reward=1.0)
    with Store.open(folder, sync="never") as store:
        again = endpoint(lambda request: f"answer {request.seed}", store=store)
        batch = again.commit()
        assert again.excluded() == []
        assert batch is not None
    with Store.open(folder, read_only=True) as store:
        assert store.verify() == []
        rows = pl.DataFrame(store.batch(0).trajectories)
    assert set(rows["task_id"]) == {arguments["task"]}
    row = rows.row(1, named=True)
    if arguments["status"] in ("finished", "truncated"):
        assert same(row["reward"], np.float32(arguments["reward"]))
        assert row["success"] == int(arguments["success"])
    assert json.loads(to_json(arguments["info"], "info")).items() <= json.loads(row["info"]).items()


SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_tokens": 4, "stop_token_ids": (9,), "top": 0}
OUTCOME = {"task": "t", "group": "g", "reward": 1.0, "success": True}
MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
METRICS = {"prompt_token_ids": [1, 2], "completion_token_ids": [3, 4], "logprobs": [-0.5, -0.25]}
AGENT_STEPS = [
    {"step_id": 1, "source": "user", "message": "hi"},
    {"step_id": 2, "source": "agent", "message": "hello", "metrics": METRICS},
]
NODES = [
    {"parent": None, "message": {"role": "user", "content": "hi"}, "token_ids": [1, 2], "mask": [False] * 2},
    {
        "parent": 0,
        "message": {"role": "assistant", "content": "yo"},
        "sampled": True,
        "token_ids": [3, 4, 5],
        "mask": [False, True, True],
        "logprobs": [-0.5, -0.25],
    },
]

ENTRY_POINTS: dict[str, EntryPoint] = {
    "Batch.with_columns": EntryPoint({"name": "x", "values": [1.5, 2.0]}, columns, words={"values": "values x"}),
    "Batch.with_recipe": EntryPoint({"recipe": "mine", "options": {"a": 1.5}}, recipe_of),
    "Batch.with_state": EntryPoint({"state": {"selection": {"a": [1.5, "x"]}}}, state_of, examples=120),
    "Batch.with_draws": EntryPoint(
        {"probability": [0.5, 0.25], "group_ids": [0, 0], "reason": "again", "iteration": 0}, with_draws
    ),
    "Store.close_iteration": EntryPoint(
        {
            "state": {"place": {"seen": 1.5}},
            "metrics": {"loss": 0.5, "nested": {"a": 1.0}},
            "checkpoint": "c",
            "arrays": {"a/b": np.array([0.5, 2.0])},
        },
        close_iteration,
    ),
    "Store.append": EntryPoint({"iteration": 0, "partial": False}, appended),
    "RolloutLog.append": EntryPoint({"iteration": 0, "name": b"a", "payload": b"b"}, log),
    "Recipe.from_dict": EntryPoint(tables(), from_dict, last=True, examples=300),
    "Recipe.from_toml": EntryPoint(
        {"before": "", "whole": "ok"}, from_toml, words={"before": "recipe", "whole": "recipe"}
    ),
    "Collector": EntryPoint(
        {
            "seed": 1,
            "context_tokens": 64,
            "turn_limit": 4,
            "call_seconds": 9.5,
            "concurrency": 8,
            **SAMPLING,
        },
        collector,
        examples=15,
    ),
    "Collector.end_iteration": EntryPoint(
        {"metrics": {"loss": 0.5, "nested": {"a": 1.0}}, "checkpoint": "c"}, end_iteration, examples=20
    ),
    "trajectories.from_atif": EntryPoint(
        {
            "schema_version": "ATIF-v1.7",
            "session_id": "s",
            "agent": {"name": "a", "version": "1"},
            "steps": AGENT_STEPS,
            "extra": {"task": "t", "group": "g", "reward": 1.0},
        },
        atif,
        words=dict.fromkeys(("agent", "extra", "schema_version", "session_id", "steps"), "trajectory"),
    ),
    "trajectories.from_verifiers": EntryPoint(
        {
            "version": 1,
            "task": {"type": "T", "data": {}, "key": "t"},
            "nodes": NODES,
            "rewards": {"right": {"score": 1.0, "weight": 2.0}},
        },
        verifiers,
        words=dict.fromkeys(("nodes", "rewards", "task", "version"), "trace"),
    ),
    "Endpoint.close": EntryPoint(
        {
            "session": "s",
            "task": "t",
            "group": "g",
            "paid": 0.5,
            "turn": 0,
            "reward": 1.0,
            "success": True,
            "status": "finished",
            "info": {"a": 1.5},
        },
        session,
        words={"session": "session_id", "task": "task_id", "paid": "reward"},
        examples=25,
    ),
}
