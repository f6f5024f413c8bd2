"""What is added to advantages: for entropy, for rare successes, for steps that lead to confident ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentrl_core.component.component import BatchComponent, Column
from agentrl_core.component.rows import Rows, level_of, mean_of_tokens, needed
from agentrl_core.operators import group

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch

_EPS = 1e-8


@dataclass(frozen=True)
class StepConfidence(BatchComponent):
    """advantage = A g(H_t) + bonus f(H_{t+1}), less its mean over the steps of the batch.

    With h the entropies of the steps (means over their trained tokens) scaled to [0, 1] over the batch: g is
    exp(-gate h) divided by its mean over steps, and f is exp(-future h) of the next step, 0 at the last. Source: EMPG,
    arXiv:2509.09265, which does not give `bonus`; 0.05 is a proposal. Its public port scales by the batch's gates
    together, which is not reproduced.

    Args:
        column: token column of entropies in nats.
        gate: k, at least 0; 0 leaves the advantages as they are.
        future: k' of the next step, at least 0.
        bonus: zeta.
        recenter: whether the mean over the batch's steps is subtracted.
        bonus_without_signal: whether steps whose advantage is 0 get the bonus too.

    Raises:
        RecipeError: an option is out of range, or no entropy is known.

    Example:
        >>> from agentrl_core.advantage import StepConfidence
        >>> StepConfidence().makes
        (('step', 'advantage'),)
    """

    phase: ClassVar[str] = "advantage"

    column: str = "entropy"
    gate: float = 1.0
    future: float = 1.0
    bonus: float = 0.05
    recenter: bool = True
    bonus_without_signal: bool = True

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(self.gate >= 0.0, "gate", "give a number of at least 0")
        self.require(self.future >= 0.0, "future", "give a number of at least 0")

    @property
    def needs(self) -> tuple[Column, ...]:
        """Entropies, and the advantage they scale."""
        return (("token", self.column), ("step", "advantage"))

    @property
    def makes(self) -> tuple[Column, ...]:
        """The advantage of each step."""
        return (("step", "advantage"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with another column `advantage` on steps."""
        rows = Rows(batch, "step")
        entropy, known = mean_of_tokens(batch, self.column, "step")
        everywhere = rows.keys("batch")
        scaled = group.min_max(entropy, everywhere, eps=_EPS, valid=known)
        gate = group.mean_one(np.exp(-self.gate * scaled), everywhere, valid=known)
        advantage = rows.values("advantage")
        follows = np.append((rows.draws[1:] == rows.draws[:-1]) & known[1:], False)[: len(rows)]
        if not self.bonus_without_signal:
            follows &= advantage != 0.0
        clear = self.bonus * np.where(follows, np.exp(-self.future * np.append(scaled[1:], 0.0)[: len(rows)]), 0.0)
        made = np.where(known, advantage * gate, advantage) + clear
        if self.recenter:
            made = np.asarray(group.normalise(made, everywhere, scale="none", valid=rows.valid, min_count=1))
        return rows.write(advantage=np.where(rows.valid, made, 0.0))


@dataclass(frozen=True)
class EntropyBonus(BatchComponent):
    """advantage + min(strength H, |advantage| / cap), or less with a negative strength; H is entropy in nats.

    The bonus never turns the sign of an advantage where `cap` is above 1. Sources: MSSR arXiv:2512.18215 (the
    defaults); GTPO arXiv:2508.03772 (`level="draw", strength=-0.1, cap=None, drop_above=0.6931`: ln 2, where the first
    policy was below it; its public code: 0.7 always).

    Args:
        column: token column of entropies; of a draw it is the mean over its trained tokens.
        level: `token` or `draw`.
        strength: of the bonus.
        cap: the bonus is at most |advantage| / cap, above 0; None: no limit.
        drop_above: draws whose mean entropy is above this are not kept; None: all are.

    Raises:
        RecipeError: an option is out of range, or no entropy is known.

    Example:
        >>> from agentrl_core.advantage import EntropyBonus
        >>> EntropyBonus(level="draw", strength=-0.1, cap=None, drop_above=0.7).makes
        (('draw', 'advantage'), ('draw', 'keep'))
    """

    phase: ClassVar[str] = "advantage"

    column: str = "entropy"
    level: Literal["token", "draw"] = "token"
    strength: float = 0.4
    cap: float | None = 2.0
    drop_above: float | None = None

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(self.cap is None or self.cap > 0.0, "cap", "give a number above 0, or None")

    @property
    def needs(self) -> tuple[Column, ...]:
        """Entropies, and the advantage they are added to."""
        return (("token", self.column), (self.level, "advantage"))

    @property
    def makes(self) -> tuple[Column, ...]:
        """The advantage, and which draws are kept."""
        return (*needed(self.level, "advantage"), *(needed("draw", "keep") if self.drop_above is not None else ()))

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with another `advantage`, and with `drop_above` another `keep`."""
        made_at = max(self.level, level_of(batch, "advantage", self.level), key=("draw", "step", "token").index)
        rows = Rows(batch, made_at)
        if self.level == "token":
            known = rows.known(self.column)
            entropy = np.where(known, rows.values(self.column), 0.0)
            unclear = np.zeros(batch.num_draws, dtype=np.bool_)
        if self.level == "draw" or self.drop_above is not None:
            means, some = mean_of_tokens(batch, self.column, "draw")
            unclear = some & (means > (np.inf if self.drop_above is None else self.drop_above))
            if self.level == "draw":
                entropy = means[rows.draws]
        advantage = rows.values("advantage")
        bonus = self.strength * entropy
        if self.cap is not None:
            limit = np.abs(advantage) / self.cap
            bonus = np.clip(bonus, -limit, limit)
        made = np.where(rows.valid, advantage + bonus, 0.0)
        batch = rows.write(advantage=made)
        return batch if self.drop_above is None else Rows(batch, "draw").keep(~unclear)


@dataclass(frozen=True)
class Novelty(BatchComponent):
    """advantage + min(max(rate (1 - e^(s - mean of s)), 0), cap * advantage) of positive advantages.

    s is the mean log-prob of a draw's trained tokens, compared with its group: what the policy would hardly do, and was
    right, gets more. Source: XRPO.

    Args:
        rate: at least 0.
        cap: largest part of the advantage that is added, at least 0.
        logprob: token column.

    Raises:
        RecipeError: an option is out of range, or the column has no known value.

    Example:
        >>> from agentrl_core.advantage import Novelty
        >>> Novelty().makes
        (('draw', 'advantage'),)
    """

    phase: ClassVar[str] = "advantage"

    rate: float = 2.5
    cap: float = 0.5
    logprob: str = "behaviour_logprob"

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(self.rate >= 0.0, "rate", "give a number of at least 0")
        self.require(self.cap >= 0.0, "cap", "give a number of at least 0")

    @property
    def needs(self) -> tuple[Column, ...]:
        """Advantages, groups and log-probs."""
        return (*needed("draw", "advantage", "group_id"), ("token", self.logprob))

    @property
    def makes(self) -> tuple[Column, ...]:
        """The advantage of each draw."""
        return (("draw", "advantage"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with another `advantage` on draws."""
        rows = Rows(batch, "draw")
        advantage = rows.values("advantage")
        means, some = mean_of_tokens(batch, self.logprob, "draw")
        above = group.normalise(means, rows.keys("group_id"), scale="none", valid=some)
        rarity = np.maximum(-self.rate * np.expm1(above), 0.0)
        bonus = np.where(some & (advantage > 0.0), np.minimum(rarity, self.cap * advantage), 0.0)
        return rows.write(advantage=advantage + bonus)
