"""Loops that are killed at their writes: `python killed_loops.py FOLDER KIND WHICH`.

KIND is `agents` (programs that call an endpoint), `evaluate` (evaluations beside the training), `imports` (imported
trajectories, for replay) or `train` (`agentrl train`). A process runs the loop and is killed by SIGKILL at a write:
before it, after it, or with a record on the disk that is not whole. Another process continues the run to its end. Each
write gets a fresh folder: WHICH is `all`, `each` (the last one of each name), or a name.

Prints a line of JSON for each: `place`, where it was killed, and `wrong`, the differences from an undisturbed run.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import loop_agents
import polars as pl
import torch
from resuming import TABLES
from small_world import SmallWorld

import agentrl_core as arl
from agentrl_core import Store, engine, recipes, replay
from agentrl_core.cli import main as agentrl
from agentrl_core.collect.rollout_log import read_segment
from agentrl_core.component import Where
from agentrl_core.data.store import RolloutLog
from agentrl_core.engine import Request, Segment
from agentrl_core.train import loop, run_files

DIGEST = 16
SIZES = {
    "iterations": 2,
    "rollouts": 8,
    "group-size": 4,
    "warm-start-steps": 2,
    "held-out": 4,
    "task-pool": 64,
    "turn-tokens": 6,
    "context-tokens": 80,
    "evaluate-every": 2,
}
SHORT = ["--families", "chain_sum", *(word for name, size in SIZES.items() for word in (f"--{name}", str(size)))]


class Writes:
    """Count the places of writes, and kill the process at one of them."""

    def __init__(self, folder: Path, at: int) -> None:
        self.folder, self.at, self.count = folder, at, 0

    def place(self, name: str) -> None:
        self.count += 1
        with (self.folder / "places").open("a") as file:
            file.write(f"{name}\n")
        if self.count == self.at:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self) -> None:
        append = RolloutLog.append

        def appended(log: RolloutLog, name: bytes, payload: bytes) -> None:
            self.place("before RolloutLog.append")
            append(log, name, payload)
            if self.count + 1 == self.at:
                path = next(self.folder.rglob(f"live/{log.iteration}.records"))
                os.truncate(path, path.stat().st_size - 1)
            self.place("in RolloutLog.append")
            self.place("after RolloutLog.append")

        RolloutLog.append = appended  # type: ignore[method-assign]
        for owner, names in (
            (Store, ("append", "flush", "close_iteration", "close")),
            (loop, ("new_folder", "rename_whole", "save_checkpoint", "drop_checkpoints")),
            (run_files, ("new_folder", "rename_whole")),
        ):
            for name in names:
                setattr(owner, name, self.around(getattr(owner, name), name))
        new_file = loop.new_file

        @contextmanager
        def watched_new_file(path: Path) -> Iterator[BinaryIO]:
            self.place("before new_file")
            with new_file(path) as file:
                yield file
                file.flush()
                self.place("in new_file")
            self.place("after new_file")

        loop.new_file = run_files.new_file = watched_new_file

    def around(self, write: Callable[..., Any], name: str) -> Callable[..., Any]:
        def watched(*arguments: Any, **options: Any) -> Any:
            self.place(f"before {name}")
            result = write(*arguments, **options)
            self.place(f"after {name}")
            return result

        return watched


class LoggedSeeds:
    """The seeds of the responses in a rollout log; a request for one of them is reported."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.folder, self.seeds = folder, set[int]()
        if not store.has_batch(store.iteration):
            for name, payload in store.rollout_log(store.iteration).records():
                if b"/segment" in name:
                    self.seeds.add(read_segment(payload[DIGEST:]).seed)

    def check(self, request: Request) -> None:
        if request.seed in self.seeds:
            (self.folder / "complaint").write_text(f"segment {request.seed} is in the rollout log and asked for again")


class Model(engine.Scripted):
    """An engine that answers the agents' requests."""

    def __init__(self, logged: LoggedSeeds) -> None:
        super().__init__(loop_agents.TOKENIZER, loop_agents.scripted_answer)
        self._logged = logged

    async def generate(self, request: Request) -> Segment:
        self._logged.check(request)
        return await super().generate(request)


class World(SmallWorld):
    """An engine that answers requests, and the environment."""

    def __init__(self, logged: LoggedSeeds) -> None:
        super().__init__()
        self.logged = logged

    async def generate(self, request: Request) -> Segment:
        self.logged.check(request)
        return await super().generate(request)


def agents(folder: Path, store: Store) -> None:
    """Run two iterations of programs that use a tool."""
    model = Model(LoggedSeeds(folder, store))
    collect, world = loop_agents.collector(loop_agents.tool_user, store=store, model=model, seed=3)
    while collect.iteration < 2:
        collect.end_iteration(collect.recipe.credit(collect(tasks=2, group_size=2)), {})
    collect.close()
    world.close()


def evaluate(folder: Path, store: Store) -> None:
    """Run two iterations, with an evaluation before each and one at the end, unless it is stored already."""
    world = World(LoggedSeeds(folder, store))
    collect = arl.Collector(world, world, recipes.GRPO, store=store, seed=5, task_pool=16)
    while True:
        collect.evaluate(tasks=3, samples=2)
        if collect.iteration == 2:
            break
        collect.end_iteration(collect.recipe.credit(collect(tasks=2, group_size=2)), {})


def imports(folder: Path, store: Store) -> None:
    """Import three chats, and replay them with the sampled rollouts of two iterations."""
    world = World(LoggedSeeds(folder, store))
    memory = replay.Memory(where=Where(origin="imported", column="score", above=0.5))
    recipe = recipes.GRPO.replace(replay=replay.Mix(memory, count=2, old_logprob="none"))
    collect = arl.Collector(world, world, recipe, store=store, seed=5, task_pool=16)
    if collect.iteration == 0:
        with collect.import_trajectories() as forest:
            for number, reward in enumerate([1.0, 0.0, 0.9]):
                forest.add_group(number, f"train {number}")
                chat = forest.start(number, 0, origin="imported")
                forest.append_chats([chat], [[1, 2, number + 3, 5, 6, 1, 7]], [[0, 0, 0, 1, 1, 0, 1]])
                forest.finish(chat, reward=reward, success=reward > 0.5)
    while collect.iteration < 3:
        collect.end_iteration(recipe.credit(collect(tasks=2, group_size=2)), {})


LOOPS = {"agents": agents, "evaluate": evaluate, "imports": imports}


def live(folder: Path, kind: str, at: int) -> None:
    """Run the loop to its end, or to a place."""
    Writes(folder, at).watch()
    if kind == "train":
        resume = ["--resume"] if (folder / "run" / "recipe.toml").exists() else []
        assert agentrl(["train", "--run", str(folder / "run"), *SHORT, *resume]) == 0
        return
    with Store.open(folder / "run", sync="never") as store:
        LOOPS[kind](folder, store)


def rows(path: Path) -> dict[str, list[Any]]:
    with Store.open(path, read_only=True) as store:
        return {name: pl.DataFrame(getattr(store, name)).drop("created_us", strict=False).rows() for name in TABLES}


def evaluations(run: Path) -> dict[int, set[float]]:
    """Return the success rates that evaluations stored, by training iteration; a killed evaluation is repeated."""
    if not (run / "evaluations").exists():
        return {}
    with Store.open(run / "evaluations", read_only=True) as store:
        states = [json.loads(text) for text in pl.DataFrame(store.write_log)["state"].drop_nulls()]
    rates: dict[int, set[float]] = {}
    for state in states:
        rates.setdefault(state["iteration"], set()).add(state["success"])
    return rates


def outcome(folder: Path) -> dict[str, Any]:
    """Return everything that a run stores, except times."""
    run = folder / "run"
    result: dict[str, Any] = {**rows(run), "evaluations": evaluations(run), "verify": []}
    for path in (run, run / "evaluations"):
        if path.exists():
            with Store.open(path) as store:
                result["verify"] += store.verify()
    if (run / "checkpoints").exists():
        (checkpoint,) = (run / "checkpoints").iterdir()
        weights = torch.load(checkpoint, weights_only=True)["models"]["policy"]
        result["weights"] = {name: value.double().sum().item() for name, value in weights.items()}
        summary = json.loads((run / "summary.json").read_text())
        result["summary"] = {name: value for name, value in summary.items() if name != "seconds"}
        result["files"] = sorted(path.name for path in run.iterdir())
    return result


def spawned(what: str, folder: Path, kind: str, at: int) -> int:
    """Run a part of this program in a new process; returns its exit status, negative after a signal."""
    command = [sys.executable, __file__, str(folder), kind, str(at), what]
    completed = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if completed.returncode > 0:
        sys.stderr.write(completed.stderr[-2000:])
    return completed.returncode


def forked(what: str, folder: Path, kind: str, at: int) -> int:
    """Run the same in a forked child, which is faster; the parent has used no library that has threads."""
    child = os.fork()
    if not child:
        status = 1
        try:
            PARTS[what](folder, kind, at)
            status = 0
        except BaseException:  # noqa: BLE001 -- the parent hears of it
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def look(folder: Path, kind: str, at: int) -> None:
    """Write the outcome of the run to a file."""
    del kind, at
    (folder / "outcome").write_bytes(pickle.dumps(outcome(folder)))


PARTS = {"live": live, "look": look}


def ended(folder: Path, kind: str, at: int) -> list[str]:
    """Run the loop to its end, with a kill at a place if one is given; return the places up to it."""
    start = spawned if kind == "train" else forked
    folder.mkdir()
    assert start("live", folder, kind, at) == (-signal.SIGKILL if at else 0)
    places = (folder / "places").read_text().splitlines()
    assert not at or start("live", folder, kind, 0) == 0, places[-1]
    assert start("look", folder, kind, 0) == 0
    return places


def chosen(places: list[str], which: str) -> list[int]:
    """Return the numbers of places, from 1."""
    last = {name: number for number, name in enumerate(places, start=1)}
    if which == "all":
        return list(range(1, len(places) + 1))
    return sorted(last.values()) if which == "each" else [last[which]]


def main(root: Path, kind: str, which: str) -> None:
    places = ended(root / "quiet", kind, 0)
    expected = pickle.loads((root / "quiet" / "outcome").read_bytes())
    for at in chosen(places, which):
        folder = root / str(at)
        place = ended(folder, kind, at)[-1]
        actual = pickle.loads((folder / "outcome").read_bytes())
        wrong = [name for name, value in expected.items() if actual[name] != value]
        if (folder / "complaint").exists():
            wrong.append((folder / "complaint").read_text())
        sys.stdout.write(json.dumps({"place": place, "wrong": wrong}) + "\n")
        sys.stdout.flush()
        shutil.rmtree(folder)


if __name__ == "__main__":
    root, loop_name, *rest = sys.argv[1:]
    if len(rest) == 2:
        PARTS[rest[1]](Path(root), loop_name, int(rest[0]))
    else:
        main(Path(root), loop_name, rest[0])
