"""The fused loss on a GPU: its targets, beside torch, torch.compile, Liger and cut_cross_entropy.

    python bench/gpu.py [--record] [--shapes 8192x4096x131072 ...]
    python bench/gpu.py --device cpu --small            (the same steps on a toy problem, to test the bench)

Every result is checked against fp64, and its errors are listed. Targets B1 to B5 are about the first shape. B6 compares
with the CPU, B8 is about start-up. The tests prove B7: the result of folded branches equals their sum. With --record
the figures go to gpu.json and gpu.md in bench/record, in the folder of the GPU's name.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from common import circumstances, keep
from gpu_peers import Outcome, head_contenders, loss_contenders
from head_loss import Problem

from agentrl_core import loss

SHAPES = ("8192x4096x131072", "16384x4096x131072", "8192x2048x151936", "8192x1024x151936", "4096x2048x131072")
SMALL = ("64x16x500",)
MIB = 2**20


@dataclass
class Bench:
    """Device, number of runs, and results so far."""

    device: str
    runs: int
    lines: list[dict[str, Any]]
    bars: list[dict[str, Any]]

    def measured(self, call: Callable[[], object]) -> tuple[float, float]:
        """Return the median milliseconds, and the growth of the memory peak in MiB."""
        for _ in range(3):
            call()
        if self.device != "cuda":
            times = []
            for _ in range(self.runs):
                start = time.perf_counter()
                call()
                times.append(1e3 * (time.perf_counter() - start))
            return statistics.median(times), 0.0
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        peak = (torch.cuda.max_memory_allocated() - before) / MIB
        times = []
        for _ in range(self.runs):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end))
        return statistics.median(times), peak

    def line(self, work: str, shape: str, name: str, call: Callable[[], Outcome], truth: Outcome) -> dict[str, Any]:
        """Check one contender, time it, and note the results."""
        try:
            errors = call().errors(truth)
            torch.cuda.empty_cache()
            milliseconds, peak = self.measured(call)
        except torch.cuda.OutOfMemoryError:
            errors, milliseconds, peak = {}, float("nan"), float("nan")
        row = {"work": work, "shape": shape, "name": name, "ms": milliseconds, "peak_mib": peak, **errors}
        self.lines.append(row)
        errors_text = ", ".join(f"{key} {value:.1e}" for key, value in errors.items())
        print(
            f"{work:<9} {shape:<18} {name:<34} {milliseconds:9.2f} ms {peak:9.0f} MiB  {errors_text or 'out of memory'}"
        )
        return row

    def bar(self, name: str, text: str, value: float, limit: float, *, at_least: bool = False) -> None:
        """Note whether a target is reached."""
        reached = value >= limit if at_least else value <= limit
        self.bars.append({"bar": name, "what": text, "value": value, "limit": limit, "reached": reached})
        sign = ">=" if at_least else "<="
        print(f"{name} {text}: {value:.4g} ({sign} {limit:g}: {'reached' if reached else 'missed'})")

    def skipped(self, name: str, reason: str) -> None:
        """Note that a peer is not installed."""
        self.lines.append({"name": name, "skipped": reason})
        print(f"{name} skipped: {reason}")


def compared(bench: Bench, shape: str, *, compiled: bool) -> dict[str, dict[str, Any]]:
    """Run all contenders on one shape, ours first; return their lines by name."""
    rows, size, vocabulary = (int(number) for number in shape.split("x"))
    dtype = torch.bfloat16 if bench.device == "cuda" else torch.float32
    problem = Problem.random(rows, size, vocabulary, bench.device, dtype, sequences=8)
    lines = {}
    for work, contenders in (("head", head_contenders), ("loss", loss_contenders)):
        truths: dict[str, Outcome] = {}
        for contender in contenders(problem, bench.skipped, compiled=compiled):
            policy = contender.policy
            if repr(policy) not in truths:
                truths[repr(policy)] = Outcome(*replace(problem, policy=policy).truth())
            lines[f"{work} {contender.name}"] = bench.line(
                work, shape, contender.name, contender.run, truths[repr(policy)]
            )
            problem.clear()
    return lines


def judge(bench: Bench, shape: str, lines: dict[str, dict[str, Any]], *, most_rows: int) -> None:
    """Check B1 to B6 on the first shape."""
    rows, size, vocabulary = (int(number) for number in shape.split("x"))
    head, loss_row = lines["head ours"], lines["loss ours"]
    bench.bar("B1", "log-probs and entropies, ms", head["ms"], 15.0)
    bench.bar("B2", "loss and gradients, ms", loss_row["ms"], 44.0)
    ratio = lines["loss torch, chunks of 512"]["ms"] / loss_row["ms"]
    bench.bar("B2", "times faster than torch in chunks of 512", ratio, 3.0, at_least=True)
    dtype = torch.bfloat16 if bench.device == "cuda" else torch.float32
    gradient_mib = (
        vocabulary * size * (4 + dtype.itemsize) / MIB
    )  # the weight's gradient, accumulated in fp32 and in its dtype
    for count in (rows, most_rows):
        many = Problem.random(count, size, vocabulary, bench.device, dtype)
        _, peak = bench.measured(many.fused)
        room = peak - gradient_mib - 2 * count * size * dtype.itemsize / MIB
        bench.bar("B3", f"MiB beside gradients at {count} rows", room, 1024.0 * 1.02)
    bench.bar("B4", "log p, mean error", head["logprob_mean"], 1e-5)
    bench.bar("B4", "log p, largest error", head["logprob_max"], 1e-4)
    bench.bar("B4", "entropy, mean error", head["entropy_mean"], 1e-5)
    bench.bar("B4", "entropy, largest error", head["entropy_max"], 1e-4)
    bench.bar("B4", "gradient by hidden states, relative", loss_row["by_hidden"], 4e-3)
    bench.bar("B4", "gradient by weight, relative", loss_row["by_weight"], 4e-3)
    problem = Problem.random(rows, size, vocabulary, bench.device, dtype)
    bench.bar("B5", "bits that differ from run to run", differing_bits(problem), 0.0)
    bench.bar("B5", "rows that depend on others", dependent_rows(problem), 0.0)
    small = Problem.random(256, 512, 8192, "cpu", torch.float32)
    near = loss.linear_logprob(small.hidden, small.weight, small.pack.target)[0].detach()
    far = [value.detach().to(bench.device) for value in (small.hidden, small.weight, small.pack.target)]
    apart = (loss.linear_logprob(*far)[0].cpu() - near).abs().mean()
    bench.bar("B6", "log p on CPU and here, mean difference", float(apart), 1e-5)


def differing_bits(problem: Problem) -> float:
    """Return the number of values of loss and gradients that differ between two runs."""
    first = (problem.fused(), *(gradient.clone() for gradient in problem.gradients()))
    second = (problem.fused(), *problem.gradients())
    return float(sum((one != other).sum() for one, other in zip(first, second, strict=True)))


def dependent_rows(problem: Problem) -> float:
    """Return the number of rows whose log-prob or entropy changes without the first third of the rows."""
    scale, target = problem.pack.streams.inverse_temperature, problem.pack.target
    first_row = len(target) // 3
    with torch.no_grad():
        full = loss.linear_logprob(problem.hidden, problem.weight, target, scale)
        part = loss.linear_logprob(problem.hidden[first_row:], problem.weight, target[first_row:], scale[first_row:])
    return float(sum((one[first_row:] != other).sum() for one, other in zip(full, part, strict=True)))


def started(bench: Bench, runs: int) -> None:
    """Check B8: compile, start from the cache, and import, each in a process of its own."""
    program = """
import sys, time
import torch, agentrl_core.loss, agentrl_core.model.pack
start = time.perf_counter()
import agentrl_core.loss.chunked_logits
imported = time.perf_counter() - start
from agentrl_core.model.cuda_kernels import Kernels, cubin
start = time.perf_counter()
try:
    import cuda.core
except ImportError:
    print("nan nan", imported)
    sys.exit()
package = time.perf_counter() - start
if torch.cuda.is_available():
    torch.zeros(1, device="cuda")
    architecture = "sm_%d%d" % torch.cuda.get_device_capability()
else:
    architecture = "sm_90"
start = time.perf_counter()
cubin("linear_logprob", architecture)
if torch.cuda.is_available():
    Kernels("linear_logprob", torch.device("cuda", 0))
print(time.perf_counter() - start, package, imported)
"""
    with tempfile.TemporaryDirectory() as folder:
        times = []
        for _ in range(runs):
            completed = subprocess.run(  # noqa: S603 - the program above
                [sys.executable, "-c", program],
                env=os.environ | {"XDG_CACHE_HOME": folder},
                capture_output=True,
                text=True,
                check=True,
            )
            times.append([1e3 * float(number) for number in completed.stdout.split()])
    first, *later = times
    bench.bar("B8", "first use, ms", first[0], 2000.0)
    bench.bar("B8", "from the cache, ms", min(run[0] for run in later), 50.0)
    bench.bar("B8", "import beyond torch, ms", min(run[2] for run in times), 50.0)
    print(f"   importing cuda-core itself: {min(run[1] for run in times):.0f} ms")


def write(bench: Bench) -> None:
    """Write the record and a table of it."""
    name = torch.cuda.get_device_name() if bench.device == "cuda" else None
    machine = {"device": name or platform.machine(), "torch": torch.__version__, "cuda": torch.version.cuda}
    record = {"bench": "gpu", **circumstances(), **machine, "lines": [*bench.bars, *bench.lines]}
    path = keep(record, None if name is None else name.lower().replace(" ", "-"))
    path.with_suffix(".md").write_text(table(bench, machine), encoding="utf-8")


def table(bench: Bench, machine: dict[str, Any]) -> str:
    """Return the figures in Markdown."""
    rows = ["| bar | what | value | limit | |", "|---|---|---|---|---|"]
    for bar in bench.bars:
        state = "reached" if bar["reached"] else "missed"
        rows.append(f"| {bar['bar']} | {bar['what']} | {bar['value']:.4g} | {bar['limit']:g} | {state} |")
    rows += ["", "| work | N x H x V | by | ms | peak MiB |", "|---|---|---|---|---|"]
    for line in bench.lines:
        if "skipped" in line:
            rows.append(f"| | | {line['name']} | {line['skipped']} | |")
        else:
            rows.append(
                f"| {line['work']} | {line['shape']} | {line['name']} | {line['ms']:.2f} | {line['peak_mib']:.0f} |"
            )
    return f"{', '.join(str(value) for value in machine.values())}\n\n" + "\n".join(rows) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Run the bench; return 2 if there is no device."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="toy shapes and few runs")
    parser.add_argument("--shapes", nargs="+", metavar="NxHxV")
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--no-compile", action="store_true", help="leave out torch.compile")
    parser.add_argument("--record", action="store_true", help="keep the figures in bench/record")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("there is no CUDA device here; give --device cpu --small to see the steps run", file=sys.stderr)
        return 2
    bench = Bench(options.device, 3 if options.small else options.runs, [], [])
    shapes = options.shapes or (SMALL if options.small else SHAPES)
    for place, shape in enumerate(shapes):
        lines = compared(bench, shape, compiled=not options.no_compile)
        if place == 0:
            judge(bench, shape, lines, most_rows=200 if options.small else 65_536)
    started(bench, 2 if options.small else 4)
    if options.record:
        write(bench)
    return 0


if __name__ == "__main__":
    sys.exit(main())
