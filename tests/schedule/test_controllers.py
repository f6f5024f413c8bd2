"""Controllers: values computed by hand, cases in which they do not move, and their places in a recipe."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core import Forest, Schedule, advantage, loss, recipes, rollout, select
from agentrl_core.component import IterationRecord
from agentrl_core.component.controller import MISSED
from agentrl_core.component.state import pack_state, unpack_state
from agentrl_core.exceptions import RecipeError
from agentrl_core.recipe import Recipe
from agentrl_core.recipes.aepo_ae import BangBang
from agentrl_core.recipes.siren import FirstValue
from agentrl_core.recipes.vision_zero import Hysteresis
from agentrl_core.schedule import PID, Above, AdaptiveKL, Below, Choice, Controller, Dual
from agentrl_core.schedule.adaptive import LogStep
from agentrl_core.schedule.condition import Plateau


def values(controller: Controller, *numbers: float) -> list[float]:
    """Return the value after each measurement; the state goes through JSON in between."""
    state, outputs = controller.initial_state(), []
    for number in numbers:
        state = json.loads(json.dumps(controller.moved(state, dict.fromkeys(controller.reads, number))))
        outputs.append(controller.value(state))
    return outputs


CASES: list[tuple[Controller, list[float], list[float]]] = [
    # 0.2 (1 + 0.1 clip(12 / 6 - 1 = 1, 0.2)) = 0.204; then 0.204 (1 + 0.1 (5.4 / 6 - 1 = -0.1)) = 0.20196
    (AdaptiveKL(target=6.0, start=0.2), [12.0, 5.4], [0.204, 0.20196]),
    # averages 0.2, then 0.5 0.2 + 0.5 0.1 = 0.15: e = 1 and 0.5; steps 0.05, 0.025
    (LogStep(target=0.1, momentum=0.5), [0.2, 0.1], [math.exp(0.05), math.exp(0.075)]),
    # rate e = 0.5 9 is clipped to 0.2; the second error is in the dead zone
    (LogStep(target=0.1, rate=0.5, dead_zone=0.2), [1.0, 0.11], [math.exp(0.2), math.exp(0.2)]),
    # at most 2: log 1 + 0.2, 0.4, ... stops at 2
    (LogStep(target=0.1, rate=9.0, at_most=1.3), [1.0, 1.0], [math.exp(0.2), 1.3]),
    # 1 + 0.1 (3 - 1) = 1.2; 1.2 + 0.1 (0 - 1) = 1.1
    (Dual("cost", target=1.0, rate=0.1), [3.0, 0.0], [1.2, 1.1]),
    # entropy below its target: log alpha rises by 0.1 x 2 (0.5 - 0.2); then it falls by 0.1 alpha (0.6 - 0.5)
    (
        Dual("entropy", 0.5, start=2.0, rate=0.1, holds="at_least", kind="logarithmic"),
        [0.2, 0.6],
        [2 * math.exp(0.06), 2 * math.exp(0.06 - 0.02 * math.exp(0.06))],
    ),
    # slack at every step: 1 - 0.6 - 0.6 -> 0
    (Dual("cost", target=1.0, rate=0.6), [0.0, 0.0, 0.0], [0.4, 0.0, 0.0]),
    # averages 1, 0.95 + 0.05 2 = 1.05; velocity 0.05, e = 0.049, I = 0.049: 0.3 + 0.3 0.049 + 0.01 0.049
    (PID("reward", 0.001, 0.3, of="velocity"), [1.0, 2.0], [0.3, 0.3 + 0.0147 + 0.00049]),
    # e = 4, I is held at 1: 0.5 4 + 1; then e = -1, I = 0, change -5: -0.5 + 0 - 0.5
    (PID("x", proportional=0.5, integral=1.0, derivative=0.1, windup=1.0), [4.0, -1.0], [3.0, -1.0]),
    (BangBang(threshold=0.5), [0.5, 0.51, 0.2], [1.2, 0.8, 1.2]),
    # averages 0, 0.5, 0.75, 0.375, 0.1875
    (Hysteresis(low=0.2, high=0.7, momentum=0.5, dwell=1), [0.0, 1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0, 0.0]),
    (Plateau("s", gain=0.1, patience=2), [0.2, 0.3, 0.25, 0.5, 0.5, 0.5], [0.0, 0.0, 1.0, 0.0, 0.0, 1.0]),
    (FirstValue(), [0.7, 0.2], [0.7, 0.7]),
    (Above("kl", 0.02), [0.02, 0.03], [0.0, 1.0]),
    (Below("kl", 0.02), [0.02, 0.01], [0.0, 1.0]),
]


@pytest.mark.parametrize(("controller", "seen", "expected"), CASES, ids=lambda case: type(case).__name__)
def test_numbers_by_hand(controller: Controller, seen: list[float], expected: list[float]) -> None:
    assert values(controller, *seen) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "controller", {type(case[0]): case[0] for case in CASES}.values(), ids=lambda c: type(c).__name__
)
def test_a_missing_metric_leaves_a_controller_unchanged(controller: Controller) -> None:
    state = controller.moved(controller.initial_state(), dict.fromkeys(controller.reads, 0.75))
    for metrics in ({}, dict.fromkeys(controller.reads, math.nan), dict.fromkeys(controller.reads, math.inf)):
        before = dict(state)
        state = controller.moved(state, metrics)
        assert state == {**before, MISSED: before[MISSED] + 1}
    assert state[MISSED] == 3


@given(st.lists(st.floats(-10, 10), max_size=12), st.integers(0, 12), st.sampled_from([case[0] for case in CASES]))
def test_a_state_is_a_fold(seen: list[float], at: int, controller: Controller) -> None:
    """Two parts, with the state stored in between, equal one whole run."""
    once = controller.initial_state()
    for number in seen:
        once = controller.moved(once, dict.fromkeys(controller.reads, number))
    twice = controller.initial_state()
    for part in (seen[:at], seen[at:]):
        twice = unpack_state(json.loads(json.dumps(pack_state(twice))))
        for number in part:
            twice = controller.moved(twice, dict.fromkeys(controller.reads, number))
    assert once == twice
    assert math.isfinite(controller.value(once))


def closed(metrics: dict[str, Any]) -> IterationRecord:
    return IterationRecord.of(Forest().freeze(), metrics)


def test_any_number_of_any_phase_may_follow_a_metric() -> None:
    recipe = recipes.GRPO.replace(
        rollout=rollout.EntropyBranching(budget=Dual("length", target=100.0, rate=1.0, start=16.0, at_least=8.0)),
        admit=select.DynamicSampling(max_rounds=Schedule(2, 4, iterations=2)),
        loss=loss.Policy(kl=loss.KL(AdaptiveKL(target=0.1, start=0.5, at_least=0.01))),
    )
    assert sorted(recipe.controllers) == ["loss[0].Policy.kl.coefficient", "rollout[0].EntropyBranching.budget"]
    first = recipe.at(0)
    assert (first.rollout.budget, first.admit.max_rounds, first.loss.kl.coefficient) == (16, 2, 0.5)
    metrics = {"reference_kl": 0.12, "length": 103.4}
    states = recipe.next_states({}, closed(metrics))
    then = recipe.at(1, states)
    # 16 + 3.4, a whole number; 0.5 (1 + 0.1 0.2)
    assert (then.rollout.budget, then.admit.max_rounds) == (19, 3)
    assert then.loss.kl.coefficient == pytest.approx(0.51)
    assert recipe.at(1).loss.kl.coefficient == 0.5, "nothing but the states says so"
    assert Recipe.from_toml(recipe.to_toml()) == recipe
    assert hash(recipe.loss) == hash(Recipe.from_toml(recipe.to_toml()).loss)


def test_one_that_moves_with_every_step() -> None:
    recipe = recipes.GRPO.replace(loss=loss.Policy(kl=loss.KL(Dual(target=0.1, rate=1.0, at_least=1e-6, every="step"))))
    steps = {"reference_kl": [0.2, 0.4, None]}
    states = recipe.next_states({}, closed({"reference_kl": 9.0, "steps": steps}))
    assert states["loss[0].Policy.kl.coefficient"] == {"value": pytest.approx(1.4), MISSED: 0}, "the third: of a critic"
    never = recipe.next_states({}, closed({"steps": {"reference_kl": [None, None]}}))
    assert never["loss[0].Policy.kl.coefficient"] == {"value": 1.0, MISSED: 1}
    broken = recipe.next_states({}, closed({"steps": {"reference_kl": [0.2, float("nan")]}}))
    assert broken["loss[0].Policy.kl.coefficient"] == {"value": pytest.approx(1.1), MISSED: 1}


def test_components_options_and_names_are_chosen() -> None:
    by = Hysteresis("success", 0.2, 0.8, momentum=0.0, dwell=1)
    recipe = recipes.GRPO.replace(
        advantage=Choice((advantage.GroupRelative(), advantage.TrackedBaseline(decay=Schedule(0.9, 0.5, 10))), by),
        weight=Choice((None, advantage_weight()), by),
        loss=loss.Policy(aggregate=Choice(("token_mean", "sequence_mean"), by), entropy=Choice((0.0, 0.01), by)),
    )
    assert Recipe.from_toml(recipe.to_toml()) == recipe
    states = recipe.next_states({}, closed({"success": 0.9}))
    before, after = recipe.at(0), recipe.at(5, states)
    assert (type(before.advantage), before.weight) == (advantage.GroupRelative, None)
    assert (before.loss.aggregate, before.loss.entropy) == ("token_mean", 0.0)
    assert after.advantage == advantage.TrackedBaseline(decay=0.7)
    assert after.weight == advantage_weight()
    assert (after.loss.aggregate, after.loss.entropy) == ("sequence_mean", 0.01)
    assert len(recipe.controllers) == 4, "each place has a state of its own"


def advantage_weight() -> Any:
    from agentrl_core.weight import FlagFilter

    return FlagFilter("tool_error")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Choice((1,), Schedule(0, 1, 2)), "option of=.* give a tuple of at least two"),
        (lambda: Choice((1, 2), 3), "option by=3 is not possible; give a Schedule or a controller"),
        (lambda: Choice((loss.Policy(), advantage.GroupRelative()), Schedule(0, 1, 2)), "components of one phase"),
        (lambda: loss.Policy(aggregate=Choice(("token_mean", "nothing"), Schedule(0, 1, 2))), "option aggregate="),
        (lambda: loss.KL(Dual(start=1.0, at_least=-1.0)), "option at_least=-1.0"),
        (lambda: loss.KL(Dual(start=1.0)), "option coefficient=0.0 is not possible"),
        (lambda: loss.KL(FirstValue()), "option coefficient=0.0 is not possible"),
        (lambda: Hysteresis(low=1.0), "option low=1.0 is not possible; give a number below high=0.9"),
        (lambda: loss.KL(0.1) and Dual(start=0.0, kind="logarithmic"), "its logarithm moves"),
        (
            lambda: recipes.GRPO.replace(weight=(Choice((None, advantage_weight()), Above("x")), advantage_weight())),
            "chain of phase weight has None",
        ),
        (lambda: 2.0 * Dual(), "is not a number yet"),
    ],
)
def test_impossible_options_are_refused(make: Any, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        make()
