"""A training step on what a run stored: how many tokens each layout runs, and how long they take.

    python bench/stored_step.py RUN [--iterations 0 5 20] [--runs 3]

RUN is the folder of a run of `agentrl train`. Of each iteration: the tokens of all draws; of the tree of what is stored
once; of the tree of what is equal, wherever it is stored; and of that tree without the draws that have no advantage,
which is what an update runs. Then one update of the demo's model as sequences of all draws, and as it is run. Gradients
of both are compared before anything is timed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from common import Bench

from agentrl_core import Batch, Recipe, Store, warm_start
from agentrl_core.env import ReasoningGym
from agentrl_core.update.update import Update
from agentrl_core.update.updates import Updates

PACK = 16_384


def step(update: Update, model: torch.nn.Module, layout: str) -> list[torch.Tensor]:
    """The gradients of an optimizer step."""
    model.zero_grad()
    for pack in update.pack(max_tokens=PACK, layout=layout):
        update.loss(pack.run(model), pack).backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def update_of(recipe: Recipe, batch: Batch, *, metrics_of_all: bool) -> Update:
    """One step of all draws."""
    training = recipe.replace(epochs=1, minibatches=1).training()
    (update,) = Updates(batch, training, shared=recipe.shared, metrics_of_all=metrics_of_all)
    return update


def stored_once(batch: Batch) -> int:
    """Tokens of the tree that was stored: those of all nodes, but for what no trained token has before it."""
    before = set()
    nodes = batch.column("node_token", "token")
    trained = np.flatnonzero(np.asarray(batch.column("trainable", "token")) != 0)
    parents = dict(zip(batch.nodes["node_id"].to_pylist(), batch.nodes["parent_id"].to_pylist(), strict=True))
    ids = batch.nodes["node_id"].to_pylist()
    bounds = batch.offsets("node_token")
    of = np.searchsorted(bounds, nodes[trained], side="right") - 1
    read = np.zeros(len(ids), np.int64)
    np.maximum.at(read, of, nodes[trained] - bounds[of])
    row = {node: place for place, node in enumerate(ids)}
    for place in np.unique(of).tolist():
        parent = parents[ids[place]]
        while parent is not None and parent not in before:
            before.add(parent)
            read[row[parent]] = bounds[row[parent] + 1] - bounds[row[parent]]
            parent = parents[parent]
    return int(read.sum())


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--iterations", type=int, nargs="+", default=[0, 5, 20])
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    store = Store.open(options.run)
    recipe = Recipe.load(options.run / "recipe.toml")
    model, _ = warm_start.build(ReasoningGym(["chain_sum", "lcm"]), seed=0)
    bench = Bench("stored_step")
    counts = {}
    for iteration in options.iterations:
        batch = recipe.credit(store.batch(iteration))
        every = update_of(recipe, batch, metrics_of_all=True)
        run = update_of(recipe, batch, metrics_of_all=False)
        tokens = {
            "all draws": sum(len(pack.input_ids) for pack in every.pack(max_tokens=PACK)),
            "stored once": stored_once(batch),
            "equal once": sum(len(pack.input_ids) for pack in every.pack(max_tokens=10**7, layout="tree")),
            "with a gradient": sum(len(pack.input_ids) for pack in run.pack(max_tokens=10**7, layout="tree")),
        }
        counts[str(iteration)] = tokens
        print(f"iteration {iteration}: " + ", ".join(f"{name} {count}" for name, count in tokens.items()))
        bench.against(
            f"update of iteration {iteration}",
            "sequences of all draws",
            lambda run=run: step(run, model, "tree"),
            lambda every=every: step(every, model, "sequence"),
            runs=options.runs,
            goal=1.0,
            read=lambda gradients: np.concatenate([gradient.flatten().numpy() for gradient in gradients]),
            tolerance=1e-4,
        )
    bench.write(tokens=counts)


if __name__ == "__main__":
    main()
