"""Warm starts: imitation of demonstrations with slips. One per world and seed, shared by all arms."""

from __future__ import annotations

import copy
import hashlib
import inspect
import os
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from teachable import TeachableEpisode
from torch import nn
from worlds import World

from agentrl_core import engine, env
from agentrl_core.env.image import images_in
from agentrl_core.model.images import ImageInputs, arguments, features

HERE = Path(__file__).parent
CACHE = HERE.parents[1] / "runs" / "evidence" / "warm_starts"
TRACES = 1536
ROWS = 24
RATE = 3e-3
SLIP_RATE = 0.2
"""Factor of the learning rate while slips are imitated."""
CLEAN_SLIPS = 0.02
"""Share of slips in clean demonstrations."""


Pixels = Mapping[str, torch.Tensor]
Trace = tuple[NDArray[np.int32], NDArray[np.bool_], Sequence[Pixels]]
"""Tokens of a demonstration, a mask of its actions, and the model's inputs of its images."""


@dataclass(frozen=True)
class Start:
    """A warm start.

    Attributes:
        model: the policy.
        teacher: the policy before it imitated slips, for recipes that distil.
        tokenizer: of both; or their processor.
        digest: of the policy's weights; runs with equal digests can be paired.
    """

    model: Any
    teacher: Any
    tokenizer: Any
    digest: str


def load(world: World, seed: int) -> Start:
    """Return the warm start of a world and a seed; make it if it is missing."""
    empty, tokenizer = world.build(world.make().words, 0)
    home = CACHE / f"{world.name}-{seed}-{_key(world)}"
    if not home.is_dir():
        half = home.with_suffix(f".{os.getpid()}")
        for name, model in zip(("teacher", "policy"), imitators(world, seed, tokenizer), strict=True):
            model.save_pretrained(half / name)
            tokenizer.save_pretrained(half / name)
        try:
            half.rename(home)
        except OSError:  # another process has made it
            if not home.is_dir():
                raise
            shutil.rmtree(half)
    models = [type(empty).from_pretrained(home / name, dtype=torch.float32) for name in ("policy", "teacher")]
    digest = hashlib.sha256((home / "policy" / "model.safetensors").read_bytes()).hexdigest()[:12]
    return Start(models[0].eval(), models[1].eval(), tokenizer, digest)


def imitators(world: World, seed: int, tokenizer: Any) -> tuple[Any, Any]:
    """Return a model trained on nearly perfect demonstrations, and the same model after some that slip.

    Models learn to copy and navigate from clean demonstrations only. The second part teaches mistakes, which
    reinforcement learning can unlearn with few tokens.
    """
    model, _ = world.build(world.make().words, seed)
    clean = demonstrations(world, CLEAN_SLIPS, seed, tokenizer)
    imitate(model, clean, seed, world.steps, lambda step: min(1.0, (step + 1) / 20) * (1 - 0.95 * step / world.steps))
    teacher = copy.deepcopy(model)
    imitate(model, demonstrations(world, world.slips, seed, tokenizer), seed, world.slip_steps, lambda _: SLIP_RATE)
    return teacher, model


def imitate(model: Any, traces: list[Trace], seed: int, steps: int, schedule: Callable[[int], float]) -> list[float]:
    """Train a model on the actions of demonstrations, and return the loss of each step: mean nats of a token."""
    rng, losses = random.Random(seed), []  # noqa: S311 -- an order of traces, no secret
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.01)
    model.train()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = RATE * schedule(step)
        some = rng.sample(traces, ROWS)
        width = max(len(tokens) for tokens, _, _ in some)
        ids = torch.from_numpy(np.array([np.pad(tokens, (0, width - len(tokens))) for tokens, _, _ in some])).long()
        is_action = torch.from_numpy(np.array([np.pad(action, (0, width - len(action))) for _, action, _ in some]))[
            :, 1:
        ]
        image_inputs = _seen(model, ids[:, :-1], [pixels for _, _, pixels in some])
        hidden = model.model(ids[:, :-1], use_cache=False, **image_inputs).last_hidden_state
        loss = nn.functional.cross_entropy(model.lm_head(hidden[is_action]), ids[:, 1:][is_action])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
    model.eval()
    return losses


def _seen(model: Any, ids: torch.Tensor, pixels: Sequence[Sequence[Pixels]]) -> dict[str, Any]:
    """Return arguments of a model's forward for the images of rows; none if there are no images."""
    images = [image for row in pixels for image in row]
    if not images:
        return {}
    ends = np.cumsum([len(row) for row in pixels])
    of_row = [range(end - len(row), end) for end, row in zip(ends, pixels, strict=True)]
    return arguments(model, features(model, images), ids, torch.ones_like(ids).bool(), of_row)


def demonstrations(world: World, slips: float, seed: int, tokenizer: Any) -> list[Trace]:
    """Play training tasks with the best action at each turn, or with a slip with probability `slips`."""
    chat, environment = engine.Chat(tokenizer), world.make()
    rng = random.Random(seed)  # noqa: S311 -- demonstrations, no secret
    tasks, known = environment.tasks(world.tasks), dict[tuple[str, str], NDArray[np.int32]]()
    sees = ImageInputs(tokenizer) if hasattr(tokenizer, "image_processor") else None

    def encoded(kind: str, content: env.Content) -> NDArray[np.int32]:
        if not isinstance(content, str):
            return cast("NDArray[np.int32]", getattr(chat, kind)(content))
        if (kind, content) not in known:
            known[kind, content] = getattr(chat, kind)(content)
        return known[kind, content]

    def looked_at(content: env.Content) -> list[Pixels]:
        return [sees.of(image) for image in images_in(content)] if sees else []

    traces: list[Trace] = []
    for task in rng.choices(tasks, k=TRACES):
        episode = cast("TeachableEpisode", environment.reset(task, 0))
        pieces, pixels = [(encoded("prompt", episode.observation), False)], looked_at(episode.observation)
        while True:
            action = episode.slip(rng) if rng.random() < slips else episode.best()
            pieces.append((encoded("action", action), True))
            result = episode.step(action)
            if result.observation is None:
                break
            pieces.append((encoded("observation", result.observation), False))
            pixels += looked_at(result.observation)
        traces.append(
            (
                np.concatenate([tokens for tokens, _ in pieces]),
                np.concatenate([np.full(len(tokens), is_action) for tokens, is_action in pieces]),
                pixels,
            )
        )
    return traces


def _key(world: World) -> str:
    """Return a digest of all inputs of a warm start."""
    digest = hashlib.sha256(f"{world.slips} {world.slip_steps} {world.steps} {world.tasks}".encode())
    builder = Path(cast("str", inspect.getsourcefile(world.build)))
    for path in (HERE / "warm_start.py", builder, HERE / "teachable.py", HERE / f"{world.make.__module__}.py"):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:10]
