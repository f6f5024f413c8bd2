"""HAPO: make temperature, clip range and advantage of a token depend on its entropy (arXiv:2509.16591).

Uncertain tokens explore; confident tokens execute. With h in [-1, 1] the normalised entropy of a token, the
temperature is T0 (1 + 0.05 h). The ratio of an uncertain token may move further up, the ratio of a confident one
further down. Uncertain tokens get a larger advantage once their ratio has moved. The engine sets the temperature
(`engine.EntropyTemperature`) by the entropies of the last iteration; the first iteration is sampled at T0.

Equations:
    Read: the code with its recipe, and notes of others.

    - C1, entropy score: left out: the code divides negative scores by the smallest score itself. This makes them
      positive, so the code's branches for low entropy never act; N1 is the score that they need.
    - N1, signed entropy score: `normalised_entropy`, over the tokens of an update.
    - C2, temperature: `SampledByEntropy(change=0.05)`, with the signed score.
    - C3, token-level group average: `GroupRelative(voter="token", ddof=0, fallback_above=5.0)`.
    - C4, adaptive clipping: `EntropyScaledClip`.
    - C5, differential advantage: `EntropyAdvantage`.
    - C6, loss: `Policy`, one mean over all tokens, dual clip 10.
    - C7, settings of DAPO: `DynamicSampling` by the outcome, and `LengthPenalty` on the last 4096 of 10240 tokens; the
      code's page advises to drop the penalty if answers quickly become short.

Differs:
    - Neutral range of the advantage: from the adapted clip ranges in the code; from 0.2 and 0.2 here.
    - Clip range above and size of the change of the temperature: 0.28 and 0.1 in notes on the paper; 0.2 and 0.05 in
      the code and here.
    - A group with an advantage of 5 or more: falls back to GRPO's advantages in the code and here; the notes' equation
      has no fallback.

The policy is trained at T0, and ratios are relative to log-probs recomputed at T0, as in the public code. Needs: the
column `recomputed_logprob`, which the trainer computes before the first update; an engine that supports
`engine.EntropyTemperature` and reports entropies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import IterationRecord, Rows, State, option
from agentrl_core.engine import EntropyTemperature
from agentrl_core.loss import Clip, ClipBounds, ClipRange, Mask, OverRows, Policy, Tokens, torch
from agentrl_core.reward import LengthPenalty, OutcomeScore
from agentrl_core.rollout import Group, TextMemory
from agentrl_core.select import DynamicSampling

if TYPE_CHECKING:
    from torch import Tensor


_LEAST = 1e-8
"""The smallest entropy whose logarithm is taken; smaller entropies are raised to it."""


@dataclass(frozen=True)
class EntropyScaledClip(OverRows, ClipRange):
    """Let the ratio of uncertain tokens move further up, and of confident tokens further down.

    With h of `normalised_entropy`, the range is [1 - low (1 + max(-h, 0)), 1 + high (1 + max(h, 0))].

    Args:
        clip: the widths low and high, and the dual bound.
        quantile: see `normalised_entropy`.
        scope: see `normalised_entropy`.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import Tokens
        >>> from agentrl_core.recipes.hapo import EntropyScaledClip
        >>> entropy = torch.tensor([0.0, 1.0, 2.0, 3.0]).exp()  # scores -1, -1/2, 0 and 1
        >>> tokens = Tokens(torch.zeros(4), entropy, {"weight_kl": torch.ones(4)})
        >>> bounds = EntropyScaledClip(quantile=0.6)(tokens, torch.zeros(4))
        >>> bounds.lower.tolist(), bounds.upper.tolist()
        ([0.6, 0.7, 0.8, 0.8], [1.2, 1.2, 1.2, 1.4])
    """

    clip: Clip = Clip(0.2, 0.2)  # noqa: RUF009 - frozen
    quantile: float = option(0.8, above=0, below=1)
    scope: Literal["sequence", "all"] = "all"

    def check_options(self) -> None:
        """Require a clip range that is centred at one."""
        self.require(self.clip.center == "one", "clip", "give a clip with center='one'")

    def __call__(self, tokens: Tokens, log_ratio: Tensor) -> ClipBounds:  # noqa: ARG002 - other ranges read it
        """Return ranges that reach further up for uncertain tokens and further down for confident ones."""
        height = normalised_entropy(tokens, self.quantile, self.scope)
        wider_low, wider_high = 1.0 + (-height).clamp(min=0.0), 1.0 + height.clamp(min=0.0)
        lower = (1.0 - self.clip.low * wider_low).clamp(min=0.0)
        return ClipBounds(lower, 1.0 + self.clip.high * wider_high, self.clip.dual)


@dataclass(frozen=True)
class EntropyAdvantage(OverRows, Mask):
    """Scale up advantages of uncertain tokens whose ratio moved; scale down those of confident ones that stayed.

    With h of `normalised_entropy`, the factor is 1 + coefficient h in two cases: if h > 0 and r is outside
    (1 - low / 2, 1 + high / 2), or if h <= 0 and r is inside. Otherwise it is 1.

    Args:
        coefficient: strength of the scaling, above 0, at most 1.
        low: twice the distance from 1 to the lower end of the range, above 0.
        high: twice the distance from 1 to the upper end of the range, above 0.
        quantile: see `normalised_entropy`.
        scope: see `normalised_entropy`.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import ClipBounds, Tokens
        >>> from agentrl_core.recipes.hapo import EntropyAdvantage
        >>> entropy = torch.tensor([0.0, 1.0, 2.0]).exp()  # scores -1, -1/2 and 0
        >>> tokens = Tokens(torch.zeros(3), entropy, {"weight_kl": torch.ones(3)})
        >>> EntropyAdvantage()(tokens, torch.zeros(3), ClipBounds())[0].tolist()
        [0.0, 0.5, 1.0]
    """

    coefficient: float = option(1.0, above=0, at_most=1)
    low: float = option(0.2, above=0)
    high: float = option(0.2, above=0)
    quantile: float = option(0.8, above=0, below=1)
    scope: Literal["sequence", "all"] = "all"

    def __call__(self, tokens: Tokens, log_ratio: Tensor, bounds: ClipBounds) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Return a factor for each token, from its entropy and from whether its ratio is in the range."""
        ratio = log_ratio.detach().exp()
        height = normalised_entropy(tokens, self.quantile, self.scope)
        outside = (ratio <= 1.0 - self.low / 2.0) | (ratio >= 1.0 + self.high / 2.0)
        factor = torch.where((height > 0) == outside, 1.0 + self.coefficient * height, 1.0)
        return factor, factor


def normalised_entropy(tokens: Tokens, quantile: float, scope: Literal["sequence", "all"]) -> Tensor:
    """Return HAPO's entropy score of each token, in [-1, 1], without gradient.

    e = log max(H, 1e-8); h = e - quantile(e), divided by its root mean square. Then positive values are divided by the
    largest one, and negative values by the absolute value of the smallest one.

    Args:
        tokens: the rows.
        quantile: the value nearest to this quantile of e has score 0.
        scope: compute the statistics over each `sequence` or over `all` rows.
    """
    segments = tokens.segments(scope)
    log_entropy = tokens.entropy.detach().clamp(min=_LEAST).log()
    height = log_entropy - segments.spread(segments.quantile(log_entropy, quantile, nearest=True))
    largest, smallest = (segments.spread(segments.maximum(sign * height)) for sign in (1.0, -1.0))
    # Dividing by the root mean square first would change neither the sign nor the quotient.
    above, below = (height / size.clamp(min=_LEAST) for size in (largest, smallest))
    return torch.where(tokens.trained, torch.where(height > 0, above, below), 0.0)


@dataclass(frozen=True)
class SampledByEntropy(TextMemory):
    """Sample independent rollouts with a temperature that follows each token's entropy, relative to the last iteration.

    With e = log max(H, 1e-8) of an iteration's sampled, trained tokens: `zero` is the value nearest to the quantile of
    e; `above` and `below` are the distances from it to the largest and the smallest e (`engine.EntropyTemperature`). An
    iteration without recorded entropies leaves the three numbers unchanged.

    Args:
        change: largest change of the temperature, as a share of it.
        quantile: quantile of the log-entropies at which the temperature does not change.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.hapo import SampledByEntropy
        >>> SampledByEntropy().initial_state()
        {}
    """

    change: float = option(0.05, at_least=0, below=1)
    quantile: float = option(0.8, above=0, below=1)

    def initial_state(self) -> State:
        """Return an empty state: in the first iteration all tokens have the same temperature."""
        return {}

    def next(self, state: State, closed: IterationRecord) -> State:
        """Return the state with the statistics of the closed iteration's log-entropies."""
        rows = Rows(closed.batch, "token")
        entropies = rows.values("entropy")[rows.valid]
        entropies = entropies[np.isfinite(entropies)]
        if not len(entropies):
            return state
        heights = np.log(np.maximum(entropies, _LEAST))
        zero = float(np.quantile(heights, self.quantile, method="nearest"))
        return {"zero": zero, "above": float(heights.max()) - zero, "below": zero - float(heights.min())}

    async def group(self, group: Group) -> None:
        """Run all members concurrently, with the temperature rule of the last iteration."""
        known = self.recall(group)
        rule = EntropyTemperature(**known, change=self.change) if known else None
        await group.run(group.start_many(group.size, sampling=group.sampling(by_entropy=rule)))


HAPO = Recipe(
    name="hapo",
    source="arXiv:2509.16591",
    rollout=SampledByEntropy(),
    reward=(OutcomeScore(), LengthPenalty(free=6144, full_at=10240, at_most=1.0)),
    admit=DynamicSampling(column="reward", max_rounds=16),
    advantage=GroupRelative(voter="token", ddof=0, fallback_above=5.0),
    loss=Policy(clip=EntropyScaledClip(Clip(dual=10.0)), mask=EntropyAdvantage()),
    old_logprob="recomputed",
    minibatches=16,
)
