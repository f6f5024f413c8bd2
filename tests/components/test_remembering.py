"""Components that weigh objectives, effort and difficulty by what they remember, against loops and numbers by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import numpy as np
import pytest
from rollouts import plain, ragged, small

from agentrl_core import Batch, Schedule
from agentrl_core.advantage import ConstrainedSum, Normalisation
from agentrl_core.component.component import StatefulComponent
from agentrl_core.exceptions import InvalidInputError, RecipeError
from agentrl_core.reward import BalancedSum, ExplorationEffort
from agentrl_core.weight import DifficultyScaled


def column(batch: Batch, name: str = "score", level: str = "draw") -> list[float]:
    return batch.column(name, level).astype(float).tolist()


def close(found: object, expected: object, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


def run(component: StatefulComponent, batches: Sequence[Batch]) -> list[Batch]:
    """Batch after batch, each with the state after it, which goes through JSON in between."""
    state = component.initial_state()
    made = []
    for batch in batches:
        closed = component.add_columns(state, batch)
        state = json.loads(json.dumps(component.next(state, closed)))
        made.append(closed.with_state({f"{component.phase}.{type(component).__name__}": state}))
    return made


# Objectives


def rewards(answer: list[float], style: list[float]) -> Batch:
    return small([(0, [1])] * len(answer), draw_answer=answer, draw_style=style)


def softmax(values: Sequence[float], temperature: float) -> np.ndarray:
    powers = np.exp(np.array(values) / temperature)
    return powers / powers.sum()


def test_a_saturated_objective_weighs_less_than_one_that_falls() -> None:
    component = BalancedSum(columns="answer,style", temperature=0.5)
    batches = [rewards([a, a], [s, s]) for a, s in ((0.5, 0.8), (0.5, 0.4), (0.5, 0.4), (1.0, 1.0))]
    made = run(component, batches)
    # One mean of each, then two, then the newest two of three.
    close(column(made[0]), [1.3, 1.3])
    close(column(made[1]), [0.9, 0.9])
    convergence, instability = [0.5 / 0.5, 0.8 / 0.4], [0.0, 0.0]
    weights = 2 * softmax(np.add(convergence, instability), 0.5)
    close(column(made[2]), [weights @ [0.5, 0.4]] * 2)
    weights = 2 * softmax([1.0, 1.0], 0.5)
    close(column(made[3]), [weights.sum()] * 2)
    assert made[3].state["reward.BalancedSum"]["means"]["style"][-2:] == pytest.approx([0.4, 1.0])


@pytest.mark.parametrize("rule", ["sum", "mixture"])
def test_objectives_against_a_loop(rule: str) -> None:
    rng = np.random.default_rng(3)
    data = rng.uniform(0.0, 2.0, size=(12, 2, 5))
    data[rng.random(data.shape) < 0.2] = np.nan
    data[4, 1] = np.nan  # a batch to which one objective does not apply
    component = BalancedSum(columns="answer,style", rule=rule, window=3, temperature=0.3, mix=0.25)
    made = run(component, [rewards(*values.tolist()) for values in data])
    history: list[list[float]] = [[], []]
    for values, batch in zip(data, made, strict=True):
        c, i = [1.0, 1.0], [0.0, 0.0]
        for k in range(2):
            n = min(len(history[k]) // 2, 3)
            if n:
                newest = history[k][-2 * n :]
                old, new = newest[:n], newest[n:]
                c[k] = sum(old) / sum(new)
                own = np.std(new) / (np.mean(new) + np.mean(old))
                i[k] = own if rule == "sum" else np.std(newest) / np.mean(newest)
        weights = 2 * softmax(np.add(c, i), 0.3)
        if rule == "mixture":
            weights = 2 * (0.25 * softmax(c, 0.3) + 0.75 * softmax(i, 0.3))
        known = np.isfinite(values)
        total = weights @ np.where(known, values, 0.0)
        close(column(batch), np.where(known.any(axis=0), total, np.nan))
        for k in range(2):
            if known[k].any():
                history[k].append(float(values[k][known[k]].mean()))


def test_the_mixture_may_move_over_the_iterations() -> None:
    moving = BalancedSum(columns="answer,style", rule="mixture", mix=Schedule(1.0, 0.0, iterations=4))
    assert [moving.at(iteration).mix for iteration in range(6)] == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]


def test_objectives_that_cannot_be_balanced() -> None:
    with pytest.raises(InvalidInputError, match=r"the mean of style is -1\.0; add a constant"):
        BalancedSum(columns="answer,style")(rewards([1.0], [-1.0]))
    for options, message in (
        ({"columns": ""}, "columns=''"),
        ({"window": 0}, "window=0"),
        ({"temperature": 0.0}, "temperature=0.0"),
        ({"mix": 1.5}, "mix=1.5"),
    ):
        with pytest.raises(RecipeError, match=message):
            BalancedSum(**({"columns": "a"} | options))


# Effort


def explored(counts: list[int], success: list[int], groups: list[int] | None = None) -> Batch:
    """Draws of 20 tokens, of which so many (every fifth token) are uncertain, with windows of one token."""
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
    # One of four succeeds: hard. The 0.95-quantiles of 0 and 1 are 1, so that uncertain tokens explore; T = 5.
    made = ExplorationEffort(width=1)(explored([2, 4, 6, 8], [0, 0, 0, 1]))
    assert column(made, "exploring_tokens") == [2.0, 4.0, 6.0, 8.0]
    cap, margin = 0.5 * 1.2, 0.35 * 5
    failures = [cap * sigma(max(n - 5 - margin, 0.0) / 3.0) for n in (2, 4, 6)]
    close(column(made), [*failures, 1.0 + cap * sigma((8 - 5 + margin) / 3.0)])
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


def test_targets_strengths_and_the_threshold_follow_the_batches() -> None:
    component = ExplorationEffort(width=1, momentum=0.5, rate=0.05)
    batches = [explored([4, 4], [0, 0]), explored([8, 8], [0, 0]), explored([8, 8], [1, 1])]
    made = run(component, batches)
    states = [batch.state["reward.ExplorationEffort"] for batch in made]
    assert [state["threshold"] for state in states] == [1.0] * 3
    assert states[0]["targets"] == [None, None, 4.0]
    assert states[1]["targets"] == [None, None, 6.0]
    # More than the target of a hard task lowers the strength.
    close(states[1]["strengths"], [0.5, 0.5, 0.5 - 0.05 * 4.0])
    assert states[2]["targets"] == [8.0, None, 6.0]
    close(column(made[1]), [0.6 * sigma((4.0 - 1.4) / 3.0)] * 2)
    still = run(ExplorationEffort(width=1, target="batch"), batches)
    close(still[1].state["reward.ExplorationEffort"]["strengths"], [0.5] * 3)


@pytest.mark.parametrize("seed", range(4))
def test_exploring_tokens_against_a_loop(seed: int) -> None:
    batch = ragged(seed)
    tokens = len(batch.column("token", "token"))
    rng = np.random.default_rng(seed)
    batch = batch.with_columns("token", entropy=rng.exponential(size=tokens), trigger=rng.random(tokens) < 0.6)
    entropy, trigger = batch.column("entropy", "token"), batch.column("trigger", "token")
    windows: dict[int, list[tuple[float, bool]]] = {}
    for draw in plain(batch):
        own = [token.row for token in draw.tokens if token.trained]
        if draw.valid:
            windows[draw.row] = [
                (float(np.mean([entropy[row] for row in own[place : place + 3]])), bool(trigger[own[place]]))
                for place in range(len(own))
            ]
    threshold = np.median([np.quantile([w for w, _ in own], 0.95) for own in windows.values()])
    expected = [
        sum(w >= threshold and marked for w, marked in windows[draw]) if draw in windows else math.nan
        for draw in range(batch.num_draws)
    ]
    success = batch.with_columns("draw", success=np.ones(batch.num_draws))
    made = ExplorationEffort(width=3, trigger="trigger")(success)
    close(column(made, "exploring_tokens"), expected)
    unscored = ~np.isfinite(batch.column("score", "draw"))
    assert np.isnan(made.column("score", "draw")[unscored]).all()


def test_effort_that_is_not_possible() -> None:
    for options, message in (
        ({"width": 0}, "width=0"),
        ({"easy": 1.5}, "easy=1.5"),
        ({"medium": 0.7}, "medium=0.7"),
        ({"momentum": -0.1}, "momentum=-0.1"),
        ({"strength": 3.0}, "strength=3.0"),
        ({"rate": -1.0}, "rate=-1.0"),
    ):
        with pytest.raises(RecipeError, match=message):
            ExplorationEffort(**options)
    with pytest.raises(RecipeError, match="has no known value"):
        ExplorationEffort()(small([(0, [1])], draw_score=[1.0], token_entropy=[math.nan]))


# Difficulty


def lossy(losses: list[float], success: list[int], groups: list[int]) -> Batch:
    return small(
        [(group, [1]) for group in groups],
        draw_score=[0.0] * len(groups),
        draw_policy_loss=losses,
        draw_success=success,
    )


def test_difficulty_by_hand() -> None:
    component = DifficultyScaled(bins=4, smoothing=0.5, rate=1.0, limit=1.0, hysteresis=0.0)
    first = lossy([1.0, 3.0, 4.0], [0, 0, 1], [0, 0, 1])
    second = lossy([2.0, 2.0, 6.0], [0, 0, 1], [0, 0, 1])
    made = run(component, [first, second])
    # Both tasks are new, hence in bin 2: S = 0.5 (2 + 4) / 2 = 1.5, of which 1 counts.
    close(column(made[0], "weight"), [math.e] * 3)
    assert made[0].state["weight.DifficultyScaled"] == {
        "visits": {"task 0": [0], "task 1": [1]},
        "bins": {"task 0": 0, "task 1": 3},
        "scores": [0.0, 0.0, 1.5, 0.0],
    }
    # Now they are in bins 0 and 3, with S = 1 and 3.
    close(column(made[1], "weight"), [math.e] * 3)
    shares = run(DifficultyScaled(bins=4, smoothing=0.5, rate=0.1, by="share", hysteresis=0.0), [first, second])
    close(shares[1].state["weight.DifficultyScaled"]["scores"], [2.0, 0.0, 1.5, 6.0])
    close(column(shares[1], "weight"), [math.exp(0.2)] * 2 + [math.exp(0.3)])
    likely = run(DifficultyScaled(bins=2, smoothing=1.0, rate=0.5, weighing="probability", explore=0.2), [first])
    weights = np.exp([0.0, 1.5])
    close(column(likely[0], "weight"), [2 * (0.8 * weights[1] / weights.sum() + 0.1)] * 3)
    capped = DifficultyScaled(bins=2, smoothing=1.0, rate=1.0, most=2.0)(first)
    assert column(capped, "weight") == [2.0] * 3


def test_a_task_changes_its_bin_only_well_beyond_the_border() -> None:
    component = DifficultyScaled(bins=2, hysteresis=0.1, history=5)
    outcomes = [1, 0, 1, 0, 0, 0, 0, 1, 1, 1]
    made = run(component, [lossy([0.0], [won], [0]) for won in outcomes])
    places = [batch.state["weight.DifficultyScaled"]["bins"]["task 0"] for batch in made]
    # Shares: 1, 1/2, 2/3, 1/2, 2/5, 1/5 (of the last five), 1/5, 1/5, 2/5, 3/5.
    assert places == [1, 1, 1, 1, 1, 0, 0, 0, 0, 0]
    assert made[-1].state["weight.DifficultyScaled"]["visits"]["task 0"] == [0, 0, 1, 1, 1]


def test_what_is_not_known_of_difficulty_changes_nothing() -> None:
    batch = lossy([1.0, math.nan, 5.0], [1, 1, 1], [0, 1, 2])
    batch = batch.with_columns("draw", score=[0.0, 0.0, math.nan], weight=[1.0, 1.0, 7.0])
    (made,) = run(DifficultyScaled(bins=2, smoothing=1.0, rate=1.0), [batch])
    # The loss of task 1 is not known, and it is in the same bin; task 2 has no score.
    close(column(made, "weight"), [math.e, math.e, 7.0])
    state = made.state["weight.DifficultyScaled"]
    assert state["visits"] == {"task 0": [1], "task 1": [1]}
    for options, message in (
        ({"bins": 0}, "bins=0"),
        ({"history": 0}, "history=0"),
        ({"smoothing": 2.0}, "smoothing=2.0"),
        ({"limit": 0.0}, "limit=0.0"),
        ({"most": 0.0}, "most=0.0"),
        ({"rate": -1.0}, "rate=-1.0"),
        ({"key": ""}, "key=''"),
    ):
        with pytest.raises(RecipeError, match=message):
            DifficultyScaled(**options)


# Constraints


def test_an_objective_that_falls_gets_a_weight() -> None:
    batches = [
        small([(0, [1])] * 2, draw_answer=[1.0, 0.0], draw_style=style, draw_score=[1.0, 1.0])
        for style in ([0.5, 1.5], [0.0, 0.4], [math.nan, math.nan], [9.0, 3.0])
    ]
    plain_difference = Normalisation(scale="none")
    component = ConstrainedSum(columns="answer,style", slack=0.1, rate=0.5, most=0.3, normalisation=plain_difference)
    made = run(component, batches)
    # Floor 0.9: weights 0, then 0 (clipped from -0.05), then 0.5 * (0.9 - 0.2) cut to 0.3, and as it was.
    assert column(made[0], "advantage") == [0.5, -0.5]
    assert column(made[1], "advantage") == [0.5, -0.5]
    close(column(made[2], "advantage"), [0.5, -0.5])
    close(column(made[3], "advantage"), [0.5 + 0.3 * 3.0, -0.5 - 0.3 * 3.0])
    state = made[3].state["advantage.ConstrainedSum"]
    assert state["floors"] == {"style": 0.9}
    assert state["weights"] == {"style": 0.0}


def test_constraints_need_two_columns() -> None:
    with pytest.raises(RecipeError, match="name two columns or more"):
        ConstrainedSum(columns="answer")
    with pytest.raises(RecipeError, match=r"option initial=2.0 is not possible; give a number from 0 to most=1.0"):
        ConstrainedSum(columns="a,b", initial=2.0, most=1.0)
