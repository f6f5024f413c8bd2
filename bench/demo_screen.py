"""A tiny vision-language model learns to click a button from pixels: success before and after, with controls.

    python bench/demo_screen.py [--seeds 0 1 2] [--iterations 800] [--warm-start-steps 110] [--folder runs/demo-screen]

A real Chromium shows `click-test-2` of MiniWoB++ (`env.MiniWoB`); its screenshots and buttons are recorded once, with
3 000 seeds for training and 256 held out. A SmolVLM of 0.17 M random parameters imitates clicks until it hits the
button in about an eighth of its samples. Then GRPO trains it through the collector, `engine.Transformers` and
`update.pack`.

For each seed, the bench prints the success on held-out screens before and after training (4 samples a screen), the gain
with a bootstrap interval over screens, and the success of the trained policy on the screens of other tasks. A control
without screens is trained in the same way, with the same number of iterations. At the end some held-out tasks are
played in the browser with the trained policy's clicks; their rewards must equal those of the recordings.
"""

from __future__ import annotations

import argparse
import os
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import Bench
from screens import RecordedScreens, click_of, record
from seeing_model import WORDS, build, warm_start
from torch import nn

import agentrl_core as arl
from agentrl_core import engine, env, recipes

SAMPLING = engine.Sampling(max_tokens=4)
SAMPLES = 4
_RAMP = 10
_LAST_RATE = 0.1


def evaluated(collect: arl.Collector, screens: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the success of each held-out screen: the share of successful samples."""
    evaluation = collect.evaluate(tasks=screens, samples=SAMPLES)
    return np.asarray(evaluation.successes / evaluation.samples, np.float64)


def interval(gains: np.ndarray[Any, np.dtype[np.float64]]) -> list[float]:
    """Return the mean of paired gains and its 95 % interval, by the bootstrap over screens."""
    rng = np.random.default_rng(0)
    means = gains[rng.integers(len(gains), size=(10_000, len(gains)))].mean(1)
    return [float(gains.mean()), *(float(edge) for edge in np.quantile(means, (0.025, 0.975)))]


def learned(path: Path, shows: Any, options: Any, seed: int) -> tuple[dict[str, Any], Any, Any]:
    """Train one policy; return its figures, the policy and its processor."""
    world, shuffled = RecordedScreens(path, shows), RecordedScreens(path, "other")
    screens = len(world.images) - world.train
    begin, iterations = time.perf_counter(), options.iterations
    model, processor = build(WORDS, seed)
    losses = warm_start(model, processor, world, seed=seed, steps=options.warm_start_steps)
    warm = time.perf_counter() - begin
    generate = engine.Transformers(model, processor)
    common: dict[str, Any] = {"seed": seed, "sampling": SAMPLING, "context_tokens": 128}
    collect = arl.Collector(generate, world, recipes.GRPO, task_pool=world.train, **common)
    others = arl.Collector(generate, shuffled, recipes.GRPO, task_pool=world.train, **common)
    figures: dict[str, Any] = {"warm_start_loss": float(np.mean(losses[-25:]))}
    before = evaluated(collect, screens)
    if shows == "own":
        figures["shuffled_before"] = float(evaluated(others, screens).mean())
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate, weight_decay=0.0)
    rewards = []
    for iteration in range(iterations):
        batch = recipes.GRPO.credit(collect(tasks=options.tasks, group_size=options.group_size))
        rewards.append(float(np.mean(batch.column("success", "draw"))))
        updates = recipes.GRPO.updates(batch, seed=seed + iteration)
        rate = min(1.0, (iteration + 1) / _RAMP) * (1 - (1 - _LAST_RATE) * iteration / iterations)
        for group in optimizer.param_groups:
            group["lr"] = options.learning_rate * rate
        model.train()
        for update in updates:
            for pack in update.pack(max_tokens=1 << 15, model=model, processor=processor):
                update.loss(pack.run(model), pack).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        generate.update_weights(model, version=iteration + 1)
        collect.end_iteration(batch, updates.metrics)
        if (iteration + 1) % options.print_every == 0:
            mean = np.mean(rewards[-options.print_every :])
            print(f"seed {seed} {shows:<7} iteration {iteration + 1} success {mean:.3f}", flush=True)
    after = evaluated(collect, screens)
    if shows == "own":
        figures["shuffled_after"] = float(evaluated(others, screens).mean())
    collect.close()
    others.close()
    generate.close()
    figures |= {
        "before": float(before.mean()),
        "after": float(after.mean()),
        "gain": interval(after - before),
        "success": [float(np.mean(part)) for part in np.array_split(rewards, max(iterations // 25, 1))],
        "warm_start_seconds": warm,
        "seconds": time.perf_counter() - begin,
    }
    return figures, model, processor


def played(path: Path, model: Any, processor: Any, tasks: int) -> dict[str, int]:
    """Play held-out tasks in the browser with clicks of the policy; return how often browser and recording agree."""
    recorded = RecordedScreens(path)
    generate, browser = engine.Transformers(model, processor), env.MiniWoB("click-test-2", held_out=tasks)
    wins = 0
    pairs = zip(recorded.tasks(tasks, split="held_out"), browser.tasks(tasks, split="held_out"), strict=True)
    for number, (task, same) in enumerate(pairs):
        assert recorded.seeds[task.payload["screen"]] == same.payload["seed"]  # type: ignore[index, call-overload]
        episode = recorded.reset(task, 0)
        prompt = generate.chat.prompt(episode.observation)
        images = engine_images(episode.observation)
        request = engine.Request(prompt, seed=number, sampling=SAMPLING, images=images)
        [segment] = engine.complete(generate, [request])
        action = generate.chat.decode(segment.tokens)
        x, y = click_of(action) or (0.0, 0.0)
        real = browser.reset(same, 0)
        won = real.step(f"click({x:g}, {y:g})").success is True
        real.close()
        assert won == episode.step(action).success, (
            f"{same.task_id}: the browser and the recording differ on {action!r}"
        )
        wins += won
    browser.close()
    generate.close()
    return {"tasks": tasks, "won": wins}


def engine_images(observation: Any) -> tuple[env.Image, ...]:
    """Return the images of an observation."""
    return tuple(part for part in observation["content"] if isinstance(part, env.Image))


def format_estimate(estimate: list[float]) -> str:
    """Format a number and its interval."""
    return "{:.3f} [{:.3f}, {:.3f}]".format(*estimate)


def job(path: Path, shows: str, options: Any, seed: int) -> dict[str, Any]:
    """Train one policy in a process of its own; play in the browser if it sees screens. Return the figures."""
    torch.set_num_threads(1)
    figures, model, processor = learned(path, shows, options, seed)
    if shows == "own" and options.played:
        figures["browser"] = played(path, model, processor, options.played)
    return figures | {"cpu_seconds": time.process_time()}


def main() -> None:
    """Record screens, train, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--iterations", type=int, default=800)
    parser.add_argument("--warm-start-steps", type=int, default=110)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--tasks", type=int, default=16, help="screens of an iteration")
    parser.add_argument("--group-size", type=int, default=16)
    parser.add_argument("--train", type=int, default=3000, help="recorded screens")
    parser.add_argument("--held-out", type=int, default=256, help="recorded screens that are not trained on")
    parser.add_argument("--played", type=int, default=16, help="held-out tasks that are played in the browser")
    parser.add_argument("--print-every", type=int, default=25)
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="policies that train side by side")
    parser.add_argument("--folder", type=Path, default=Path("runs/demo-screen"), help="where the screens are kept")
    options = parser.parse_args()
    bench = Bench("demo_screen")
    begin = time.perf_counter()
    path = options.folder / f"screens-{options.train}-{options.held_out}.npz"
    record(path, train=options.train, held_out=options.held_out)
    world = RecordedScreens(path)
    chance = float(world.hits[world.train :].mean())
    fixed = float(world.hits[world.train :].mean(0).max())
    print(f"chance {chance:.3f}, the best click that is always the same {fixed:.3f}", flush=True)
    training = time.perf_counter()
    # Use a process for each, so that threads and seeds of one policy do not affect the next.
    with ProcessPoolExecutor(options.processes, get_context("spawn"), max_tasks_per_child=1) as pool:
        running = [
            (seed, *(pool.submit(job, path, shows, options, seed) for shows in ("own", "nothing")))
            for seed in options.seeds
        ]
        for seed, seeing, blind in running:
            result, unseen = seeing.result(), blind.result()
            bench.lines.append({"seed": seed, **result, "text_only": unseen})
            print(
                f"seed {seed} before {result['before']:.3f} after {result['after']:.3f} "
                f"gain {format_estimate(result['gain'])}, "
                f"shuffled {result['shuffled_before']:.3f} and {result['shuffled_after']:.3f}, text only "
                f"{unseen['before']:.3f} and {unseen['after']:.3f}, browser {result.get('browser')}, "
                f"{result['seconds']:.0f} s",
                flush=True,
            )
    bench.write(
        settings={name: value for name, value in vars(options).items() if name != "folder"},
        chance=chance,
        always_the_same=fixed,
        recording_seconds=world.seconds,
        training_seconds=time.perf_counter() - training,
        whole_seconds=time.perf_counter() - begin,
    )


if __name__ == "__main__":
    main()
