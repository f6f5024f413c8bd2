"""Train one iteration by `agentrl train` on ranks of torchrun, and record which ranks compute the credit.

    torchrun --nproc-per-node 2 credit_on_ranks.py FOLDER

The recipes are GRPO, whose credit reads no column of a model, and PPO, whose credit reads the values of a critic. Each
rank that computes the credit writes the file `RECIPE-RANK` to the folder, with the weights that it made.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch.distributed as dist
from quiet import Quiet

import agentrl_core as arl
from agentrl_core import recipes
from agentrl_core.component import BatchComponent, draw
from agentrl_core.recipe import Recipe
from agentrl_core.train import loop
from agentrl_core.train.options import TrainOptions


@dataclass(frozen=True)
class Noted(BatchComponent):
    """Weight draws by their place in the batch, and record that this rank does so."""

    phase: ClassVar[str] = "weight"
    makes: ClassVar = (draw("weight"),)

    path: str = ""

    def __call__(self, batch: arl.Batch) -> arl.Batch:
        """Make the weights, and write the file."""
        weights = 1.0 + np.arange(batch.num_draws, dtype=np.float32) / 8
        Path(f"{self.path}-{dist.get_rank()}").write_bytes(weights.tobytes())
        return batch.with_columns("draw", weight=weights)


def train(folder: Path, recipe: Recipe) -> None:
    """Train one iteration."""
    noted = recipe.replace(weight=(*recipe.chain("weight"), Noted(path=str(folder / recipe.name))))
    sizes: dict[str, Any] = {"rollouts": 8, "group_size": 4, "held_out": 4, "turn_tokens": 8, "max_turns": 2}
    run = str(folder / f"run-{recipe.name}")
    loop.train(TrainOptions(run=run, iterations=1, warm_start_steps=1, pack_tokens=256, **sizes), noted, Quiet())


if __name__ == "__main__":
    dist.init_process_group("gloo")
    for each in (recipes.GRPO, recipes.PPO):
        train(Path(sys.argv[1]), each)
    dist.barrier()
    dist.destroy_process_group()
