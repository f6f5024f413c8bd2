"""What the benches share: the best of several runs of ours and the peers' in turn, in one process; table and record."""

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

# How long two are measured in turn at least; bench/compare.py repeats whole benches instead.
LEAST_SECONDS = float(os.environ.get("BENCH_LEAST_SECONDS", "4"))

# `cpu` times the work of all threads of this process instead of what passes on the wall: for a machine that others use.
CLOCK = os.environ.get("BENCH_CLOCK", "wall")
now = {"wall": time.perf_counter, "cpu": time.process_time}[CLOCK]

# Instructions on which peers, or we, choose their code at run time.
VECTORS = {"sse4_2", "avx", "fma", "avx2", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vbmi2", "avx512_bf16"}


def best(call: Callable[[], object], runs: int, enough: float = float("inf")) -> float:
    """Milliseconds of the fastest of some runs, after one that is not counted. As in timeit, garbage waits.

    After three runs, `enough` seconds in all end it: a peer that takes long is not run as often as one that does not.
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
    """As `best`, of two in turn, so that what else the machine does meets both; `enough` seconds in all end theirs.

    They go on for `LEAST_SECONDS`: a neighbour on the same processor may halve its speed for a second or two.
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
    """Have glibc join the small pieces of memory that the call before gave back.

    Else the first larger allocation of the next call does so, on its time: 0.3 ms behind a peer that loops in Python.
    """
    bytearray(1 << 16)


@dataclass
class Bench:
    """One bench: lines of ours against a peer, printed and kept."""

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
        """Check that both computed the same, as far as `read` reads their results, then time both."""
        np.testing.assert_allclose(read(ours()), read(theirs()), rtol=tolerance, atol=tolerance)
        mine, other = alternately(ours, theirs, runs, enough=5.0)
        line = {"work": work, "peer": peer, "ours_ms": mine, "peer_ms": other, "ratio": other / mine, "goal": goal}
        self.lines.append(line)
        met = "reached" if line["ratio"] >= goal else "missed"
        print(f"{work:<44} {peer:<22} {mine:9.2f} ms {other:10.2f} ms {other / mine:8.1f} x  (goal {goal:g}: {met})")

    def skipped(self, work: str, reason: str) -> None:
        """Say that a peer is not here."""
        self.lines.append({"work": work, "skipped": reason})
        print(f"{work:<44} skipped: {reason}")

    def write(self, **more: Any) -> None:
        """Write the record."""
        keep({"bench": self.name, **circumstances(), "lines": self.lines, **more})


def keep(record: dict[str, Any], kind: str | None = None) -> Path:
    """Write a record beside the others of this kind of machine."""
    path = folder(kind) / f"{record['bench']}.json"
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return path


def folder(kind: str | None = None) -> Path:
    """Where the records of a kind of machine lie: figures of one kind never replace those of another.

    A processor's kind is its maker, family and model, such as `amd-26-2`, or the architecture where they are not told.
    """
    cores = processor()
    maker = cores.get("vendor_id", "").removeprefix("Authentic").removeprefix("Genuine").lower()
    own = "-".join([maker, cores["cpu family"], cores["model"]]) if maker else platform.machine()
    path = RECORD / (kind or own)
    path.mkdir(parents=True, exist_ok=True)
    return path


def counted(name: str) -> int:
    """Bytes that the system counts for this process so far.

    `rchar` were asked for, `wchar` written, and `read_bytes` came from the disk, pages of mapped files among them.
    """
    lines = Path("/proc/self/io").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def forget(folder: Path) -> None:
    """Ask the system to forget what it keeps of the files below a folder, so that they are read from the disk again."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)


def circumstances() -> dict[str, Any]:
    """What the figures depend on besides the code: command, machine, how busy it was, and versions."""
    cores = processor()
    packages = ("agentrl-core", "numpy", "polars", "torch", "verl")
    installed = {distribution.metadata["Name"]: distribution.version for distribution in distributions()}
    # The whole path of a file would tell more about the machine than about the figures.
    return {
        "command": " ".join(Path(word).name for word in ["python", *sys.argv]),
        "processor": cores.get("model name", platform.machine()),
        # A hypervisor may not give the model's full name; with family and number it is known all the same.
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
    """Nanoseconds of a call of nothing: a third more where Python was built without `--enable-optimizations`."""
    runs = timeit.repeat("nothing()", "def nothing(): pass", repeat=50, number=10_000)
    return round(min(runs) / 10_000 * 1e9, 1)


def processor() -> dict[str, str]:
    """What the system says of the first core."""
    path = Path("/proc/cpuinfo")
    first = path.read_text(encoding="utf-8").partition("\n\n")[0] if path.exists() else ""
    words = (line.partition(":") for line in first.splitlines())
    return {name.strip(): text.strip() for name, _, text in words}


def load(path: str, name: str) -> ModuleType:
    """A peer's single file as a module."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} is no Python file; give the peer's own")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
