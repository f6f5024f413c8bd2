"""Factors of rows: from a column, of rows that a column marks, and for how many rows carry a signal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentrl_core.component import BatchComponent, Column, Rows, column_name, draw, option
from agentrl_core.component.column import Level, needed
from agentrl_core.operators import group

if TYPE_CHECKING:
    from collections.abc import Iterable

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
class MarkedScaled(BatchComponent):
    """Tokens or steps of one kind count more, less or not at all: thoughts, calls, what an image is made of.

    A row is marked where a column is a number other than 0: a fact of the environment, or spans that `arl.annotate`
    found by tags or a parser (`model.spans`). What is multiplied by `marked` there, by `plain` elsewhere:

    - `weight`: of the advantage; a token with weight 0 still counts in the denominators;
    - `keep`: tokens with factor 0 are in neither loss nor denominator (SSRL, arXiv:2508.10874: results of a search that
      the policy made up itself);
    - `kl_weight`: of the penalty of the loss (RGPO, arXiv:2505.13031: text and images);
    - `imitation`: of `loss.Imitation(tokens="imitation")` (GUI-Libra, arXiv:2602.22190: actions and thoughts).

    Args:
        column: that marks.
        level: of the rows: `token` or `step`.
        marked: factor of marked rows, at least 0.
        plain: factor of the others, at least 0.
        of: what is multiplied, see above.

    Raises:
        RecipeError: an option is out of range, or both factors of `keep` say the same.

    Example:
        >>> import agentrl_core as arl
        >>> from agentrl_core.model.spans import Tags
        >>> from agentrl_core.weight import MarkedScaled
        >>> forest = arl.Forest()
        >>> forest.add_group(0, "task")
        >>> path = forest.start(0, member=0)
        >>> _ = forest.append(path, [1], kind="prompt")
        >>> _ = forest.append(path, [8, 3, 9, 4], kind="action", logprobs=[-1.0] * 4)
        >>> forest.finish(path, reward=1.0)
        >>> batch = arl.annotate(forest.freeze(), "thought", Tags([8], [9]))
        >>> MarkedScaled(column="thought", marked=0.5)(batch).column("weight", "token").tolist()
        [0.5, 0.5, 0.5, 1.0]
    """

    phase: ClassVar[str] = "weight"

    column: str = option(filled=True)
    level: Literal["step", "token"] = "token"
    marked: float = option(1.0, at_least=0.0)
    plain: float = option(1.0, at_least=0.0)
    of: Literal["weight", "keep", "kl_weight", "imitation"] = "weight"

    def check_options(self) -> None:
        """What keeps tokens leaves some out."""
        tells = self.of != "keep" or (self.marked == 0.0) != (self.plain == 0.0)
        self.require(tells, "marked", "give 0 to what is left out, and another number to what is kept")

    def own_needs(self) -> Iterable[Column]:
        """What marks: of tokens it is found by spans, of steps the environment says it."""
        return (Column(self.level, self.column, "spans" if self.level == "token" else None),)

    def own_makes(self) -> tuple[Column, ...]:
        """What is multiplied."""
        return needed(self.level, self.of)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with its `weight`, or what else is multiplied, scaled."""
        rows = Rows(batch, self.level)
        factors = np.where(rows.flags(self.column), self.marked, self.plain)
        return rows.keep(factors > 0.0) if self.of == "keep" else rows.scale(factors, self.of)


@dataclass(frozen=True)
class SignalRescale(BatchComponent):
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
        >>> from agentrl_core.weight import SignalRescale
        >>> SignalRescale().needs
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
