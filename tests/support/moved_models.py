"""Models that hooks move after optimizer steps; their weights are set by hand, nothing is trained."""

from __future__ import annotations

import numpy as np
import torch
from arithmetic import Value
from rollouts import small

from agentrl_core.recipe import Recipe
from agentrl_core.schedule import SyncModel


def followed(recipe: Recipe, hook: SyncModel, thetas: Value, start: Value) -> Value:
    """Return the weights of the hook's target after each optimizer step of an iteration.

    Args:
        recipe: the recipe whose updates and hooks run.
        hook: its only hook.
        thetas: the weights of the hook's source after each step, a number or a row of numbers each.
        start: the weights of the target before the first step.
    """
    rows = np.asarray(thetas, np.float64).reshape(len(thetas), -1)
    names = {"source": hook.source, "target": hook.target}
    models = {name: torch.nn.Linear(1, rows.shape[1], bias=False).double() for name in names.values()}

    def fill(name: str, weights: Value) -> None:
        models[names[name]].weight.data[:, 0] = torch.from_numpy(np.array(weights, np.float64))

    fill("target", start)
    optimizer = torch.optim.SGD(models[hook.source].parameters(), lr=0.0)
    running = recipe.replace(hooks=hook, epochs=len(rows), minibatches=1)
    batch = small([(0, [1]), (0, [1])], draw_score=[1.0, 0.0]).with_columns("token", reference_logprob=[-1.0, -1.0])
    updates = running.updates(running.credit(batch), models=models)
    weights = []
    for place, update in enumerate(updates):
        weights.append(models[hook.target].weight[:, 0].detach().numpy().copy())
        fill("source", rows[place])
        update.step(optimizer)
    running.run_hooks(updates, **models)
    weights.append(models[hook.target].weight[:, 0].detach().numpy().copy())
    return np.array(weights[1:]).reshape(np.shape(thetas))
