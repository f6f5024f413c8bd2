"""Evaluate an engine outside a training run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentrl_core.collect.collector import Collector
from agentrl_core.collect.evaluation_result import Evaluation
from agentrl_core.engine.base import Engine, Sampling
from agentrl_core.env.base import Environment, Split
from agentrl_core.recipe import Recipe
from agentrl_core.rollout.progress import Progress


def evaluate(
    engine: Engine,
    environment: Environment,
    *,
    tasks: int,
    split: Split = "held_out",
    samples: int = 1,
    seed: int = 0,
    sampling: Sampling | None = None,
    context_tokens: int = 4096,
    progress: Callable[[Progress], None] | None = None,
) -> Evaluation:
    """Evaluate an engine outside of training. See `Collector.evaluate`.

    Example:
        >>> from agentrl_core import engine, env, warm_start
        >>> from agentrl_core.collect import evaluate
        >>> world = env.ReasoningGym(["lcm"], seed=0)
        >>> _, tokenizer = warm_start.build(world, seed=0)
        >>> script = engine.Scripted(tokenizer, lambda tokens: "<answer>12</answer>")
        >>> evaluate(script, world, tasks=64, samples=2).samples.sum()
        np.int64(128)
    """
    recipe = Recipe(name="evaluation")
    options: dict[str, Any] = {"sampling": sampling, "context_tokens": context_tokens, "progress": progress}
    return Collector(engine, environment, recipe, seed=seed, **options).evaluate(
        tasks=tasks, split=split, samples=samples
    )
