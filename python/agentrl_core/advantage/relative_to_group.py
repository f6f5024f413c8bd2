"""Group-relative advantages: GRPO, RLOO, whitening and their variants."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core.component import BatchComponent, Column, Component, Rows, column_name, option
from agentrl_core.component.column import Level
from agentrl_core.component.rows import Voter
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.operators import columns, group

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class Normalisation(Component):
    """Rule that normalises a value within its group: subtract a centre, and divide by a spread.

        clip((x - centre) / (max(sqrt(spread^2 + variance_eps), scale_at_least) + eps))

    The options of `agentrl_core.group.normalise`. Equal values give exactly 0, whatever `eps` is.

    Args:
        center: centre to subtract: `mean`, `median`, `leave_one_out` (the mean of the others) or `none`.
        scale: spread to divide by: `std`, `mad` (median distance from the median), `range` (largest
            minus smallest), `beta` (BNPO, arXiv:2506.02864: the density of a Beta distribution fitted to the means of
            all groups) or `none`.
        median: of an even number of values: `midpoint` (NumPy) or `lower` (PyTorch).
        ddof: the variance divides by (count - ddof); 0 or 1.
        eps: added to the spread, at least 0.
        variance_eps: added under the root, at least 0 (verl's whitening: 1e-8, with `eps=0`).
        scale_at_least: the spread is at least this (torchrl: 1e-6, with `eps=0`).
        scale_above: a group whose spread is at most this gives 0 (ROLL: 1e-6).
        votes_at_least: a group with fewer votes follows `singleton`; None: the fewest that centre and spread need.
        singleton: results of such a group: 0 (`zero`), or its values, with mean 0 and spread 1 (`raw`, verl).
        at_most: results are clipped to this size; None: no clipping.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.advantage import Normalisation
        >>> Normalisation(center="median", scale="mad", scale_at_least=1.0).center
        'median'
    """

    center: Literal["mean", "median", "leave_one_out", "none"] = "mean"
    scale: Literal["std", "mad", "range", "beta", "none"] = "std"
    median: Literal["midpoint", "lower"] = "midpoint"
    ddof: Literal[0, 1] = 1
    eps: float = option(1e-6, at_least=0)
    variance_eps: float = option(0.0, at_least=0)
    scale_at_least: float = option(0.0, at_least=0)
    scale_above: float = option(0.0, at_least=0)
    votes_at_least: int | None = option(None, at_least=1)
    singleton: Literal["zero", "raw"] = "zero"
    at_most: float | None = option(None, above=0)

    def compare(
        self,
        values: NDArray[np.float64],
        groups: NDArray[np.uint32],
        *,
        valid: NDArray[np.bool_],
        **votes: Any,
    ) -> NDArray[np.float64]:
        """Normalise each value within its group; `votes` are more columns of `agentrl_core.group.normalise`.

        A value that is not finite is not valid.
        """
        options = {option.name: getattr(self, option.name) for option in fields(Normalisation)}
        valid = valid & np.isfinite(values)
        return group.normalise(values, groups, valid=valid, **options, **votes)


@dataclass(frozen=True)
class GroupRelative(Normalisation, BatchComponent):
    """Advantage of a draw, step or token relative to its group, as in GRPO and its variants.

        advantage = coefficient * (x - centre) / spread + shift

    Rows of draws without a score, untrained tokens and rows without a finite value neither vote nor get a value (0).
    The options of `Normalisation` set the formula, those below the groups and votes. Sources: GRPO arXiv:2402.03300
    (the defaults); Dr. GRPO arXiv:2503.20783 (`scale="none"`); RLOO arXiv:2402.14740 (`center="leave_one_out",
    scale="none"`); MC-GRPO arXiv:2601.22582 (`center="median", median="lower", scale="mad", eps=1e-3`); Lite PPO
    arXiv:2508.08221 (`scale_by="batch"`); Dr. MAS arXiv:2602.08847 (`level="step", group_by="group_id,agent"`); GDPO
    arXiv:2601.05242 (one link with `add=True` for each reward component); AsymRE, as in arXiv:2509.24203
    (`scale="none", shift=0.1`: the baseline lies 0.1 below the mean); whitening over tokens (`column="advantage",
    group_by="batch", voter="token", eps=0.0, variance_eps=1e-8`).

    Args:
        column: values to compare: `score`, `reward.<name>`, an earlier `advantage`, or another column.
        level: level of the rows: `draw`, `step` or `token`.
        rows: compared rows of a draw: `all`, or the `last` valid one, as for an
            outcome reward; the others get 0.
        group_by: comma-joined key columns that define groups, such as `group_id,agent`; or `batch`: one group of all
            rows.
        scale_by: the same for the spread alone; empty: that of `group_by`.
        voter: unit that votes once: `row`, `step`, `trajectory`, `episode` (an agent and its sub-agents together),
            `group` (the mean of its rows), or each trained `token` (a row counts once per trained token). `step` on
            draws: a draw counts once per step.
        output: `row`: each row's own value is compared; `voter`: all rows of a voter get the result for its mean.
        coefficient: multiplies the result.
        shift: added to the result; above 0, average rows are still reinforced.
        add: whether to add to the existing advantage, at the finer of the two levels.
        shared: how draws that share the same row count it: `each`, `split` or `owner` (`Recipe.shared`).
        fallback_above: if a result of a group reaches this size, the whole group uses `voter="row", ddof=1` instead
            (HAPO, arXiv:2509.16591: 5); None: never.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.advantage import GroupRelative
        >>> GroupRelative(scale="none", group_by="group_id,agent").needs
        (draw('score'), draw('group_id'), draw('agent'))
    """

    phase: ClassVar[str] = "advantage"

    column: str = column_name("score", level="level")
    level: Level = "draw"
    rows: Literal["all", "last"] = "all"
    group_by: str = column_name("group_id", level="level")
    scale_by: str = column_name("", level="level", optional=True)
    voter: Voter = "row"
    output: Literal["row", "voter"] = "row"
    coefficient: float = 1.0
    shift: float = 0.0
    add: bool = False
    shared: Literal["each", "split", "owner"] = "each"
    fallback_above: float | None = option(None, above=0)

    def check_options(self) -> None:
        """Require a spread for `scale_by`, and a voter for `output="voter"`."""
        self.require(
            not self.scale_by or self.scale in ("std", "mad", "range"), "scale_by", "choose scale std, mad or range"
        )
        self.require(
            self.output == "row" or self.voter in ("step", "trajectory", "episode", "group"),
            "output",
            'choose voter "step", "trajectory", "episode" or "group", whose rows share a value',
        )

    def own_makes(self) -> Iterable[Column]:
        """Return the column that is made: the advantage of each row."""
        return (Column(self.level, "advantage"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `advantage` on the rows of `level`."""
        rows = Rows(batch, self.level)
        values, groups = rows.values(self.column), rows.keys(self.group_by)
        if self.rows == "last":
            values = np.where(rows.last, values, np.nan)
        voters = rows.voters(self.voter)
        if self.output == "voter" and voters is not None:
            counted = rows.valid & np.isfinite(values)
            values = group.statistics(values, voters, valid=counted).mean[voters]
        advantages = self._compared(rows, values, groups, self.voter)
        if self.fallback_above is not None:
            largest = group.statistics(np.abs(advantages), groups, valid=rows.valid).most
            far = (largest >= self.fallback_above)[groups]
            plain = self._compared(rows, values, groups, "row", replace(self, ddof=1))
            advantages = np.where(far, plain, advantages)
        advantages = self.coefficient * advantages
        if self.shift:
            advantages = np.where(rows.valid & np.isfinite(values), advantages + self.shift, advantages)
        return rows.add("advantage", advantages) if self.add else rows.write(advantage=advantages)

    def _compared(
        self,
        rows: Rows,
        values: NDArray[np.float64],
        groups: NDArray[np.uint32],
        voter: Voter,
        rule: Normalisation | None = None,
    ) -> NDArray[np.float64]:
        return (rule or self).compare(
            values,
            groups,
            valid=rows.valid,
            scale_ids=rows.keys(self.scale_by) if self.scale_by else None,
            voter_ids=rows.voters(voter),
            weights=rows.votes(voter, self.shared),
        )


def group_relative(
    rewards: object,
    group_ids: object,
    *,
    scale: Literal["std", "none"] = "std",
    ddof: int = 1,
    eps: float = 1e-6,
    singleton: Literal["zero", "raw"] = "zero",
    valid: object | None = None,
) -> NDArray[Any]:
    """Standardise each reward within its group, as in GRPO.

    A_i = (R_i - mean(R of the group)) / (std(R of the group) + eps), or the numerator alone with `scale="none"`
    (Dr. GRPO). From GRPO, arXiv:2402.03300. A group whose valid rewards are all equal gives exactly 0.

    Args:
        rewards: n numbers: NumPy, Arrow, Polars, torch on the CPU, or a list.
        group_ids: n group ids: whole numbers or strings, in any order.
        scale: `std` or `none`.
        ddof: the variance divides by (count - ddof); 0 or 1.
        eps: added to the standard deviation.
        singleton: a group of one valid row gets 0 (`zero`), or is treated as mean 0 and std 1 (`raw`, verl's rule).
        valid: n booleans; rows that are False neither vote nor get a value (0). None: all rows are valid.

    Returns:
        `float32[n]` for float32 rewards, else `float64[n]`.

    Raises:
        InvalidInputError: lengths differ, a valid reward is not finite, or an option is not possible.

    Example:
        >>> from agentrl_core import advantage
        >>> advantage.group_relative([1.0, 0.0, 5.0, 5.0], ["a", "a", "b", "b"], eps=0.0).round(4).tolist()
        [0.7071, -0.7071, 0.0, 0.0]
    """
    if scale not in ("std", "none"):
        raise InvalidInputError(f'scale is {scale!r}; use "std" or "none" (group.normalise takes others too)')
    return _named(rewards, group_ids, valid, scale=scale, ddof=ddof, eps=eps, singleton=singleton)


def leave_one_out(
    rewards: object,
    group_ids: object,
    *,
    singleton: Literal["zero", "raw"] = "zero",
    valid: object | None = None,
) -> NDArray[Any]:
    """Subtract from each reward the mean of the others in its group, as in RLOO.

    A_i = R_i - mean(R_j of the group, j != i) = n / (n - 1) * (R_i - mean(R of the group)).
    From RLOO, arXiv:2402.14740.

    Args:
        rewards: n numbers: NumPy, Arrow, Polars, torch on the CPU, or a list.
        group_ids: n group ids: whole numbers or strings, in any order.
        singleton: a group of one valid row gets 0 (`zero`), or its own reward (`raw`, verl's rule).
        valid: n booleans; rows that are False neither vote nor get a value (0). None: all rows are valid.

    Returns:
        `float32[n]` for float32 rewards, else `float64[n]`.

    Raises:
        InvalidInputError: lengths differ, or a valid reward is not finite.

    Example:
        >>> from agentrl_core.advantage.relative_to_group import leave_one_out
        >>> leave_one_out([3.0, 0.0, 0.0], [7, 7, 7]).tolist()
        [3.0, -1.5, -1.5]
    """
    return _named(rewards, group_ids, valid, center="leave_one_out", scale="none", singleton=singleton)


def _named(rewards: object, group_ids: object, valid: object | None, **options: Any) -> NDArray[Any]:
    """Call `group.normalise` with the argument names of `group_relative` and `leave_one_out`."""
    scores = columns.numbers(rewards, "rewards")
    groups = columns.ids(group_ids, "group_ids", length=len(scores), first="rewards")
    counted = columns.mask(valid, "valid", length=len(scores), first="rewards")
    try:
        return group.normalise(scores, groups, valid=counted, **options)
    except InvalidInputError:
        # Only after an error it is worth finding the bad reward.
        unknown = np.flatnonzero(~np.isfinite(scores) if counted is None else counted & ~np.isfinite(scores))
        if not len(unknown):
            raise
        raise InvalidInputError(
            f"rewards[{unknown[0]}] is {scores[unknown[0]]}, but must be finite; correct it, or leave the row out: "
            "valid=np.isfinite(rewards)"
        ) from None
