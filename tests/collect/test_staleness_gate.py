"""The staleness gate: how far generation runs ahead of the trainer follows the measurements exactly."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from remembering import collector, outcome, train
from small_world import SmallWorld

from agentrl_core import Collector, Schedule, Store, recipes
from agentrl_core.collect import BatchPolicy
from agentrl_core.exceptions import InvalidInputError, RecipeError
from agentrl_core.recipe import Recipe
from agentrl_core.rollout import Group, Independent
from agentrl_core.schedule import PID, Above, Below, Choice, LimitStaleness

ITERATIONS = 7
TASKS = 4


def begins(
    recipe: Recipe, drift: Sequence[float], staleness: int, ages: list[float] | None = None
) -> tuple[list[int], list[int]]:
    """Return each iteration's start and smallest policy version; `ages` gets the mean staleness of its batch."""
    world, visits = SmallWorld(), dict[int, set[int]]()

    class VisitRecorder(Independent):
        async def group(self, group: Group) -> None:
            # The pool has as many tasks as a batch: each is attempted in each iteration.
            visits.setdefault(group.key[0], set()).add(int(group.statistics.get("attempts", 0)) // TASKS)
            await super().group(group)

    recipe = recipe.replace(rollout=VisitRecorder())
    collect = Collector(world, world, recipe, task_pool=TASKS, staleness=staleness)
    if ages is not None:
        collect.on_iteration(lambda _, metrics: ages.append(metrics["tokens"]["staleness"]))
    oldest = []
    for iteration in range(ITERATIONS):
        batch = collect(tasks=TASKS, group_size=TASKS)
        oldest.append(int(pl.DataFrame(batch.nodes)["policy_version"].drop_nulls().min()))  # type: ignore[arg-type]
        world.update_weights(None, iteration + 1)
        collect.end_iteration(batch, {"drift": drift[iteration]})
    collect.close()
    assert all(len(visits[iteration]) == 1 for iteration in range(ITERATIONS))
    return [min(visits[iteration]) for iteration in range(ITERATIONS)], oldest


def on_paper(allowed: Sequence[int]) -> list[int]:
    """Return when each iteration starts, given how many may start after the open one at each request."""
    return [
        min(candidate for candidate in range(iteration + 1) if candidate + allowed[candidate] >= iteration)
        for iteration in range(len(allowed))
    ]


@settings(max_examples=15, deadline=None)
@given(
    staleness=st.integers(0, 4),
    numbers=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    drift=st.lists(st.sampled_from([0.1, 0.9]), min_size=ITERATIONS, max_size=ITERATIONS),
)
def test_no_iteration_begins_before_the_gate_lets_it(
    staleness: int, numbers: tuple[int, int], drift: list[float]
) -> None:
    """Near policies allow one number of iterations ahead, far ones another; the collector's number bounds both."""
    near, far = numbers
    recipe = recipes.GRPO.replace(hooks=LimitStaleness(Choice((near, far), by=Above("drift", 0.5))))
    # The call for iteration k reads the drift of k - 1; before the first there is none, and the condition is 0.
    read = [0.0, *drift[:-1]]
    allowed = [min(staleness, far if each > 0.5 else near) for each in read]
    starts, oldest = begins(recipe, drift, staleness)
    assert starts == on_paper(allowed)
    for iteration, (began, version) in enumerate(zip(starts, oldest, strict=True)):
        assert version >= began, f"iteration {iteration} has tokens of weights from before it began"
        assert iteration - began <= max(allowed)


def test_a_condition_closes_it_and_a_schedule_opens_it() -> None:
    drift = [0.1, 0.9, 0.9, 0.1, 0.1, 0.1, 0.1]
    closed = recipes.GRPO.replace(hooks=LimitStaleness(when=Above("drift", 0.5)))
    # 0, 1 and 2 start at first, 3 after 0 was closed; then the drift is read as 0.9 twice: no further iteration starts.
    # Iteration 4 is requested with a drift of 0.1, and 5 and 6 start with it.
    assert begins(closed, drift, 2)[0] == [0, 0, 0, 1, 4, 4, 4]
    opened = recipes.GRPO.replace(hooks=LimitStaleness(Schedule(0, 2, iterations=4, kind="stairs", stairs=2)))
    # Calls 0 to 4 allow 0, 1, 1, 2, 2 iterations ahead (half of the way rounds up to the first stair at once).
    assert begins(opened, drift, 4)[0] == [0, 1, 1, 2, 3, 3, 4]
    both = recipes.GRPO.replace(hooks=(LimitStaleness(3), LimitStaleness(1, since=3)))
    # At most 3 at first, 1 from the third iteration on (numbered from 1).
    assert begins(both, drift, 4)[0] == [0, 0, 0, 0, 1, 4, 5]


def test_a_number_follows_the_age_of_the_batches() -> None:
    """A PID with a target mean staleness of one version, against its formula and the nodes' own versions."""
    number = PID(
        "tokens.staleness", target=1.0, start=3.0, proportional=-1.0, integral=0.0, derivative=0.0, at_least=0.0
    )
    ages = list[float]()
    gate = LimitStaleness(number)
    starts, oldest = begins(recipes.GRPO.replace(hooks=gate), [0.0] * ITERATIONS, 4, ages=ages)
    # start - (staleness - target), at least 0, rounded; before the first batch it is start.
    assert starts == on_paper([3, *(min(4, round(max(3.0 - (age - 1.0), 0.0))) for age in ages[:-1])])
    assert len(ages) == ITERATIONS
    assert all(0.0 <= age <= iteration - began for iteration, (age, began) in enumerate(zip(ages, oldest, strict=True)))


def test_groups_in_flight_are_carried_over_while_the_gate_is_closed(tmp_path: Path) -> None:
    """Cut batches, and a gate that opens and closes, in one process and in several: nothing is lost."""
    recipe = recipes.GRPO.replace(hooks=LimitStaleness(when=Below("drift", 0.5)))
    drift = [0.1, 0.9, 0.9, 0.1, 0.1, 0.9, 0.9]
    for each in (ITERATIONS, 1):
        path, accounts = tmp_path / str(each), list[dict[str, float]]()
        for _ in range(0, ITERATIONS, each):
            with Store.open(path, sync="never") as store:
                world = SmallWorld()
                world.policy_version = store.iteration
                options: dict[str, Any] = {
                    "seed": 2,
                    "task_pool": 32,
                    "staleness": 2,
                    "batch_policy": BatchPolicy(oversample=1.5),
                }
                collect = Collector(world, world, recipe, store=store, **options)
                collect.on_iteration(lambda _, metrics, accounts=accounts: accounts.append(metrics["tokens"]))
                for iteration in range(store.iteration, store.iteration + each):
                    batch = collect(tasks=4, group_size=2)
                    assert batch.num_groups == 4
                    world.update_weights(None, iteration + 1)
                    collect.end_iteration(batch, {"drift": drift[iteration]})
                collect.close()
        with Store.open(path, read_only=True) as store:
            assert store.verify() == []
            assert store.iteration == len(accounts) == ITERATIONS
            assert store.state["components"]["hooks[0].LimitStaleness.when"] == {"value": 0.0, "missed": 0}
        total = {name: sum(account[name] for account in accounts) for name in ("generated", "consumed", "dropped")}
        # Two turns of four tokens in each of eight trajectories, in every batch; and tokens in flight after the last.
        assert total == {"generated": 7 * 64 + accounts[-1]["in_flight"], "consumed": 7 * 64, "dropped": 0}


def test_a_missing_metric_leaves_the_gate_in_its_initial_state() -> None:
    recipe = recipes.GRPO.replace(hooks=LimitStaleness(when=Above("unheard_of", 0.5)))
    with pytest.warns(RuntimeWarning, match=r"Above at hooks\[0\]\.LimitStaleness\.when reads unheard_of"):
        assert begins(recipe, [0.9] * ITERATIONS, 1)[0] == [0, 0, 1, 2, 3, 4, 5]


def test_invalid_staleness_limits_are_refused() -> None:
    with pytest.raises(
        RecipeError, match=r"LimitStaleness: option at_most=-1 is not possible; give a number of at least 0"
    ):
        LimitStaleness(-1)
    with pytest.raises(RecipeError, match=r"LimitStaleness: option unit='steps' .*; iterations are begun ahead"):
        LimitStaleness(1, unit="steps")
    with pytest.raises(RecipeError, match="option at_most"):
        LimitStaleness(Choice((0, -2), by=Above("drift", 0.5)))
    recipe = recipes.GRPO.replace(hooks=LimitStaleness(Choice((0, 4), by=Above("drift", 0.5)), until=50))
    assert Recipe.from_toml(recipe.to_toml()) == recipe


def test_a_resumed_run_restores_the_gate_state(tmp_path: Path) -> None:
    """Restart after every iteration with a new collector; another gate makes another run."""
    outcomes = []
    for stops in (False, True):
        path = tmp_path / str(stops)
        for until in range(2, 9) if stops else (8,):
            with Store.open(path, sync="never") as store:
                collect = collector("gated", store, staleness=3)
                train(collect, until=until)
                collect.close()
        with Store.open(path) as store:
            outcomes.append(outcome(store))
            states = outcomes[-1]["states"]
            moved = {state["hooks[0].LimitStaleness.at_most.by"]["value"] for state in states}
            assert moved == {0.0, 1.0}, "it opened and closed"
            if stops:
                other = collect.recipe.replace(hooks=LimitStaleness(2))
                world = SmallWorld()
                with pytest.raises(InvalidInputError, match=r"made with recipe\.hooks.* allow_changes=True"):
                    Collector(world, world, other, store=store, seed=5, task_pool=32, staleness=3)
    for part, expected in outcomes[0].items():
        assert outcomes[1][part] == expected, part
