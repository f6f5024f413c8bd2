"""Every recipe that searches or branches, from its rollouts to an optimizer step, with a model."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from sampled import RecordingEngine, check_sampled

import agentrl_core as arl
from agentrl_core import engine, env, recipes, warm_start
from agentrl_core.component import BatchComponent, Column, draw
from agentrl_core.recipes.arrol import PruneRunning
from agentrl_core.recipes.bfs_prover_v2 import BestFirst
from agentrl_core.recipes.branch_grpo import FixedDepthBranching
from agentrl_core.recipes.latr import LookaheadBranching
from agentrl_core.recipes.tree_grpo import TreeExpansion
from agentrl_core.recipes.tree_po import SegmentTree

torch = pytest.importorskip("torch")

SMALLER: dict[str, Any] = {
    "bfs_prover_v2": BestFirst(samples=3, budget=12, until_solved=False),
    "branch_grpo": FixedDepthBranching(splits=2, every=1, keep="best"),
    "tree_grpo": TreeExpansion(trees=2, rounds=1, expansions=1),
    "tree_po": SegmentTree(budget=4, tokens=4),
    "latr": LookaheadBranching(least=0.0, within=1.0, distance=0.1, tokens=12),
    "arrol": PruneRunning(tokens=3, begin=0),
    "aepo": None,
    "tree_opo": None,
}


@dataclass(frozen=True)
class Alternating(BatchComponent):
    """Scores 0, 1/2 and 1 in turn."""

    phase: ClassVar[str] = "reward"
    makes: ClassVar[tuple[Column, ...]] = (draw("score"),)

    def __call__(self, batch: arl.Batch) -> arl.Batch:
        return batch.with_columns("draw", score=np.arange(batch.num_draws) % 3 / 2)


@pytest.fixture(scope="module")
def built() -> Any:
    world = env.ReasoningGym(["chain_sum"], seed=0, held_out=0)
    return world, *warm_start.build(world, seed=0)


@pytest.mark.filterwarnings("ignore:.*forks at tool results")
@pytest.mark.filterwarnings("ignore:tree_opo.TeacherPrefixes. teacher='' has no search")
@pytest.mark.parametrize("name", SMALLER)
def test_a_recipe_runs_to_a_step(name: str, built: Any) -> None:
    world, policy, tokenizer = copy.deepcopy(built)
    # An untrained model earns nothing, so the scores are given here and there is something to learn.
    recipe = recipes.get(name).replace(reward=Alternating())
    if SMALLER[name] is not None:
        recipe = recipe.replace(rollout=SMALLER[name])
    generate = RecordingEngine(engine.Transformers(policy, tokenizer))
    limits = {"sampling": engine.Sampling(max_tokens=12), "context_tokens": 128, "turn_limit": 2}
    collect = arl.Collector(generate, world, recipe, seed=1, task_pool=4, **limits)  # type: ignore[arg-type]
    batch = collect(tasks=2, group_size=4)
    assert batch.num_draws >= 2
    assert check_sampled(batch, generate)
    for column_name in ("recomputed_logprob", "reference_logprob"):
        if column_name in {column.name for column in recipe.model_columns}:
            batch = arl.annotate(batch, column_name, policy, max_tokens=2048)
    credited = recipe.credit(batch)
    before = [parameter.detach().clone() for parameter in policy.parameters()]
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    for update in recipe.updates(credited, seed=0):
        for pack in update.pack(max_tokens=2048):
            update.loss(pack.run(policy), pack).backward()
        optimizer.step()
        optimizer.zero_grad()
    moved = [not torch.equal(old, new) for old, new in zip(before, policy.parameters(), strict=True)]
    assert any(moved), "the step moved the weights"
    assert all(torch.isfinite(parameter).all() for parameter in policy.parameters())
