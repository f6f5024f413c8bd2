"""The programs grow the same trees as the earlier lock-step loop, bit for bit."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from number_world import Numbers, SumWorld
from small_world import SmallWorld

import agentrl_core as arl
from agentrl_core import engine, recipes, rollout

GOLDEN = json.loads(Path(__file__).with_name("golden_trees.json").read_text())
ROLLOUTS = {
    "independent": rollout.Independent(),
    "after_tool": rollout.EntropyBranching(budget=7, initial=2, beam=3, entropy_weight=0.5),
    "after_tool mean": rollout.EntropyBranching(budget=9, initial=3, beam=2, probability=0.8, tokens=2, reduce="mean"),
    "before_tool": rollout.EntropyBranching(budget=7, initial=2, beam=3, entropy_weight=0.5, measure="before_tool"),
}


def digest(table: Any, columns: list[str]) -> str:
    rows = pl.DataFrame(table).select(columns)
    text = json.dumps([rows.columns, rows.rows()], default=lambda raw: raw.hex())
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("case", GOLDEN)
def test_the_tree_is_that_of_the_lock_step_loop(case: str) -> None:
    world_name, name, seed = case.split(" ", 1)[0], case.split(" ", 1)[1].rsplit(" ", 1)[0], int(case.rsplit(" ", 1)[1])
    generate, world = (Numbers(), SumWorld()) if world_name == "sums" else (SmallWorld(),) * 2
    limits = {"context_tokens": 24, "sampling": engine.Sampling(max_tokens=3)} if world_name == "sums" else {}
    recipe = recipes.GRPO.replace(rollout=ROLLOUTS[name])
    batch = arl.Collector(generate, world, recipe, seed=seed, task_pool=16, **limits)(tasks=3, group_size=4)
    assert len(GOLDEN) == 16
    for table, (columns, expected) in GOLDEN[case].items():
        assert digest(getattr(batch, table), columns) == expected, table
