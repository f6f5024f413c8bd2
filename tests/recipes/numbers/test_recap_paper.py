"""Worked examples of the paper of recap, computed by the recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples
from rollouts import small

from agentrl_core import Batch, Schedule, recipes
from agentrl_core.component import IterationRecord
from agentrl_core.recipes.recap import BalancedSum

EXAMPLES = PaperExamples("recap")
RECAP = recipes.RECAP


def rewarded(columns: Mapping[str, Sequence[float]]) -> Batch:
    """Return a group of draws with these rewards."""
    count = len(next(iter(columns.values())))
    return small([(0, [1])] * count, **{f"draw_{name}": values for name, values in columns.items()})


def after(histories: Mapping[str, Sequence[float]], **options: Any) -> tuple[BalancedSum, dict[str, Any]]:
    """Return the reward before the last iteration of these means, and its state; shorter histories begin later."""
    component = replace(RECAP.reward, columns=",".join(histories), **options)
    state, most = component.initial_state(), max(map(len, histories.values()))
    for at in range(-most, -1):
        means = {name: [history[at] if at >= -len(history) else np.nan] for name, history in histories.items()}
        batch = component.add_columns(state, rewarded(means))
        state = component.next(state, IterationRecord.of(batch))
    return component, state


def weights(histories: Mapping[str, Sequence[float]], **options: Any) -> Value:
    """Return each objective's weight in the last iteration; each draw has only one objective, which is its mean."""
    component, state = after(histories, **options)
    newest = np.array([history[-1] for history in histories.values()])
    alone = np.where(np.eye(len(newest), dtype=bool), newest, np.nan)
    batch = rewarded({name: row.tolist() for name, row in zip(histories, alone, strict=True)})
    return component.add_columns(state, batch).column("score", "draw") / newest


@EXAMPLES.by("weights of the paper with windows of two")
def of_the_paper(example: Example) -> Found:
    given = example.values
    histories = {name: given[name].tolist() for name in "abv"}
    windows = {"window": int(given["W"])}
    component, state = after(histories, **windows)
    assert component.temperature == given["T"]
    shorter = {name: history[1:] for name, history in histories.items()}
    np.testing.assert_allclose(weights(shorter, **windows), 1.0)
    newest = rewarded({name: history[-1:] for name, history in histories.items()})
    totals = [
        component.add_columns(each, newest).column("score", "draw") for each in (state, component.initial_state())
    ]
    return {
        "weights": weights(histories, **windows),
        "weights_at_T_0_5": weights(histories, temperature=0.5, **windows),
        "loss": totals[0] / 3,
        "loss_with_equal_weights": totals[1] / 3,
    }


@EXAMPLES.by("weights of the code in a batch of rollouts and in a supervised batch")
def of_the_code(example: Example) -> Found:
    given = example.values
    histories = {name: given[name].tolist() for name in ("acc", "fmt", "sft")}
    assert RECAP.reward.mix == given["a"]
    return {"weights_rollouts": weights(histories, kind="mixture")}


@EXAMPLES.by("short and odd histories, and the annealed trade-off")
def short(example: Example) -> Found:
    given = example.values
    moving = replace(RECAP.reward, kind="mixture", mix=Schedule(1.0, 0.0, iterations=int(given["most"])))
    mix = moving.at(int(given["step"])).mix
    histories = {"first": given["h"].tolist(), "second": [0.3]}
    return {"tradeoff": np.array(mix), "weights": weights(histories, kind="mixture", mix=mix)}


def credited(columns: Mapping[str, Sequence[float]]) -> tuple[Value, Value]:
    """Return scores and advantages of a group in the first iteration, in which all weights are 1."""
    recipe = RECAP.replace(reward=replace(RECAP.reward, columns=",".join(columns)))
    batch = recipe.credit(rewarded(columns))
    scores = batch.column("score", "draw")
    return scores, np.where(np.isfinite(scores), batch.column("advantage", "draw"), np.nan)


@EXAMPLES.by("advantages of a group with two rewards")
def two_rewards(example: Example) -> Found:
    """The weights, which do not add up to 2, are in the rewards."""
    given = example.values
    scores, group_advantages = credited(
        {name: weight * given[name] for name, weight in zip(("acc", "fmt"), given["lam"], strict=True)}
    )
    return {"reward": scores, "advantage": group_advantages}


@EXAMPLES.by("two sources in one batch")
def two_sources(example: Example) -> Found:
    """Each draw uses the objectives that apply to it."""
    given = example.values
    rewards = {"iou": given["lam_iou"] * given["iou"], "fmt": given["lam_fmt"] * given["fmt"]}
    of_another = credited({"iou": np.full(4, np.nan), "fmt": rewards["fmt"]})[1]
    return {"advantage_as_the_notes_mean_it": credited(rewards)[1], "advantage_of_the_code": of_another}


@EXAMPLES.by("a group of one")
def alone(example: Example) -> Found:
    return {"centred": credited({"acc": example.values["R"]})[1]}


@EXAMPLES.by("one response has no reward (convention)")
def unscored(example: Example) -> Found:
    rewards = [*example.values["acc"], np.nan]
    component = replace(RECAP.reward, columns="acc")
    state = component.initial_state()
    batch = component.add_columns(state, rewarded({"acc": rewards}))
    [entry] = component.next(state, IterationRecord.of(batch))["means"]["acc"]
    return {
        "history_entry": np.array(entry),
        "advantage": credited({"acc": (example.values["lam"] * np.array(rewards)).tolist()})[1],
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
