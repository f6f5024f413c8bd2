"""Loops whose batches are cut while groups are in flight; as a program, a loop that is killed repeatedly.

`python cutting.py FOLDER NAME STALENESS`: for each line of standard input, a new process continues the run. It kills
itself at the request whose number is in the line, or closes all iterations. Each request is a line of `FOLDER/asked`.
The program prints `died N` with the signal that ended each process.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from small_world import SmallWorld

from agentrl_core import Batch, Collector, Store, recipes
from agentrl_core.collect import BatchPolicy
from agentrl_core.engine import Request, Segment
from agentrl_core.env import StepResult, Task

ITERATIONS, TASKS, SIZE, SEED = 8, 4, 2, 9
LONG = 8
"""One task of `LONG` tasks has episodes of `LONG` turns; the others have one turn."""
CUTS = {
    "arrival": BatchPolicy(oversample=2.0),
    "bound": BatchPolicy(oversample=2.0, max_carryovers=2),
    "drop": BatchPolicy(oversample=1.5, max_carryovers=0, stragglers="drop"),
    "window": BatchPolicy(max_new_tokens=8),
}


def turns(task: str) -> int:
    return LONG if int(task.rsplit(maxsplit=1)[-1]) % LONG == 0 else 1


class Uneven(SmallWorld):
    """Episodes of one turn, and some of several; records the seeds of its requests.

    Args:
        request_log: file for the seeds; None: no file.
        dies: number of the request at which the process ends; 0: never.
        seconds: duration of a segment.
    """

    runs = "inline"

    def __init__(self, request_log: Path | None = None, dies: int = 0, seconds: float = 0.0) -> None:
        super().__init__(self._answered)
        self.request_log, self.remaining, self.seconds = request_log, dies, seconds

    @staticmethod
    def _answered(task: Task, seed: int, actions: list[str]) -> Any:
        if len(actions) < turns(task.task_id):
            return StepResult("go on")
        return StepResult(reward=float(seed % 2), terminated=True, success=True)

    async def generate(self, request: Request) -> Segment:
        if self.request_log is not None:
            with self.request_log.open("a", encoding="ascii") as file:
                file.write(f"{request.seed}\n")
        self.remaining -= 1
        if not self.remaining:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.seconds:
            await asyncio.sleep(self.seconds)
        return await super().generate(request)


def trained(
    world: Uneven, cut: BatchPolicy, store: Store | None = None, until: int = ITERATIONS, **options: Any
) -> list[Batch]:
    """Return the batches from the iteration at which the store stands."""
    batches = []
    collect = Collector(world, world, recipes.GRPO, seed=SEED, task_pool=64, batch_policy=cut, store=store, **options)
    while collect.iteration < until:
        world.policy_version = collect.iteration
        batches.append(collect(tasks=TASKS, group_size=SIZE))
        collect.end_iteration(recipes.GRPO.credit(batches[-1]), {})
    collect.close()
    return batches


def again(folder: Path, name: str, staleness: int) -> None:
    for line in sys.stdin:
        child = os.fork()
        if not child:
            with Store.open(folder / "run", sync="never") as store:
                trained(Uneven(folder / "asked", int(line)), CUTS[name], store, staleness=staleness)
            os._exit(0)
        sys.stdout.write(f"died {-os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    again(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
