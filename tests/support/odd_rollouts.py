"""Inputs of a run from an engine, an environment and a program, each with a valid value."""

from __future__ import annotations

import contextlib
import json
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
from odd_forest import fact, integers, number, numbers
from odd_inputs import EntryPoint, same
from small_world import SmallWorld, paying

from agentrl_core import Batch, Collector, Store, recipes
from agentrl_core._util.json_text import to_json
from agentrl_core.engine import Request, Segment
from agentrl_core.engine.base import TopLogprobs
from agentrl_core.env import Context, ExtraColumn, StepResult, Task
from agentrl_core.exceptions import AgentRLWarning, DataError
from agentrl_core.rollout import Independent, Prefix, deferred_tasks

Answer = Callable[[Task, int, list[str]], Any]
ODD_TASK = 1
"""The task that gets the odd value; the groups of other tasks stay complete whatever it is."""


class World(SmallWorld):
    """An engine and environment in one: `change` alters the engine's result for the odd task."""

    def __init__(
        self, answer: Answer = paying, change: Callable[[Segment], Any] = lambda segment: segment, **parts: Any
    ) -> None:
        super().__init__(answer)
        self.change, self.parts = change, parts
        self.facts: Mapping[str, ExtraColumn] = {
            "n": ExtraColumn("step"),
            "k": ExtraColumn("step", "key"),
            "m": ExtraColumn("trajectory"),
            "l": ExtraColumn("trajectory", "key"),
        }
        self.chat = SimpleNamespace(
            **vars(self.chat)
            | {"prompt": self.prompt, "action": lambda text: np.array([5, len(text) % 9, 9], np.int32)}
        )

    def action(self, text: str) -> Any:
        return np.array([5, len(text) % 9, 9], np.int32)

    def prompt(self, content: Any, *_: Any, **__: Any) -> Any:
        return np.array([1, ODD_TASK if "odd" in repr(content) else 0, 3], np.int32)

    def reset(self, task: Task, seed: int) -> Any:
        episode = super().reset(task, seed)
        if task.task_id != "train 1":
            return episode
        episode.observation = "odd"
        vars(episode).update({name: value for name, value in self.parts.items() if name != "task"})
        if "state_key" in self.parts:
            episode.state_key = lambda: self.parts["state_key"]
        return episode

    async def generate(self, request: Request) -> Any:
        segment = await super().generate(request)
        return self.change(segment) if ODD_TASK in request.tokens[1:2] else segment


def collected(world: Any, folder: Path, *, recipe: Any = recipes.GRPO) -> Batch:
    """Return the batch of an iteration; it equals that of the store and that of a run resumed from its rollout log.

    Raises:
        DataError: the group of the odd task was left out; the other group is there, and the run continues.
    """
    left_out: list[str] = []

    def collect(path: Path, of: Any) -> Batch:
        with Store.open(path, sync="never") as store, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            collector = Collector(of, of, recipe, store=store, task_pool=2, seed=1)
            batch = collector(tasks=2, group_size=2)
            left_out.extend(str(each.message) for each in caught if issubclass(each.category, AgentRLWarning))
            collector.end_iteration(recipe.credit(batch), {})
            assert store.verify() == []
        with Store.open(path, read_only=True) as store:
            stored = store.batch(0)
            for name in ("nodes", "steps", "trajectories"):
                assert pl.DataFrame(getattr(stored, name)).equals(pl.DataFrame(getattr(batch, name))), name
        with Store.open(path, sync="never") as store, warnings.catch_warnings():
            warnings.simplefilter("ignore", AgentRLWarning)
            collector = Collector(of, of, recipe, store=store, task_pool=2, seed=1)
            assert collector(tasks=2, group_size=2).num_groups >= 1, "the run goes on"
        return batch

    batch = collect(folder / "straight", world)
    resumed(world, folder / "killed", recipe, batch)
    if batch.num_groups < 2:
        assert batch.texts("task_id", "draw")[0] == "train 0"
        assert left_out
        raise DataError(left_out[0])
    return batch


class _Killed(BaseException):
    """Raised in place of the commit."""


def resumed(world: Any, path: Path, recipe: Any, batch: Batch) -> None:
    """Abort a run before its batch is stored, and assert that another one makes the same batch from its rollout log."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AgentRLWarning)
        with Store.open(path, sync="never") as store:
            collector = Collector(world, world, recipe, store=store, task_pool=2, seed=1)
            collector.store = _broken(store)
            with contextlib.suppress(_Killed):
                collector(tasks=2, group_size=2)
        with Store.open(path, sync="never") as store:
            other_batch = Collector(world, world, recipe, store=store, task_pool=2, seed=1)(tasks=2, group_size=2)
    assert batch.texts("task_id", "draw") == other_batch.texts("task_id", "draw")
    # The progress of the other members of a failed group depends on timing.
    for name in ("nodes", "steps", "trajectories") if batch.num_groups > 1 else ():
        one, other = pl.DataFrame(getattr(batch, name)), pl.DataFrame(getattr(other_batch, name))
        drop = [column for column in ("created_us",) if column in one.columns]
        assert one.drop(drop).equals(other.drop(drop)), f"{name} of a run that was broken off"


def _broken(store: Store) -> Any:
    """The store, whose next commit fails."""

    class Broken:
        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def append(self, *_: Any, **__: Any) -> int:
            raise _Killed

    return Broken()


def odd_rows(batch: Batch) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Return nodes, steps and trajectories of the odd task's group."""
    trajectories = pl.DataFrame(batch.trajectories).filter(pl.col("task_id") == "train 1")
    steps = pl.DataFrame(batch.steps).join(trajectories, on="trajectory_id", how="semi")
    return pl.DataFrame(batch.nodes).join(trajectories, on="group_id", how="semi"), steps, trajectories


def segment(arguments: dict[str, Any], folder: Path) -> None:
    """Check the segment that an engine returns; all four places of the odd task get it."""

    def change(of: Segment) -> Segment:
        top = TopLogprobs(arguments["top_tokens"], arguments["top_logprobs"])
        fields = {name: value for name, value in arguments.items() if not name.startswith("top_")}
        return Segment(**fields, seed=of.seed, top=top)

    batch = collected(World(change=change), folder)
    nodes, _, _ = odd_rows(batch)
    actions = nodes.filter(pl.col("kind") == 1)
    for name, expected in (("tokens", integers), ("logprobs", numbers), ("entropies", numbers)):
        assert same(actions[name][0].to_list(), expected(arguments[name])), name
    assert set(actions["policy_version"]) == {arguments["policy_version"]}


def outcome(arguments: dict[str, Any], folder: Path) -> None:
    """Check the result of an environment's step, the only one of an episode."""

    def answer(task: Task, seed: int, actions: list[str]) -> StepResult:
        return StepResult(**arguments) if task.task_id == "train 1" else paying(task, seed, actions)

    batch = collected(World(answer), folder)
    _, steps, trajectories = odd_rows(batch)
    reward = arguments["reward"]
    if not math.isnan(reward):
        assert same(steps["reward"][0], number(reward))
        assert same(trajectories["reward"][0], number(reward))
    assert steps["flags"].to_list() == [int(arguments["flags"])] * 2
    assert trajectories["success"].to_list() == [int(arguments["success"])] * 2
    info = json.loads(trajectories["info"][0])
    expected = json.loads(to_json(arguments["info"], "info"))
    assert all(same(info.get(name, info.get(f"~{name}")), value) for name, value in expected.items()), (info, expected)
    assert same(steps["facts"][0], {"k": fact(arguments["facts"].get("k")), "n": number(arguments["facts"].get("n"))})
    assert same(
        trajectories["facts"][0], {"l": fact(arguments["facts"].get("l")), "m": number(arguments["facts"].get("m"))}
    )


def turn(arguments: dict[str, Any], folder: Path) -> None:
    """Check a step after which the episode continues: its observation and its context."""

    def answer(task: Task, seed: int, actions: list[str]) -> StepResult:
        if task.task_id == "train 1" and len(actions) < 2:
            context = Context(
                arguments["conversation"],
                tools=arguments["tools"],
                max_tokens=arguments["max_tokens"],
                replaces_history=True,
            )
            return StepResult(arguments["observation"], info=arguments["info"], context=context)
        return paying(task, seed, actions)

    world = World(answer)
    world.chat.continuation = lambda *_: np.array([4], np.int32)
    batch = collected(world, folder)
    _, steps, trajectories = odd_rows(batch)
    assert len(steps) >= 4, "two episodes of two steps, in one conversation or in two"
    if arguments["info"]:
        info = json.loads(trajectories["info"][0])
        assert same(info["earlier_steps"][0], json.loads(to_json(arguments["info"], "info")))


def begin(arguments: dict[str, Any], folder: Path) -> None:
    """Check the start of an episode."""
    batch = collected(World(**arguments), folder)
    assert len(odd_rows(batch)[2]) == 2


def task(arguments: dict[str, Any], folder: Path) -> None:
    """Check the tasks of an environment."""
    world = World()
    odd = Task(**arguments)
    world.tasks = lambda count, **_: [odd, Task("other", "?", "x", None)][:count]  # type: ignore[method-assign]
    batch = collected(world, folder)
    assert set(batch.texts("task_id", "draw")) == {arguments["task_id"], "other"}
    with Store.open(folder / "straight", read_only=True) as store:
        rows = pl.DataFrame(store.tasks)
    assert rows.filter(pl.col("task_id") == arguments["task_id"])["domain"].unique().to_list() == [arguments["domain"]]


WORK: list[Callable[[Any], Any]] = []
"""The functions that the program runs on a group; the last one is used."""


class Program(Independent):
    """A program that does the given actions with both groups; branches that still run are then run to their ends."""

    @property
    def facts(self) -> Mapping[str, ExtraColumn]:
        """Return the facts that the program reports about its branches."""
        return {"p": ExtraColumn("trajectory"), "q": ExtraColumn("trajectory", "key")}

    async def group(self, group: Any) -> None:
        await WORK[-1](group)
        await group.run([branch for branch in group.branches if not branch.over])


def program(
    work: Callable[[Any, dict[str, Any]], Any],
    keeps: Callable[[Batch, dict[str, Any], list[Any]], None] = lambda *_: None,
    **options: Any,
) -> Any:
    """Return a call that runs a program on both groups; a run resumed from the rollout log gives the same batch."""

    def run(arguments: dict[str, Any], folder: Path) -> None:
        results: dict[str, list[Any]] = {}

        async def both(group: Any) -> None:
            results.setdefault(group.name, []).append(await work(group, arguments))

        WORK[:] = [both]
        batch = collected(World(), folder, recipe=recipes.GRPO.replace(rollout=Program()), **options)
        assert len(results) >= 2
        for values in results.values():
            assert all(same(value, values[0]) for value in values), values
        keeps(batch, arguments, [values[0] for values in results.values()])

    return run


async def effect(group: Any, arguments: dict[str, Any]) -> Any:
    group.start_many(2)
    value = await group.side_effect(arguments["name"], lambda: arguments["value"])
    assert same(value, json.loads(json.dumps(arguments["value"]))), (value, arguments["value"])
    return value


async def finish(group: Any, arguments: dict[str, Any]) -> None:
    for branch in group.start_many(2):
        await branch.turn()
        branch.finish(**arguments)


def finished(batch: Batch, arguments: dict[str, Any], _: list[Any]) -> None:
    rows = pl.DataFrame(batch.trajectories)
    assert all(same(value, number(arguments["reward"])) for value in rows["reward"])
    assert set(rows["success"]) == {int(arguments["success"])}
    facts = arguments["facts"]
    assert all(same(row["p"], number(facts.get("p"))) and row["q"] == fact(facts.get("q")) for row in rows["facts"])


async def end(group: Any, arguments: dict[str, Any]) -> None:
    for branch in group.start_many(2):
        await branch.turn()
        branch.stop(arguments["stop"], status="truncated")
    masked, dropped = group.start_many(2)
    masked.mask(arguments["mask"])
    await dropped.turn()
    dropped.drop(arguments["drop"])


def explained(batch: Batch, arguments: dict[str, Any], _: list[Any]) -> None:
    infos = [json.loads(info) for info in batch.trajectories.column("info") if info is not None]
    for kind in ("stop", "mask", "drop"):
        assert any(arguments[kind] in each.values() for each in infos), (kind, infos)


async def write(group: Any, arguments: dict[str, Any]) -> None:
    for branch in group.start_many(2):
        await branch.begin()
        branch.write(np.array(arguments["tokens"]), ends=False, share=arguments["share"], trained=False)
        await branch.generate(max_tokens=arguments["max_tokens"])
        await branch.submit()
        branch.inject(arguments["inject"])


async def start(group: Any, arguments: dict[str, Any]) -> None:
    prefix = Prefix(arguments["actions"], seed=arguments["seed"], title=arguments["title"])
    for _ in range(2):
        group.start(arguments["prompt"], prefix=prefix, facts=arguments["facts"])


def started(batch: Batch, arguments: dict[str, Any], _: list[Any]) -> None:
    facts = arguments["facts"]
    rows = pl.DataFrame(batch.trajectories)["facts"]
    assert all(same(row["p"], number(facts.get("p"))) and row["q"] == fact(facts.get("q")) for row in rows)


async def defer(group: Any, arguments: dict[str, Any]) -> None:
    for branch in group.start_many(2):
        await branch.turn()
    new_task = Task(arguments["task_id"], arguments["question"], arguments["domain"], arguments["payload"])
    group.defer(new_task, group.branches[0], turns=arguments["turns"], messages=arguments["messages"])


def deferred(batch: Batch, arguments: dict[str, Any], _: list[Any]) -> None:
    tasks = deferred_tasks(batch)
    assert len(tasks) == 2
    for each in tasks:
        assert (each.task.task_id, each.task.question) == (arguments["task_id"], arguments["question"])
        assert same(each.task.payload, arguments["payload"])
        assert same(each.messages, arguments["messages"])


async def fork(group: Any, arguments: dict[str, Any]) -> None:
    trunk = group.start()
    await trunk.turn()
    for _ in range(2):
        trunk.fork(trunk.position(arguments["token"]), score=arguments["score"])


SEGMENT = {
    "tokens": np.array([2, 3, 9], np.int32),
    "logprobs": np.array([-0.5, -0.25, -1.0], np.float32),
    "entropies": np.array([0.5, 0.25, 1.0], np.float32),
    "finish_reason": "stop",
    "policy_version": 0,
    "cached_tokens": 1,
    "top_tokens": [[2], [3], [9]],
    "top_logprobs": [[-0.5], [-0.25], [-1.0]],
}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
MESSAGE = {"role": "user", "content": "odd"}

_ENTRY_POINTS: dict[str, EntryPoint] = {
    "engine.Segment": EntryPoint(SEGMENT, segment, words={"top_tokens": "top", "top_logprobs": "top"}),
    "env.StepResult": EntryPoint(
        {
            "reward": 0.5,
            "terminated": True,
            "flags": 1,
            "success": True,
            "info": {"a": 1.0},
            "facts": {"n": 1.5, "k": "x", "m": 2.5, "l": "y"},
        },
        outcome,
        words={"facts": "fact"},
    ),
    "env.Context": EntryPoint(
        {
            "observation": [MESSAGE, {"role": "tool", "content": "1", "tool_call_id": "c"}],
            "info": {"a": 1.0},
            "conversation": 0,
            "tools": [TOOL],
            "max_tokens": 3,
        },
        turn,
    ),
    "env.Episode": EntryPoint({"observation": [MESSAGE], "state_key": b"s", "tools": [TOOL]}, begin),
    "env.Task": EntryPoint(
        {"task_id": "train 1", "question": "?", "domain": "odd", "payload": {"a": 1}, "solution": ["a"]}, task
    ),
    "Group.side_effect": EntryPoint({"name": "judge", "value": {"a": [1.5, "x", None]}}, program(effect)),
    "Branch.finish": EntryPoint(
        {"reward": 0.5, "success": True, "facts": {"p": 1.5, "q": "x"}}, program(finish, finished)
    ),
    "Branch.stop": EntryPoint(
        {"stop": "late", "mask": "bad", "drop": "worse"},
        program(end, explained),
        words=dict.fromkeys(("stop", "mask", "drop"), "reason"),
    ),
    "Branch.write": EntryPoint(
        {"tokens": [4, 5], "share": 0.5, "max_tokens": 2, "inject": "a hint"},
        program(write),
        words={"tokens": "content"},
    ),
    "Group.start": EntryPoint(
        {"prompt": "ask", "actions": ["go"], "seed": 5, "title": "shown", "facts": {"p": 1.5, "q": "x"}},
        program(start, started),
        words={"actions": "content"},
    ),
    "Group.defer": EntryPoint(
        {
            "task_id": "later",
            "question": "?",
            "domain": "x",
            "payload": {"a": [1.5]},
            "turns": 1,
            "messages": [MESSAGE],
        },
        program(defer, deferred),
    ),
    "Branch.fork": EntryPoint({"token": 4, "score": 0.5}, program(fork)),
}
_SELDOM_REFUSED = ("Group.side_effect", "Group.defer")
ENTRY_POINTS = {
    name: replace(entry, examples=60 if name in _SELDOM_REFUSED else 15) for name, entry in _ENTRY_POINTS.items()
}
"""Number of examples; each example is three runs."""
