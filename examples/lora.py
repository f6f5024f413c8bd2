"""Train a LoRA policy on the demonstration's tasks; the engine gets the adapter after each update.

    python examples/lora.py [--engine vllm|transformers] [--iterations 8] [--steps 480] [--folder runs/lora]

vLLM gets the adapter alone and keeps its base weights; the engine of this process gets a merged copy. The base model is
the small one of `agentrl train`, and everything runs on a CPU.
"""

from __future__ import annotations

import argparse
from copy import deepcopy

import torch
from peft import LoraConfig, get_peft_model

import agentrl_core as arl
from agentrl_core import engine, env, recipes, warm_start

RANK = 16


def train(name: str, iterations: int, steps: int, folder: str) -> None:
    """Train, print the success of each iteration, and save the adapter."""
    torch.manual_seed(0)
    world = env.ReasoningGym(["chain_sum", "lcm"], seed=0, held_out=64)
    base, tokenizer = warm_start.warm_start(world, seed=0, steps=steps)
    generate: engine.Engine
    if name == "vllm":
        generate = engine.Vllm(base, tokenizer, max_model_len=256, enable_lora=True, max_lora_rank=RANK)
    else:
        generate = engine.Transformers(deepcopy(base), tokenizer)
    policy = get_peft_model(base, LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules="all-linear"))
    policy.print_trainable_parameters()
    trained = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=2e-3, weight_decay=0.0)
    recipe = recipes.GRPO
    collector = arl.Collector(generate, world, recipe, sampling=engine.Sampling(max_tokens=32), turn_limit=3)
    for iteration in range(iterations):
        batch = collector(tasks=16, group_size=8)
        print(f"iteration {iteration} success {batch.column('success', 'draw').mean():.3f}", flush=True)
        batch = recipe.credit(batch)
        updates = recipe.updates(batch, seed=iteration)
        for update in updates:
            for pack in update.pack(max_tokens=16_384, model=policy):
                update.loss(pack.run(policy), pack).backward()
            torch.nn.utils.clip_grad_norm_(trained, 0.5)
            update.step(optimizer)
        generate.update_weights(policy, version=iteration + 1)
        collector.end_iteration(batch, updates.metrics)
    collector.close()
    generate.close()
    policy.save_pretrained(folder)
    print(f"the adapter is in {folder}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=("vllm", "transformers"), default="vllm")
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--steps", type=int, default=480, help="of supervised training of the base model")
    parser.add_argument("--folder", default="runs/lora", help="where the adapter is saved")
    given = parser.parse_args()
    train(given.engine, given.iterations, given.steps, given.folder)
