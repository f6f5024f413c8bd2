"""Memory of a group's samples is freed when the group is over, without the cycle collector."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass
from typing import Any

import pytest

import agentrl_core as arl
from agentrl_core import engine, env, recipes, rollout, warm_start
from agentrl_core.exceptions import InvalidInputError


@dataclass(frozen=True)
class Watched(rollout.Rollout):
    """A program that forks, searches and derives, and keeps references to all objects."""

    async def group(self, group: rollout.Group) -> None:
        """Grow a tree of two turns, and a group derived from it."""
        (branch,) = group.start_many(1)
        turn = await branch.turn()
        fork = branch.fork(turn.begin)
        assert len(group.tree.status)
        derived = await group.spawn(group.task, program=rollout.Independent())
        seen.extend(weakref.ref(each) for each in (group, branch, turn, fork, turn.segments[0], derived))
        kept[:] = [branch, turn]
        assert (branch.group, turn.branch) == (group, branch)
        await group.run([fork])


seen: list[weakref.ref[object]] = []
kept: list[Any] = []


def test_a_group_that_is_over_leaves_memory_at_once() -> None:
    world = env.ReasoningGym(["lcm"], seed=0, held_out=0)
    _, tokenizer = warm_start.build(world, seed=0)
    script = engine.Scripted(tokenizer, lambda _: "<answer>12</answer>")
    collect = arl.Collector(script, world, recipes.GRPO.replace(rollout=Watched()))
    gc.disable()
    try:
        collect.end_iteration(collect(tasks=1, group_size=4), {})
        branch, turn = kept
        # The program's own references are a branch and its turn, which hold nothing above them.
        assert [reference() for reference in seen] == [None, branch, turn, None, turn.segments[0], None]
        with pytest.raises(InvalidInputError, match=r"the group of branch 0\.0/0\.0 was garbage-collected"):
            _ = branch.group
        kept.clear()
        del branch
        with pytest.raises(InvalidInputError, match="the branch that took a turn was garbage-collected"):
            _ = turn.branch
        del turn
        assert [reference() for reference in seen] == [None] * 6
    finally:
        gc.enable()
        seen.clear()
