"""How values are compared with their group: the options that several components share."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core.component.component import Component
from agentrl_core.component.rows import Rows, Unit
from agentrl_core.operators import group


@dataclass(frozen=True)
class Normalisation(Component):
    """How a value is compared with its group: `clip((x - centre) / (max(sqrt(spread^2 + variance_eps), floor) + eps))`.

    The options of `agentrl_core.group.normalise`. Equal values give exactly 0, whatever `eps` is.

    Args:
        center: what is subtracted: `mean`, `median`, `leave_one_out` (the mean of the others) or `none`.
        scale: what the difference is divided by: `std`, `mad` (median distance from the median), `range` (largest
            minus smallest), `beta` (BNPO, arXiv:2506.02864: the density of a Beta distribution fitted to the means of
            all groups) or `none`.
        median: of an even number of values: `midpoint` (NumPy) or `lower` (PyTorch).
        ddof: the variance divides by (count - ddof); 0 or 1.
        eps: added to the spread, at least 0.
        variance_eps: added under the root, at least 0 (verl's whitening: 1e-8, with `eps=0`).
        floor: the spread is at least this (torchrl: 1e-6, with `eps=0`).
        min_scale: a group whose spread is at most this gives 0 (ROLL: 1e-6).
        min_count: a group with fewer votes follows `singleton`; None: the fewest that centre and spread need.
        singleton: what such a group gets: 0 (`zero`), or its values, as if their mean were 0 and their spread 1
            (`raw`, verl).
        clip: results are cut to at most this size; None: they are not.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.advantage import Normalisation
        >>> Normalisation(center="median", scale="mad", floor=1.0).center
        'median'
    """

    center: Literal["mean", "median", "leave_one_out", "none"] = "mean"
    scale: Literal["std", "mad", "range", "beta", "none"] = "std"
    median: Literal["midpoint", "lower"] = "midpoint"
    ddof: int = 1
    eps: float = 1e-6
    variance_eps: float = 0.0
    floor: float = 0.0
    min_scale: float = 0.0
    min_count: int | None = None
    singleton: Literal["zero", "raw"] = "zero"
    clip: float | None = None

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(self.ddof in (0, 1), "ddof", "give 0 or 1")
        for option in ("eps", "variance_eps", "floor", "min_scale"):
            self.require(getattr(self, option) >= 0.0, option, "give a number of at least 0")
        self.require(self.min_count is None or self.min_count >= 1, "min_count", "give a number of at least 1, or None")
        self.require(self.clip is None or self.clip > 0.0, "clip", "give a number above 0, or None")

    def compare(
        self,
        values: NDArray[np.float64],
        groups: NDArray[np.uint32],
        *,
        valid: NDArray[np.bool_],
        **votes: Any,
    ) -> NDArray[np.float64]:
        """Each value compared with its group; `votes` are more columns of `agentrl_core.group.normalise`.

        A value that is not finite is not valid.
        """
        options = {option.name: getattr(self, option.name) for option in fields(Normalisation)}
        valid = valid & np.isfinite(values)
        return group.normalise(values, groups, valid=valid, **options, **votes)


def votes_of(rows: Rows, unit: Unit, shared: str = "each") -> dict[str, NDArray[Any] | None]:
    """Who votes how often in the statistics of some rows, as arguments of `Normalisation.compare`."""
    return {"unit_ids": rows.units(unit), "weights": rows.votes(unit, shared)}
