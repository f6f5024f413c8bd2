"""No program that grows a tree exceeds its own limit of branches, whatever its options and seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mazes import Babbler
from number_world import Numbers, SumWorld
from sampled import RecordingEngine, check_sampled
from small_world import SmallWorld

import agentrl_core as arl
from agentrl_core import recipes
from agentrl_core.engine import Sampling
from agentrl_core.env import StepFlag, StepResult, Task
from agentrl_core.recipes.aepo import PremonitoredBranching
from agentrl_core.recipes.arrol import PruneRunning
from agentrl_core.recipes.branch_grpo import FixedDepthBranching
from agentrl_core.recipes.ettrl import TokenForks
from agentrl_core.recipes.latr import LookaheadBranching
from agentrl_core.recipes.tree_grpo import TreeExpansion
from agentrl_core.recipes.tree_po import SegmentTree
from agentrl_core.rollout import EntropyBranching, Rollout

MEMBER, PRUNED = 0, 3
SMALL = st.integers(1, 4)


def wandering(task: Task, seed: int, actions: list[str]) -> StepResult:
    """An episode that ends after a number of turns that depends on the actions."""
    del task, seed
    total = sum(sum(map(int, action.split())) for action in actions)
    if total % 5 == 0 or len(actions) >= 6:
        return StepResult(reward=float(total % 3), terminated=True, success=total % 3 == 2)
    return StepResult("x" * (total % 7), flags=StepFlag.TOOL_RESULT)


def words(tokens: tuple[int, ...]) -> list[tuple[int, float]]:
    """Return up to thirty tokens; every fifth has alternatives that are nearly as likely."""
    if len(tokens) >= 30:
        return [(9, 1.0)]
    return [(3, 0.4), (4, 0.35), (5, 0.25)] if len(tokens) % 5 == 0 else [(6 + len(tokens) % 3, 0.9), (9, 0.1)]


PROGRAMS: dict[str, tuple[Callable[[Any], Rollout], Callable[[], Any]]] = {
    "entropy": (
        lambda draw: EntropyBranching(
            budget=draw(st.integers(4, 12)), initial=draw(SMALL), beam=draw(st.integers(2, 4)), entropy_weight=0.5
        ),
        lambda: (Numbers(), SumWorld()),
    ),
    "premonitored": (
        lambda draw: PremonitoredBranching(
            budget=draw(st.integers(4, 12)), initial=draw(SMALL), beam=draw(st.integers(2, 4)), entropy_weight=0.5
        ),
        lambda: (Numbers(), SumWorld()),
    ),
    "fixed depth": (
        lambda draw: FixedDepthBranching(
            splits=draw(st.integers(1, 3)), every=draw(st.integers(1, 2)), ways=draw(st.integers(2, 3)), keep="best"
        ),
        lambda: (world := SmallWorld(wandering), world),
    ),
    "expansion": (
        lambda draw: TreeExpansion(trees=draw(SMALL), rounds=draw(st.integers(0, 3)), expansions=draw(SMALL)),
        lambda: (world := SmallWorld(wandering), world),
    ),
    "token forks": (
        lambda draw: TokenForks(roots=draw(SMALL), positions=draw(SMALL), copies=draw(SMALL)),
        lambda: (world := SmallWorld(wandering), world),
    ),
    "segments": (
        lambda draw: SegmentTree(
            budget=draw(st.integers(4, 9)), initial=draw(SMALL), tokens=draw(st.integers(1, 9)), ways=draw(st.just(2))
        ),
        lambda: (world := Babbler(words), world),
    ),
    "lookahead": (
        lambda draw: LookaheadBranching(share=draw(st.floats(0, 1)), children=draw(SMALL), distance=0.1, tokens=30),
        lambda: (world := Babbler(words), world),
    ),
    "pruned": (
        lambda draw: PruneRunning(tokens=draw(st.integers(1, 20)), keep=draw(st.floats(0.1, 1)), begin=0),
        lambda: (world := Babbler(words), world),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
@settings(max_examples=15, deadline=None)
@given(data=st.data(), size=st.integers(1, 6), seed=st.integers(0, 1 << 20))
def test_no_group_exceeds_the_final_group_size_of_its_program(name: str, data: Any, size: int, seed: int) -> None:
    make, world = PROGRAMS[name]
    program = make(data.draw)
    speaker, environment = world()
    engine = RecordingEngine(speaker)
    recipe = recipes.GRPO.replace(rollout=program)
    options = {"context_tokens": 200, "sampling": Sampling(max_tokens=40)}
    collect = arl.Collector(engine, environment, recipe, seed=seed, task_pool=2, **options)
    batch = collect(tasks=2, group_size=size)
    check_sampled(batch, engine)
    # Places of branches that a lookahead pruned are filled again.
    members = pl.DataFrame(batch.trajectories).filter(pl.col("role") == MEMBER, pl.col("status") != PRUNED)
    counts = members["group_id"].value_counts()["count"]
    assert counts.len() == 2
    assert counts.max() <= program.final_group_size(size)
    assert batch.num_draws <= 2 * program.final_group_size(size)
