"""Factors of whole rows: from a column, and for how many rows of the batch carry a signal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentrl_core.component import BatchComponent, Column, Level, Rows, column_name, draw, option
from agentrl_core.component.column import needed
from agentrl_core.operators import group

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class ColumnScaled(BatchComponent):
    """Rows count as much as a column says: the difficulty of a task, the seconds of a step, the size of an advantage.

    weight *= f(x), over its mean in the batch where asked, then kept within bounds; f(x) is x (`value`) or
    exp(x / temperature) (`exponential`). Rows where x is not known have factor 1. Sources: GUI-G1, arXiv:2505.15810
    (`column="difficulty"`, a weight of each task); Reinforcement Learning for Machine Learning Engineering Agents
    (`column="duration", level="step", mean_one=True, at_least=0.1, at_most=10.0`); RED-Weight, arXiv:2509.24203, and
    critic-weighted updates of AC-Flow, arXiv:2510.18072 (`column="advantage", kind="exponential", at_most=20.0`).

    Args:
        column: x, of at least 0 for `value`.
        level: of the rows: `draw`, `step` or `token`.
        kind: f.
        temperature: of `exponential`; the larger, the more equal the factors.
        mean_one: whether f(x) is divided by its mean over the rows of the batch that count.
        at_least: the smallest factor; None: none.
        at_most: the largest factor; None: none.

    Raises:
        RecipeError: an option is out of range, `exponential` has no bound, or no value of the column is known.

    Example:
        >>> from agentrl_core.weight import ColumnScaled
        >>> ColumnScaled(column="duration", level="step").makes
        (step('weight'),)
    """

    phase: ClassVar[str] = "weight"

    column: str = column_name("task_weight", level="level")
    level: Level = "draw"
    kind: Literal["value", "exponential"] = "value"
    temperature: float = option(1.0, above=0.0)
    mean_one: bool = False
    at_least: float | None = option(None, at_least=0.0)
    at_most: float | None = option(None, above=0.0)

    def check_options(self) -> None:
        """An exponential is bounded, and bounds are in order."""
        bounded = self.kind == "value" or self.mean_one or self.at_most is not None
        self.require(bounded, "at_most", "give the largest factor, or mean_one=True")
        ordered = self.at_least is None or self.at_most is None or self.at_least <= self.at_most
        self.require(ordered, "at_most", "give a number of at least at_least")

    def own_makes(self) -> tuple[Column, ...]:
        """The weight of each row."""
        return needed(self.level, "weight")

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with its `weight` scaled."""
        rows = Rows(batch, self.level)
        known = rows.known(self.column)
        factors = np.where(known, rows.values(self.column), 1.0)
        if self.kind == "exponential":
            powers = factors / self.temperature
            if self.mean_one:
                powers -= np.max(powers, initial=-np.inf, where=known)
            elif self.at_most is not None:
                powers = np.minimum(powers, np.log(self.at_most))
            factors = np.exp(powers, out=np.ones(len(rows)), where=known)
        if self.mean_one:
            factors = np.asarray(group.mean_one(factors, rows.keys("batch"), valid=known))
        least = -np.inf if self.at_least is None else self.at_least
        factors = np.clip(factors, least, np.inf if self.at_most is None else self.at_most)
        return rows.scale(np.where(known, factors, 1.0))


@dataclass(frozen=True)
class LiveRescale(BatchComponent):
    """Rows count more where many carry no signal, so that dead groups do not shrink the step.

    weight *= how many there are / how many carry a signal. `groups`: groups, and groups whose values differ (RAPO,
    arXiv:2509.24107; CPGD, arXiv:2505.12504: `at_most=3.0`). `rows`: draws, and draws whose value is not 0 (GPG,
    arXiv:2504.02546, with `column="advantage"`: draws without a gradient; verl's GPG counts scores; MC-GRPO,
    arXiv:2601.22582, within groups: the pivot counts among the draws and has advantage 0). Where nothing carries a
    signal the factor is 1.

    Args:
        kind: what is counted: `groups` or `rows`.
        column: draw column that says which carry a signal.
        group_by: keys within which `rows` are counted; `batch`: all together.
        at_most: the largest factor; None: none.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.weight import LiveRescale
        >>> LiveRescale().needs
        (draw('group_id'), draw('score'))
    """

    phase: ClassVar[str] = "weight"
    makes: ClassVar[tuple[Column, ...]] = (draw("weight"),)
    needs: ClassVar[tuple[Column, ...]] = (draw("group_id"),)

    kind: Literal["groups", "rows"] = "groups"
    column: str = column_name("score", level="draw")
    group_by: str = column_name("batch", level="draw")
    at_most: float | None = option(None, at_least=1.0)

    def check_options(self) -> None:
        """Groups are counted in the whole batch."""
        self.require(self.kind == "rows" or self.group_by == "batch", "group_by", 'choose kind="rows", or "batch"')

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with its `weight` scaled."""
        rows = Rows(batch, "draw")
        values = rows.values(self.column)
        counted = rows.valid & np.isfinite(values)
        keys = rows.keys(self.group_by)
        if self.kind == "groups":
            ends = group.statistics(values, rows.keys("group_id"), valid=counted)
            live, there = ends.most > ends.least, ends.count > 0
            shares = np.array([live[there].mean() if there.any() else 0.0])
        else:
            shares = group.statistics((values != 0.0).astype(np.float64), keys, valid=counted).mean
        shares = np.nan_to_num(shares, nan=0.0)
        factors = np.divide(1.0, shares, out=np.ones_like(shares), where=shares > 0.0)
        return rows.scale(np.minimum(factors, np.inf if self.at_most is None else self.at_most)[keys])
