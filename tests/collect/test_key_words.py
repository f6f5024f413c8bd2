"""The package's internal names also work as names of tasks, domains, metrics, facts and agents."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from referee_game import NumberEngine
from small_world import SmallWorld

from agentrl_core import Batch, Collector, Store, recipes
from agentrl_core.advantage import TrackedBaseline
from agentrl_core.component.state import pack_state, unpack_state
from agentrl_core.env import ExtraColumn, StepResult, Task
from agentrl_core.exceptions import InvalidInputError, RecipeError
from agentrl_core.recipe import Recipe
from agentrl_core.rollout import SelfPlay
from agentrl_core.select import Beta, ComposedSelector, Quota

STATE = ("array", "~array", "shape", "bytes", "dtype", "keys", "kl", "state", "selection", "columns", "broken_down")
STORE = ("said", "began", "components", "run", "policy_versions", "recipe", "seed", "metrics", "iteration", "tasks")
TABLE = ("task_id", "score", "reward", "reward.score", "advantage", "success", "facts", "agent", "group_id", "draws")
JOURNAL = ("segment", "effect", "joint", "of", "turn_of", "hex", "float", "base64", "observation", "info", "stop")
PYTHON = ("__class__", "__init__", "None", "null", "true", "NaN", "0", "a/b", "a~1b", "a.b", "a[0]", "steps", "updates")
NAMES = tuple(sorted({*STATE, *STORE, *TABLE, *JOURNAL, *PYTHON}))
GROUPS, ITERATIONS = 8, 3


class NamedWorld(SmallWorld):
    """Tasks, domains and additional facts with these names."""

    def __init__(self, names: tuple[str, ...], facts: Mapping[str, ExtraColumn]) -> None:
        super().__init__(self.paid)
        self.names, self.facts = names, facts

    def paid(self, task: Task, seed: int, actions: list[str]) -> StepResult:
        del actions
        reward = (seed % 5 + self.names.index(task.task_id) % 3) / 4
        facts = {name: reward if fact.kind == "number" else name for name, fact in self.facts.items()}
        info = {name: name for name in self.names}
        return StepResult(reward=reward, terminated=True, success=reward > 0.5, facts=facts, info=info)

    def tasks(self, count: int, *, split: str = "train", start: int = 0) -> list[Any]:
        del split
        return [Task(name, "?", self.names[-1 - at], None) for at, name in enumerate(self.names)][start:][:count]


class NamedGame:
    """A round for two agents of any names."""

    def __init__(self, agents: tuple[str, str]) -> None:
        self.agents, self.over = agents, False

    @property
    def observations(self) -> Mapping[str, str]:
        return {name: f"you are {number}" for number, name in enumerate(self.agents, 1)}

    def turn_of(self) -> tuple[str, ...]:
        return () if self.over else self.agents

    def step(self, actions: Mapping[str, str]) -> dict[str, StepResult]:
        self.over = True
        sums = {name: sum(map(int, action.split())) % 7 / 8 for name, action in actions.items()}
        return {name: StepResult(reward=paid, terminated=True, success=paid > 0.5) for name, paid in sums.items()}

    def state_key(self) -> bytes:
        return b"over" if self.over else b"begin"


def recipe(**changes: Any) -> Recipe:
    """A baseline and a selector that keep a number for each name."""
    select = ComposedSelector(track=Beta(), quota=Quota())
    return recipes.GRPO.replace(name="named", **{"select": select, "advantage": TrackedBaseline(kind="ema"), **changes})


def trained(collector: Any, path: Path, *, tasks: int, restarts: bool) -> Any:
    """Return the store's content after all iterations, in one process or in a new one for each."""
    store, collect = None, None
    for iteration in range(ITERATIONS):
        if store is None or restarts:
            if store is not None:
                store.close()
            store = Store.open(path)
            collect = collector(store)
        assert collect is not None
        batch = collect.recipe.credit(collect(tasks=tasks, group_size=2))
        if restarts:
            store.close()
            store = Store.open(path)
            collect = collector(store)
            batch = collect.recipe.credit(collect(tasks=tasks, group_size=2))
        metrics: dict[str, Any] = {name: float(iteration) for name in NAMES if name != "steps"}
        collect.end_iteration(batch, {**metrics, "nested": dict.fromkeys(NAMES, 1.0)})
    assert store is not None
    batches = [compared_values(store.batch(iteration)) for iteration in range(ITERATIONS)]
    arrays = {name: array.tolist() for name, array in store.arrays.items()}
    closed = [json.loads(state) for state in pl.DataFrame(store.write_log)["state"].drop_nulls()]
    store.close()
    return batches, arrays, closed


def compared_values(batch: Batch) -> Any:
    return (
        batch.texts("task_id", "draw"),
        batch.column("advantage", "draw").tolist(),
        batch.column("token", "token").tolist(),
    )


@pytest.mark.parametrize("staleness", [0, 1])
def test_names_of_tasks_domains_metrics_and_info(tmp_path: Path, staleness: int) -> None:
    """A loop that restarts in every iteration equals an uninterrupted one, whatever the names are."""
    world = NamedWorld(NAMES, {})

    def collector(store: Store) -> Collector:
        return Collector(world, world, recipe(), store=store, seed=3, task_pool=len(NAMES), staleness=staleness)

    straight = trained(collector, tmp_path / "straight", tasks=len(NAMES), restarts=False)
    again = trained(collector, tmp_path / "again", tasks=len(NAMES), restarts=True)
    assert again == straight
    batches, _, closed = straight
    assert [set(tasks) for tasks, _, _ in batches] == [set(NAMES)] * ITERATIONS
    assert any(value != 0 for value in batches[1][1]), "what is remembered counts"
    remembered = closed[-1]["components"]["advantage[0].TrackedBaseline"]["keys"]
    assert set(remembered) == set(NAMES)


def test_names_of_facts(tmp_path: Path) -> None:
    """Facts with these names are rejected when the collector is constructed, or stored unchanged."""
    accepted, refused = [], []
    for number, name in enumerate(NAMES):
        for level, kind in (("step", "number"), ("trajectory", "key")):
            world = NamedWorld(NAMES[:GROUPS], {name: ExtraColumn(level, kind)})
            with Store.open(tmp_path / f"{number} {level}") as store:
                try:
                    collect = Collector(world, world, recipes.GRPO, store=store, task_pool=GROUPS)
                    collect(tasks=2, group_size=2)
                except (InvalidInputError, RecipeError) as error:
                    refused.append((name, str(error)))
                    continue
            with Store.open(tmp_path / f"{number} {level}") as store:
                again = Collector(world, world, recipes.GRPO, store=store, task_pool=GROUPS)
                batch = again(tasks=2, group_size=2)
                rewards, values = batch.column("reward", "draw"), batch.column
                if kind == "number":
                    assert values(name, "step").tolist() == rewards.tolist()
                else:
                    assert set(batch.texts(name, "draw")) == {name}
                accepted.append((name, kind))
    assert len(accepted) > len(NAMES)
    assert refused
    assert all(name in message for name, message in refused)


@pytest.mark.parametrize("first", range(0, len(NAMES) - 1, 2))
def test_names_of_agents(tmp_path: Path, first: int) -> None:
    agents = (NAMES[first], NAMES[first + 1])
    world = SmallWorld()
    world.reset = lambda *_: NamedGame(agents)  # type: ignore[method-assign]

    def collector(store: Store) -> Collector:
        play = SelfPlay(agents=tuple(agents))
        by_agent = TrackedBaseline(kind="ema", key="agent")
        return Collector(
            {name: NumberEngine() for name in agents},
            world,
            recipe(rollout=play, advantage=by_agent),
            store=store,
            seed=3,
            task_pool=4,
        )

    straight = trained(collector, tmp_path / "straight", tasks=2, restarts=False)
    assert trained(collector, tmp_path / "again", tasks=2, restarts=True) == straight
    assert set(straight[2][-1]["policy_versions"]) == set(agents)


NUMBERS = st.floats(allow_nan=False) | st.integers(0, 9) | st.text(max_size=3) | st.lists(st.integers(), max_size=2)
ARRAYS = st.lists(st.floats(allow_nan=False), max_size=3).map(np.array)
KEYS = st.sampled_from(["array", "~array", "~~array", "shape", "bytes", "/", "~", "~1"]) | st.text(max_size=4)
STATES = st.recursive(NUMBERS | ARRAYS, lambda inner: st.dictionaries(KEYS, inner, max_size=4), max_leaves=12)


@given(st.dictionaries(KEYS, STATES, max_size=4))
def test_packed_states_round_trip_with_any_keys(state: dict[str, Any]) -> None:
    assert listed(unpack_state(json.loads(json.dumps(pack_state(state))))) == listed(state)


def listed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: listed(each) for key, each in value.items()}
    return ("array", value.dtype.str, value.tolist()) if isinstance(value, np.ndarray) else value


def test_states_of_earlier_versions_are_read() -> None:
    """Keys are unescaped: only a value with all three keys of an array is one."""
    array = {"array": "<f8", "shape": [2], "bytes": "AAAAAAAA8D8AAAAAAAAAQA=="}
    old = {"track": {"mean": array, "seen": {"array": 0.5, "shape": 1.0, "bytes": 2.0}, "few": {"array": 1}}}
    state = unpack_state(old)
    assert state["track"].pop("mean").tolist() == [1.0, 2.0]
    assert state == {"track": {"seen": {"array": 0.5, "shape": 1.0, "bytes": 2.0}, "few": {"array": 1}}}
