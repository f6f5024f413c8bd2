"""Worked examples of the paper of v0, computed by the recipe."""

from __future__ import annotations

import numpy as np
import pytest
from paper_files import Example
from paper_numbers import Found, PaperExamples
from small_world import SmallWorld

from agentrl_core import Collector, recipes
from agentrl_core.select import Pool

EXAMPLES = PaperExamples("v0")


@EXAMPLES.by("the second iteration has another context, not other weights")
def contexts(example: Example) -> Found:
    """The means of two contexts as predictions, which the recipe's tracker reads one after the other."""
    world = SmallWorld()
    collector = Collector(world, world, recipes.V0, task_pool=2)
    found = {}
    for name in ("first", "second"):
        collector.annotate_tasks("prior", [example.values[name].mean()] * 2)
        pool: Pool = collector._known_pool(collector._now().tasks)
        found[f"context_mean_{name}"] = np.unique(pool.column(recipes.V0.select.track.by))
    return found


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
