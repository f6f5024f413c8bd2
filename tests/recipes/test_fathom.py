"""Fathom-DeepResearch: search effort by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from replayed import grow, keep
from rollouts import small

from agentrl_core import Batch, Store
from agentrl_core.exceptions import RecipeError
from agentrl_core.recipes.fathom import FATHOM, SearchEffort
from agentrl_core.replay import Inject


def column(batch: Batch, name: str = "score", level: str = "draw") -> list[float]:
    return batch.column(name, level).astype(float).tolist()


def close(values: object, expected: object, tolerance: float = 1e-6) -> None:
    np.testing.assert_allclose(values, expected, rtol=0, atol=tolerance)


def searched(**changes: list[float]) -> Batch:
    """Return two successes, two failures, and a draw without a reward."""
    columns = {
        "tool_calls": [10, 0, 20, 4, 1],
        "searches_unique": [5, 0, 12, 1, 0],
        "searches_redundant": [1, 0, 2, 3, 0],
        "queries_unique": [5, 0, 6, 2, 0],
        "queries_redundant": [1, 0, 2, 0, 0],
        "format": [1.0, 0.0, 1.0, 0.0, 1.0],
    }
    return small(
        [(0, [1])] * 5,
        draw_reward=[1.0, 1.0, 0.0, 0.0, math.nan],
        draw_success=[1, 1, 0, 0, 1],
        **{f"draw_reward.{name}": values for name, values in (columns | changes).items()},
    )


def test_search_effort() -> None:
    expected = [0.1 + 0.8, 1.0, 0.1 + 0.2 * 1.0 + 0.2 * 4 / 16, -0.2 * 2 / 8 + 0.2 * 2 / 16, math.nan]
    close(column(SearchEffort()(searched())), expected)
    wasted = searched(searches_redundant=[9, 0, 2, 3, 0])
    close(column(SearchEffort()(wasted))[0], 0.1 + 0.5)


def test_a_success_without_a_tool_call_is_not_redundant() -> None:
    # A label that calls a success without calls redundant is an error: the success is worth 1, not 1/2.
    close(column(SearchEffort()(searched(searches_redundant=[1, 2, 2, 3, 0])))[1], 1.0)


def test_options_out_of_range() -> None:
    with pytest.raises(
        RecipeError, match=r"SearchEffort: option searches=0 is not possible; give a number of at least"
    ):
        SearchEffort(searches=0)
    with pytest.raises(RecipeError, match=r"at_least=1\.5"):
        SearchEffort(at_least=1.5)


def test_the_chain_scales_live_groups_up() -> None:
    batch = small(
        [(group, [1]) for group in (0, 0, 1, 1)],
        draw_reward=[1.0, 0.0, 0.0, 0.0],
        draw_success=[1, 0, 0, 0],
        **{f"draw_{column.name}": [0.0] * 4 for column in SearchEffort().needs if column.name.startswith("reward.")},
    )
    credited = FATHOM.credit(FATHOM.score(batch))
    close(column(credited), [1.0, 0.0, 0.0, 0.0])
    close(column(credited, "advantage"), [1.0, -1.0, 0.0, 0.0], 1e-5)
    close(column(credited, "weight")[:2], [2.0, 2.0])


def test_the_latest_success_takes_the_place_of_a_random_rollout(tmp_path: Path) -> None:
    inject = FATHOM.replay
    assert isinstance(inject, Inject)
    with Store.open(tmp_path / "run") as store:
        state = inject.initial_state()
        for iteration, scores in enumerate(([0.6, 0.9], [0.2, 0.7], [0.5, 0.1])):  # the last one has none above 0.5
            state = inject.next(state, keep(store, grow(iteration, {"q": scores})))
        assert state["memory"]["trajectory_id"].tolist() == [3]
        failed = grow(3, {"q": [0.5, 0.1, 0.3]})
        draws = [inject.inject(state, failed, key) for key in range(60)]
        assert {int(each.replaces[0]) for each in draws if each is not None} == {0, 1, 2}
        assert {int(each.trajectory_ids[0]) for each in draws if each is not None} == {3}
        assert inject.inject(state, grow(3, {"q": [0.5, 0.51]}), 0) is None
