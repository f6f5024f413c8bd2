"""Shared parts of the benches: time ours and the peers' in turn in one process; print tables and write records."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import platform
import sys
import time
import timeit
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import distributions
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import agentrl_core as arl

RECORD = Path(__file__).parent / "record"

# Least duration of a comparison in turn; bench/compare.py repeats whole benches instead.
LEAST_SECONDS = float(os.environ.get("BENCH_LEAST_SECONDS", "4"))

# `cpu` measures CPU time of all threads of this process instead of wall time: for a machine with other load.
CLOCK = os.environ.get("BENCH_CLOCK", "wall")
now = {"wall": time.perf_counter, "cpu": time.process_time}[CLOCK]

# Instruction sets by which peers, or we, choose code at run time.
VECTORS = {"sse4_2", "avx", "fma", "avx2", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vbmi2", "avx512_bf16"}


def best(call: Callable[[], object], runs: int, enough: float = float("inf")) -> float:
    """Return the milliseconds of the fastest of several runs, after one uncounted run.

    As in timeit, garbage collection is off. After three runs, the measurement ends once it has taken `enough` seconds
    in all, so that slow peers run less often.
    """
    call()
    times: list[float] = []
    gc.collect()
    gc.disable()
    try:
        while len(times) < runs and (len(times) < 3 or sum(times) < enough):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
    finally:
        gc.enable()
    return 1e3 * min(times)


def alternately(
    ours: Callable[[], object], theirs: Callable[[], object], runs: int, enough: float
) -> tuple[float, float]:
    """Like `best`, for two functions in turn, so that other load on the machine affects both equally.

    The measurement lasts at least `LEAST_SECONDS`, since a neighbour on the same processor may halve its speed for a
    second or two. After three runs, `theirs` is skipped once it has taken `enough` seconds in all.
    """
    ours()
    theirs()
    times: tuple[list[float], list[float]] = ([], [])
    gc.collect()
    gc.disable()
    begin = time.perf_counter()
    try:
        while len(times[0]) < runs or time.perf_counter() - begin < LEAST_SECONDS:
            for call, spent in zip((ours, theirs), times, strict=True):
                if call is theirs and len(spent) >= 3 and sum(spent) >= enough:
                    continue
                bring_together()
                start = now()
                call()
                spent.append(now() - start)
    finally:
        gc.enable()
    return 1e3 * min(times[0]), 1e3 * min(times[1])


def bring_together() -> None:
    """Have glibc merge the small blocks of memory that the previous call freed.

    Otherwise the first larger allocation of the next call does this, which adds 0.3 ms after a peer that loops in
    Python.
    """
    bytearray(1 << 16)


@dataclass
class Bench:
    """One bench: prints and records comparisons of ours with a peer."""

    name: str
    lines: list[dict[str, Any]] = field(default_factory=list)

    def against(
        self,
        work: str,
        peer: str,
        ours: Callable[[], Any],
        theirs: Callable[[], Any],
        *,
        runs: int,
        goal: float,
        read: Callable[[Any], Any] = np.asarray,
        tolerance: float = 2e-5,
    ) -> None:
        """Check that both computed the same values, read from their results by `read`, then time both."""
        np.testing.assert_allclose(read(ours()), read(theirs()), rtol=tolerance, atol=tolerance)
        mine, other = alternately(ours, theirs, runs, enough=5.0)
        line = {"work": work, "peer": peer, "ours_ms": mine, "peer_ms": other, "ratio": other / mine, "goal": goal}
        self.lines.append(line)
        met = "reached" if line["ratio"] >= goal else "missed"
        print(f"{work:<44} {peer:<22} {mine:9.2f} ms {other:10.2f} ms {other / mine:8.1f} x  (goal {goal:g}: {met})")

    def alone(self, work: str, ours: Callable[[], Any], reason: str, *, runs: int) -> None:
        """Time ours without the peer, which is skipped for a reason."""
        mine = best(ours, runs)
        self.lines.append({"work": work, "skipped": reason, "ours_ms": mine})
        print(f"{work:<44} {mine:9.2f} ms; the peer is skipped: {reason}")

    def skipped(self, work: str, reason: str) -> None:
        """Note that a peer is not installed."""
        self.lines.append({"work": work, "skipped": reason})
        print(f"{work:<44} skipped: {reason}")

    def write(self, **more: Any) -> None:
        """Write the record."""
        keep({"bench": self.name, **circumstances(), "lines": self.lines, **more})


def keep(record: dict[str, Any], kind: str | None = None) -> Path:
    """Write a record into the folder of this kind of machine."""
    path = folder(kind) / f"{record['bench']}.json"
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return path


def folder(kind: str | None = None) -> Path:
    """Return the folder of records for a kind of machine: figures of one kind never replace those of another.

    A processor's kind is its maker, family and model, such as `amd-26-2`, or the architecture if these are unknown.
    """
    cores = processor()
    maker = cores.get("vendor_id", "").removeprefix("Authentic").removeprefix("Genuine").lower()
    cpu_name = "-".join([maker, cores["cpu family"], cores["model"]]) if maker else platform.machine()
    path = RECORD / (kind or cpu_name)
    path.mkdir(parents=True, exist_ok=True)
    return path


def counted(name: str) -> int:
    """Return the bytes that the system has counted for this process so far.

    `rchar`: requested reads; `wchar`: writes; `read_bytes`: bytes from the disk, pages of mapped files included.
    """
    lines = Path("/proc/self/io").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def forget(folder: Path) -> None:
    """Evict the files below a folder from the page cache, so that they are read from the disk again."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)


def circumstances() -> dict[str, Any]:
    """Return the conditions of a measurement besides the code: command, machine, load and versions."""
    cores = processor()
    packages = ("agentrl-core", "numpy", "polars", "torch", "verl")
    installed = {distribution.metadata["Name"]: distribution.version for distribution in distributions()}
    # Only the file's name: its whole path describes the machine, not the figures.
    return {
        "command": " ".join(Path(word).name for word in ["python", *sys.argv]),
        "processor": cores.get("model name", platform.machine()),
        # A hypervisor may hide the model's full name; family and number identify it anyway.
        "family_and_model": [cores.get("cpu family"), cores.get("model")],
        "vectors": [flag for flag in cores.get("flags", "").split() if flag in VECTORS],
        "cores": os.cpu_count(),
        "threads": arl.num_threads(),
        **({} if CLOCK == "wall" else {"clock": CLOCK}),
        "load": [round(average, 2) for average in os.getloadavg()],
        "versions": {
            "python": platform.python_version(),
            **{name: installed[name] for name in packages if name in installed},
        },
        "python_call_ns": python_call(),
    }


def python_call() -> float:
    """Return the nanoseconds of an empty call: a third more if Python was built without `--enable-optimizations`."""
    runs = timeit.repeat("nothing()", "def nothing(): pass", repeat=50, number=10_000)
    return round(min(runs) / 10_000 * 1e9, 1)


def processor() -> dict[str, str]:
    """Return the system's description of the first core."""
    path = Path("/proc/cpuinfo")
    first = path.read_text(encoding="utf-8").partition("\n\n")[0] if path.exists() else ""
    words = (line.partition(":") for line in first.splitlines())
    return {name.strip(): text.strip() for name, _, text in words}


def load(path: str, name: str) -> ModuleType:
    """Load a peer's single file as a module."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} is no Python file; give the peer's own")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
