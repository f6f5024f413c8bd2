"""Components and losses for some draws: others neither vote nor are written."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollouts import small

from agentrl_core import Batch, advantage, loss, recipes
from agentrl_core.component import IterationRecord, Where
from agentrl_core.exceptions import RecipeError
from agentrl_core.recipe import Recipe
from agentrl_core.weight import ColumnScaled

EASY, HARD = Where(column="difficulty", at_most=0.5), Where(column="difficulty", at_least=0.75)


def batch(scores: list[float], difficulties: list[float]) -> Batch:
    return small([(0, [2])] * len(scores), draw_score=scores, draw_difficulty=difficulties)


def test_each_link_has_its_draws() -> None:
    """Easy: scores 1, 3 minus their mean 2. Hard: 8, 2 minus their mean 5; the other draws are not used."""
    centred = {"center": "mean", "scale": "none"}
    links = tuple(advantage.GroupRelative(**centred, where=where) for where in (EASY, HARD))
    recipe = recipes.GRPO.replace(advantage=links)
    assert Recipe.from_toml(recipe.to_toml()) == recipe
    credited = recipe.credit(batch([1.0, 8.0, 3.0, 2.0], [0.0, 1.0, 0.5, 0.75]))
    assert credited.column("advantage", "draw").tolist() == [-1.0, 3.0, 1.0, -3.0]
    assert credited.column("score", "draw").tolist() == [1.0, 8.0, 3.0, 2.0], "the score is what it was"


@given(st.lists(st.tuples(st.integers(-4, 4), st.booleans()), min_size=2, max_size=9))
def test_it_is_as_if_the_others_were_not_there(rows: list[tuple[int, bool]]) -> None:
    scores, easy = [float(score) for score, _ in rows], np.array([selected for _, selected in rows])
    full_batch = batch(scores, np.where(easy, 0.0, 1.0).tolist())
    component = advantage.GroupRelative(where=EASY)
    recipe = recipes.GRPO.replace(advantage=(advantage.GroupRelative(where=HARD), component))
    all_advantages = recipe.credit(full_batch).column("advantage", "draw")
    for selected in (easy, ~easy):
        if selected.any():
            alone = recipes.GRPO.credit(full_batch.select_draws(np.flatnonzero(selected))).column("advantage", "draw")
            np.testing.assert_array_equal(all_advantages[selected], alone)


def test_draws_outside_where_get_weight_1_and_an_unknown_advantage() -> None:
    """A weight is 1 there; an advantage is unknown, and is refused if tokens are trained."""
    rows = batch([1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 1.0, 0.6])
    scaled = ColumnScaled("difficulty", where=HARD)
    credited = recipes.GRPO.replace(weight=scaled).credit(rows)
    expected = recipes.GRPO.replace(weight=ColumnScaled("difficulty")).credit(rows).column("weight", "draw")
    assert credited.column("weight", "draw").tolist() == [1.0, 1.0, expected[2], 1.0]
    with pytest.raises(RecipeError, match=r"advantage.* gives 4 trained tokens the advantage nan"):
        recipes.GRPO.replace(advantage=advantage.GroupRelative(where=EASY)).credit(rows)


def test_it_remembers_its_draws_alone() -> None:
    tracked = advantage.TrackedBaseline(kind="ema", decay=0.5, where=EASY)
    rows = batch([1.0, 8.0, 3.0, 2.0], [0.0, 1.0, 0.5, 0.75])
    recipe = recipes.GRPO.replace(advantage=(advantage.GroupRelative(where=HARD), tracked))
    (state,) = recipe.next_states({}, IterationRecord.of(recipe.credit(rows))).values()
    easy = recipes.GRPO.replace(advantage=advantage.TrackedBaseline(kind="ema", decay=0.5))
    alone = rows.select_draws([0, 2])
    (expected,) = easy.next_states({}, IterationRecord.of(easy.credit(alone))).values()
    assert state == expected


def test_losses_of_one_model_on_different_draws() -> None:
    links = (loss.Train(loss.Policy(), where=EASY), loss.Train(loss.Imitation("token_mean"), where=HARD))
    recipe = recipes.GRPO.replace(loss=links)
    assert Recipe.from_toml(recipe.to_toml()) == recipe
    rows = recipe.credit(batch([1.0, 8.0, 3.0, 2.0], [0.0, 1.0, 0.5, 0.75]))
    assert [sorted(update.draws.tolist()) for update in recipe.updates(rows)] == [[0, 2], [1, 3]]
    with pytest.raises(RecipeError, match="more than one loss of model 'policy'"):
        recipes.GRPO.replace(loss=(loss.Train(loss.Policy(), where=EASY), loss.Train(loss.Policy(), where=EASY)))


def test_sources_origins_and_roles() -> None:
    rows = batch([1.0, 0.0], [0.0, 0.0])
    ids = rows.column("trajectory_id", "draw")
    both = rows.with_draws(ids[:1], source="replay").with_columns("draw", score=[1.0, 0.0, 1.0])
    conditions = {
        "fresh": Where(source="fresh"),
        "replay": Where(source="replay"),
        "generated": Where(origin="generated"),
        "expert": Where(origin="expert", role="member"),
        "first": Where(agent=0, role="member", source="fresh"),
        "second": Where(agent=1),
    }
    assert {name: np.flatnonzero(where.holds(both)).tolist() for name, where in conditions.items()} == {
        "fresh": [0, 1],
        "replay": [2],
        "generated": [0, 1, 2],
        "expert": [],
        "first": [0, 1],
        "second": [],
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"column": "difficulty"}, "set at_least, above, at_most or below too"),
        ({"at_least": 1.0}, "name the column that the bound is for"),
    ],
)
def test_a_column_has_a_bound(options: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Where(**options)  # type: ignore[arg-type]


BOUND = st.none() | st.sampled_from([0.25, 0.5, 0.75])


@given(st.lists(st.sampled_from([0.25, 0.5, 0.75, float("nan")]), min_size=1, max_size=4), BOUND, BOUND, BOUND, BOUND)
@settings(max_examples=60, deadline=None)
def test_bounds_of_a_column(
    values: list[float], at_least: float | None, above: float | None, at_most: float | None, below: float | None
) -> None:
    bounds = {"at_least": at_least, "above": above, "at_most": at_most, "below": below}
    if all(bound is None for bound in bounds.values()):
        bounds["at_least"] = 0.0

    def fits(value: float) -> bool:
        if value != value:  # noqa: PLR0124 - NaN
            return False
        low = bounds["at_least"] is None or value >= bounds["at_least"]
        high = bounds["at_most"] is None or value <= bounds["at_most"]
        return low and high and (above is None or value > above) and (below is None or value < below)

    rows = batch([1.0] * len(values), [0.0] * len(values))
    where = Where(column="difficulty", **bounds)
    expected = [fits(value) for value in values]
    assert where.holds(rows.with_columns("draw", difficulty=values)).tolist() == expected
    assert where.holds(rows, np.asarray(values)).tolist() == expected, "of values that are known from elsewhere"
