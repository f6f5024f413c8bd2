"""Advantages of steps or tokens that are their returns, of rewards compared with their group before or after."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core.advantage.normalisation import Normalisation, votes_of
from agentrl_core.component.component import BatchComponent, Column
from agentrl_core.component.rows import Rows, key_columns, needed
from agentrl_core.operators import group, returns

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class NormalisedReturns(BatchComponent):
    """advantage = A_k = r_k + gamma * A_{k+1}, of the rewards r of two streams, at each step or token of a draw.

    The first stream is the reward `column` of every row; the second, `outcome`, is paid at the last row of a draw that
    counts. Either is compared with its group `before` the sum (r = stream_weight * x + outcome_weight * y of the
    compared x and y), or the finished returns are `after` it. A row without a reward (NaN) has 0 and no vote. Tokens
    that are not trained are stepped over: what comes after them flows to what came before.
    Sources: IPA arXiv:2512.24873 (`normalise="none"`); EAPO arXiv:2511.07327 (`column="", outcome="score",
    gamma=0.995, normalise="after"`); IGPO arXiv:2510.14967 (`column="gain", outcome="score", zero_is_missing=True,
    normalisation=Normalisation(ddof=0, variance_eps=1e-8)`); MARS arXiv:2510.15414 (`group_by="env_tag,agent"`,
    `normalisation=Normalisation(scale="none")`, then whitening); PRIME arXiv:2502.01456 (`column="process_reward",
    outcome="score", level="token", unit="trajectory", count_correction=True, stream_weight=5.0, outcome_weight=5.0,
    normalisation=Normalisation(scale="none")`, then whitening); REINFORCE++ arXiv:2501.03262 (`column="",
    outcome="score", level="token", normalise="none"`, then whitening).

    Args:
        column: reward of each row, or empty: none.
        outcome: what the last row of a draw is paid besides, such as `score`, or empty: nothing.
        level: of the rows: `step` or `token`.
        normalise: the streams (`before`), the returns (`after`), or nothing (`none`) is compared with its group.
        streams: whether each stream has statistics of its own (`separate`), or both have the same (`joint`).
        zero_is_missing: a reward of exactly 0 in `column` has no vote and stays 0 (IGPO's public code).
        group_by: comma-joined key columns of the groups, or `batch`.
        unit: what votes once: every `row`, or every `trajectory` with the mean of its rows.
        count_correction: multiply what was compared by n / (n - 1), with n votes in the group (PRIME: at
            `unit="trajectory"`, its leave-one-out).
        normalisation: how values are compared.
        stream_weight: weight of `column`.
        outcome_weight: weight of `outcome`.
        weights_apply: whether the weights multiply the streams `after` or `before` they are compared; a spread of
            their own makes weights before it vanish.
        kl_in_reward: beta of `beta * (log pi - log pi_ref)`, taken off the reward of each token; `level="token"` only.
        gamma: discount from row to row, 0 to 1.
        shared: how draws that share a row count it: `each`, `split` or `owner` (`Recipe.shared`).

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.advantage import NormalisedReturns
        >>> NormalisedReturns(outcome="score").needs
        (('step', 'reward'), ('step', 'score'), ('step', 'group_id'))
    """

    phase: ClassVar[str] = "advantage"

    column: str = "reward"
    outcome: str = ""
    level: Literal["step", "token"] = "step"
    normalise: Literal["before", "after", "none"] = "before"
    streams: Literal["separate", "joint"] = "separate"
    zero_is_missing: bool = False
    group_by: str = "group_id"
    unit: Literal["row", "trajectory"] = "row"
    count_correction: bool = False
    normalisation: Normalisation = Normalisation()
    stream_weight: float = 1.0
    outcome_weight: float = 1.0
    weights_apply: Literal["after", "before"] = "after"
    kl_in_reward: float = 0.0
    gamma: float = 1.0
    shared: Literal["each", "split", "owner"] = "each"

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(bool(self.column or self.outcome), "column", "name a reward here or in outcome")
        self.require(bool(self.group_by), "group_by", 'name key columns, or "batch"')
        self.require(0.0 <= self.gamma <= 1.0, "gamma", "give a number from 0 to 1")
        self.require(
            self.kl_in_reward == 0.0 or self.level == "token", "kl_in_reward", 'choose level="token", or give 0'
        )
        self.require(self.shared == "each" or not self.count_correction, "shared", "give each for count_correction")

    @property
    def needs(self) -> tuple[Column, ...]:
        """The rewards and the keys of their groups."""
        names = [name for name in (self.column, self.outcome) if name]
        if self.normalise != "none":
            names += key_columns(self.group_by)
        if self.kl_in_reward != 0.0:
            names += ["behaviour_logprob", "reference_logprob"]
        return needed(self.level, *names)

    @property
    def makes(self) -> tuple[Column, ...]:
        """The advantage of each row."""
        return ((self.level, "advantage"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `advantage` on the rows of `level`."""
        rows = Rows(batch, self.level)
        streams = [
            (rows.values(self.column) if self.column else np.full(len(rows), np.nan), self.stream_weight),
            (
                np.where(rows.last, rows.values(self.outcome), np.nan) if self.outcome else np.full(len(rows), np.nan),
                self.outcome_weight,
            ),
        ]
        if self.kl_in_reward != 0.0:
            divergence = rows.values("behaviour_logprob") - rows.values("reference_logprob")
            values, weight = streams[0]
            streams[0] = np.nan_to_num(values, nan=0.0) - self.kl_in_reward * divergence, weight
        if self.zero_is_missing:
            values, weight = streams[0]
            streams[0] = np.where(values == 0.0, np.nan, values), weight
        early = self.weights_apply == "before"
        made = [values * weight if early else values for values, weight in streams]
        if self.normalise == "before":
            made = self._streams_compared(rows, made)
        total = sum(
            np.nan_to_num(values, nan=0.0) * (1.0 if early else weight)
            for values, (_, weight) in zip(made, streams, strict=True)
        )
        paid = np.where(rows.valid, total, 0.0)
        returned = returns.discounted(paid, rows.draws, gamma=self.gamma, mask=rows.valid)
        if self.normalise == "after":
            votes = votes_of(rows, self.unit, self.shared)
            returned = self._compared(returned, rows.keys(self.group_by), rows.valid, votes)
        return rows.write(advantage=np.where(rows.valid, returned, 0.0))

    def _streams_compared(self, rows: Rows, streams: list[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
        groups, votes = rows.keys(self.group_by), votes_of(rows, self.unit, self.shared)
        if self.streams == "separate":
            return [self._compared(values, groups, rows.valid, votes) for values in streams]
        twice = {name: None if column is None else np.tile(column, 2) for name, column in votes.items()}
        joint = self._compared(np.concatenate(streams), np.tile(groups, 2), np.tile(rows.valid, 2), twice)
        return [joint[: len(rows)], joint[len(rows) :]]

    def _compared(
        self,
        values: NDArray[np.float64],
        groups: NDArray[np.uint32],
        valid: NDArray[np.bool_],
        votes: dict[str, NDArray[Any] | None],
    ) -> NDArray[np.float64]:
        compared = self.normalisation.compare(values, groups, valid=valid, **votes)
        if not self.count_correction:
            return compared
        found = group.statistics(
            values, groups, valid=valid & np.isfinite(values), unit_ids=votes["unit_ids"], weights=votes["weights"]
        )
        corrected: NDArray[np.float64] = compared * (found.count / np.maximum(found.count - 1.0, 1.0))[groups]
        return corrected
