"""The training step of `tree_step.py` on a stored run: tokens computed by each layout, and time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import torch
from common import Bench
from transformers import AutoModelForCausalLM

from agentrl_core import Batch, Recipe, Store
from agentrl_core.update.minibatches import Updates
from agentrl_core.update.optimizer_step import Update

PACK = 16_384


def step(update: Update, model: torch.nn.Module, layout: str) -> list[torch.Tensor]:
    """Return the gradients of an optimizer step."""
    model.zero_grad()
    for pack in update.pack(max_tokens=PACK, layout=layout):
        update.loss(pack.run(model), pack).backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def update_of(recipe: Recipe, batch: Batch, *, metrics_of_all: bool) -> Update:
    """Return the single update of all draws."""
    training = recipe.replace(epochs=1, minibatches=1).losses()
    (update,) = Updates(batch, training, shared=recipe.shared, metrics_of_all=metrics_of_all)
    return update


def stored_once(batch: Batch) -> int:
    """Return the tokens of the stored tree: each node up to the last token that a trained token depends on."""
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


def compared(bench: Bench, run: Path, iterations: list[int], runs: int) -> dict[str, dict[str, int]]:
    """Measure the update of each iteration beside sequences of all draws; return its tokens.

    The token counts are: all draws; the tree as stored; the tree with equal prefixes merged, wherever they are stored;
    and that tree without draws of zero advantage, which is the input of an update.
    """
    model = AutoModelForCausalLM.from_pretrained(run / "start", dtype=torch.float32)
    counts = {}
    with Store.open(run, read_only=True) as store:
        recipe = Recipe.from_dict(store.state["run"]["recipe"])
        for iteration in iterations:
            work = f"{run.name}, iteration {iteration}"
            batch = recipe.credit(store.batch(iteration))
            every = update_of(recipe, batch, metrics_of_all=True)
            trained = update_of(recipe, batch, metrics_of_all=False)
            counts[work] = {
                "all draws": sum(len(pack.input_ids) for pack in every.pack(max_tokens=PACK)),
                "stored once": stored_once(batch),
                "equal once": sum(len(pack.input_ids) for pack in every.pack(max_tokens=10**7, layout="tree")),
                "with a gradient": sum(len(pack.input_ids) for pack in trained.pack(max_tokens=10**7, layout="tree")),
            }
            bench.against(
                work,
                "sequences, all draws",
                lambda trained=trained: step(trained, model, "tree"),
                lambda every=every: step(every, model, "sequence"),
                runs=runs,
                goal=1.0,
                read=lambda gradients: np.concatenate([gradient.flatten().numpy() for gradient in gradients]),
                tolerance=1e-4,
            )
            print(f"{'':<44} tokens: " + ", ".join(f"{name} {count}" for name, count in counts[work].items()))
    return counts
