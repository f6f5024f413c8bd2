"""DCPO: numbers by hand over three visits of a task."""

from __future__ import annotations

import pytest
from compared import close, visits

from agentrl_core.exceptions import RecipeError
from agentrl_core.recipes.dcpo import CumulativeStandardised


def test_cumulative_statistics() -> None:
    found = visits(CumulativeStandardised(), [0.0, 0.0, 1.0, 1.0], [1.0] * 4, [0.0, 1.0, 1.0, 1.0])
    close(found[0], [-0.866025, -0.866025, 0.866025, 0.866025], 1e-6)
    close(found[1], [0.261116] * 4, 1e-6)
    close(found[2], [-1.514496, 0.504832, 0.504832, 0.504832], 1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CumulativeStandardised(ddof=2), "ddof=2"),
    ],
)
def test_options_out_of_range(make: object, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        make()
