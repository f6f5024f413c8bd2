"""A temperature for each token that depends on the model's entropy."""

from __future__ import annotations

import math
from dataclasses import dataclass

from agentrl_core.exceptions import InvalidInputError

LEAST = 1e-8
"""Lower bound of entropies, and of `above` and `below`."""


@dataclass(frozen=True)
class EntropyTemperature:
    """Rule that adapts the temperature to each token's entropy: higher if the model is uncertain, lower if certain.

        T = T0 (1 + change h),   e = log max(H, 1e-8),
        h = min((e - zero) / above, 1) if e > zero, else max((e - zero) / below, -1)

    with T0 the temperature of the `Sampling` and H the entropy of softmax(z / T0) over the whole vocabulary, at the
    sampled token; `zero`, `above` and `below` come from earlier samples, such as the last iteration. The paper divides
    by a root mean square first, which cancels. top_k and top_p apply to the distribution at T.

    Recorded log-probs are those of the sampling distribution, softmax(z / T) (after top_k and top_p), as always;
    recorded entropies are the H that determined T. The recorded temperature is T0: a loss runs the model at T0, so its
    ratios need log-probs recomputed at T0 (`Recipe.old_logprob`), and the collector refuses recipes that use the
    recorded ones. `weight.ImportanceWeight` has the ratio of both.

    Args:
        zero: the log-entropy at which the temperature is T0.
        above: distance above `zero` at which the temperature is highest, at least 0.
        below: distance below `zero` at which the temperature is lowest, at least 0.
        change: largest change of the temperature as a share of T0, at least 0 and below 1.

    Raises:
        InvalidInputError: a number is out of its range.

    Source: HAPO, arXiv:2509.16591.

    Example:
        >>> from agentrl_core.engine import EntropyTemperature, Sampling
        >>> rule = EntropyTemperature(zero=0.0, above=2.0, below=4.0)
        >>> [round(1.0 + rule.change * rule.height(e), 4) for e in (-9.0, -2.0, 0.0, 1.0)]
        [0.95, 0.975, 1.0, 1.025]
        >>> Sampling(by_entropy=rule).by_entropy == rule
        True
    """

    zero: float
    above: float
    below: float
    change: float = 0.05

    def __post_init__(self) -> None:
        if not math.isfinite(self.zero):
            raise InvalidInputError(f"EntropyTemperature: option zero is {self.zero}; give a finite log-entropy")
        for name in ("above", "below"):
            value = getattr(self, name)
            if not 0.0 <= value < math.inf:
                raise InvalidInputError(
                    f"EntropyTemperature: option {name} is {value}; give 0 or a finite positive number"
                )
        if not 0.0 <= self.change < 1.0:
            raise InvalidInputError(f"EntropyTemperature: change is {self.change}; give a number from 0 to below 1")

    def height(self, log_entropy: float) -> float:
        """Return h in [-1, 1] for a log-entropy; the relative change of the temperature is `change * h`."""
        width = max(self.above if log_entropy > self.zero else self.below, LEAST)
        return min(max((log_entropy - self.zero) / width, -1.0), 1.0)
