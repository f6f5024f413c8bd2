"""Scale the weights of rows: by a column, by marks, or to make up for rows without a signal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentrl_core.component import BatchComponent, Column, Rows, column_name, draw, option, sum_rows
from agentrl_core.component.column import Level, needed
from agentrl_core.operators import group

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class ColumnScaled(BatchComponent):
    """Scale weights by a column: the difficulty of a task, the seconds of a step, the size of an advantage.

    weight *= f(x), divided by its batch mean if `mean_one`, then clipped; f(x) is x (`value`) or exp(x / temperature)
    (`exponential`). Rows with unknown x have factor 1. Sources: GUI-G1, arXiv:2505.15810 (`column="difficulty"`, a
    weight of each task); Reinforcement Learning for Machine Learning Engineering Agents (`column="duration",
    level="step", mean_one=True, at_least=0.1, at_most=10.0`); RED-Weight, arXiv:2509.24203
    (`column="advantage", kind="exponential", at_most=20.0`).

    Args:
        column: x, at least 0 for `value`.
        level: level of the rows: `draw`, `step` or `token`.
        kind: the function f.
        temperature: temperature of `exponential`; larger values make factors more equal.
        mean_one: whether f(x) is divided by its mean over the valid rows of the batch.
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
        """Require a bound for an exponential, and ordered bounds."""
        bounded = self.kind == "value" or self.mean_one or self.at_most is not None
        self.require(bounded, "at_most", "give the largest factor, or mean_one=True")
        ordered = self.at_least is None or self.at_most is None or self.at_least <= self.at_most
        self.require(ordered, "at_most", f"give a number of at least at_least={self.at_least}")

    def own_makes(self) -> tuple[Column, ...]:
        """Return the output column: `weight` at `level`."""
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
    """Scale or mask marked tokens or steps, such as thoughts, tool calls or image tokens.

    A row is marked if its column is not 0: a fact of the environment, or spans that `arl.annotate` found by tags or a
    parser (`model.spans`). Marked rows are multiplied by `marked`, others by `plain`. `of` selects the factor:

    - `weight`: of the advantage; a token with weight 0 still counts in the denominators;
    - `keep`: tokens with factor 0 are in neither loss nor denominator (SSRL, arXiv:2508.10874: search results that the
    policy simulated itself);
    - `kl_weight`: of the penalty of the loss (RGPO, arXiv:2505.13031: text and images);
    - `imitation`: of `loss.Imitation(tokens="imitation")` (GUI-Libra, arXiv:2602.22190: actions and thoughts).

    Args:
        column: the marking column.
        level: level of the rows: `token` or `step`.
        marked: factor of marked rows, at least 0.
        plain: factor of the others, at least 0.
        of: the column to multiply, see above.
        own_mean: for `kl_weight` and `imitation`: in each draw, the factor of marked (and of other) tokens is also
            multiplied by the number of trained tokens of the draw / the number of its marked (or other) tokens. Under a
            mean over the tokens of each draw (`sequence_mean`), each kind of token then has a mean of its own.

    Raises:
        RecipeError: an option is out of range, or `keep` has two equal factors.

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
    own_mean: bool = False

    def check_options(self) -> None:
        """Require exactly one factor 0 for `keep`, and `own_mean` only with `kl_weight` or `imitation`."""
        alone = not self.own_mean or self.of in ("kl_weight", "imitation")
        self.require(alone, "own_mean", "give False, or of='kl_weight' or of='imitation'")
        one_zero = self.of != "keep" or (self.marked == 0.0) != (self.plain == 0.0)
        self.require(one_zero, "marked", f"with of='keep', give 0 to one of marked and plain={self.plain}, not to both")

    def own_needs(self) -> Iterable[Column]:
        """Return the marking column: spans of tokens, or a fact of steps."""
        return (Column(self.level, self.column, "spans" if self.level == "token" else None),)

    def own_makes(self) -> tuple[Column, ...]:
        """Return the output column: the one that is multiplied, `of`."""
        return needed("token" if self.own_mean else self.level, self.of)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `of`, by default `weight`, scaled by the factors; `keep` is masked instead."""
        rows = Rows(batch, "token" if self.own_mean else self.level)
        marked = rows.flags(self.column)
        factors = np.where(marked, self.marked, self.plain)
        if self.own_mean:
            trained, draws = rows.flags("trainable"), rows.draws
            of_draw = sum_rows(trained.astype(np.float64), draws, batch.num_draws)[draws]
            of_kind = np.where(
                marked,
                sum_rows((trained & marked).astype(np.float64), draws, batch.num_draws)[draws],
                sum_rows((trained & ~marked).astype(np.float64), draws, batch.num_draws)[draws],
            )
            factors = factors * of_draw / np.maximum(of_kind, 1.0)
        return rows.keep(factors > 0.0) if self.of == "keep" else rows.scale(factors, self.of)


@dataclass(frozen=True)
class SignalRescale(BatchComponent):
    """Scale up weights by the inverse share of rows or groups with a signal, so that the others do not shrink the step.

    weight *= count / count with a signal, by `kind`. `groups`: groups, and groups whose values differ (RAPO,
    arXiv:2509.24107; CPGD, arXiv:2505.12504: `at_most=3.0`). `members`: draws, and draws of such groups (GPG,
    arXiv:2504.02546). `rows`: draws, and draws whose value is not 0 (verl's GPG; MC-GRPO, arXiv:2601.22582, within
    groups: the pivot counts among the draws and has advantage 0). Without any signal the factor is 1.

    Args:
        kind: counted units: `groups`, `members` or `rows`.
        column: draw column of the signal.
        group_by: key columns of the groups in which `rows` are counted; `batch`: all together.
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

    kind: Literal["groups", "members", "rows"] = "groups"
    column: str = column_name("score", level="draw")
    group_by: str = column_name("batch", level="draw")
    at_most: float | None = option(None, at_least=1.0)

    def check_options(self) -> None:
        """Require `group_by="batch"` unless rows are counted."""
        fits = self.kind == "rows" or self.group_by == "batch"
        self.require(fits, "group_by", 'choose kind="rows", or group_by="batch"')

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with its `weight` scaled."""
        rows = Rows(batch, "draw")
        values = rows.values(self.column)
        counted = rows.valid & np.isfinite(values)
        keys = rows.keys(self.group_by)
        if self.kind == "rows":
            shares = group.statistics((values != 0.0).astype(np.float64), keys, valid=counted).mean
        else:
            ends = group.statistics(values, rows.keys("group_id"), valid=counted)
            units = ends.count if self.kind == "members" else ends.count > 0
            shares = np.array([units[ends.most > ends.least].sum() / max(units.sum(), 1)])
        shares = np.nan_to_num(shares, nan=0.0)
        factors = np.divide(1.0, shares, out=np.ones_like(shares), where=shares > 0.0)
        return rows.scale(np.minimum(factors, np.inf if self.at_most is None else self.at_most)[keys])
