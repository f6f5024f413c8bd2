"""ARES: the exploration bonus, compared with a loop and with numbers by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from rollouts import plain, ragged, small

from agentrl_core import Batch
from agentrl_core.component import IterationRecord, StatefulComponent
from agentrl_core.exceptions import RecipeError
from agentrl_core.recipes.ares import ExplorationEffort


def column(batch: Batch, name: str = "score", level: str = "draw") -> list[float]:
    return batch.column(name, level).astype(float).tolist()


def close(values: object, expected: object, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(values, expected, rtol=0, atol=tolerance)


def run(component: StatefulComponent, batches: Sequence[Batch]) -> tuple[list[Batch], list[dict[str, Any]]]:
    """Return the bonus of batch after batch, and the state after each, which goes through JSON in between."""
    states, closed = [component.initial_state()], []
    for batch in batches:
        closed.append(component.add_columns(states[-1], batch))
        states.append(json.loads(json.dumps(component.next(states[-1], IterationRecord.of(closed[-1])))))
    return closed, states[1:]


def explored(counts: list[int], success: list[int], groups: list[int] | None = None) -> Batch:
    """Return draws of 20 tokens with a number of uncertain tokens (every fifth), and windows of one token."""
    entropy = []
    for count in counts:
        entropy += [1.0 if place < count else 0.0 for place in range(20)]
    owners = groups or [0] * len(counts)
    return small(
        [(group, [12, 8]) for group in owners],
        draw_score=[float(won) for won in success],
        draw_success=success,
        token_entropy=entropy,
    )


def sigma(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x))


def test_effort_of_a_hard_task_by_hand() -> None:
    # One of four succeeds: hard. The 0.95-quantiles of 0 and 1 are 1, so uncertain tokens explore; T = 5.
    scored = ExplorationEffort(width=1)(explored([2, 4, 6, 8], [0, 0, 0, 1]))
    assert column(scored, "exploring_tokens") == [2.0, 4.0, 6.0, 8.0]
    cap, margin = 0.5 * 1.2, 0.35 * 5
    failures = [cap * sigma(max(n - 5 - margin, 0.0) / 3.0) for n in (2, 4, 6)]
    close(column(scored), [*failures, 1.0 + cap * sigma((8 - 5 + margin) / 3.0)])
    few = ExplorationEffort(width=1)(explored([1, 9, 9, 9], [1, 0, 0, 0]))
    # d = 1 - 7 = -6, M = 2.45, and 3.55 is below the knee of 4.
    close(column(few)[0], 1.0 - 0.5 * cap * (3.55**2 / 8.0) / (2.45 + 4.0))


def test_effort_of_easy_and_medium_tasks_by_hand() -> None:
    easy = ExplorationEffort(width=1)(explored([4, 4, 6, 10], [1, 1, 0, 1]))
    # T = 6 and M = 1; the excess of 3 is beyond the knee of 2.
    close(column(easy), [1.0, 1.0, 0.5 * 0.6 * 0.5, 1.0 - 0.5 * (3.0 - 1.0) / (1.0 + 2.0)])
    capped = ExplorationEffort(width=1)(explored([2, 4, 6, 12], [1, 1, 0, 1]))
    close(column(capped)[3], 1.0 - 0.5)
    medium = ExplorationEffort(width=1, consolation="none")(explored([2, 4, 6, 12], [1, 0, 0, 1]))
    margin = 1.5
    costs = [0.5 * ((4 - margin) ** 2 / 6.0) / (margin + 3.0), 0.5 * (6 - margin - 1.5) / (margin + 3.0)]
    close(column(medium), [1.0 - costs[0], 0.0, 0.0, 1.0 - costs[1]])


def test_targets_coefficients_and_the_threshold_follow_the_batches() -> None:
    component = ExplorationEffort(width=1, momentum=0.5, step_size=0.05)
    batches = [explored([4, 4], [0, 0]), explored([8, 8], [0, 0]), explored([8, 8], [1, 1])]
    scored, states = run(component, batches)
    assert [state["threshold"] for state in states] == [1.0] * 3
    assert states[0]["targets"] == [None, None, 4.0]
    assert states[1]["targets"] == [None, None, 6.0]
    # More exploration than the target of a hard task lowers the coefficient.
    close(states[1]["coefficients"], [0.5, 0.5, 0.5 - 0.05 * 4.0])
    assert states[2]["targets"] == [8.0, None, 6.0]
    close(column(scored[1]), [0.6 * sigma((4.0 - 1.4) / 3.0)] * 2)
    _, still = run(ExplorationEffort(width=1, target="batch"), batches)
    close(still[1]["coefficients"], [0.5] * 3)


@pytest.mark.parametrize("seed", range(4))
def test_exploring_tokens_against_a_loop(seed: int) -> None:
    batch = ragged(seed)
    tokens = len(batch.column("token", "token"))
    rng = np.random.default_rng(seed)
    batch = batch.with_columns("token", entropy=rng.exponential(size=tokens), trigger=rng.random(tokens) < 0.6)
    entropy, trigger = batch.column("entropy", "token"), batch.column("trigger", "token")
    windows: dict[int, list[tuple[float, bool]]] = {}
    for draw in plain(batch):
        rows = [token.row for token in draw.tokens if token.trained]
        if draw.valid:
            windows[draw.row] = [
                (float(np.mean([entropy[row] for row in rows[place : place + 3]])), bool(trigger[rows[place]]))
                for place in range(len(rows))
            ]
    threshold = np.median([np.quantile([w for w, _ in rows], 0.95) for rows in windows.values()])
    expected = [
        sum(w >= threshold and marked for w, marked in windows[draw]) if draw in windows else math.nan
        for draw in range(batch.num_draws)
    ]
    success = batch.with_columns("draw", success=np.ones(batch.num_draws))
    scored = ExplorationEffort(width=3, trigger="trigger")(success)
    close(column(scored, "exploring_tokens"), expected)
    unscored = ~np.isfinite(batch.column("score", "draw"))
    assert np.isnan(scored.column("score", "draw")[unscored]).all()


def test_effort_that_is_not_possible() -> None:
    for options, message in (
        ({"width": 0}, "width=0"),
        ({"easy": 1.5}, "easy=1.5"),
        ({"medium": 0.7}, "medium=0.7"),
        ({"momentum": -0.1}, "momentum=-0.1"),
        ({"coefficient": 3.0}, "coefficient=3.0"),
        ({"step_size": -1.0}, "step_size=-1.0"),
    ):
        with pytest.raises(RecipeError, match=message):
            ExplorationEffort(**options)
    with pytest.raises(RecipeError, match="has no finite value"):
        ExplorationEffort()(small([(0, [1])], draw_score=[1.0], token_entropy=[math.nan]))
