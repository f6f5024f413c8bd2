"""Kill one of two trainer ranks at a place in its code, and resume: `python killed_ranks.py FOLDER LOOP PLACE ...`.

The loop `fsdp2` is `train` of `examples/fsdp2.py`: rank 0 has the collector and the store, both ranks train by FSDP2 on
gloo and write checkpoints with torch.distributed.checkpoint. The loop `ddp` is `agentrl train` of PPO: both ranks make
columns of the critic and train by DistributedDataParallel, and rank 0 writes checkpoints. Each case copies a run of one
iteration, resumes it, and ends a rank by SIGKILL before, in or after a call. The other rank gets SIGTERM, as from
torchrun. Then both ranks start again and run to the end. A place is a rank and a call, such as `0 before Update.step`.

Prints a line of JSON for each: `place`, and `wrong`, the parts that differ from an undisturbed run.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import polars as pl
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from quiet import Quiet
from resuming import TABLES
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

sys.path.append(str(Path(__file__).parents[2] / "examples"))

import fsdp2

from agentrl_core import Collector, Store, engine, recipes
from agentrl_core.data.store import RolloutLog
from agentrl_core.model.pack import Pack
from agentrl_core.recipe import Recipe
from agentrl_core.train import loop
from agentrl_core.train.models import Models
from agentrl_core.train.options import TrainOptions
from agentrl_core.update.optimizer_step import Update

RANKS, ITERATIONS = 2, 3
CALLS: tuple[tuple[Any, str], ...] = (
    (engine.Transformers, "update_weights"),
    (Pack, "run"),
    (torch.Tensor, "backward"),
    (Recipe, "updates"),
    (Update, "pack"),
    (Update, "step"),
    (Store, "append"),
    (Store, "flush"),
    (Store, "close_iteration"),
    (Collector, "end_iteration"),
    (RolloutLog, "append"),
)
"""Calls before and after which a rank is killed, with their owners."""


def train_fsdp2(folder: Path, iterations: int) -> None:
    fsdp2.train(folder, iterations)


def saved_fsdp2(checkpoint: Path) -> dict[str, Any]:
    merged = checkpoint.parent / "whole.pt"
    dcp_to_torch_save(checkpoint, merged)
    state: dict[str, Any] = torch.load(merged, weights_only=False)
    return state


def train_ddp(folder: Path, iterations: int) -> None:
    sizes: dict[str, Any] = {"rollouts": 8, "group_size": 4, "held_out": 4, "turn_tokens": 8, "max_turns": 2}
    options = TrainOptions(
        run=str(folder),
        iterations=iterations,
        warm_start_steps=8,
        pack_tokens=256,
        resume=(folder / "recipe.toml").exists(),
        **sizes,
    )
    loop.train(options, recipes.PPO, Quiet())


def saved_ddp(checkpoint: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(checkpoint, weights_only=True)
    return {"weights": state["models"], "moments": state["optimizers"]}


@dataclass(frozen=True)
class Loop:
    """A loop, how its checkpoint is read, and its own calls before and after which a rank is killed."""

    train: Callable[[Path, int], None]
    saved: Callable[[Path], dict[str, Any]]
    calls: tuple[tuple[Any, str], ...]


LOOPS = {
    "fsdp2": Loop(
        train_fsdp2,
        saved_fsdp2,
        (
            (fsdp2, "from_rank_0"),
            (Recipe, "credit"),
            (fsdp2, "get_state_dict"),
            (fsdp2, "set_state_dict"),
            (dcp, "load"),
            (dcp, "save"),
            (dcp.FileSystemWriter, "write_data"),
            (dcp.FileSystemWriter, "finish"),
            (engine, "send_weights"),
        ),
    ),
    "ddp": Loop(
        train_ddp,
        saved_ddp,
        (
            (loop, "from_first_rank"),
            (loop, "load_checkpoint"),
            (loop, "save_checkpoint"),
            (loop, "drop_checkpoints"),
            (Models, "annotated"),
        ),
    ),
}


class Places:
    """Record the places that a rank reaches, and end the rank at one of them."""

    def __init__(self, folder: Path, rank: int, kill: tuple[str, int] | None) -> None:
        self.folder, self.rank, self.kill = folder, rank, kill
        self.counts: dict[str, int] = {}

    def reach(self, place: str) -> None:
        """Record a place; end the process if it is the chosen one at its chosen occurrence."""
        self.counts[place] = self.counts.get(place, 0) + 1
        with (self.folder / f"places-{self.rank}").open("a") as file:
            file.write(f"{place}\n")
        if (place, self.counts[place]) == self.kill:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self, loop_calls: tuple[tuple[Any, str], ...]) -> None:
        """Watch all calls, those of the loop too, and the rollout log inside a record."""
        for owner, name in (*CALLS, *loop_calls):
            owner_name = owner.__name__.rpartition(".")[2]
            setattr(owner, name, self.around(getattr(owner, name), f"{owner_name}.{name}"))
        append = RolloutLog.append

        def cut(log: RolloutLog, name: bytes, payload: bytes) -> None:
            append(log, name, payload)
            if self.kill == ("in RolloutLog.append", self.counts.get("in RolloutLog.append", 0) + 1):
                path = next(self.folder.rglob(f"live/{log.iteration}.records"))
                os.truncate(path, path.stat().st_size - 1)
            self.reach("in RolloutLog.append")

        RolloutLog.append = cut  # type: ignore[method-assign]

    def around(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Return a call with a place before and after it."""

        @wraps(call)
        def watched(*arguments: Any, **options: Any) -> Any:
            self.reach(f"before {name}")
            result = call(*arguments, **options)
            self.reach(f"after {name}")
            return result

        return watched


def run_rank(which: Loop, folder: Path, rank: int, iterations: int, kill: tuple[str, int] | None) -> None:
    """Train on a rank."""
    Places(folder, rank, kill).watch(which.calls)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=RANKS)
    which.train(folder / "run", iterations)
    dist.barrier()
    dist.destroy_process_group()


def forked(call: Callable[..., None], *arguments: Any) -> int:
    """Start a call in a child; returns its process id."""
    child = os.fork()
    if not child:
        status = 1
        try:
            call(*arguments)
            status = 0
        except BaseException:  # noqa: BLE001 -- the parent sees the status
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    return child


def launch(
    which: Loop, folder: Path, iterations: int, killed: int = 0, kill: tuple[str, int] | None = None
) -> list[int]:
    """Run all ranks until one of them fails; return their exit statuses, negative after a signal."""
    (folder / "rendezvous").unlink(missing_ok=True)
    children = {
        forked(run_rank, which, folder, rank, iterations, kill if rank == killed else None): rank
        for rank in range(RANKS)
    }
    statuses: dict[int, int] = {}
    while len(statuses) < RANKS:
        process, status = os.wait()
        statuses[children[process]] = os.waitstatus_to_exitcode(status)
        if status and len(statuses) < RANKS:
            (other,) = (each for each, rank in children.items() if rank not in statuses)
            os.kill(other, signal.SIGTERM)
    return [statuses[rank] for rank in range(RANKS)]


def outcome(which: Loop, folder: Path, target: Path) -> None:
    """Write the outcome of a run to a file: rows, batches, metrics, parameters and moments of the optimizer."""
    run = folder / "run"
    result: dict[str, Any] = {}
    with Store.open(run) as store:
        for name in TABLES:
            result[name] = pl.DataFrame(getattr(store, name)).drop("created_us", strict=False).rows()
        result["advantages"] = [
            store.batch(iteration).column("advantage", "token").tobytes() for iteration in range(ITERATIONS)
        ]
        result["metrics"] = pl.DataFrame(store.metrics).filter(~pl.col("name").str.contains("second|time")).rows()
        result["iteration"], checkpoint = store.iteration, store.state["checkpoint"]
        result["verify"] = store.verify()
    saved = which.saved(run / checkpoint)
    result |= {
        part: {name: value.numpy().tobytes() for name, value in flat(saved[part]).items()}
        for part in ("weights", "moments")
    }
    target.write_bytes(pickle.dumps(result))


def flat(tree: Any, prefix: str = "") -> dict[str, torch.Tensor]:
    """Return the tensors of nested dicts and lists."""
    if isinstance(tree, torch.Tensor):
        return {prefix: tree}
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return {name: value for key, part in pairs for name, value in flat(part, f"{prefix}/{key}").items()}


def read_outcome(which: Loop, folder: Path) -> Any:
    """Return the outcome of a run; another process reads it, because this one forks."""
    child = forked(outcome, which, folder, folder / "outcome")
    assert os.waitpid(child, 0)[1] == 0
    return pickle.loads((folder / "outcome").read_bytes())


def places(folder: Path, rank: int) -> list[str]:
    return (folder / f"places-{rank}").read_text().splitlines()


def main(root: Path, which: Loop, cases: list[str]) -> None:
    begun, quiet = root / "begun", root / "quiet"
    begun.mkdir(parents=True)
    quiet.mkdir()
    assert launch(which, begun, 1) == [0] * RANKS
    assert launch(which, quiet, ITERATIONS) == [0] * RANKS
    expected = read_outcome(which, quiet)
    assert len(expected["weights"]) > 10
    assert len(expected["moments"]) > 10
    # A resumed run that is not killed shows which places exist, and how often each is reached.
    resumed = root / "resumed"
    shutil.copytree(begun / "run", resumed / "run")
    assert launch(which, resumed, ITERATIONS) == [0] * RANKS
    report("none", expected, read_outcome(which, resumed))
    reached = [places(resumed, rank) for rank in range(RANKS)]
    for number, name in enumerate(cases):
        rank, place = int(name[0]), name[2:]
        times = reached[rank].count(place)
        folder = root / str(number)
        shutil.copytree(begun / "run", folder / "run")
        statuses = launch(which, folder, ITERATIONS, rank, (place, (times + 1) // 2))
        assert statuses[rank] == -signal.SIGKILL, (name, statuses)
        assert places(folder, rank)[-1] == place, name
        assert launch(which, folder, ITERATIONS) == [0] * RANKS, name
        report(name, expected, read_outcome(which, folder))
        shutil.rmtree(folder)


def report(place: str, expected: dict[str, Any], actual: dict[str, Any]) -> None:
    wrong = [name for name, value in expected.items() if actual[name] != value]
    sys.stdout.write(json.dumps({"place": place, "wrong": wrong}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), LOOPS[sys.argv[2]], sys.argv[3:])
