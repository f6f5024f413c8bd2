"""Metrics of the losses of several updates, as means."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from agentrl_core.model.ranks import Group

_OF_RATIOS = ("ratio", "clip_fraction", "approximate_kl")
"""Metrics that are means over the tokens with an old log-prob, since other tokens have no ratio."""
_LARGEST = "max_"
"""Metrics with these prefixes are reduced by the maximum, all others by the mean."""


class Metrics:
    """Sums the metrics of packs over optimizer steps, on the device until they are read.

    Args:
        group: the ranks over which metrics are summed when read; None: this process alone.
    """

    def __init__(self, group: Group | None = None) -> None:
        self.group = group
        self._of_ranks: dict[str, float] | None = None
        self._sums: dict[str, Tensor] = {}
        self._of_step: dict[str, Tensor] = {}
        self._of_pass: dict[str, Tensor] = {}
        self._updates = self._updates_of_pass = 0

    def begin_pass(self) -> None:
        """Begin a pass over the batch."""
        self._of_pass = {}
        self._updates_of_pass = 0

    def begin_update(self) -> None:
        """Begin an optimizer step."""
        self._updates += 1
        self._updates_of_pass += 1
        self._of_step = {}

    def add(self, sums: Mapping[str, Tensor]) -> None:
        """Add the metrics of a pack: `loss`, `tokens` and other sums or maxima."""
        self._of_ranks = None
        for totals in (self._sums, self._of_pass, self._of_step):
            for name, value in sums.items():
                if name not in totals:
                    totals[name] = value
                else:
                    totals[name] = totals[name].maximum(value) if name.startswith(_LARGEST) else totals[name] + value

    def share(self) -> None:
        """Combine the metrics of all ranks now, so that reading `means` does not wait for other ranks."""
        if self.group is not None and self._updates and self._of_ranks is None:
            self._of_ranks = self._numbers(self._sums)

    def means(self) -> dict[str, float]:
        """Return the loss per step, counts, maxima, and means of all other metrics; empty before the first step."""
        if not self._updates:
            return {}
        self.share()
        sums = self._numbers(self._sums) if self._of_ranks is None else self._of_ranks
        return {**_means(sums, self._updates), "updates": float(self._updates)}

    def of_pass(self) -> dict[str, float]:
        """Return the means of the latest pass, like `means`."""
        return _means(self._numbers(self._of_pass), self._updates_of_pass) if self._of_pass else {}

    def step(self) -> dict[str, float]:
        """Return the metrics of the latest step, in the form of `means`."""
        return _means(self._numbers(self._of_step), 1) if self._of_step else {}

    def _numbers(self, sums: Mapping[str, Tensor]) -> dict[str, float]:
        """Return sums and maxima over all ranks as Python numbers."""
        numbers = {name: float(value) for name, value in sums.items()}
        if self.group is None:
            return numbers
        from agentrl_core.model.collectives import over_ranks

        return over_ranks(numbers, self.group, lambda name: max if name.startswith(_LARGEST) else operator.add)


def _means(sums: Mapping[str, float], updates: int) -> dict[str, float]:
    numbers = dict(sums)
    means = {"loss": numbers.pop("loss") / updates}
    for name, number in numbers.items():
        kind, source = name.split("@")[0], name[len(name.split("@")[0]) :]  # `ratio@replay`: of one source
        tokens = numbers.get(f"tokens{source}", 0.0)
        if kind == "compared" or (source and not tokens):
            continue
        if kind in ("tokens", "idle_tokens") or kind.startswith(_LARGEST):
            means[name] = number
        else:
            count = numbers.get(f"compared{source}", tokens) if kind in _OF_RATIOS else tokens
            means[name] = number / max(count, 1.0)
    return {"tokens": 0.0, **means}
