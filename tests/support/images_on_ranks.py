"""Gradients and columns of rollouts with images on two ranks, compared with one process; prints JSON.

A mode is a family and a wrapper, such as `gemma3 ddp`. Some packs of a rank show no image. With wrapper `tower` each
layer of the vision tower is sharded alone.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import torch.distributed as dist
from shown_rollouts import rollouts, rows_of
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from vision_models import build
from wrapped_ranks import gradients, run_ranks

import agentrl_core as arl
from agentrl_core import loss, recipes
from agentrl_core.model.architecture import causal_model_of
from agentrl_core.model.images import tower_calls
from agentrl_core.model.token_probe import Probe

RECIPE = recipes.GRPO.replace(loss=loss.Policy(entropy=0.01))


def on_first(batch: arl.Batch) -> arl.Batch | None:
    """Return the batch on rank 0, or in a single process."""
    return batch if not dist.is_initialized() or dist.get_rank() == 0 else None


def differentiate(model: Any, processor: Any, batch: arl.Batch) -> list[int]:
    """Add the gradients of an update; return how many vision tower calls the images of each pack need."""
    (update,), calls = RECIPE.updates(on_first(batch)), []
    most = max(len(row.tokens) for row in rows_of(batch))
    for pack in update.pack(max_tokens=most, model=model, processor=processor):
        shows = pack.images is not None and bool(pack.images.hashes)
        calls.append(tower_calls(model, pack.images.inputs(causal_model_of(model))) if shows else 0)
        update.loss(pack.run(model), pack).backward()
    return calls


def annotated(batch: arl.Batch, model: Any, processor: Any) -> list[Tensor]:
    """Return columns of a model: of all tokens, under other prompts, and of a probe."""
    most = max(len(row.tokens) for row in rows_of(batch)) + 4
    contexts = batch.contexts()
    begins = contexts.offsets[:-1]
    ends = begins + contexts.begins[contexts.steps[:-1]]
    hinted = [[9, *contexts.tokens[begin:end].tolist()] for begin, end in zip(begins, ends, strict=True)]
    result = arl.annotate(on_first(batch), "reference_logprob", model, processor=processor)
    result = arl.annotate(result, "teacher_logprob", model, prompts=hinted, max_tokens=most, processor=processor)
    probe = Probe([[9, 8]] * batch.num_draws)
    result = arl.annotate(result, "answer_logprob", model, probe=probe, max_tokens=most, processor=processor)
    names = (("reference_logprob", "token"), ("teacher_logprob", "token"), ("answer_logprob", "step"))
    if result is None:
        return []
    return [torch.from_numpy(result.column(name, level).copy()) for name, level in names]  # type: ignore[arg-type]


def compare(mode: str, rank: int, meeting: str) -> dict[str, float]:
    """Return the largest differences, whether packs show no image, and whether ranks need other calls of the tower."""
    family, wrapper = mode.split()
    alone, processor = build(family)
    batch = rollouts(processor)
    differentiate(alone, processor, batch)
    expected = gradients(alone)
    columns = annotated(batch, alone, processor)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    model: Any = build(family)[0]
    if wrapper == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    else:
        tower = model.model.vision_tower.encoder.layers if wrapper == "tower" else []
        for layer in (*tower, *model.get_decoder().layers, model):
            fully_shard(layer)
    calls = differentiate(model, processor, batch)
    every: list[Any] = [None, None]
    dist.all_gather_object(every, calls)
    actual, size = gradients(model), max(float(each.abs().max()) for each in expected.values())
    assert actual.keys() == expected.keys()
    pairs = zip(columns if rank == 0 else [], annotated(batch, model, processor), strict=True)
    return {
        "gradient": max(_distance(actual[name], expected[name]) for name in expected) / size,
        "column": max((_distance(one, other) for one, other in pairs), default=0.0),
        "without images": float(0 in every[0] + every[1]),
        "other calls": float(any(0 < min(each) < max(each) for each in zip(*every, strict=True))),
    }


def _distance(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


if __name__ == "__main__":
    json.dump({mode: run_ranks(mode, compare) for mode in sys.argv[1:]}, sys.stdout)
