"""Train a vision model to name the colour of a picture.

    python examples/vision.py [--iterations 30]

The model is tiny and random, and runs on a CPU: put one of `AutoModelForImageTextToText.from_pretrained(...)` and its
`AutoProcessor` in its place. At the end, held-out questions are also evaluated without pictures, to check that the
model uses them. Needs `pip install 'agentrl-core[train]' torchvision`.
"""

from __future__ import annotations

import argparse
import io
import random

import torch
from PIL import Image, ImageDraw
from tiny_vision_model import SIDE, build

import agentrl_core as arl
from agentrl_core import engine, env, recipes

QUESTION = "Which colour?"
COLOURS = ("red", "green", "blue")


class Squares:
    """A question about the colour of a square. `shown=False` leaves the pictures out."""

    def __init__(self, *, shown: bool = True) -> None:
        self.shown = shown

    def tasks(self, count: int, *, split: str = "train", start: int = 0) -> list[env.Task]:
        """The same call always returns the same tasks."""
        return [env.Task(f"{split}/{number}", QUESTION, "squares", None) for number in range(start, start + count)]

    def reset(self, task: env.Task, seed: int) -> Look:
        """Start an episode."""
        del seed
        return Look(random.Random(task.task_id), shown=self.shown)  # noqa: S311 -- no secret


class Look:
    """An episode of one turn."""

    def __init__(self, draw: random.Random, *, shown: bool) -> None:
        self.colour = draw.choice(COLOURS)
        picture, (x, y) = (
            Image.new("RGB", (SIDE, SIDE), "white"),
            (draw.randrange(SIDE // 2), draw.randrange(SIDE // 2)),
        )
        ImageDraw.Draw(picture).rectangle((x, y, x + SIDE // 2, y + SIDE // 2), self.colour)
        picture.save(file := io.BytesIO(), "PNG")
        content = [env.Image(file.getvalue()), QUESTION] if shown else QUESTION
        self.observation = {"role": "user", "content": content}

    def step(self, action: str) -> env.StepResult:
        """Answer the only action."""
        return env.StepResult(reward=float(action == self.colour), terminated=True, success=action == self.colour)

    def state_key(self) -> bytes:
        """Equal bytes: the same state (anchors of GiGPO)."""
        return self.colour.encode()


def main(iterations: int) -> None:
    policy, processor = build((*COLOURS, *QUESTION.split()), seed=0)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=2e-3)
    generate, recipe, sampling = engine.Transformers(policy, processor), recipes.GRPO, engine.Sampling(max_tokens=2)
    collector = arl.Collector(generate, Squares(), recipe, sampling=sampling)
    for iteration in range(iterations):
        batch = recipe.credit(collector(tasks=16, group_size=8))
        updates = recipe.updates(batch, seed=iteration)
        for update in updates:
            for pack in update.pack(max_tokens=16_384, model=policy, processor=processor):
                update.loss(pack.run(policy), pack).backward()
            update.step(optimizer)
        generate.update_weights(policy, version=iteration + 1)
        collector.end_iteration(batch, updates.metrics)
        if (iteration + 1) % 10 == 0:
            print(f"iteration {iteration + 1}: success {batch.column('success', 'draw').mean():.2f}", flush=True)
    blind = arl.Collector(generate, Squares(shown=False), recipe, sampling=sampling)
    for name, each in (("with pictures", collector), ("without", blind)):
        evaluation = each.evaluate(tasks=64)
        print(f"held-out success {name}: {(evaluation.successes / evaluation.samples).mean():.2f}")
        each.close()
    generate.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=30)
    main(parser.parse_args().iterations)
