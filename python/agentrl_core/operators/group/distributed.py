"""Group statistics over several distributed processes: partial sums that the caller reduces."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.operators import columns
from agentrl_core.operators.group.moments import GroupStatistics


@dataclass(frozen=True)
class PartialStatistics:
    """Partial statistics of G groups on one rank. Two reductions give the total, bit for bit as on one rank.

    The first reduction fixes a grid: `count` by sum, `least` by minimum, `most` and `heaviest` by maximum. The second
    adds integers on that grid: `moments` by sum. Ids are numbers below G with the same meaning on all ranks.

    Args:
        count: `uint64[G]`, votes.
        least: `float64[G]`; infinity without votes.
        most: `float64[G]`; minus infinity without votes.
        heaviest: `float64[G]`, the largest weight.
        moments: `int64[12 G]` after `add`, else None: sums in limbs of 32 bits, so adding ranks cannot overflow.

    Example:
        >>> from agentrl_core.operators.group.distributed import PartialStatistics
        >>> values, ids = [1.0, 2.0, 4.0], [0, 1, 1]
        >>> extents = PartialStatistics.of(values, ids, groups=2)  # reduce over ranks: count, least, most
        >>> moments = extents.add(values, ids)  # reduce over ranks: moments
        >>> moments.finish(ddof=0).mean.tolist()
        [1.0, 3.0]
    """

    count: NDArray[np.uint64]
    least: NDArray[np.float64]
    most: NDArray[np.float64]
    heaviest: NDArray[np.float64]
    moments: NDArray[np.int64] | None = None

    @classmethod
    def of(
        cls, values: object, ids: object, groups: int, *, weights: object | None = None, valid: object | None = None
    ) -> Self:
        """Compute the extents of this rank's rows: count, range and largest weight of each group.

        Args:
            values: n numbers.
            ids: n whole numbers below `groups`.
            groups: number of groups over all ranks.
            weights: n numbers of at least 0: votes of each row. Give them on all ranks or on none.
            valid: n booleans; rows that are False do not vote.

        Raises:
            InvalidInputError: lengths differ, an id is not below `groups`, or a valid value is not finite.
        """
        column = columns.numbers(values, "values")
        count = len(column)
        return cls(
            *_core.group.extents(
                column,
                _ids(ids, count),
                groups,
                weights=columns.optional_numbers(weights, "weights", length=count, first="values"),
                valid=columns.mask(valid, "valid", length=count, first="values"),
            )
        )

    def add(self, values: object, ids: object, *, weights: object | None = None, valid: object | None = None) -> Self:
        """Add the moments of this rank's rows, on the grid of the reduced extents.

        Args:
            values: as in `of`, like the other arguments.
            ids: n whole numbers.
            weights: n numbers.
            valid: n booleans.

        Raises:
            InvalidInputError: as in `of`, or a value lies outside the extents.
        """
        column = columns.numbers(values, "values")
        count = len(column)
        moments = _core.group.moments(
            column,
            _ids(ids, count),
            self.count,
            self.least,
            self.most,
            self.heaviest,
            weights=columns.optional_numbers(weights, "weights", length=count, first="values"),
            valid=columns.mask(valid, "valid", length=count, first="values"),
        )
        return replace(self, moments=moments)

    def finish(self, *, ddof: int = 1) -> GroupStatistics:
        """Return the statistics of all ranks' rows.

        Args:
            ddof: the variance divides by (sum of weights - ddof); 0 or 1.

        Raises:
            InvalidInputError: `add` was not called, or `ddof` is neither 0 nor 1.
        """
        if self.moments is None:
            raise InvalidInputError(
                "moments is None; call finish on the result of add, with its moments summed over the ranks"
            )
        if ddof not in (0, 1):
            raise InvalidInputError(f"ddof is {ddof}; use 1 (unbiased variance) or 0 (population variance)")
        return GroupStatistics(
            *_core.group.finish(self.count, self.least, self.most, self.heaviest, self.moments, ddof)
        )


def _ids(ids: object, count: int) -> NDArray[np.uint32]:
    numbers = columns.integers(ids, "ids", length=count, first="values")
    if len(numbers) and (numbers.min() < 0 or numbers.max() > np.iinfo(np.uint32).max):
        odd = int(np.flatnonzero((numbers < 0) | (numbers > np.iinfo(np.uint32).max))[0])
        raise InvalidInputError(
            f"ids[{odd}] is {numbers[odd]}; give a whole number of at least 0 and below the number of groups"
        )
    return numbers.astype(np.uint32)
