"""Collect in several processes and train in one: each collector has its own engine, and the trainer has the store.

    python examples/collectors.py [--folder runs/collectors] [--iterations 8] [--collectors 4]

A model of 1.1 million random parameters learns to write vowels, on the CPU. On GPUs, give each process its device, or
an `engine.VllmServer`. Start the same command again to resume.
"""

from __future__ import annotations

import argparse
import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from vowels import Vowels

import agentrl_core as arl
from agentrl_core import engine, env, recipes, warm_start
from agentrl_core.exceptions import AgentRLError

RECIPE = recipes.GRPO
PROCESSES = multiprocessing.get_context("forkserver")


def build() -> Any:
    """Return a random policy and its tokenizer; use `from_pretrained` to load your own."""
    return warm_start.build(env.ReasoningGym(["chain_sum"], seed=0), seed=0)


def collect(pipe: Connection) -> None:
    """Roll out the orders of the trainer, with the weights sent with them."""
    torch.set_num_threads(1)
    policy, tokenizer = build()
    llm = engine.Transformers(policy, tokenizer)
    collector = arl.Collector(llm, Vowels(), RECIPE)
    while True:
        try:
            weights, version, order = pipe.recv()
        except EOFError:  # the trainer has ended
            return
        if version != llm.policy_version:
            policy.load_state_dict(weights)
            llm.update_weights(policy, version=version)
        try:
            pipe.send(collector.roll_out(order))
        except AgentRLError as error:
            pipe.send(error)


class Worker:
    """A process that collects, and a function that sends it orders."""

    def __init__(self) -> None:
        self.pipe, theirs = PROCESSES.Pipe()
        PROCESSES.Process(target=collect, args=(theirs,), daemon=True).start()
        theirs.close()  # so that reading fails if the process dies; the trainer then uses another process
        self.weights: tuple[dict[str, torch.Tensor], int] = {}, -1

    def __call__(self, order: Any) -> arl.Batch:
        """Return the rollouts of an order."""
        self.pipe.send((*self.weights, order))
        answer = self.pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer


def train(folder: Path, iterations: int, collectors: int) -> None:
    """Train, with the rollouts of all collectors."""
    policy, tokenizer = build()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-3)
    workers = [Worker() for _ in range(collectors)]
    with arl.Store.open(folder) as store:
        if store.iteration:
            saved = torch.load(folder / store.state["checkpoint"])
            policy.load_state_dict(saved["policy"])
            optimizer.load_state_dict(saved["optimizer"])
        llm = engine.Transformers(policy, tokenizer)  # counts versions, and evaluates; the collectors sample
        collector = arl.Collector(
            llm, Vowels(), RECIPE, store=store, sampling=engine.Sampling(max_tokens=8), rollout_workers=workers
        )

        def update_engines(version: int) -> None:
            llm.update_weights(policy, version=version)
            for worker in workers:
                worker.weights = {name: weight.clone() for name, weight in policy.state_dict().items()}, version

        update_engines(store.iteration)
        for iteration in range(store.iteration, iterations):
            batch = RECIPE.credit(collector(tasks=8, group_size=8))
            updates = RECIPE.updates(batch)
            for update in updates:
                for pack in update.pack(max_tokens=1024):
                    update.loss(pack.run(policy), pack).backward()
                torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
                update.step(optimizer)
            checkpoint = f"weights-{iteration + 1}.pt"
            torch.save({"policy": policy.state_dict(), "optimizer": optimizer.state_dict()}, folder / checkpoint)
            update_engines(iteration + 1)
            print(f"iteration {iteration}: reward {batch.column('reward', 'draw').mean():.3f}")
            collector.end_iteration(batch, updates.metrics, checkpoint=checkpoint)


if __name__ == "__main__":
    PROCESSES.set_forkserver_preload(["torch", "transformers", "vowels", "agentrl_core.engine.transformers"])
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=Path("runs/collectors"))
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--collectors", type=int, default=4)
    train(**vars(parser.parse_args()))
