"""GRPO-Guard: centre and scale log-ratios within strata, so that both bounds of the clip range act (arXiv:2510.22319).

The mean of a log-ratio is negative by itself, so all ratios are shifted below the upper bound. The paper corrects this
by the mean and the noise of a denoising step of an image. Tokens have neither, so this recipe is an adaptation. It uses
statistics of the batch within strata, which the token column `stratum` numbers (a turn, a position, an entropy band).
They have the same purpose: mean 0 and one scale.

Equations:
    Read: notes of others and a port that is not the authors'; the paper's text was not read.

    - N1, log-ratio of a denoising step: left out: tokens have no Gaussian steps.
    - 8, RatioNorm: left out: as N1; `StratifiedRatio` replaces it.
    - 12, gradient reweighting: an option, `ColumnScaled(column="delta", level="step")`, with a fact of each step.
    - N2, objective: `Policy`, `aggregate="sequence_mean"`.
    - N3, advantage: `GroupRelative`, std of n - 1 and 1e-6 added to it.
    - N4, mean-revised: left out: as N1.

Differs:
    - Clip range: not stated; 0.2 here.
    - Steps per batch: not stated; 1 here, so every ratio is 1 unless engine and trainer differ. Set `minibatches` for
      more steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, option, step, token
from agentrl_core.loss import ImportanceRatio, Policy, Tokens, Unit, torch

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl_core import Batch


@dataclass(frozen=True)
class TurnStrata(BatchComponent):
    """Put the tokens of all first turns into one stratum, of all second turns into another, and so on.

    Example:
        >>> from agentrl_core.recipes.grpo_guard import TurnStrata
        >>> TurnStrata().makes
        (token('stratum'),)
    """

    phase: ClassVar[str] = "weight"
    needs: ClassVar[tuple[Column, ...]] = (step("step"),)
    makes: ClassVar[tuple[Column, ...]] = (token("stratum"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `stratum`."""
        rows = Rows(batch, "token")
        return rows.write(stratum=rows.values("step"))


@dataclass(frozen=True)
class StratifiedRatio(ImportanceRatio):
    """Centre and scale log-ratios within strata, so that both bounds of a clip range act.

        log r_t = (d_t - mean_s(d)) * std(d) / (std_s(d) + 1e-6),   s the stratum of t

    The statistics are detached population values over the given rows. A stratum of fewer than `rows_at_least` rows uses
    the statistics of all rows.

    Args:
        rows_at_least: number of rows from which a stratum has its own statistics, at least 2.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import Tokens
        >>> from agentrl_core.recipes.grpo_guard import StratifiedRatio
        >>> old = torch.full((2,), -2.0)
        >>> streams = {"weight_kl": torch.ones(2), "old_logprob": old, "stratum": torch.tensor([0, 0])}
        >>> tokens = Tokens(torch.tensor([-1.8, -1.6]), None, streams)
        >>> StratifiedRatio()(tokens)[0].tolist()  # too few for a stratum: centred on the mean of all, 0.3
        [-0.1, 0.1]
    """

    reads: ClassVar[tuple[str | Column, ...]] = ("old_logprob", token("stratum"))
    over: ClassVar[Unit] = "update"

    rows_at_least: int = option(32, at_least=2)

    def __call__(self, tokens: Tokens) -> tuple[Tensor, Tensor | None]:
        """Return the log-ratio of each token, centred and scaled within its stratum."""
        moments = []
        for segments in (tokens.segments("all"), tokens.strata):
            fixed = tokens.log_ratio.detach()
            mean = segments.spread(segments.mean(fixed))
            spread = segments.spread(segments.mean((fixed - mean) ** 2)).sqrt()
            moments.append((mean, spread))
        large = tokens.strata.spread(tokens.strata.count) >= self.rows_at_least
        (pool_mean, pool), (mean, spread) = moments
        standardised = (tokens.log_ratio - mean) * (pool / (spread + 1e-6))
        centred = torch.where(large, standardised, tokens.log_ratio - pool_mean)
        return tokens.limited(centred), None


GRPO_GUARD = Recipe(
    name="grpo_guard",
    source="arXiv:2510.22319",
    advantage=GroupRelative(),
    weight=TurnStrata(),
    loss=Policy(ratio=StratifiedRatio(), aggregate="sequence_mean"),
)
