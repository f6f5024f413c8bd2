"""Warm starts: imitate demonstrations that slip. Each is made once for a world and a seed, and shared by all arms."""

from __future__ import annotations

import copy
import hashlib
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import tiny_model
import torch
from numpy.typing import NDArray
from teachable import TeachableEpisode
from torch import nn
from worlds import World

from agentrl_core import engine

HERE = Path(__file__).parent
CACHE = HERE.parents[1] / "runs" / "evidence" / "warm_starts"
TRACES = 1536
ROWS = 24
RATE = 3e-3
SLIP_RATE = 0.2
"""Factor of the learning rate while slips are imitated."""
CLEAN_SLIPS = 0.02
"""Share of slips in clean demonstrations."""


Trace = tuple[NDArray[np.int32], NDArray[np.bool_]]
"""Tokens of a demonstration, and which of them belong to actions."""


@dataclass(frozen=True)
class Start:
    """A warm start.

    Attributes:
        model: the policy.
        teacher: the policy before it imitated slips, for recipes that distil.
        tokenizer: of both.
        digest: of the policy's weights: runs are paired if theirs are equal.
    """

    model: Any
    teacher: Any
    tokenizer: Any
    digest: str


def load(world: World, seed: int) -> Start:
    """Return the warm start of a world and a seed, made if it is not there."""
    from transformers import AutoModelForCausalLM

    _, tokenizer = tiny_model.build(world.make().words, 0)
    home = CACHE / f"{world.name}-{seed}-{_key(world)}"
    if not home.is_dir():
        half = home.with_suffix(f".{os.getpid()}")
        for name, model in zip(("teacher", "policy"), imitators(world, seed, tokenizer), strict=True):
            model.save_pretrained(half / name)
        try:
            half.rename(home)
        except OSError:  # another process made the same one
            if not home.is_dir():
                raise
            shutil.rmtree(half)
    models: list[Any] = [
        AutoModelForCausalLM.from_pretrained(home / name, dtype=torch.float32) for name in ("policy", "teacher")
    ]
    digest = hashlib.sha256((home / "policy" / "model.safetensors").read_bytes()).hexdigest()[:12]
    return Start(models[0].eval(), models[1].eval(), tokenizer, digest)


def imitators(world: World, seed: int, tokenizer: Any) -> tuple[Any, Any]:
    """Return a model trained on nearly perfect demonstrations, and the same model after some that slip.

    Copying and finding one's way emerge from clean demonstrations only. The second part then teaches mistakes, which
    reinforcement learning can find out and unlearn from few tokens.
    """
    model, _ = tiny_model.build(world.make().words, seed)
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
        width = max(len(tokens) for tokens, _ in some)
        ids = torch.from_numpy(np.array([np.pad(tokens, (0, width - len(tokens))) for tokens, _ in some])).long()
        wanted = torch.from_numpy(np.array([np.pad(action, (0, width - len(action))) for _, action in some]))[:, 1:]
        hidden = model.model(ids[:, :-1], use_cache=False).last_hidden_state
        loss = nn.functional.cross_entropy(model.lm_head(hidden[wanted]), ids[:, 1:][wanted])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
    model.eval()
    return losses


def demonstrations(world: World, slips: float, seed: int, tokenizer: Any) -> list[Trace]:
    """Play training tasks with the best action at each turn, or with probability `slips` a slip."""
    chat, environment = engine.Chat(tokenizer), world.make()
    rng = random.Random(seed)  # noqa: S311 -- demonstrations, no secret
    tasks, known = environment.tasks(world.tasks), dict[tuple[str, str], NDArray[np.int32]]()

    def encoded(kind: str, text: str) -> NDArray[np.int32]:
        if (kind, text) not in known:
            known[kind, text] = getattr(chat, kind)(text)
        return known[kind, text]

    traces = []
    for task in rng.choices(tasks, k=TRACES):
        episode = cast("TeachableEpisode", environment.reset(task, 0))
        pieces = [(encoded("prompt", str(episode.observation)), False)]
        while True:
            action = episode.slip(rng) if rng.random() < slips else episode.best()
            pieces.append((encoded("action", action), True))
            found = episode.step(action)
            if found.observation is None:
                break
            pieces.append((encoded("observation", str(found.observation)), False))
        traces.append(
            (
                np.concatenate([tokens for tokens, _ in pieces]),
                np.concatenate([np.full(len(tokens), is_action) for tokens, is_action in pieces]),
            )
        )
    return traces


def _key(world: World) -> str:
    """Return a digest of all that a warm start depends on."""
    found = hashlib.sha256(f"{world.slips} {world.slip_steps} {world.steps} {world.tasks}".encode())
    for name in ("warm_start", "tiny_model", "teachable", world.make.__module__):
        found.update((HERE / f"{name}.py").read_bytes())
    return found.hexdigest()[:10]
