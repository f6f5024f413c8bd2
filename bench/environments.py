"""Steps per second of 64 and 1 024 concurrent dummy environments, inline, in threads, processes and Ray actors.

    python bench/environments.py [--environments 64 1024] [--runs inline thread process ray] [--episodes 2048]

Each environment answers at once with a short text, for 10 turns; the engine answers at once with 16 tokens. The number
of episodes in flight is the number of environments. A line shows steps per second, and CPU seconds of the collector's
process per step; processes and actors (two each) add their own. All batches must be equal. Then each environment waits
for 0.1 s, in threads, and the bench prints the measured time and the ideal one.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from collect import SAMPLING, Free, World
from common import Bench

import agentrl_core as arl

TURNS, WORKERS, SECONDS = 10, 2, 0.1


def collected(world: World, environments: int, episodes: int) -> tuple[float, float, arl.Batch]:
    """Wall seconds, CPU seconds of this process, and the batch."""
    collect = arl.Collector(
        Free(),
        world,
        arl.Recipe(name="bench"),
        task_pool=episodes // 8,
        sampling=SAMPLING,
        context_tokens=1 << 20,
        concurrency=environments,
        processes=WORKERS,
    )
    collect.evaluate(tasks=1, samples=8)  # start threads, processes and actors
    begin, busy = time.perf_counter(), time.process_time()
    batch = collect(tasks=episodes // 8, group_size=8)
    seconds, busy = time.perf_counter() - begin, time.process_time() - busy
    collect.close()
    return seconds, busy, batch


def main() -> None:
    """Measure, compare and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", type=int, nargs="+", default=[64, 1024])
    parser.add_argument("--runs", nargs="+", default=["inline", "thread", "process", "ray"])
    parser.add_argument("--episodes", type=int, default=2048)
    options = parser.parse_args()
    if "ray" in options.runs:
        import ray

        ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20)
    bench = Bench("environments")
    tokens = None
    for runs in options.runs:
        for environments in options.environments:
            seconds, busy, batch = collected(World(TURNS, runs), environments, options.episodes)
            batch_tokens = batch.column("token", "token")
            assert tokens is None or np.array_equal(tokens, batch_tokens)
            tokens = batch_tokens
            steps = options.episodes * TURNS
            line = {
                "work": f"{environments} environments, {runs}",
                "steps": steps,
                "steps_per_second": round(steps / seconds),
                "collector_cpu_us_per_step": round(1e6 * busy / steps, 1),
            }
            bench.lines.append(line)
            print(
                f"{line['work']:<32} {line['steps_per_second']:>8,} steps/s "
                f"{line['collector_cpu_us_per_step']:>8.1f} us of the collector's process a step",
                flush=True,
            )
    for environments in options.environments:
        episodes = 2 * environments
        world = World(TURNS, "thread", least=SECONDS, most=SECONDS)
        seconds, busy, _ = collected(world, environments, episodes)
        line = {
            "work": f"{environments} environments that wait {SECONDS} s, thread",
            "seconds": round(seconds, 2),
            "needed": episodes // environments * TURNS * SECONDS,
            "collector_cpu_us_per_step": round(1e6 * busy / episodes / TURNS, 1),
        }
        bench.lines.append(line)
        print(f"{line['work']:<44} {line['seconds']:.2f} s, of which {line['needed']:.2f} s are needed", flush=True)
    bench.write()


if __name__ == "__main__":
    main()
