"""GRPO-Guard: log-ratios centred and scaled within strata, so that a clip is felt on both sides (arXiv:2510.22319).

The mean of a log-ratio is negative by itself, which shifts every ratio below the upper bound. The paper corrects it by
the mean and the noise of a denoising step of an image. Tokens have neither, so that this is an adaptation: statistics
of the batch, within strata that the token column `stratum` numbers (a turn, a position, an entropy band), have the same
purpose, mean 0 and one scale.

Equations:
    Read: notes of others and a port that is not the authors'; the paper's text was not read.

    - N1, log-ratio of a denoising step: left out: tokens have no Gaussian steps.
    - 8, RatioNorm: left out: as N1; `StratifiedRatio` stands in its place.
    - 12, gradient reweighting: an option, `ColumnScaled(column="delta", level="step")` of a fact of each step.
    - N2, objective: `Policy`, `aggregate="sequence_mean"`.
    - N3, advantage: `GroupRelative`, std of n - 1 and 1e-6 added to it.
    - N4, mean-revised: left out: as N1.

Differs:
    - Clip range: not stated; 0.2 here.
    - Steps per batch: not stated; 1 here, where every ratio is 1 unless engine and trainer differ. Set `minibatches`.
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
    """Makes a stratum of the tokens of the first turns, one of those of the second turns, and so on.

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
    """Centres and scales log-ratios within strata, so that both bounds of a clip are felt.

        log r_t = (d_t - mean_s(d)) * std(d) / (std_s(d) + 1e-6),   s the stratum of t

    The statistics are detached population values over the rows given; a stratum of fewer than `rows_at_least` rows
    takes those of all rows.

    Args:
        rows_at_least: rows that a stratum needs for statistics of its own, at least 2.

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
        """The log-ratio of each token, centred and scaled within its stratum."""
        moments = []
        for segments in (tokens.segments("all"), tokens.strata):
            fixed = tokens.log_ratio.detach()
            mean = segments.spread(segments.mean(fixed))
            spread = segments.spread(segments.mean((fixed - mean) ** 2)).sqrt()
            moments.append((mean, spread))
        large = tokens.strata.spread(tokens.strata.count) >= self.rows_at_least
        (pool_mean, pool), (mean, spread) = moments
        own = (tokens.log_ratio - mean) * (pool / (spread + 1e-6))
        centred = torch.where(large, own, tokens.log_ratio - pool_mean)
        return tokens.limited(centred), None


GRPO_GUARD = Recipe(
    name="grpo_guard",
    source="arXiv:2510.22319",
    advantage=GroupRelative(),
    weight=TurnStrata(),
    loss=Policy(ratio=StratifiedRatio(), aggregate="sequence_mean"),
)
