"""Cost of searches, and tasks that they solve with a budget of tokens.

    python bench/search.py [--turns 1000 10000 100000] [--worlds demo textworld] [--seeds 5] [--tasks 4] [--budget 256]

1. Decisions: a live group of *n* turns, each forked at a random node. The bench measures how long the tree takes to
read the whole group, and how long a round takes then: read 16 new turns, then choose 16 nodes by each rule. Decisions
per second are 16 divided by the median time of reading and choosing; the growth of the forest is not counted.
2. Tokens per solved task: search programs against independent samples, on the demo's task with its warm-started model,
and in games of TextWorld with a model that plays at random. Every program gets the same number of generated tokens for
a task: it runs again with new samples until they are used up, and its last run is cut there. A task is solved if one of
its branches is. The games have a record of their own, search_textworld.

With the default sizes each world takes less than five minutes on two idle cores; stderr shows a progress bar.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from common import Bench
from rich.console import Console
from rich.progress import track

import agentrl_core as arl
from agentrl_core import _core, engine, env, recipes, rollout, warm_start
from agentrl_core.recipes.bfs_prover_v2 import BestFirst

WIDTH = 16


def build_group(turns: int, seed: int) -> tuple[arl.Forest, list[int], np.random.Generator]:
    """Return a group of *n* turns; one in eight ends its episode."""
    rng = np.random.default_rng(seed)
    forest = arl.Forest(seed=seed)
    forest.add_group(0, "task")
    trunk = forest.start(0, 0)
    forest.append(trunk, [1, 2], kind="prompt", state="begin")
    open_ = [trunk]
    more(forest, open_, rng, turns)
    return forest, open_, rng


def more(forest: arl.Forest, places: list[int], rng: np.random.Generator, turns: int) -> None:
    """Add *n* turns after randomly drawn nodes."""
    states = rng.integers(0, 1 << 40, turns)
    ends = rng.random(turns) < 0.125
    logprobs = -rng.random(turns).astype(np.float32)
    at = rng.random(turns)
    for turn in range(turns):
        branch = forest.fork(places[int(at[turn] * len(places))])
        forest.append(branch, [3], kind="action", logprobs=[float(logprobs[turn])])
        forest.step(branch, terminated=bool(ends[turn]))
        if ends[turn]:
            forest.finish(branch, reward=float(states[turn] % 2), success=False)
        else:
            forest.append(branch, [4], kind="observation", state=states[turn].tobytes())
            places.append(branch)


def decisions(bench: Bench, turns: int, rounds: int) -> None:
    """Return how long reading and choosing take in a tree of *n* turns."""
    forest, places, rng = build_group(turns, 0)
    tree = _core.SearchTree()
    start = time.perf_counter()
    tree.follow(forest._core, 0)  # noqa: SLF001
    elapsed = time.perf_counter() - start
    rules: dict[str, Callable[[], list[int]]] = {
        "best first": lambda: tree.frontier(WIDTH),
        "upper confidence bounds": lambda: tree.descend(WIDTH, 4, 1000, 0.25),
        "under-sampled": lambda: tree.under_sampled(WIDTH),
    }
    seconds: dict[str, list[float]] = {name: [] for name in rules}
    readings: list[float] = []
    for _ in range(rounds):
        more(forest, places, rng, WIDTH)
        start = time.perf_counter()
        tree.follow(forest._core, 0)  # noqa: SLF001
        readings.append(time.perf_counter() - start)
        for name, rule in rules.items():
            start = time.perf_counter()
            rule()
            seconds[name].append(time.perf_counter() - start)
    line: dict[str, Any] = {"turns": turns, "read_all_us_a_turn": 1e6 * elapsed / turns}
    reading = float(np.median(readings))
    line["read_round_us"] = 1e6 * reading
    for name, spent in seconds.items():
        line[f"{name}, decisions a second"] = round(WIDTH / (float(np.median(spent)) + reading))
    bench.lines.append(line)
    print(f"{turns:>9} turns: " + ", ".join(f"{name} {value:,.3g}" for name, value in list(line.items())[1:]))


class Metered:
    """An engine that counts its generated tokens."""

    def __init__(self, generate: Any) -> None:
        self._generate = generate
        self.tokens = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generate, name)

    async def generate(self, request: engine.Request) -> engine.Segment:
        """Generate with the wrapped engine, and count."""
        segment: engine.Segment = await self._generate.generate(request)
        self.tokens += len(segment.tokens)
        return segment


def solved(
    program: rollout.Rollout, metered: Metered, world: Any, context: int, budget: int, seed: int
) -> tuple[bool, int]:
    """Return whether a task is solved within the budget of tokens, and the number of tokens used."""
    tokens_before = metered.tokens
    collect = arl.Collector(
        metered,
        world,
        recipes.GRPO.replace(rollout=program),
        seed=seed,
        task_pool=1,
        sampling=engine.Sampling(max_tokens=32),
        context_tokens=context,
        turn_limit=8,
    )
    with closing(collect):
        for _ in range(1000):
            batch = collect(tasks=1, group_size=1)
            collect.end_iteration(batch, {})
            spent = metered.tokens - tokens_before
            if spent > budget:
                break
            if batch.num_draws and batch.column("success", "draw").max() > 0:
                return True, spent
    return False, budget


class OneTask:
    """An environment of one task at a time.

    Its episodes run in this process: a collector is built for each task, and starting processes takes longer than a
    search.
    """

    runs: ClassVar = "inline"

    def __init__(self, world: Any, first: int) -> None:
        self._world, self._first, self.only = world, first, 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._world, name)

    def tasks(self, count: int, *, split: str = "train", start: int = 0) -> list[env.Task]:
        """Return copies of the task with other ids."""
        del count, start
        [task] = self._world.tasks(1, split=split, start=self._first + self.only)
        return [task]


def demo(steps: int, folder: Path | None) -> tuple[Any, Any, Any]:
    """Return the demo's task, and its model after the warm start."""
    world = env.ReasoningGym(["chain_sum", "products", "lcm"], seed=0)
    if folder is not None and (folder / "config.json").is_file():
        from transformers import AutoModelForCausalLM, AutoTokenizer

        policy: Any = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    else:
        policy, tokenizer = warm_start.warm_start(world, seed=0, steps=steps)
        if folder is not None:
            policy.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
    return world, policy, tokenizer


def textworld(tasks: int, games: str) -> tuple[Any, Any, Any]:
    """Return coin collectors of TextWorld, one room away, and a model that plays them at random."""
    import learning

    world = env.TextWorld("coin_collector", {"level": 2}, show_commands=True, max_turns=5, folder=games)
    rng = random.Random(0)  # noqa: S311
    chosen = world.tasks(tasks)
    plays = [learning.played(world, task, rng) for task in chosen for _ in range(128 // tasks)]
    tokenizer = learning.made_tokenizer(plays)
    return world, learning.warm_start(plays, tokenizer, 0, 60), tokenizer


def measure_programs(bench: Bench, title: str, parts: tuple[Any, Any, Any], first: int, options: Any) -> None:
    """Measure tokens per solved task, by program."""
    world, policy, tokenizer = parts
    seeds, tasks, budget = options.seeds, options.tasks, options.budget
    context = min(policy.config.max_position_embeddings, 1000)
    metered = Metered(engine.Transformers(policy, tokenizer))
    programs: dict[str, rollout.Rollout] = {
        "independent": rollout.Independent(),
        "best first": BestFirst(samples=4, budget=32),
        "monte carlo": rollout.MonteCarlo(iterations=4, samples=2, depth=8),
    }
    for name, program in programs.items():
        one = OneTask(world, first)
        counts, spent = [0] * seeds, [0] * seeds
        for place in track(range(seeds * tasks), f"{title}, {name}", console=Console(stderr=True)):
            one.only = place % tasks
            success, tokens = solved(program, metered, one, context, budget, place)
            counts[place // tasks] += success
            spent[place // tasks] += tokens
        cost = [tokens / max(count, 1) for tokens, count in zip(spent, counts, strict=True)]
        line = {
            "world": title,
            "program": name,
            "budget_tokens_a_task": budget,
            "tasks": tasks,
            "seeds": seeds,
            "solved": counts,
            "tokens": spent,
            "tokens_a_solved_task": [round(each, 1) for each in cost],
        }
        bench.lines.append(line)
        print(
            f"{title}, {name:<12} solved {np.mean(counts):.1f} of {tasks} (from {min(counts)} to {max(counts)}), "
            f"tokens for each solved task {np.mean(cost):.0f} (from {min(cost):.0f} to {max(cost):.0f})",
            flush=True,
        )
        bench.write()


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, nargs="*", default=[1000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--worlds", nargs="*", default=["demo", "textworld"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=480, help="of the warm start")
    parser.add_argument(
        "--model", default="", help="folder of the model after its warm start; made where it is not there"
    )
    parser.add_argument("--games", default="", help="folder of the games of TextWorld; made where they are not there")
    parser.add_argument("--budget", type=int, default=256, help="tokens for each task")
    arguments = parser.parse_args()
    bench = Bench("search")
    for turns in arguments.turns:
        decisions(bench, turns, arguments.rounds)
    if "demo" in arguments.worlds:
        folder = Path(arguments.model) if arguments.model else None
        measure_programs(bench, "demo", demo(arguments.steps, folder), 5000, arguments)
    if bench.lines:
        bench.write()
    if "textworld" in arguments.worlds:
        with tempfile.TemporaryDirectory() as games:
            parts = textworld(arguments.tasks, arguments.games or games)
            measure_programs(Bench("search_textworld"), "TextWorld", parts, 0, arguments)


if __name__ == "__main__":
    main()
