"""Training loop of all arms: train a warm start until the budget of generated tokens is spent, and measure success."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from arms import Arm
from warm_start import Start
from worlds import World

import agentrl_core as arl
from agentrl_core import engine
from agentrl_core.recipe import Recipe
from agentrl_core.train.models import Models, check_runs, other_stages

MEASURES = 6
"""Measurements of success after the warm start, at equal distances of generated tokens."""
GRADIENT_CLIP = 0.5
_RAMP = 4
_PACK = 16_384
_MOST_ITERATIONS = 1000


def train(world: World, arm: Arm, seed: int, start: Start) -> dict[str, Any]:
    """Train an arm; return its curve and its cost.

    The curve has a row for each measurement: generated tokens so far, held-out success, and the turns and generated
    tokens of a held-out episode.

    Raises:
        RuntimeError: the recipe stops generating tokens.
    """
    recipe, environment, budget = arm.recipe, world.make(), int(world.budget * arm.tokens)
    distils = needs_teacher(recipe)
    torch.manual_seed(seed)
    policy = copy.deepcopy(start.model)
    arm = replace(arm, learning_rate=arm.learning_rate * world.rate)
    models = Models(recipe, policy, start.model, arm.learning_rate, seed, teacher=start.teacher if distils else None)
    generate = engine.Transformers(policy, start.tokenizer, copy=arm.staleness > 0)
    counts: dict[str, float] = {"tokens": 0, "turns": 0, "iterations": 0}

    def count(iteration: int, metrics: Mapping[str, Any]) -> None:
        counts["tokens"] += metrics["tokens"]["generated"]
        counts["iterations"] = iteration + 1

    with tempfile.TemporaryDirectory() as folder, arl.Store.open(folder, sync="never") as store:
        collect = arl.Collector(
            generate,
            environment,
            recipe,
            store=store,
            seed=seed + arm.reseed,
            task_pool=arm.tasks or world.tasks,
            sampling=world.sampling,
            context_tokens=world.context_tokens,
            staleness=arm.staleness,
        )
        collect.on_iteration(count)
        curve = [[0, *_measured(collect, world)]]
        while counts["tokens"] < budget:
            before = counts["tokens"]
            _iterate(collect, arm, models, generate)
            if counts["tokens"] == before or counts["iterations"] >= _MOST_ITERATIONS:
                raise RuntimeError(f"iteration {counts['iterations']} of {recipe.name} generated no tokens")
            if counts["tokens"] >= budget * len(curve) / MEASURES:
                curve.append([int(counts["tokens"]), *_measured(collect, world)])
        collect.close()
    generate.close()
    return {"curve": curve, "iterations": int(counts["iterations"])}


def check(world: World, arm: Arm) -> None:
    """Refuse an arm that this loop cannot run.

    Raises:
        AgentRLError: the loop or the world lacks something that the recipe needs.
    """
    check_runs(arm.recipe, world.make(), arm.group_size, teacher=needs_teacher(arm.recipe))


def _iterate(collect: arl.Collector, arm: Arm, models: Models, generate: engine.Transformers) -> None:
    """Collect a batch, compute credit, take the optimizer's steps and the actions after them, close the iteration."""
    recipe, iteration = arm.recipe, collect.iteration
    group = recipe.rollout.at(iteration).final_group_size(arm.group_size)
    batch = collect(tasks=max(arm.rollouts // group, 1), group_size=arm.group_size)
    stepping: dict[str, Any] = {
        "rate": arm.learning_rate * min(1.0, (iteration + 1) / _RAMP),
        "gradient_clip": GRADIENT_CLIP,
        "max_tokens": _PACK,
    }
    batch = models.annotated(batch, _PACK)
    for stage in other_stages(recipe) if iteration == 0 else ():
        models.step(recipe.updates(batch, stage=stage, seed=collect.seed), **stepping)
    batch = recipe.credit(batch)
    updates = recipe.updates(batch, seed=collect.seed + iteration, models=models.named)
    models.step(updates, **stepping)
    recipe.run_hooks(updates, **models.named)
    if recipe.needs_losses:
        batch = updates.with_losses()
    generate.update_weights(models.policy, version=iteration + 1)
    collect.end_iteration(batch, updates.metrics)


def needs_teacher(recipe: Recipe) -> bool:
    """Return whether a recipe learns from a teacher that no hook provides."""
    columns = {column.name for column in recipe.model_columns}
    outputs = {name.partition(":")[0] for each in recipe.losses() for name in each.loss.outputs}
    moved = {getattr(action, "target", "") for action in recipe.at(0).chain("hooks")}
    return "teacher" not in moved and bool({"teacher_logprob"} & columns or {"divergence"} & outputs)


def _measured(collect: arl.Collector, world: World) -> list[float]:
    """Return success, turns and generated tokens of held-out episodes."""
    evaluation = collect.evaluate(tasks=world.held_out)
    turns = np.diff(evaluation.batch.offsets("step"))
    tokens = np.isfinite(evaluation.batch.column("behaviour_logprob", "node_token")).sum()
    return [round(evaluation.success, 4), round(float(turns.mean()), 2), round(float(tokens) / len(turns), 2)]
