"""A run resumed with another recipe keeps compatible state, and resets the rest: never a wrong state."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_world import SmallWorld

from agentrl_core import Collector, Store, advantage, loss, recipes, replay, select
from agentrl_core.recipe import Recipe
from agentrl_core.schedule import PID, Above, Below, Choice, Dual, StopTraining
from agentrl_core.schedule.adaptive import LogStep
from agentrl_core.schedule.condition import Plateau
from agentrl_core.select.allocator import BanditAllocator
from agentrl_core.select.success_trackers import RecentVisits

CHANCE = select.NearTarget(0.5)


def tracked(**parts: Any) -> Recipe:
    return recipes.GRPO.replace(select=select.ComposedSelector(score=CHANCE, **parts))


def mixed(**options: Any) -> Recipe:
    return recipes.GRPO.replace(replay=replay.Mix(replay.Memory(**options), count=1))


def steered(entropy: Any) -> Recipe:
    return recipes.GRPO.replace(loss=loss.Policy(entropy=entropy))


def stopped(when: Any) -> Recipe:
    return recipes.GRPO.replace(hooks=StopTraining(when=when))


FOLLOWED = PID("m", target=0.4, start=0.1, at_least=0.0)
ENTROPY, MIX, TASKS = "loss[0].Policy.entropy", "replay[0].Mix", "select[0].ComposedSelector"
FITTING = {
    "other gains": (steered(FOLLOWED), steered(PID("m", target=0.4, start=0.1, proportional=0.9, at_least=0.0))),
    "capacity": (mixed(), mixed(capacity=20)),
    "a part more": (tracked(), tracked(queue=select.RetryQueue(every=1), pool=select.PoolFilter(below=0.9))),
    "another allocator": (tracked(count=select.GreedyAllocator(low=2)), tracked(count=BanditAllocator())),
    "another decay": (tracked(track=select.Beta()), tracked(track=select.Beta(decay=0.5))),
    "a column less": (mixed(keep="reward"), mixed()),
    "a column more": (mixed(), mixed(keep="success")),
}
"""Changes that keep every state."""
ANEW = {
    "another tracker": (tracked(track=select.Beta()), tracked(track=RecentVisits(5)), TASKS),
    "longer windows": (tracked(track=RecentVisits(5)), tracked(track=RecentVisits(7)), TASKS),
    "more arms": (tracked(variant=select.PromptBandit(4)), tracked(variant=select.PromptBandit(8)), TASKS),
    "another column": (mixed(keep="reward"), mixed(keep="success"), MIX),
    "another controller": (steered(FOLLOWED), steered(Dual("m", target=0.4, start=0.1)), ENTROPY),
    "an average more": (
        steered(Dual("m", target=0.4, start=0.1)),
        steered(LogStep("m", target=0.4, start=0.1)),
        ENTROPY,
    ),
    "the other condition": (stopped(Above("m", 0.9)), stopped(Below("m", 0.9)), "hooks[0].StopTraining.when"),
    "a plateau": (stopped(Above("m", 0.9)), stopped(Plateau("m")), "hooks[0].StopTraining.when"),
    "of a choice": (
        steered(Choice((0.0, 0.1), by=Above("m", 0.9))),
        steered(Choice((0.0, 0.1), by=Plateau("m"))),
        f"{ENTROPY}.by",
    ),
    "another baseline": (
        recipes.GRPO.replace(advantage=advantage.TrackedBaseline(kind="ema")),
        recipes.GRPO.replace(advantage=advantage.TrackedBaseline(kind="window")),
        "advantage[0].TrackedBaseline",
    ),
}
"""Changes that reset a state, and its place."""


def go_on(path: Path, recipe: Recipe, until: int, **options: Any) -> dict[str, Any]:
    """Close iterations; return the state after them."""
    with Store.open(path, sync="never") as store:
        world = SmallWorld()
        world.policy_version = store.iteration
        collect = Collector(world, world, recipe, store=store, task_pool=8, seed=1, allow_changes=True, **options)
        while collect.iteration < until:
            batch = recipe.credit(collect(tasks=4, group_size=4))
            world.update_weights(None, collect.iteration + 1)
            collect.end_iteration(batch, {"m": 0.5})
        collect.close()
        plain: dict[str, Any] = store.state["components"]
        return {**plain, "arrays": {name: array.tolist() for name, array in store.arrays.items()}}


@pytest.mark.parametrize("change", FITTING)
def test_compatible_recipe_changes_keep_the_state(tmp_path: Path, change: str) -> None:
    before, now = FITTING[change]
    expected = go_on(tmp_path, before, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        state = go_on(tmp_path, now, 2)  # nothing is closed yet
        assert repr(state) == repr(expected)
        state = go_on(tmp_path, now, 3)
    if change == "other gains":
        # I = 0.1 + 0.1 + 0.1: errors of 0.5 - 0.4 since the first iteration.
        assert state[ENTROPY]["integral"] == pytest.approx(0.3)
    if change == "capacity":
        assert len(state["arrays"][f"{MIX}/memory/trajectory_id"]) == 20, "of 48, some from before"
    if change in ("a part more", "another decay"):
        assert set(np.array(state["arrays"][f"{TASKS}/track/last"])) <= {0, 1, 2}
        assert sum(map(sum, (state["arrays"][f"{TASKS}/track/{name}"] for name in ("successes", "failures")))) > 30
    if change == "a column less":
        assert len(state["arrays"][f"{MIX}/memory/trajectory_id"]) == 48
    if change == "a column more":
        assert np.isnan(state["arrays"][f"{MIX}/memory/columns/success"]).tolist() == [True] * 32 + [False] * 16


@pytest.mark.parametrize("change", ANEW)
def test_incompatible_recipe_changes_reset_the_state_with_a_warning(tmp_path: Path, change: str) -> None:
    before, now, place = ANEW[change]
    run_states = []
    for each in ((4,), (3, 4)):
        # In one run, or stopped in between: the same.
        path = tmp_path / str(len(each))
        go_on(path, before, 2)
        with pytest.warns(RuntimeWarning, match=rf"recipe has changed: .*{place.replace('[', '.').replace(']', '.')}"):
            states = go_on(path, now, each[0])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            run_states.append(go_on(path, now, each[1]) if len(each) > 1 else states)
    assert repr(run_states[0]) == repr(run_states[1])  # also where they are NaN
    if place == MIX:
        # The trajectories stay; only the new column is missing for the old ones.
        [column] = now.replay.memory.keep  # type: ignore[union-attr]
        values = np.array(run_states[0]["arrays"][f"{MIX}/memory/columns/{column}"])
        assert np.isnan(values).tolist() == [True] * 32 + [False] * 32
    if change == "longer windows":
        assert np.array(run_states[0]["arrays"][f"{TASKS}/track/visits"]).shape[1] == 7
    if change == "a plateau":
        # Measured twice since then: 0.5, which is the best, and 0.5 again.
        assert run_states[0][place] == {"value": 0.0, "best": 0.5, "waited": 1, "missed": 0}


def test_a_recipe_change_works_with_iterations_generated_ahead(tmp_path: Path) -> None:
    """Iterations that started under the other recipe read the state of that time, if it is compatible."""
    before, now, _ = ANEW["another tracker"]
    go_on(tmp_path, before, 2, staleness=2)
    with warnings.catch_warnings(record=True) as caught_warnings:
        warnings.simplefilter("always")
        state = go_on(tmp_path, now, 5, staleness=2)
    assert "recipe has changed" in str(caught_warnings[0].message)
    assert np.array(state["arrays"][f"{TASKS}/track/visits"]).shape[1] == 5
