"""Samplers: choose tasks by their scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.component import Component, option
from agentrl_core.exceptions import InvalidInputError


@dataclass(frozen=True)
class Sampler(Component, ABC):
    """Base class of samplers, which choose tasks by their scores.

    Args:
        among: number of candidates per requested task, drawn uniformly before scoring; None: the whole pool.
        posterior: whether to score samples of the tracker's posterior instead of its estimates (Thompson sampling).
    """

    among: int | None = option(None, at_least=1)
    posterior: bool = False

    @abstractmethod
    def choose(
        self, scores: NDArray[np.float64], rows: NDArray[np.int64], count: int, key: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64] | None]:
        """Return positions of the chosen candidates, and their probabilities if known."""


@dataclass(frozen=True)
class TopSampler(Sampler):
    """Choose the tasks with the largest scores, ties by key. A score of minus infinity is never chosen.

    Source: MoPPS arXiv:2507.04632 (`TopSampler(posterior=True, among=16)`), VADE arXiv:2511.18902
    (`TopSampler(posterior=True)`).

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> import numpy as np
        >>> from agentrl_core.select import TopSampler
        >>> TopSampler().choose(np.array([0.1, 0.9, 0.5]), np.arange(3), 2, key=0)[0].tolist()
        [1, 2]
    """

    def choose(
        self, scores: NDArray[np.float64], rows: NDArray[np.int64], count: int, key: int
    ) -> tuple[NDArray[np.int64], None]:
        """Return the positions of the largest scores."""
        return _core.select.top(scores, rows, count, key), None


@dataclass(frozen=True)
class ProportionalSampler(Sampler):
    """Sample tasks with probabilities from their scores.

    With n candidates: P = (1 - uniform) w / sum w + uniform / n, with w the score or exp(score / temperature). Sampling
    without replacement uses the Gumbel trick; the returned probability is that of the first draw.

    Args:
        temperature: temperature of a softmax; None: the scores are weights, at least 0.
        uniform: share of the probability that is uniform over tasks.
        replace: whether a task may be drawn several times.

    Raises:
        RecipeError: an option is out of range.
        InvalidInputError: when choosing: a weight is negative or not finite, or all are 0.

    Source: TeachMyAgent arXiv:2103.09815 (`uniform=0.2`), DOTS arXiv:2506.05316 (`temperature=1e-3`), MSSR
    arXiv:2512.18215.

    Example:
        >>> import numpy as np
        >>> from agentrl_core.select import ProportionalSampler
        >>> places, chances = ProportionalSampler(uniform=0.2).choose(np.array([3.0, 1.0]), np.arange(2), 2, key=0)
        >>> chances[np.argsort(places)].round(6).tolist()
        [0.7, 0.3]
    """

    temperature: float | None = option(None, above=0)
    uniform: float = option(0.0, at_least=0, at_most=1)
    replace: bool = False

    def choose(
        self, scores: NDArray[np.float64], rows: NDArray[np.int64], count: int, key: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Draw `count` candidates."""
        if self.temperature and not self.uniform and not self.replace:
            # Skip probabilities that are not returned.
            self._check_finite(scores)
            logits = scores / self.temperature
            places = _core.select.successive(logits, rows, count, key)
            return places, self._softmax(logits, places)
        chances = self.probabilities(scores)
        if self.replace:
            places = _core.select.independent(chances, count, key)
        else:
            with np.errstate(divide="ignore"):
                places = _core.select.successive(np.log(chances), rows, count, key)
        return places, chances[places]

    def probabilities(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the probability of each candidate to be drawn first."""
        if not len(scores):
            return scores
        if self.temperature is None:
            invalid = ~(np.isfinite(scores) & (scores >= 0))
            if invalid.any():
                place = int(np.flatnonzero(invalid)[0])
                raise InvalidInputError(
                    f"{self.title()}: scores[{place}] is {scores[place]}, and without a temperature scores are "
                    "weights; use a score that is finite and at least 0, or give a temperature"
                )
            total = scores.sum()
            learned = scores / total if total > 0 else None
        else:
            self._check_finite(scores)
            logits = scores / self.temperature
            learned = self._softmax(logits, slice(None)) if logits.max() > -np.inf else None
        even = np.full(len(scores), 1 / len(scores))
        if self.uniform == 1:
            return even
        if learned is None and self.uniform == 0:
            raise InvalidInputError(
                f"{self.title()}: all {len(scores)} scores are {scores[0]:g}; set `uniform` above 0, or use a score "
                "that is higher for some tasks"
            )
        # If no candidate has a weight yet, all are equal.
        return (1 - self.uniform) * (even if learned is None else learned) + self.uniform / len(scores)

    def _softmax(self, logits: NDArray[np.float64], places: NDArray[np.int64] | slice) -> NDArray[np.float64]:
        """Return the softmax probabilities of some candidates only; the normaliser is that of all."""
        return np.asarray(np.exp(logits[places] - _core.select.log_total(logits)))

    def _check_finite(self, scores: NDArray[np.float64]) -> None:
        """Refuse scores that are NaN or plus infinity; minus infinity is never chosen."""
        if not scores.max(initial=-np.inf) < np.inf:  # NaN is not below anything
            place = int(np.flatnonzero(np.isnan(scores) | np.isposinf(scores))[0])
            raise InvalidInputError(
                f"{self.title()}: scores[{place}] is {scores[place]}; use a score that is never NaN or infinity"
            )
