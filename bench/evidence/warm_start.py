"""Warm starts: imitate demonstrations that slip. Each is made once for a world and a seed, and shared by all arms."""

from __future__ import annotations

import hashlib
import random
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
TEACHER_SLIPS = 0.02
"""Of the demonstrations that the teacher of a distillation imitates."""


@dataclass(frozen=True)
class Start:
    """A warm start.

    Attributes:
        model: the policy.
        teacher: a model that imitates nearly perfect demonstrations, for recipes that distil.
        tokenizer: of both.
        digest: of the policy's weights: runs are paired if theirs are equal.
    """

    model: Any
    teacher: Any
    tokenizer: Any
    digest: str


def load(world: World, seed: int, folder: Path = CACHE) -> Start:
    """Return the warm start of a world and a seed, made if it is not there."""
    from transformers import AutoModelForCausalLM

    _, tokenizer = tiny_model.build(world.make().words, 0)
    home = folder / f"{world.name}-{seed}-{_key(world)}"
    for name, slips in (("policy", world.slips), ("teacher", TEACHER_SLIPS)):
        if not (home / name).is_dir():
            half = home / f"{name}.part"
            imitator(world, slips, seed, tokenizer).save_pretrained(half)
            half.rename(home / name)
    models: list[Any] = [
        AutoModelForCausalLM.from_pretrained(home / name, dtype=torch.float32) for name in ("policy", "teacher")
    ]
    digest = hashlib.sha256((home / "policy" / "model.safetensors").read_bytes()).hexdigest()[:12]
    return Start(models[0].eval(), models[1].eval(), tokenizer, digest)


def imitator(
    world: World, slips: float, seed: int, tokenizer: Any, *, progress: Callable[[int, float], None] | None = None
) -> Any:
    """Return a model trained on demonstrations with a share of slips: cross-entropy of the actions' tokens."""
    model, _ = tiny_model.build(world.make().words, seed)
    traces = demonstrations(world, slips, seed, tokenizer)
    rng = random.Random(seed)  # noqa: S311 -- an order of traces, no secret
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.01)
    for step in range(world.steps):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / 20) * (0.05 + 0.95 * (1 - step / world.steps))
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
        if progress is not None:
            progress(step + 1, float(loss.detach()))
    return model.eval()


Trace = tuple[NDArray[np.int32], NDArray[np.bool_]]
"""Tokens of a demonstration, and which of them belong to actions."""


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
    found = hashlib.sha256(f"{world.slips} {world.steps} {world.tasks}".encode())
    for name in ("warm_start", "tiny_model", "teachable", world.make.__module__):
        found.update((HERE / f"{name}.py").read_bytes())
    return found.hexdigest()[:10]
