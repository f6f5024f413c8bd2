"""Write the store of format v2 that every later version must read: `python golden_facts.py FOLDER`, run once."""

from __future__ import annotations

import sys
from pathlib import Path

from golden import expected_columns

from agentrl_core import Batch, Forest, Store

FACTS = {"step": {"flawed": "number", "tool": "key"}, "trajectory": {"answer": "key", "calls": "number"}}
ROLES = ("member", "baseline", "helper", "member")


def facts_of(iteration: int, member: int, turn: int) -> dict[str, float | str]:
    """Return the facts of a step; some steps have none."""
    return {} if member == turn else {"flawed": iteration + turn / 4, "tool": f"tool {(member + turn) % 2}"}


def answer_of(iteration: int, member: int) -> dict[str, float | str]:
    """Return the facts of an episode."""
    return {"answer": f"answer {member % 3}"} if iteration else {"answer": "über", "calls": member}


def grown(iteration: int) -> Batch:
    """Return one group of four rollouts of two steps: one is a baseline, one a helper."""
    forest = Forest(iteration=iteration, facts=FACTS)
    forest.add_group(0, f"task {iteration}")
    for member, role in enumerate(ROLES):
        trajectory = forest.start(0, member, role=role)
        forest.append(trajectory, [1, 2], kind="prompt")
        for turn in range(2):
            forest.append(trajectory, [3, member + turn], kind="action", logprobs=[-0.5, -0.25], policy_version=0)
            forest.step(trajectory, reward=float(turn), facts=facts_of(iteration, member, turn))
            forest.append(trajectory, [9], kind="observation", state=f"state {turn}")
        forest.finish(trajectory, reward=float(member), facts=answer_of(iteration, member))
    return forest.freeze()


def write(folder: Path) -> None:
    """Write two iterations; the second one draws a baseline of the first again."""
    with Store.open(folder) as store:
        for iteration in range(2):
            batch = grown(iteration)
            if iteration:
                batch = Batch.concat([batch, store.trajectory_batch([1])]).with_draws([1], source="replay")
            batch = store.rebase(batch)
            store.append(batch, iteration=iteration)
            batch = batch.with_columns("draw", **expected_columns(iteration, batch))
            store.close_iteration(batch, {"metrics": {"loss": iteration / 2, "collect": {"draws": batch.num_draws}}})


if __name__ == "__main__":
    write(Path(sys.argv[1]))
