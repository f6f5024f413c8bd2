"""Collect in Ray actors on any machine of a cluster, and train in this process.

    ray job submit --address http://HEAD:8265 --working-dir examples -- python cluster/ray_job.py --folder /shared/run
    python examples/cluster/ray_job.py              # a cluster of this machine alone

An actor has an engine of its own and rolls out a part of each selection. New weights reach all actors through Ray's
object store. A killed actor restarts; meanwhile another one rolls out its part. Start the same command again to resume.
A model of 1.1 million random parameters learns to write vowels, on CPUs; on GPUs, let the actors request `num_gpus=1`
and build an `engine.Vllm`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import ray
import torch

import agentrl_core as arl
from agentrl_core import engine, env, recipes, warm_start

EXAMPLES = Path(__file__).resolve().parents[1]
sys.path.append(str(EXAMPLES))
RECIPE = recipes.GRPO


def build() -> Any:
    """Return a random policy and its tokenizer; use `from_pretrained` to load your own."""
    return warm_start.build(env.ReasoningGym(["chain_sum"], seed=0), seed=0)


@ray.remote(num_cpus=1, max_restarts=-1, scheduling_strategy="SPREAD")
class RemoteCollector:
    """A collector in an actor."""

    def __init__(self) -> None:
        from vowels import Vowels

        torch.set_num_threads(1)
        self.policy, tokenizer = build()
        self.llm = engine.Transformers(self.policy, tokenizer)
        self.collector = arl.Collector(self.llm, Vowels(), RECIPE)

    def roll_out(self, weights: dict[str, torch.Tensor], version: int, order: Any) -> arl.Batch:
        """Roll out an order with the given weights."""
        if version != self.llm.policy_version:
            self.policy.load_state_dict(weights)
            self.llm.update_weights(self.policy, version=version)
        return self.collector.roll_out(order)


class Worker:
    """Sends orders to an actor."""

    def __init__(self) -> None:
        self.actor = RemoteCollector.remote()
        self.weights: tuple[Any, int] = None, -1

    def __call__(self, order: Any) -> arl.Batch:
        """Return the rollouts of an order."""
        return ray.get(self.actor.roll_out.remote(*self.weights, order), timeout=3600)


def train(folder: Path, iterations: int, collectors: int) -> None:
    """Train, with the rollouts of all actors."""
    from vowels import Vowels

    policy, tokenizer = build()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-3)
    workers = [Worker() for _ in range(collectors)]
    with arl.Store.open(folder) as store:
        if store.iteration:
            saved = torch.load(folder / store.state["checkpoint"])
            policy.load_state_dict(saved["policy"])
            optimizer.load_state_dict(saved["optimizer"])
        llm = engine.Transformers(policy, tokenizer)  # counts versions, and evaluates; the actors sample
        collector = arl.Collector(
            llm, Vowels(), RECIPE, store=store, sampling=engine.Sampling(max_tokens=8), rollout_workers=workers
        )

        def update_engines(version: int) -> None:
            llm.update_weights(policy, version=version)
            weights = ray.put({name: weight.cpu().clone() for name, weight in policy.state_dict().items()})
            for worker in workers:
                worker.weights = weights, version

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
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=Path("runs/ray"))
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--collectors", type=int, default=4)
    ray.init(runtime_env={"env_vars": {"PYTHONPATH": str(EXAMPLES)}}, ignore_reinit_error=True)
    train(**vars(parser.parse_args()))
