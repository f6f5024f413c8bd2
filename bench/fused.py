"""The fused loss against the plain one on CPU: time and peak memory of forward and backward, results checked.

    python bench/fused.py [--shapes 1024x512x32768 ...]

The plain loss keeps all logits: torch's log_softmax over them, and the same compiled. Memory is the growth of the
process's peak, gradients included.
"""

from __future__ import annotations

import argparse
import ctypes
from collections.abc import Callable
from pathlib import Path

import torch
from common import Bench
from head_loss import Problem, plain_head
from torch import Tensor

# The option of glibc's mallopt that sets the size above which a block is mapped on its own.
_MMAP_THRESHOLD = -3
SHAPES = ("1024x512x32768", "2048x256x32768", "512x1024x65536")


def peak_mib(call: Callable[[], object]) -> float:
    """Return the growth of the peak of resident memory during a call, in MiB.

    During the call, large blocks are mapped and unmapped directly. Otherwise memory that the allocator keeps from
    earlier calls would add a random amount.
    """
    library = ctypes.CDLL(None)
    library.mallopt(_MMAP_THRESHOLD, 2**20)
    call()  # allocates what is created once
    library.malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # reset the peak
    before = status("VmRSS")
    call()
    peak = (status("VmHWM") - before) / 1024
    library.mallopt(_MMAP_THRESHOLD, 2**25)  # glibc's own default for large blocks
    return peak


def status(field: str) -> int:
    """Return a value of this process's status, in KiB."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def read(result: tuple[Tensor, Tensor, Tensor]) -> list[float]:
    """Return the loss, and the gradients projected on a few random directions."""
    value, by_hidden, by_weight = result
    sides = [torch.randn(gradient.shape, generator=torch.Generator().manual_seed(1)) for gradient in result[1:]]
    projections = [(side * gradient).sum() / gradient.norm() for side, gradient in zip(sides, result[1:], strict=True)]
    return [float(one) for one in (value, by_hidden.norm(), by_weight.norm(), *projections)]


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=SHAPES, metavar="NxHxV")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--no-compile", action="store_true", help="leave out torch.compile of the plain loss")
    options = parser.parse_args()
    bench = Bench("fused")
    for shape in options.shapes:
        problem = Problem.random(*(int(number) for number in shape.split("x")), "cpu", torch.float32)

        def ours(problem: Problem = problem) -> tuple[Tensor, Tensor, Tensor]:
            return problem.fused(), *problem.gradients()

        def plain(
            head: Callable[..., tuple[Tensor, Tensor]] = plain_head, problem: Problem = problem
        ) -> tuple[Tensor, Tensor, Tensor]:
            problem.clear()
            arguments = (problem.pack.target, problem.pack.streams.inverse_temperature)
            value = problem.evaluated(*head(problem.hidden, problem.weight, *arguments))
            value.backward()
            return value.detach(), *problem.gradients()

        peers: dict[str, Callable[[], tuple[Tensor, Tensor, Tensor]]] = {"plain torch": plain}
        if not options.no_compile:
            torch._dynamo.reset()  # noqa: SLF001 - torch's own advice between shapes
            compiled = torch.compile(plain_head)
            peers["torch.compile of it"] = lambda plain=plain, compiled=compiled: plain(compiled)
        our_peak = peak_mib(ours)
        for peer, theirs in peers.items():
            work = f"loss and gradients, {shape}"
            bench.against(work, peer, ours, theirs, runs=options.runs, goal=1.0, read=read, tolerance=2e-4)
            other = peak_mib(theirs)
            bench.lines[-1] |= {"ours_mib": our_peak, "peer_mib": other, "memory_ratio": other / our_peak}
            print(f"{'  peak memory':<44} {peer:<22} {our_peak:8.0f} MiB {other:9.0f} MiB {other / our_peak:8.1f} x")
    bench.write(torch=torch.__version__, torch_threads=torch.get_num_threads())


if __name__ == "__main__":
    main()
