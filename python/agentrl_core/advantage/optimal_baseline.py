"""Returns minus the baseline that makes the gradient's variance least, at every token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentrl_core.component.component import BatchComponent, Column
from agentrl_core.component.rows import Rows, key_columns, needed
from agentrl_core.operators import returns

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class OptimalTokenBaseline(BatchComponent):
    """advantage = score - b_t of each trained token: `agentrl_core.returns.optimal_token_baseline` over the group.

        w = 1 - 2 p + sum p^2,  W_it = sum_{j <= t} w_ij,  b_t = sum_i R_i W_it / (sum_i W_it + eps)

    over the draws that have a trained token at place t, p the probability of the token and sum p^2 that of the squares
    of all tokens (`sum_probability_squared`, which only a model can make). Draws without a score neither vote nor get a
    value. Source: verl's `tir_optimal_token_baseline` (`align="policy"`) and `optimal_token_baseline` (`sequence`).

    Args:
        align: what stands at the same place: the k-th trained token (`policy`), or the k-th action token (`sequence`).
        weight: name of a token column, an importance weight: w is multiplied by its square. Empty: none.
        group_by: comma-joined key columns of the groups.
        eps: added to the sum of weights, at least 0.
        zero_tail: whether what the longest draw has beyond the second longest gets b = 0.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.advantage import OptimalTokenBaseline
        >>> OptimalTokenBaseline().makes
        (('token', 'advantage'),)
    """

    phase: ClassVar[str] = "advantage"

    align: Literal["policy", "sequence"] = "policy"
    weight: str = ""
    group_by: str = "group_id"
    eps: float = 1e-8
    zero_tail: bool = True

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(bool(self.group_by), "group_by", 'name key columns, or "batch"')
        self.require(self.eps >= 0.0, "eps", "give a number of at least 0")

    @property
    def needs(self) -> tuple[Column, ...]:
        """Scores, groups, and what the policy thought of each token."""
        names = ["behaviour_logprob", "sum_probability_squared", *([self.weight] if self.weight else [])]
        return (*needed("draw", "score", *key_columns(self.group_by)), *needed("token", *names))

    @property
    def makes(self) -> tuple[Column, ...]:
        """The advantage of each token."""
        return (("token", "advantage"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `advantage` on tokens."""
        tokens = Rows(batch, "token")
        valid = tokens.valid
        energy = 1.0 - 2.0 * np.exp(tokens.values("behaviour_logprob")) + tokens.values("sum_probability_squared")
        if self.weight:
            energy = energy * tokens.values(self.weight) ** 2
        made = returns.optimal_token_baseline(
            np.where(valid, tokens.values("score"), 0.0),
            np.where(valid, energy, 0.0),
            Rows(batch, "draw").keys(self.group_by),
            offsets=batch.offsets("token")[batch.offsets("step")],
            mask=valid,
            align=self.align,
            eps=self.eps,
            zero_tail=self.zero_tail,
        )
        return tokens.write(advantage=np.where(valid, made, 0.0))
