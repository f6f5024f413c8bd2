"""Train with Accelerate on several ranks: rank 0 collects, all ranks train, and a killed run resumes.

    torchrun --nproc-per-node 2 examples/ddp_accelerate.py --cpu [--folder runs/accelerate] [--iterations 8]

A model of 1.1 million random parameters learns to write vowels. `accelerate launch` works as well. Start the same
command again to resume.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from vowels import Vowels

import agentrl_core as arl
from agentrl_core import engine, env, recipes, warm_start


def train(folder: Path, iterations: int, *, cpu: bool) -> None:
    accelerator, recipe = Accelerator(cpu=cpu), recipes.GRPO
    is_first = accelerator.is_main_process
    policy: Any
    policy, tokenizer = warm_start.build(env.ReasoningGym(["chain_sum"], seed=0), seed=0)  # or from_pretrained
    policy, optimizer = accelerator.prepare(policy, torch.optim.AdamW(policy.parameters(), lr=3e-3))

    store = arl.Store.open(folder) if is_first else None
    start, checkpoint = broadcast_object_list([store.iteration, store.state.get("checkpoint")] if store else [0, None])
    if checkpoint:
        accelerator.load_state(str(folder / checkpoint))
    if is_first:
        model = accelerator.unwrap_model(policy)
        llm = engine.Transformers(model, tokenizer)  # shares the parameters
        llm.update_weights(model, version=start)
        collector = arl.Collector(llm, Vowels(), recipe, store=store, sampling=engine.Sampling(max_tokens=8))
    for iteration in range(start, iterations):
        batch = recipe.credit(collector(tasks=8, group_size=8)) if is_first else None
        updates = recipe.updates(batch)  # rank 0 plans them, and sends each rank its packs
        for update in updates:
            for pack in update.pack(max_tokens=1024, model=policy):  # those of this rank
                accelerator.backward(update.loss(pack.run(policy), pack))
            accelerator.clip_grad_norm_(policy.parameters(), 1.0)
            update.step(optimizer)
        accelerator.save_state(str(folder / f"checkpoints/{iteration + 1}"))
        if is_first:
            llm.update_weights(model, version=iteration + 1)
            print(f"iteration {iteration}: reward {batch.column('reward', 'draw').mean():.3f}")
            collector.end_iteration(batch, updates.metrics, checkpoint=f"checkpoints/{iteration + 1}")
    accelerator.wait_for_everyone()  # a rank that ends while gloo still holds its tensors aborts
    accelerator.end_training()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=Path("runs/accelerate"))
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--cpu", action="store_true", help="do not use GPUs")
    train(**vars(parser.parse_args()))
