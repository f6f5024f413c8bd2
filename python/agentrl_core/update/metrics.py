"""Metrics: what the losses of some updates said, as means."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

_OF_RATIOS = ("ratio", "clip_fraction", "approximate_kl")


class Metrics:
    """Sums of what the packs of some optimizer steps said, kept on the device until somebody asks for the means."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._updates = 0

    def begin_update(self) -> None:
        """Count another optimizer step."""
        self._updates += 1

    def add(self, sums: Mapping[str, Tensor]) -> None:
        """Add the sums of a pack: `loss`, `tokens`, and whatever else its loss says."""
        for name, value in sums.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value

    def means(self) -> dict[str, float]:
        """The loss per optimizer step, everything else per token; empty before the first."""
        if not self._updates:
            return {}
        sums = {name: float(value) for name, value in self._sums.items()}
        tokens = sums.pop("tokens", 0.0)
        compared = sums.pop("compared", tokens)
        counts = dict.fromkeys(_OF_RATIOS, compared)  # a token without an old log-prob has no ratio
        means = {name: value / max(counts.get(name, tokens), 1.0) for name, value in sums.items() if name != "loss"}
        return {"loss": sums["loss"] / self._updates, **means, "tokens": tokens, "updates": float(self._updates)}
