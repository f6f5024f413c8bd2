"""GDRO-RL: more weight for difficulties with a large loss, by hand and compared with a loop over tasks."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollouts import small

from agentrl_core import Batch
from agentrl_core.component import IterationRecord
from agentrl_core.exceptions import RecipeError
from agentrl_core.recipes.gdro_rl import DifficultyScaled


def lossy(losses: list[float], success: list[int], groups: list[int]) -> Batch:
    batch = small([(group, [1]) for group in groups], draw_score=[0.0] * len(groups), draw_success=success)
    return batch.with_columns("draw", loss=losses)


def run(component: DifficultyScaled, batches: Sequence[Batch]) -> list[tuple[list[float], dict[str, Any]]]:
    """Return the weights of batch after batch, and the state after each, which goes through JSON in between.

    The updates read the losses of a batch together with the weights.
    """
    state, results = component.initial_state(), []
    for batch in batches:
        closed = component.add_columns(state, batch)
        weighted_loss = batch.column("loss", "draw") * closed.column("weight", "draw")
        closed = closed.with_columns("draw", loss=weighted_loss)
        state = json.loads(json.dumps(component.next(state, IterationRecord.of(closed))))
        results.append((closed.column("weight", "draw").astype(float).tolist(), state))
    return results


def close(actual: object, expected: object) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)


def test_difficulty_by_hand() -> None:
    component = DifficultyScaled(bins=4, smoothing=0.5, coefficient=1.0, score_at_most=1.0, hysteresis=0.0, history=2)
    first = lossy([1.0, 3.0, 4.0], [0, 0, 1], [0, 0, 1])
    second = lossy([2.0, 2.0, 6.0], [0, 0, 1], [0, 0, 1])
    (weights, state), (weights_next, state_next), (weights_last, _) = run(component, [first, second, first])
    # Nothing is known, so all weights are equal. Both tasks are new, hence in bin 2: S = 0.5 (2 + 4) / 2 = 1.5.
    close(weights, [1.0] * 3)
    assert state["tasks"] == ["task 0", "task 1"]
    assert state["visits"] == [[-1, 0], [-1, 1]]
    assert state["bins"] == [0, 3]
    close(state["scores"], [0.0, 0.0, 1.5, 0.0])
    # Now they are in bins 0 and 3, which have no losses yet; then S = 1 and 3, and 1 counts.
    close(weights_next, [1.0] * 3)
    close(state_next["scores"], [1.0, 0.0, 1.5, 3.0])
    close(weights_last, [math.e] * 3)
    shares = run(
        DifficultyScaled(bins=4, smoothing=0.5, coefficient=0.1, per_share=True, hysteresis=0.0),
        [first, second, first],
    )
    close(shares[1][1]["scores"], [2.0, 0.0, 1.5, 6.0])
    close(shares[2][0], [math.exp(0.2)] * 2 + [math.exp(0.3)])
    likely = run(
        DifficultyScaled(bins=2, smoothing=1.0, coefficient=0.5, kind="probability", explore=0.2), [first, second]
    )
    shares_of_bins = np.exp([0.0, 1.5]) / np.exp([0.0, 1.5]).sum()
    close(likely[0][0], [1.0] * 3)
    close(likely[1][0], 2 * (0.8 * shares_of_bins[[0, 0, 1]] + 0.1))
    capped = run(DifficultyScaled(bins=2, smoothing=1.0, coefficient=1.0, at_most=2.0), [first, second])
    close(capped[1][0], [1.0, 1.0, 2.0])


def test_a_task_changes_its_bin_only_well_beyond_the_border() -> None:
    component = DifficultyScaled(bins=2, hysteresis=0.1, history=5)
    outcomes = [1, 0, 1, 0, 0, 0, 0, 1, 1, 1]
    states = [state for _, state in run(component, [lossy([0.0], [won], [0]) for won in outcomes])]
    # Shares: 1, 1/2, 2/3, 1/2, 2/5, 1/5 (of the last five), 1/5, 1/5, 2/5, 3/5.
    assert [state["bins"] for state in states] == [[1], [1], [1], [1], [1], [0], [0], [0], [0], [0]]
    assert states[-1]["visits"] == [[0, 0, 1, 1, 1]]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1), st.integers(0, 4)), min_size=1, max_size=5),
        min_size=1,
        max_size=6,
    ),
    st.integers(1, 4),
)
def test_tasks_one_by_one(iterations: list[list[tuple[int, int, int]]], history: int) -> None:
    component = DifficultyScaled(bins=3, history=history, hysteresis=0.05, smoothing=0.3)
    batches, visits, bins, scores = [], {}, {}, [0.0] * 3
    expected = []
    for draws in map(sorted, iterations):
        groups = [draw[0] for draw in draws]
        batches.append(lossy([float(draw[2]) for draw in draws], [draw[1] for draw in draws], groups))
        task_bins = {task: bins.get(f"task {task}", 1) for task in groups}
        weights = [min(math.exp(0.65 * min(scores[task_bins[task]], 3.0)), 15.0) for task in groups]
        for place in set(task_bins.values()):
            means = [np.mean([d[2] for d in draws if d[0] == task]) for task in task_bins if task_bins[task] == place]
            scores[place] = 0.7 * scores[place] + 0.3 * float(np.mean(means))
        for task, place in task_bins.items():
            name, won = f"task {task}", int(any(draw[1] for draw in draws if draw[0] == task))
            visits[name] = [*visits.get(name, []), won][-history:]
            share = sum(visits[name]) / len(visits[name])
            low, high = place / 3 - 0.05, (place + 1) / 3 + 0.05
            if name not in bins or not low <= share <= high:
                bins[name] = min(int(share * 3), 2)
        expected.append((weights, dict(bins), dict(visits), list(scores)))
    for (weights, state), (weights_by_hand, bins_by_hand, visits_by_hand, scores_by_hand) in zip(
        run(component, batches), expected, strict=True
    ):
        close(weights, weights_by_hand)
        close(state["scores"], scores_by_hand)
        assert dict(zip(state["tasks"], state["bins"], strict=True)) == bins_by_hand
        stored_visits = [[won for won in row if won >= 0] for row in state["visits"]]
        assert dict(zip(state["tasks"], stored_visits, strict=True)) == visits_by_hand


def test_a_missing_loss_or_score_leaves_the_weights_unchanged() -> None:
    batch = lossy([1.0, math.nan, 5.0], [1, 1, 1], [0, 1, 2])
    batch = batch.with_columns("draw", score=[0.0, 0.0, math.nan], weight=[1.0, 1.0, 7.0])
    ((weights, state),) = run(DifficultyScaled(bins=2, smoothing=1.0, coefficient=1.0, history=1), [batch])
    # The loss of task 1 is unknown, and it is in the same bin; task 2 has no score.
    close(weights, [1.0, 1.0, 7.0])
    close(state["scores"], [0.0, 1.0])
    assert state["tasks"] == ["task 0", "task 1"]
    assert state["visits"] == [[1], [1]]


def test_an_iteration_without_updates_teaches_nothing() -> None:
    component = DifficultyScaled(bins=2)
    ((_, state),) = run(component, [lossy([math.nan, math.nan], [1, 0], [0, 1])])
    assert state["scores"] == [0.0, 0.0]
    assert state["bins"] == [1, 0]


@pytest.mark.parametrize(
    "options",
    [
        {"bins": 0},
        {"history": 0},
        {"smoothing": 2.0},
        {"score_at_most": 0.0},
        {"at_most": 0.0},
        {"coefficient": -1.0},
        {"key": ""},
    ],
)
def test_impossible_options(options: dict[str, Any]) -> None:
    ((name, value),) = options.items()
    with pytest.raises(RecipeError, match=f"option {name}={value!r}"):
        DifficultyScaled(**options)
