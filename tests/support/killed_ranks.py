"""Kill one of two trainer ranks at a place in its code, and resume: `python killed_ranks.py FOLDER PLACE ...`.

The loop is `train` of `examples/fsdp2.py`: rank 0 has the collector and the store, both ranks train by FSDP2 on gloo
and write checkpoints with torch.distributed.checkpoint. Each case copies a run of one iteration, resumes it, and ends a
rank by SIGKILL before, in or after a call. The other rank gets SIGTERM, as from torchrun. Then both ranks start again
and run to the end. A place is a rank and a call, such as `0 before Update.step`.

Prints a line of JSON each: `place`, and `wrong`, the parts that differ from a run that was never disturbed.
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
from functools import wraps
from pathlib import Path
from typing import Any

import polars as pl
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from resuming import TABLES
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

sys.path.append(str(Path(__file__).parents[2] / "examples"))

import fsdp2

from agentrl_core import Collector, Store, engine
from agentrl_core.data.store import RolloutLog
from agentrl_core.model.pack import Pack
from agentrl_core.update.update import Update

RANKS, ITERATIONS = 2, 3
CALLS: tuple[tuple[Any, str], ...] = (
    (fsdp2, "from_rank_0"),
    (fsdp2, "get_state_dict"),
    (fsdp2, "set_state_dict"),
    (dcp, "load"),
    (dcp, "save"),
    (dcp.FileSystemWriter, "write_data"),
    (dcp.FileSystemWriter, "finish"),
    (engine, "send_weights"),
    (engine.Transformers, "update_weights"),
    (Pack, "run"),
    (torch.Tensor, "backward"),
    (Update, "step"),
    (Store, "append"),
    (Store, "flush"),
    (Store, "close_iteration"),
    (Collector, "end_iteration"),
    (RolloutLog, "append"),
)
"""Calls before and after which a rank is killed, with their owners."""


class Places:
    """Writes down the places that a rank reaches, and ends it at one of them."""

    def __init__(self, folder: Path, rank: int, kill: tuple[str, int] | None) -> None:
        self.folder, self.rank, self.kill = folder, rank, kill
        self.counts: dict[str, int] = {}

    def reach(self, place: str) -> None:
        """Write down a place, and end the process if it is the one, met for the given time."""
        self.counts[place] = self.counts.get(place, 0) + 1
        with (self.folder / f"places-{self.rank}").open("a") as file:
            file.write(f"{place}\n")
        if (place, self.counts[place]) == self.kill:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self) -> None:
        """Watch all calls, and the rollout log within a record."""
        for owner, name in CALLS:
            owner_name = owner.__name__.rpartition(".")[2]
            setattr(owner, name, self.around(getattr(owner, name), f"{owner_name}.{name}"))
        append = RolloutLog.append

        def cut(journal: RolloutLog, name: bytes, payload: bytes) -> None:
            append(journal, name, payload)
            if self.kill == ("in RolloutLog.append", self.counts.get("in RolloutLog.append", 0) + 1):
                path = next(self.folder.rglob(f"live/{journal.iteration}.records"))
                os.truncate(path, path.stat().st_size - 1)
            self.reach("in RolloutLog.append")

        RolloutLog.append = cut  # type: ignore[method-assign]

    def around(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Return a call with a place before and after it."""

        @wraps(call)
        def watched(*given: Any, **options: Any) -> Any:
            self.reach(f"before {name}")
            found = call(*given, **options)
            self.reach(f"after {name}")
            return found

        return watched


def run_rank(folder: Path, rank: int, iterations: int, kill: tuple[str, int] | None) -> None:
    """Train on a rank."""
    Places(folder, rank, kill).watch()
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=RANKS)
    fsdp2.train(folder / "run", iterations)
    dist.barrier()
    dist.destroy_process_group()


def forked(call: Callable[..., None], *given: Any) -> int:
    """Start a call in a child; returns its process id."""
    child = os.fork()
    if not child:
        status = 1
        try:
            call(*given)
            status = 0
        except BaseException:  # noqa: BLE001 -- the parent sees the status
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    return child


def launch(folder: Path, iterations: int, killed: int = 0, kill: tuple[str, int] | None = None) -> list[int]:
    """Run all ranks, until one of them fails; returns their exit statuses, negative after a signal."""
    (folder / "rendezvous").unlink(missing_ok=True)
    children = {
        forked(run_rank, folder, rank, iterations, kill if rank == killed else None): rank for rank in range(RANKS)
    }
    statuses: dict[int, int] = {}
    while len(statuses) < RANKS:
        process, status = os.wait()
        statuses[children[process]] = os.waitstatus_to_exitcode(status)
        if status and len(statuses) < RANKS:
            (other,) = (each for each, rank in children.items() if rank not in statuses)
            os.kill(other, signal.SIGTERM)
    return [statuses[rank] for rank in range(RANKS)]


def outcome(folder: Path, target: Path) -> None:
    """Write down what a run leaves: rows, batches, metrics, parameters and moments of the optimizer."""
    run = folder / "run"
    found: dict[str, Any] = {}
    with Store.open(run) as store:
        for name in TABLES:
            found[name] = pl.DataFrame(getattr(store, name)).drop("created_us", strict=False).rows()
        found["advantages"] = [
            store.batch(iteration).column("advantage", "draw").tolist() for iteration in range(ITERATIONS)
        ]
        found["metrics"] = pl.DataFrame(store.metrics).filter(~pl.col("name").str.contains("second|time")).rows()
        found["iteration"], checkpoint = store.iteration, store.state["checkpoint"]
        found["verify"] = store.verify()
    dcp_to_torch_save(run / checkpoint, folder / "whole.pt")
    saved = torch.load(folder / "whole.pt", weights_only=False)
    found |= {
        part: {name: value.numpy().tobytes() for name, value in flat(saved[part]).items()}
        for part in ("weights", "moments")
    }
    target.write_bytes(pickle.dumps(found))


def flat(tree: Any, prefix: str = "") -> dict[str, torch.Tensor]:
    """Return the tensors of nested dicts and lists."""
    if isinstance(tree, torch.Tensor):
        return {prefix: tree}
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return {name: value for key, part in pairs for name, value in flat(part, f"{prefix}/{key}").items()}


def seen(folder: Path) -> Any:
    """Return the outcome of a run; another process reads it, since this one forks."""
    child = forked(outcome, folder, folder / "outcome")
    assert os.waitpid(child, 0)[1] == 0
    return pickle.loads((folder / "outcome").read_bytes())


def places(folder: Path, rank: int) -> list[str]:
    return (folder / f"places-{rank}").read_text().splitlines()


def main(root: Path, which: list[str]) -> None:
    begun, quiet = root / "begun", root / "quiet"
    begun.mkdir(parents=True)
    quiet.mkdir()
    assert launch(begun, 1) == [0] * RANKS
    assert launch(quiet, ITERATIONS) == [0] * RANKS
    expected = seen(quiet)
    assert len(expected["weights"]) > 10
    assert len(expected["moments"]) > 10
    # A resumed run that is not killed shows which places there are, and how often each is met.
    resumed = root / "resumed"
    shutil.copytree(begun / "run", resumed / "run")
    assert launch(resumed, ITERATIONS) == [0] * RANKS
    report("none", expected, seen(resumed))
    reached = [places(resumed, rank) for rank in range(RANKS)]
    for number, name in enumerate(which):
        rank, place = int(name[0]), name[2:]
        times = reached[rank].count(place)
        folder = root / str(number)
        shutil.copytree(begun / "run", folder / "run")
        statuses = launch(folder, ITERATIONS, rank, (place, (times + 1) // 2))
        assert statuses[rank] == -signal.SIGKILL, (name, statuses)
        assert places(folder, rank)[-1] == place, name
        assert launch(folder, ITERATIONS) == [0] * RANKS, name
        report(name, expected, seen(folder))
        shutil.rmtree(folder)


def report(place: str, expected: dict[str, Any], found: dict[str, Any]) -> None:
    wrong = [name for name, value in expected.items() if found[name] != value]
    sys.stdout.write(json.dumps({"place": place, "wrong": wrong}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
