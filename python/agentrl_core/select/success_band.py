"""The band rule, which marks groups worth training on: used by admission (before credit) and filters (after it)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core.component import Component, option
from agentrl_core.operators import filters


@dataclass(frozen=True)
class Band(Component):
    """Separate groups with a learning signal from those that are too easy, too hard, or uniform.

    A group is in the band if std > `std_above`, `at_least` <= mean <= `at_most`, and enough of its members have a
    value. With the defaults only the spread is checked: the dynamic sampling of DAPO, arXiv:2503.14476.

    Sources of other bands: PRIME arXiv:2502.01456 (`std_above=None, at_least=0.2, at_most=0.8`); UI-S1 arXiv:2509.11543
    (`std_above=0.3`); SimpleTIR arXiv:2509.02479 (`std_above=1e-3, at_least=0.1, at_most=0.9`); EMPO arXiv:2504.05812
    (`std_above=None, at_least=0.3`).

    Args:
        std_above: the standard deviation of the group is larger than this; None: any.
        at_least: smallest mean of the group; None: any.
        at_most: largest mean of the group; None: any.
        members_at_least: smallest number of members with a value.
        ddof: the variance divides by (count - ddof); 0 or 1.
        accept_single: whether a group with one value needs no spread, as in DAPO's public code (its
            advantage follows the `singleton` rule).

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> import numpy as np
        >>> from agentrl_core.select import Band
        >>> groups = np.array([0, 0, 1, 1], dtype=np.uint32)
        >>> Band(at_least=0.2, at_most=0.8).holds(np.array([1.0, 0.0, 1.0, 0.9]), groups).tolist()
        [True, True, False, False]
    """

    std_above: float | None = option(0.0, at_least=0)
    at_least: float | None = None
    at_most: float | None = None
    members_at_least: int = option(1, at_least=1)
    ddof: Literal[0, 1] = 0
    accept_single: bool = False

    def check_options(self) -> None:
        """Require at_least <= at_most."""
        self.require(
            self.at_least is None or self.at_most is None or self.at_least <= self.at_most,
            "at_least",
            f"give a number up to at_most={self.at_most}",
        )

    def holds(
        self,
        values: NDArray[np.floating],
        groups: NDArray[np.uint32],
        *,
        valid: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.bool_]:
        """Return whether each row has a value and a group in the band.

        Args:
            values: one per row; NaN or infinite if missing.
            groups: the group of each row.
            valid: rows that are False do not vote either. None: all rows with a value do.
        """
        votes = np.isfinite(values) if valid is None else np.isfinite(values) & valid
        options = {option.name: getattr(self, option.name) for option in fields(Band)}
        return filters.group_band(np.where(votes, values, 0.0), groups, valid=votes, **options)
