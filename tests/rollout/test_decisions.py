"""The log of a search is enough to repeat the search."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl
import pytest
from number_world import Numbers, SumWorld

import agentrl_core as arl
from agentrl_core import recipes, rollout
from agentrl_core.rollout import Branch, Group

START, FORK = 0, 1
LOGS: dict[int, pl.DataFrame] = {}


def searched(program: rollout.Rollout) -> arl.Batch:
    recipe = recipes.GRPO.replace(rollout=program)
    return arl.Collector(Numbers(), SumWorld(), recipe, seed=5, task_pool=8, context_tokens=200)(tasks=3, group_size=2)


@dataclass(frozen=True)
class Replay(rollout.Rollout):
    """A program that replays a table of decisions."""

    log: int = 0

    async def group(self, group: Group) -> None:
        rows = LOGS[self.log].filter(pl.col("group_id") == group.key[1]).sort("ordinal").to_dicts()
        branches: dict[int, Branch] = {}
        live: list[Branch] = []
        number = 0
        while True:
            now = [row for row in rows if row["round"] == number]
            for row in now:
                if row["operation"] == START:
                    branches[row["trajectory_id"]] = group.start()
                    live.append(branches[row["trajectory_id"]])
            if not live:
                return
            await group.turn(live)
            live = [branch for branch in live if not branch.over]
            for row in now:
                if row["operation"] == FORK:
                    parent = branches[row["trajectory_id"]]
                    branches[row["result_trajectory_id"]] = parent.fork(parent.turns[-1].begin)
                    live.append(branches[row["result_trajectory_id"]])
            number += 1


@pytest.mark.parametrize("seed_of_search", range(3))
def test_a_search_is_replayed_from_its_decisions(seed_of_search: int) -> None:
    batch = searched(rollout.EntropyBranching(budget=7, initial=2, beam=3, entropy_weight=0.2 + 0.3 * seed_of_search))
    decisions = pl.DataFrame(batch.decisions)
    assert len(decisions.filter(pl.col("operation") == FORK)) > 3
    assert len(decisions) == len(batch.trajectories), "each trajectory comes from one decision"
    forks = decisions.filter(pl.col("operation") == FORK)
    rows = pl.DataFrame(batch.trajectories).filter(pl.col("branch_node").is_not_null())
    assert dict(zip(forks["result_trajectory_id"], forks["node_id"], strict=True)) == dict(
        zip(rows["trajectory_id"], rows["branch_node"], strict=True)
    )
    LOGS[seed_of_search] = decisions
    again = searched(Replay(log=seed_of_search))
    for name in ("nodes", "steps", "trajectories", "draws"):
        one, other = (pl.DataFrame(getattr(each, name)).drop("created_us", strict=False) for each in (batch, again))
        assert one.equals(other, null_equal=True), name
    of_replay = pl.DataFrame(again.decisions)
    assert of_replay.drop("score").equals(decisions.drop("score"), null_equal=True)
