"""A training step on what a run stored: how many tokens each layout runs, and how long they take.

    python bench/stored_step.py RUN [--iterations 0 5 20] [--runs 3]

RUN is the folder of a run of `agentrl train`. Of each iteration: the tokens of all draws; of the tree of what is stored
once; of the tree of what is equal, wherever it is stored; and of that tree without the draws that have no advantage,
which is what an update runs. Then one update of the demo's model as sequences of all draws, and as it is run. Gradients
of both are compared before anything is timed.
"""

from __future__ import annotations

import argparse
import tomllib
from pathlib import Path

import numpy as np
import polars as pl
import torch
from common import Bench
from transformers import AutoModelForCausalLM

from agentrl_core import Batch, Recipe, Store
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
    """Tokens of the tree as it is stored: of each node as many as some trained token has before it."""
    nodes = pl.DataFrame(batch.nodes).select("node_id", "parent_id", "parent_end", pl.col("tokens").list.len())
    row = {node: place for place, node in enumerate(nodes["node_id"])}
    parents, ends, lengths = nodes["parent_id"].to_list(), nodes["parent_end"].to_list(), nodes["tokens"].to_list()
    trained = batch.column("node_token", "token")[np.asarray(batch.column("trainable", "token")) != 0]
    bounds = batch.offsets("node_token")
    of = np.searchsorted(bounds, trained, side="right") - 1
    read = np.zeros(len(row), np.int64)
    np.maximum.at(read, of, trained - bounds[of])
    for node in np.unique(of).tolist():
        place = node
        while parents[place] is not None:
            above = row[parents[place]]
            end = lengths[above] if ends[place] is None else ends[place]
            if read[above] >= end:
                break
            read[above], place = end, above
    return int(read.sum())


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--iterations", type=int, nargs="+", default=[0, 5, 20])
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    store = Store.open(options.run)
    about = tomllib.loads((options.run / "recipe.toml").read_text(encoding="utf-8"))
    recipe = Recipe.from_dict({name: value for name, value in about.items() if name != "train"})
    model = AutoModelForCausalLM.from_pretrained(options.run / "start", dtype=torch.float32)
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
