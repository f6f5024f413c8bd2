"""Train with FSDP2 on several ranks: rank 0 collects, all ranks train, and a killed run resumes.

    torchrun --nproc-per-node 2 examples/fsdp2.py [--folder runs/fsdp2] [--iterations 8]

A model of 1.1 million random parameters learns to write vowels, on the CPU. On GPUs, set each rank's device, use the
backend nccl, and let a `Vllm` engine sample. Start the same command again to resume.
"""

from __future__ import annotations

import argparse
import copy
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from vowels import Vowels

import agentrl_core as arl
from agentrl_core import engine, env, recipes, warm_start


def from_rank_0(value: Any) -> Any:
    """Send a value of rank 0 to all ranks."""
    parcel = [value]
    dist.broadcast_object_list(parcel, src=0)
    return parcel[0]


def train(folder: Path, iterations: int) -> None:
    rank, recipe = dist.get_rank(), recipes.GRPO
    policy: Any
    policy, tokenizer = warm_start.build(env.ReasoningGym(["chain_sum"], seed=0), seed=0)  # or from_pretrained
    full_policy = copy.deepcopy(policy) if rank == 0 else policy  # of the engine
    for part in (*policy.model.layers, policy):
        fully_shard(part)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-3)

    store = arl.Store.open(folder) if rank == 0 else None
    checkpoint = from_rank_0(store.state.get("checkpoint") if store else None)
    if checkpoint:
        weights, moments = get_state_dict(policy, optimizer)
        dcp.load({"weights": weights, "moments": moments}, checkpoint_id=folder / checkpoint)
        set_state_dict(policy, optimizer, model_state_dict=weights, optim_state_dict=moments)

    def update_engine(version: int) -> None:
        if rank == 0:
            llm.update_weights(policy, version=version)
        else:
            engine.send_weights(policy)

    if rank == 0:
        llm = engine.Transformers(full_policy, tokenizer)
        collector = arl.Collector(llm, Vowels(), recipe, store=store, sampling=engine.Sampling(max_tokens=8))
    start = from_rank_0(store.iteration if store else None)
    update_engine(start)
    for iteration in range(start, iterations):
        batch = recipe.credit(collector(tasks=8, group_size=8)) if rank == 0 else None
        updates = recipe.updates(batch)  # rank 0 plans them, and sends each rank its packs
        for update in updates:
            for pack in update.pack(max_tokens=1024, model=policy):  # those of this rank
                update.loss(pack.run(policy), pack).backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            update.step(optimizer)
        weights, moments = get_state_dict(policy, optimizer)
        dcp.save({"weights": weights, "moments": moments}, checkpoint_id=folder / f"checkpoints/{iteration + 1}")
        update_engine(iteration + 1)
        if rank == 0:
            print(f"iteration {iteration}: reward {batch.column('reward', 'draw').mean():.3f}")
            collector.end_iteration(batch, updates.metrics, checkpoint=f"checkpoints/{iteration + 1}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=Path("runs/fsdp2"))
    parser.add_argument("--iterations", type=int, default=8)
    dist.init_process_group("gloo")
    train(**vars(parser.parse_args()))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # Python's own end aborts if a thread of gloo still holds a tensor (pytorch/pytorch#190489)
