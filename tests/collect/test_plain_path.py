"""Features that a run does not use add no code to its path."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from small_world import SmallWorld

import agentrl_core as arl
from agentrl_core import Collector, Store, recipes, select
from agentrl_core.collect import BatchPolicy, event_loop
from agentrl_core.env import StepResult

PACKAGE = f"{Path(arl.__file__).parent}/"
UNUSED = {
    "collect/batch_policy.py",
    "collect/evaluate.py",
    "collect/evaluation_result.py",
    "collect/group_retry.py",
    "collect/import_trajectories.py",
    "collect/stored_solutions.py",
    "collect/model_queries.py",
    "collect/partial_rollouts.py",
    "collect/prefetch.py",
    "collect/worker_order.py",
    "collect/rollout_workers.py",
    "replay/apply.py",
    "rollout/branch_edits.py",
    "rollout/conversations.py",
    "rollout/solved_trajectories.py",
    "rollout/multi_agent.py",
    "rollout/prefix.py",
    "rollout/search_tree.py",
}
MOST = {"files": 54, "functions": 435, "moves": 1150, "record types": 12}
"""Largest size of the plainest iteration, without the folders that run the transformer; it may only shrink."""
USED = {"collect/collector.py", "collect/rollout_driver.py", "rollout/group.py", "rollout/branch.py"}


@contextmanager
def entered() -> Iterator[set[str]]:
    """Return files of the package with called functions, in this thread and in that of the programs."""
    files: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(PACKAGE):
            files.add(name[len(PACKAGE) :])

    async def trace(function: Any) -> None:
        sys.setprofile(function)

    before = sys.getprofile()
    event_loop.run(lambda: trace(note))
    sys.setprofile(note)
    try:
        yield files
    finally:
        sys.setprofile(before)
        event_loop.run(lambda: trace(None))


class World(SmallWorld):
    runs = "inline"

    def __init__(self) -> None:
        super().__init__(
            lambda _, seed, actions: (
                StepResult("go on")
                if len(actions) < 2
                else StepResult(reward=float(seed % 2), terminated=True, success=bool(seed % 2))
            )
        )


def iteration(collect: Collector) -> None:
    batch = collect(tasks=4, group_size=2)
    collect.end_iteration(collect.recipe.credit(batch), {})


def test_a_plain_iteration_enters_no_feature_that_it_does_not_use(tmp_path: Path) -> None:
    world = World()
    with Store.open(tmp_path) as store:
        collect = Collector(world, world, recipes.GRPO, store=store, task_pool=40)
        iteration(collect)
        with entered() as files:
            iteration(collect)
    assert files >= USED
    assert not files & UNUSED
    assert all(Path(PACKAGE, name).exists() for name in UNUSED), "a file that was renamed is never entered"
    # Names in stored runs of earlier builds were translated when the run was opened.
    assert "renames.py" not in files


@pytest.mark.parametrize(
    ("options", "recipe", "files"),
    [
        ({"batch_policy": BatchPolicy(oversample=2.0)}, recipes.GRPO, {"collect/partial_rollouts.py"}),
        ({"staleness": 1}, recipes.GRPO, {"collect/prefetch.py"}),
        (
            {},
            recipes.GRPO.replace(admit=select.DynamicSampling(max_rounds=3, rejected="regenerate")),
            {"collect/group_retry.py"},
        ),
    ],
    ids=["in flight", "ahead", "retried"],
)
def test_a_feature_is_entered_if_it_is_used(options: dict[str, Any], recipe: Any, files: set[str]) -> None:
    world = World()
    collect = Collector(world, world, recipe, task_pool=40, **options)
    with entered() as used_files:
        iteration(collect)
    collect.close()
    assert files <= used_files
    assert files <= UNUSED


@pytest.mark.full
def test_the_plainest_iteration_stays_small(tmp_path: Path) -> None:
    bench = Path(__file__).parents[2] / "bench" / "plainest_iteration.py"
    subprocess.run([sys.executable, bench, "--json", tmp_path / "size.json"], check=True, capture_output=True)
    size = json.loads((tmp_path / "size.json").read_text())
    row = size["parts"]["without engine and model"]
    counts = {name: row[name] for name in ("files", "moves")}
    counts["functions"] = row["functions"] - row["comprehensions of these"]  # Python 3.12 calls no comprehension
    counts["record types"] = size["collect"]["record types"]
    assert {name: count for name, count in counts.items() if count > MOST[name]} == {}
    assert min(counts.values()) > 5
