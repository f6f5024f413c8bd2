"""Train a small model to use a calculator: the loop of the demo, in one file.

    python examples/calculator.py [--iterations 40] [--tasks 16] [--steps 300] [--folder runs/calculator]

A model of 1.1 million random parameters first imitates calls of the calculator, then learns by reinforcement. Start the
same command with another folder to start a new run.
"""

from __future__ import annotations

import argparse

import torch

import agentrl_core as arl
from agentrl_core import engine, env, recipes, warm_start


def train(iterations: int, tasks: int, steps: int, folder: str) -> None:
    torch.manual_seed(0)
    world = env.ReasoningGym(["chain_sum", "lcm"], tools=[env.Calculator()], seed=0, held_out=64)
    policy, tokenizer = warm_start.warm_start(world, seed=0, steps=steps)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=5e-4, weight_decay=0.0)
    generate, recipe = engine.Transformers(policy, tokenizer), recipes.GRPO
    with arl.Store.open(folder) as store:
        sampling = engine.Sampling(max_tokens=32)
        collector = arl.Collector(generate, world, recipe, store=store, sampling=sampling, turn_limit=3)
        print(f"held-out success before: {collector.evaluate(tasks=64, samples=1).success:.3f}")
        for iteration in range(collector.iteration, iterations):
            batch = recipe.credit(collector(tasks=tasks, group_size=8))
            updates = recipe.updates(batch)
            for update in updates:
                for pack in update.pack(max_tokens=16_384):
                    update.loss(pack.run(policy), pack).backward()
                torch.nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
            generate.update_weights(policy, version=iteration + 1)
            collector.end_iteration(batch, updates.metrics)
            print(f"iteration {iteration}: success {batch.column('success', 'draw').mean():.3f}")
        print(f"held-out success after: {collector.evaluate(tasks=64, samples=1).success:.3f}")
        collector.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--tasks", type=int, default=16, help="of an iteration, each rolled out 8 times")
    parser.add_argument("--steps", type=int, default=300, help="of supervised training before")
    parser.add_argument("--folder", default="runs/calculator")
    train(**vars(parser.parse_args()))
