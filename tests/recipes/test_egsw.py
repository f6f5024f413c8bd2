"""EGSW: a softmax of advantage and entropy, by hand."""

from __future__ import annotations

import pytest
from compared import close, column
from rollouts import small

from agentrl_core.exceptions import RecipeError
from agentrl_core.recipes.egsw import SoftmaxScaled


def test_softmax_of_advantage_and_entropy() -> None:
    batch = small([(0, [1])] * 3, draw_score=[0.0] * 3, draw_advantage=[1.0, -1.0, 0.0], token_entropy=[0.5, 1.0, 2.0])
    close(column(SoftmaxScaled()(batch)), [0.637069, -0.090638, 0.0], 1e-6)
    close(column(SoftmaxScaled(rescale_mean_one=True)(batch)), [3 * 0.637069, -3 * 0.090638, 0.0], 1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SoftmaxScaled(temperature=0.0), "temperature=0.0"),
    ],
)
def test_options_out_of_range(make: object, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        make()
