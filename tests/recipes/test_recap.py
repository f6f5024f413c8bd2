"""RECAP: compare weights of objectives with a loop and with numbers by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from rollouts import small

from agentrl_core import Batch, Schedule
from agentrl_core.component import IterationRecord, StatefulComponent
from agentrl_core.exceptions import InvalidInputError, RecipeError
from agentrl_core.recipes.recap import BalancedSum


def column(batch: Batch, name: str = "score", level: str = "draw") -> list[float]:
    return batch.column(name, level).astype(float).tolist()


def close(values: object, expected: object, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(values, expected, rtol=0, atol=tolerance)


def run(component: StatefulComponent, batches: Sequence[Batch]) -> tuple[list[Batch], list[dict[str, Any]]]:
    """Return the results of batch after batch, and the state after each, which goes through JSON in between."""
    states, closed = [component.initial_state()], []
    for batch in batches:
        closed.append(component.add_columns(states[-1], batch))
        states.append(json.loads(json.dumps(component.next(states[-1], IterationRecord.of(closed[-1])))))
    return closed, states[1:]


def rewards(answer: list[float], style: list[float]) -> Batch:
    return small([(0, [1])] * len(answer), draw_answer=answer, draw_style=style)


def softmax(values: Sequence[float], temperature: float) -> np.ndarray:
    powers = np.exp(np.array(values) / temperature)
    return powers / powers.sum()


def test_a_saturated_objective_weighs_less_than_one_that_falls() -> None:
    component = BalancedSum(columns="answer,style", window=1, temperature=0.5)
    batches = [rewards([a, a], [s, s]) for a, s in ((0.5, 0.8), (0.5, 0.4), (0.5, 0.4), (1.0, 1.0))]
    balanced, states = run(component, batches)
    # One mean of each, then the newest two.
    close(column(balanced[0]), [1.3, 1.3])
    # Halves of one: sigma is the distance of both means.
    convergence, instability = [0.5 / 0.5, 0.8 / 0.4], [0.0, 0.4 / 1.2]
    weights = 2 * softmax(np.add(convergence, instability), 0.5)
    close(column(balanced[1]), [weights @ [0.5, 0.4]] * 2)
    close(column(balanced[2]), [0.9, 0.9])
    convergence, instability = [0.5 / 1.0, 0.4 / 1.0], [0.5 / 1.5, 0.6 / 1.4]
    weights = 2 * softmax(np.add(convergence, instability), 0.5)
    close(column(balanced[3]), [weights.sum()] * 2)
    assert states[3]["means"]["style"][-2:] == pytest.approx([0.4, 1.0])


@pytest.mark.parametrize("kind", ["sum", "mixture"])
def test_objectives_against_a_loop(kind: str) -> None:
    rng = np.random.default_rng(3)
    data = rng.uniform(0.0, 2.0, size=(12, 2, 5))
    data[rng.random(data.shape) < 0.2] = np.nan
    data[4, 1] = np.nan  # a batch to which one objective does not apply
    component = BalancedSum(columns="answer,style", kind=kind, window=3, temperature=0.3, mix=0.25)
    balanced, _ = run(component, [rewards(*values.tolist()) for values in data])
    history: list[list[float]] = [[], []]
    for values, batch in zip(data, balanced, strict=True):
        is_finite = np.isfinite(values)
        for k in range(2):
            if is_finite[k].any():
                history[k].append(float(values[k][is_finite[k]].mean()))
        c, i = [1.0, 1.0], [0.0, 0.0]
        for k in range(2):
            n = min(len(history[k]) // 2, 3)
            if n == 3 or (n and kind == "mixture"):
                newest = history[k][-2 * n :]
                old, new = newest[:n], newest[n:]
                c[k] = sum(old) / sum(new)
                spread = np.sqrt(sum((x - np.mean(new)) ** 2 for x in newest) / (2 * n - 1)) / (
                    np.mean(new) + np.mean(old)
                )
                i[k] = spread if kind == "sum" else np.std(newest) / np.mean(newest)
        weights = 2 * softmax(np.add(c, i), 0.3)
        if kind == "mixture":
            weights = 2 * (0.25 * softmax(c, 0.3) + 0.75 * softmax(i, 0.3))
        total = weights @ np.where(is_finite, values, 0.0)
        close(column(batch), np.where(is_finite.any(axis=0), total, np.nan))


def test_the_mixture_may_move_over_the_iterations() -> None:
    moving = BalancedSum(columns="answer,style", kind="mixture", mix=Schedule(1.0, 0.0, iterations=4))
    assert [moving.at(iteration).mix for iteration in range(6)] == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]


def test_objectives_that_cannot_be_balanced() -> None:
    with pytest.raises(InvalidInputError, match=r"the mean of column 'style' is -1\.0; add a constant"):
        BalancedSum(columns="answer,style")(rewards([1.0], [-1.0]))
    for options, message in (
        ({"columns": ""}, "columns=''"),
        ({"window": 0}, "window=0"),
        ({"temperature": 0.0}, "temperature=0.0"),
        ({"mix": 1.5}, "mix=1.5"),
    ):
        with pytest.raises(RecipeError, match=message):
            BalancedSum(**({"columns": "a"} | options))
