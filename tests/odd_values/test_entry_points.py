"""Odd values of the right type, at every public entry point: rejected by name on arrival, or kept over a restart.

`AGENTRL_FULL_TESTS=1` tries ten times as many, and `--hypothesis-profile=search` tries others.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any

import odd_forest
import odd_rollouts
import odd_store
import pytest
from odd_inputs import EntryPoint, try_odd_values
from tool_agents import endpoint

import agentrl_core
from agentrl_core import engine, env
from agentrl_core.agents import Endpoint
from agentrl_core.data.store import RolloutLog
from agentrl_core.integrations import trajectories
from agentrl_core.rollout import Branch, Cohort, Group

ENTRY_POINTS: dict[str, EntryPoint] = {
    **odd_forest.ENTRY_POINTS,
    **odd_rollouts.ENTRY_POINTS,
    **odd_store.ENTRY_POINTS,
}
CLASSES = (
    agentrl_core.Forest,
    agentrl_core.Batch,
    agentrl_core.Store,
    RolloutLog,
    agentrl_core.Collector,
    agentrl_core.Recipe,
    Branch,
    Group,
    Cohort,
    Endpoint,
)
READS = "reads, and keeps nothing of what it is given"
HANDLES = "takes handles of the package's own alone, which tests/data and tests/rollout give it wrong"
MADE = "the package makes it"
BODIES = "tests/agents/test_malformed_bodies.py and test_refusals.py send it odd bodies"
ELSEWHERE: dict[str, str] = {
    **dict.fromkeys(
        ("Forest.running", "Forest.tokens", "Forest.segment_seed", "Forest.tree", "Forest.snapshot"), READS
    ),
    **dict.fromkeys(("Forest.adopt", "Forest.replace", "Forest.freeze"), HANDLES),
    **{
        f"Batch.{name}": READS
        for name in ("blob", "column", "has", "keys", "locate_tokens", "offsets", "plan", "texts")
    },
    **{f"Batch.{name}": READS for name in ("select_draws", "token_weights")},
    "Branch.tokens_before": READS,
    **dict.fromkeys(("Batch", "Store", "RolloutLog", "Branch", "Group", "Cohort"), MADE),
    "Batch.concat": HANDLES,
    "Batch.with_stored_draws": "tests/replay and tests/data/test_errors.py give it wrong draws",
    **{f"Store.{name}": READS for name in ("batch", "blob", "files", "has_batch", "rollout_log", "trajectory_batch")},
    "Collector.roll_out": "tests/collect/test_workers.py gives it something that is no order",
    "Store.drop_before": "tests/data/test_compaction.py",
    "Store.open": "tests/data/test_store_hostile.py",
    "Store.rebase": HANDLES,
    "Collector.import_trajectories": "its forest is a Forest, its metrics are those of end_iteration",
    "Collector.annotate_tasks": "tests/collect/test_annotate_tasks.py gives it wrong names and values",
    "Collector.on_iteration": "takes a function",
    "Recipe": "Recipe.from_dict makes it of all its options",
    "Recipe.replace": "Recipe.from_dict makes one of all its options",
    **{
        f"Recipe.{name}": READS
        for name in (
            "at",
            "chain",
            "check",
            "components",
            "credit",
            "losses",
            "next_states",
            "run_hooks",
            "score",
            "updates",
        )
    },
    "Recipe.with_states": "Batch.with_state keeps what it writes",
    **{f"Branch.{name}": READS for name in ("decode", "end_of", "position", "position_after", "uniform")},
    **{f"Branch.{name}": "Branch.stop calls it too" for name in ("mask", "drop")},
    **{f"Branch.{name}": "Branch.write calls it too" for name in ("generate", "inject")},
    **dict.fromkeys(("Branch.fork_many", "Branch.splice", "Branch.rollback"), HANDLES),
    **dict.fromkeys(("Branch.rewrite", "Branch.with_prompt"), "checks contents as Branch.write does what it injects"),
    "Branch.turn": "Branch.write is its action",
    **{
        f"Group.{name}": HANDLES
        for name in ("advance", "as_completed", "drop", "release_slots", "resume_search", "run")
    },
    **{f"Group.{name}": MADE for name in ("log_decision", "on_fork", "on_turn", "run_program")},
    **dict.fromkeys(("Group.sampling", "Group.uniform", "Group.score", "Group.turn", "Cohort.uniform"), READS),
    **dict.fromkeys(("Cohort.score", "Cohort.count", "Cohort.index", "Cohort.run_each"), READS),
    "Group.start_many": "Group.start",
    "Group.spawn": "Group.defer checks such a task",
    "Group.query": "tests/rollout/test_programs.py",
    "Cohort.side_effect": "Group.side_effect records in the same way",
    **dict.fromkeys(("Endpoint.open", "Endpoint.reward"), "Endpoint.close opens and pays its session"),
    "Endpoint": "tests/agents/test_refusals.py",
    **{
        f"Endpoint.{name}": MADE
        for name in ("body", "check_key", "check_sender", "conversation", "guarded", "session_of")
    },
    "Endpoint.running": "an address",
    **dict.fromkeys(("env.Calculator", "env.Python"), "tests/env give them odd texts"),
    "env.ExtraColumn": "tests/collect/test_key_words.py",
    "engine.Request": MADE,
    **dict.fromkeys(("trajectories.from_chats", "trajectories.read"), "tests/formats/readers/test_odd_records.py"),
    **dict.fromkeys(
        ("Collector.__call__", "Collector.evaluate"), "however many rollouts are asked for are made; tests/collect"
    ),
    "engine.Sampling": "Collector takes one",
    "engine.EntropyTemperature": "tests/engine",
    **{f"trajectories.{name}": READS for name in ("to_atif", "to_chats", "to_verifiers")},
    **{
        f"POST {path}": BODIES
        for path in ("/weights", "/iterations", "/sessions", "/sessions/*/reward", "/sessions/*/close")
    },
    **{
        f"POST {before}/v1/{path}": BODIES
        for before in ("", "/s/*")
        for path in ("chat/completions", "completions", "responses", "messages", "messages/count_tokens")
    },
}
"""Public names without a row here, and why they need none."""


def entry_points() -> Iterator[str]:
    """Return the public names that take values: methods with arguments, protocols, file readers, and routes."""
    for kind in CLASSES:
        for name in dir(kind):
            if name.startswith("_") and name not in ("__call__", "__init__"):
                continue
            method = inspect.getattr_static(kind, name)
            method = getattr(method, "__func__", method)
            if inspect.isfunction(method) and inspect.signature(method).parameters.keys() - {"self", "cls", "forest"}:
                yield kind.__name__ if name == "__init__" else f"{kind.__name__}.{name}"
    for module in (env, engine):
        for name in dir(module):
            if dataclasses.is_dataclass(value := getattr(module, name)) and inspect.isclass(value):
                yield f"{module.__name__.rpartition('.')[2]}.{name}"
    yield from (f"trajectories.{name}" for name in dir(trajectories))
    for route in endpoint(lambda _: "").app.routes:
        typed_route: Any = route
        if "POST" in typed_route.methods:
            yield f"POST {typed_route.path.replace('{session}', '*')}"


def test_every_entry_point_has_a_row() -> None:
    known = {*ENTRY_POINTS, *ELSEWHERE} - {"env.Episode"}
    entry_names = set(entry_points())
    assert len(entry_names) > 100
    assert sorted(entry_names - known) == [], "add a row to ENTRY_POINTS, or say in ELSEWHERE where it is tried"
    assert sorted(known - entry_names) == [], "no such entry point any more"
    assert not ENTRY_POINTS.keys() & ELSEWHERE.keys()


# An error shows the whole rejected table, and a table of 300 odd texts is long.
@pytest.mark.filterwarnings("ignore:Generating overly large repr")
@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_odd_values_are_refused_or_kept(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    try_odd_values(ENTRY_POINTS[name], tmp_path_factory)
