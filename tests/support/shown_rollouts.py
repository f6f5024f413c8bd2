"""Rollouts that show images, and the outputs of a vision model's ordinary forward for each of them alone."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import torch
from PIL import Image as Picture
from torch import Tensor
from vision_models import screenshot

import agentrl_core as arl
from agentrl_core import recipes
from agentrl_core.engine import Chat

ACTION = 1  # the kind of nodes
OF_TEXT = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")
SHOTS = [screenshot(0), screenshot(1, 84, 56), screenshot(2, 56, 112)]


def rollouts(processor: Any, *, swapped: bool = False, store: Any = None) -> arl.Batch:
    """Return two groups: one with images in prompts and tool results, and forks; one with a draw without images."""
    chat, forest = Chat(processor), arl.Forest()
    first, second, third = (SHOTS[each] for each in ((1, 0, 2) if swapped else (0, 1, 2)))
    pair = [first, second]

    def show(trajectory: int, kind: str, content: Any, images: list[Any]) -> None:
        tokens = chat.prompt(content) if kind == "prompt" else chat.observation(content)
        blobs = [forest.add_blob(image.content) for image in images]
        forest.append(trajectory, tokens, kind=kind, blobs=blobs or None)  # type: ignore[arg-type]

    def act(trajectory: int, text: str, temperature: float = 1.0) -> int:
        tokens = chat.action(text)
        node = forest.append(trajectory, tokens, kind="action", logprobs=[-3.0] * len(tokens), temperature=temperature)
        forest.step(trajectory)
        return node

    forest.add_group(0, "look")
    for member in range(2):
        trajectory = forest.start(0, member)
        show(trajectory, "prompt", [{"role": "user", "content": ["Two:", *pair, "?"]}], pair)
        node = act(trajectory, "ab"[: 1 + member], 0.8)
        if member:
            fork = forest.fork(trajectory, node=node)
            show(fork, "observation", [{"role": "tool", "content": ["Or:", *reversed(pair)]}], pair[::-1])
            act(fork, "e")
            forest.finish(fork, reward=0.5)
        show(trajectory, "observation", [{"role": "tool", "content": ["Now:", third]}], [third])
        act(trajectory, "cd", 1.3)
        forest.finish(trajectory, reward=float(member))
    forest.add_group(1, "read")
    for member, text in enumerate(("no picture, " * 6, "one")):
        trajectory = forest.start(1, member)
        images = [third] if member else []
        show(trajectory, "prompt", [{"role": "user", "content": [text, *images]}], images)
        act(trajectory, "xyz"[member:])
        forest.finish(trajectory, reward=float(member))
    batch = forest.freeze()
    if store is not None:
        batch = store.rebase(batch)
        store.append(batch, iteration=0)
        store.flush()
        return batch
    return recipes.GRPO.credit(batch)


class Row(NamedTuple):
    """One draw: its tokens, the places of its action tokens, and the contents of its images in order."""

    tokens: list[int]
    actions: list[int]
    images: list[bytes]


def node_paths(batch: arl.Batch) -> Iterator[list[dict[str, Any]]]:
    """Yield the nodes of each draw, from the first to its leaf."""
    nodes = {node["node_id"]: node for node in pl.DataFrame(batch.nodes).to_dicts()}
    leaves = dict(pl.DataFrame(batch.trajectories).select("trajectory_id", "leaf_node_id").iter_rows())
    for trajectory in pl.DataFrame(batch.draws)["trajectory_id"]:
        path = [nodes[leaves[trajectory]]]
        while path[0]["parent_id"] is not None:
            path.insert(0, nodes[path[0]["parent_id"]])
        yield path


def rows_of(batch: arl.Batch) -> list[Row]:
    """Return the draws of a batch; no node is cut."""
    rows = []
    for path in node_paths(batch):
        row = Row([], [], [])
        for node in path:
            if node["kind"] == ACTION:
                row.actions.extend(range(len(row.tokens), len(row.tokens) + len(node["tokens"])))
            row.tokens.extend(node["tokens"])
            row.images.extend(map(batch.blob, node["blobs"] or []))
        rows.append(row)
    return rows


def plain_logits(model: Any, processor: Any, tokens: list[int], contents: list[bytes]) -> Tensor:
    """Return logits `[L, V]` of one row: all its pixels go into the model's ordinary forward. Placeholders get -inf."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    ids, token = torch.tensor([tokens]), inner.config.image_token_id
    inputs: dict[str, Any] = {}
    if contents:
        pictures = [Picture.open(io.BytesIO(content)).convert("RGB") for content in contents]
        text = [getattr(processor, "boi_token", None) or processor.image_token] * len(pictures)
        each = [[picture] for picture in pictures]
        processed = processor(text=text, images=each, return_tensors="pt", padding=True, add_special_tokens=False)
        inputs = {name: value for name, value in processed.items() if isinstance(value, Tensor) and name not in OF_TEXT}
        for name in set(processed) & {"token_type_ids", "mm_token_type_ids"}:
            inputs[name] = (ids == token).to(torch.int64)
    logits: Tensor = model(input_ids=ids, **inputs).logits[0]
    never = {token, getattr(inner.config, "video_token_id", None)} - {None}
    allowed = torch.ones(logits.shape[1], dtype=torch.bool)
    allowed[[each for each in never if each < len(allowed)]] = False
    return torch.where(allowed, logits, -torch.inf)


def plain_logprobs(model: Any, processor: Any, batch: arl.Batch) -> tuple[Tensor, Tensor]:
    """Return log-prob and entropy of each action token of a batch, row by row."""
    scales = np.split(
        np.asarray(batch.column("inverse_temperature", "token")), batch.offsets("token")[batch.offsets("step")][1:-1]
    )
    results = []
    for row, scale in zip(rows_of(batch), scales, strict=True):
        logits = plain_logits(model, processor, row.tokens, row.images)[[place - 1 for place in row.actions]]
        logprobs = (logits * torch.tensor(scale, dtype=logits.dtype)[:, None]).log_softmax(-1)
        targets = torch.tensor([[row.tokens[place]] for place in row.actions])
        entropy = -(logprobs.exp() * logprobs.clamp(min=-1e3)).sum(-1)
        results.append(torch.stack([logprobs.gather(1, targets).squeeze(1), entropy]))
    return tuple(torch.cat(results, dim=1))  # type: ignore[return-value]
