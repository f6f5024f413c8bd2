"""Forests freeze bit for bit to the same tables as at the introduction of format v1."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable

import numpy as np
import pytest
from forests import MEMBERS, empty, frames, grow, grow_member

from agentrl_core import Batch, Forest


def forks_of_forks() -> Batch:
    """Branches without ordinals, of branches, of branches; some at tokens of inherited steps."""
    forest = empty(range(2))
    for group in range(2):
        for member in range(MEMBERS):
            grow_member(forest, group, member, turns=4)
    return forest.freeze()


def surgery() -> Batch:
    """Rewritten contexts that are forked; splices, rollbacks, and adopted trajectories that continue."""
    rng = np.random.default_rng(5)
    forest = Forest(iteration=2, seed=9)
    forest.add_group(0, "task")

    def act(trajectory: int, count: int, *, pay: float | None = None) -> int:
        tokens = rng.integers(2, 90, count)
        node = forest.append(trajectory, tokens, kind="action", logprobs=-rng.random(count), policy_version=3)
        if pay is not None:
            forest.step(trajectory, reward=pay)
        return node

    trunk = forest.start(0, 0)
    forest.append(trunk, [1, 2, 3], kind="prompt")
    nodes = []
    for turn in range(6):
        nodes.append(act(trunk, 3, pay=float(turn)))
        forest.append(trunk, [turn], kind="observation", state=f"state {turn % 2}")
    forest.rewrite(trunk, [1, 2, 3, 4, 5], state="memory")
    later = act(trunk, 4, pay=0.5)
    running = [trunk]
    for node, end in [(nodes[0], 2), (nodes[2], None), (nodes[5], 1), (later, None), (later, 3), (None, None)]:
        branches = forest.fork(trunk, node=node, end=end, count=2)
        for branch in branches:
            act(branch, 2, pay=1.0)
        running += [*branches, forest.fork(branches[0]), forest.fork(branches[1], node=node, end=end)]
    running.append(forest.rollback(running[3], nodes[0], 1))
    spliced = forest.splice(running[5], running[6], from_node=nodes[0], start=1)
    running.append(spliced)
    forest.prune(running[1], "dull", gradient_only=True)
    stored = forest.freeze(partial=True)
    forest = Forest(iteration=3, seed=9)
    forest.add_group(0, "task")
    for trajectory in range(0, 12, 3):
        resumed = forest.fork(forest.adopt(0, stored, trajectory), count=2)
        for branch in (*resumed, forest.fork(resumed[0])):
            act(branch, 2)
            forest.finish(branch, reward=1.0)
    return Batch.concat([stored, forest.freeze()])


PROGRAMS: dict[str, tuple[Callable[[], Batch], str]] = {
    "any": (
        lambda: Batch.concat([grow(seed, turns=6)[0] for seed in range(8)]),
        "d038c7232675a0d82d9f94ef782cd33fbbc81871db76ebf16137477fe3c36d10",
    ),
    "forks of forks": (forks_of_forks, "13cf5febc9edbf67adf466dcabd37edda545f5e9e8422ec403d34a5d798954a8"),
    "surgery": (surgery, "8e995fccbf1dfe5700fc3a277a9afc9c5d78058ee767f3402618cb2959ca023a"),
}


def digest(batch: Batch) -> str:
    """Return a hash of all tables without times and without columns added by later formats."""
    added = ("role", "trained", "votes")
    rows = {name: frame.drop(added, strict=False).to_dict(as_series=False) for name, frame in frames(batch).items()}
    return hashlib.sha256(json.dumps(rows, default=bytes.hex).encode()).hexdigest()


@pytest.mark.parametrize("name", PROGRAMS)
def test_frozen_rows_match_their_recorded_digests(name: str) -> None:
    program, expected = PROGRAMS[name]
    assert digest(program()) == expected
