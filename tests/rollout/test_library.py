"""Programs read trajectories of solved tasks, with a store and without one."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_world import SmallWorld

from agentrl_core import Collector, Store, recipes
from agentrl_core.exceptions import NotFoundError
from agentrl_core.rollout import Branch, Group, Rollout

FOUND: list[str] = []


class Reads(Rollout):
    """A program that reads trajectories that are not in the library."""

    async def group(self, group: Group) -> None:
        for read in (group.library.task_id, group.library.actions, group.library.prefix):
            with pytest.raises(NotFoundError, match="trajectory 7 solved no task; take one of library") as error:
                read(7)
            FOUND.append(str(error.value))
        FOUND.extend(group.library.solved())
        await group.run(group.start_many(2))

    async def branch(self, branch: Branch) -> None:
        while not branch.over:
            await branch.turn()


@pytest.mark.parametrize("kept", [True, False])
def test_a_trajectory_that_is_not_there_is_the_same_error(tmp_path: Path, kept: bool) -> None:
    FOUND.clear()
    store = Store.open(tmp_path) if kept else None
    world = SmallWorld()
    collect = Collector(world, world, recipes.GRPO.replace(rollout=Reads()), store=store, task_pool=4)
    assert collect(tasks=1, group_size=2).num_draws == 2
    assert len(FOUND) == 3
    assert len(set(FOUND)) == 1
    collect.close()
