"""Run the missing runs of a study: one process for each, resumable; failures are recorded too.

    python bench/evidence/runner.py STUDY [--processes 2] [--minutes 60] [--world W] [--arm A] [--seeds 0 1 2]

A study is `pilot`, `controls`, `screening`, `screening_slow`, or the name of a claim. Each run may take ten minutes of
CPU time. Options narrow the study; after `--minutes`, no further run starts.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import arms
import pretrained
import records
import studies
import torch
import training
import warm_start
from records import Records, Run
from worlds import WORLDS

from agentrl_core.exceptions import AgentRLError

CPU_SECONDS = 600


def measured(run: Run) -> dict[str, Any]:
    """Return the record of a run, made in this process: its curve, or the error."""
    world, begin = WORLDS[run.world], time.process_time()
    arm = arms.arm(run.arm)
    try:
        training.check(world, arm)
    except AgentRLError as error:
        return {"status": "refused", "error": _short(error)}
    try:
        start = pretrained.load(world) if world.pretrained else warm_start.load(world, run.seed)
        ready = time.process_time()
        record = {"status": "done", **training.train(world, arm, run.seed, start), "start": start.digest}
    except Exception as error:  # noqa: BLE001 -- any failure of a recipe is its record
        traceback.print_exc()
        return {"status": "failed", "error": f"{type(error).__name__}: {_short(error)}"}
    return {**record, "cpu_s": round(time.process_time() - ready, 1), "start_cpu_s": round(ready - begin, 1)}


def fill(found: Records, runs: Sequence[Run], processes: int, minutes: float, **more: Any) -> int:
    """Run what is missing in the records, several processes at a time; return the number of added runs.

    Args:
        found: the records.
        runs: in order.
        processes: most at a time.
        minutes: after which no further run starts.
        **more: added to each record.
    """
    end, added = time.monotonic() + 60 * minutes, 0
    more |= records.version()  # of the code that this process has imported
    waiting, children = [run for run in runs if run not in found], dict[int, tuple[Run, Path]]()
    with tempfile.TemporaryDirectory() as folder:
        while waiting or children:
            if waiting and time.monotonic() >= end:
                waiting = []
            while waiting and len(children) < processes:
                run = waiting.pop(0)
                answer = Path(folder) / f"{len(waiting)}.json"
                children[_begun(run, answer)] = (run, answer)
            if not children:
                continue
            child, status = os.wait()
            run, answer = children.pop(child)
            record = json.loads(answer.read_text()) if answer.exists() else _killed(status)
            found.add(run, {**record, **more})
            added += 1
            success = record["curve"][-1][1] if "curve" in record else record["error"]
            print(f"{run.world} {run.arm} {run.seed}: {record['status']} {success}", flush=True)
    return added


def _begun(run: Run, answer: Path) -> int:
    """Fork a process for a run; its record goes to a file."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))
        torch.set_num_threads(1)
        half = answer.with_suffix(".part")
        half.write_text(json.dumps(measured(run)))
        half.rename(answer)
        status = 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _killed(status: int) -> dict[str, Any]:
    code = os.waitstatus_to_exitcode(status)
    return {"status": "failed", "error": f"the process ended with status {code}; it may take {CPU_SECONDS} CPU seconds"}


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


def main() -> None:
    """Run a study."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=1e6)
    parser.add_argument("--world")
    parser.add_argument("--arm")
    parser.add_argument("--seeds", type=int, nargs="+")
    options = parser.parse_args()
    os.nice(19 - os.nice(0))
    runs, more = studies.plan(options.study)
    selected = [
        run
        for run in runs
        if options.world in (None, run.world)
        and options.arm in (None, run.arm)
        and run.seed in (options.seeds or (run.seed,))
    ]
    study = records.study(studies.file_of(options.study))
    added = fill(study, selected, options.processes, options.minutes, **more)
    remaining = sum(run not in study for run in runs)
    print(f"{options.study}: {added} runs added, {remaining} of {len(runs)} left")


if __name__ == "__main__":
    main()
