"""EPO: add an entropy bonus, and a penalty for leaving the band of past entropies (arXiv:2509.22576).

In tasks with many turns and sparse rewards, the entropy first collapses and then explodes. The penalty holds the
entropy of each token near the mean of all earlier iterations, which `EntropyHistory` keeps. Its weight is largest at
the start:

    L = L_policy - 0.001 (mean H - beta_k mean P),   beta_k = 1 + exp(-3 k / 75) at iteration k
    P = 0.1 (max(0, low h - H) + max(0, H - high h)),   h = mean over the iterations before k of their mean entropy

The 75 iterations are half of the paper's run on ALFWorld; `EntropyBand.early` is a schedule over a whole run. The
penalty of the public code is `kind="indicator"`: a constant outside the band, so it has no gradient.

Equations:
    Read: the paper's sections 3.2, 4 and B.1.4, its algorithm 1, the public code and the abstract.

    - 2, entropy: `Policy(entropy=EntropyBand(0.001))`; the paper averages over tokens, then turns, then trajectories;
      here it is one mean over all tokens.
    - H, history: `EntropyHistory`.
    - 3, penalty: `EntropyBand(kind="hinge", low=0.0, high=2.0)`.
    - 4, smoothing: `EntropyBand(outside=0.1)`; 0.05 for ScienceWorld.
    - 5, phase weight: `EntropyBand(smoothing=1.0, early=...)`.
    - 6, loss: `Policy` with `EntropyBand`; clip range 0.2.
    - C1, policy loss of the code: as 6, with the code's penalty.
    - C2, penalty of the code: `EntropyBand(kind="indicator")`; the code keeps a separate history for each step number.
    - C3, phase weight of the code: left out: it differs from the paper's weight, and is an option in the code.
    - C4, when, in the code: left out: in the paper and here every batch has the penalty; in the code only batches that
      reach the second half of an episode.
    - C5, no history, in the code: left out: the code's penalty is then 1 for every token, a constant without a
      gradient; in the paper and here it is 0.

Differs:
    - Aggregation: the paper averages over tokens, then turns, then trajectories; here over all tokens at once.
    - Optimizer steps a batch: the source uses mini-batches of 128 or 256 steps, so their number depends on the lengths
      of the episodes; 1 here.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from agentrl_core import Recipe, Schedule
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import Column, IterationRecord, Rows, StatefulComponent, option, token
from agentrl_core.loss import EntropyTerm, Policy, Tokens, torch

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl_core import Batch


@dataclass(frozen=True)
class EntropyHistory(StatefulComponent):
    """Write the mean entropy of past iterations to the token column `entropy_history`.

    entropy_history of a token = mean over past iterations of the mean entropy of their trained tokens; 0 without past
    iterations. The entropies are recorded during the rollout.

    Example:
        >>> from agentrl_core.recipes.epo import EntropyHistory
        >>> EntropyHistory().makes
        (token('entropy_history'),)
    """

    phase: ClassVar[str] = "weight"
    needs: ClassVar[tuple[Column, ...]] = (token("entropy"),)
    makes: ClassVar[tuple[Column, ...]] = (token("entropy_history"),)

    def initial_state(self) -> dict[str, Any]:
        """Return the state before the first iteration."""
        return {"sum": 0.0, "iterations": 0}

    def add_columns(self, state: dict[str, Any], batch: Batch) -> Batch:
        """Return `batch` with the column `entropy_history`."""
        rows = Rows(batch, "token")
        return rows.write(entropy_history=np.full(len(rows), state["sum"] / max(state["iterations"], 1)))

    def next(self, state: dict[str, Any], closed: IterationRecord) -> dict[str, Any]:
        """Return the state with the closed iteration added; the same state if none of its tokens has an entropy."""
        rows = Rows(closed.batch, "token")
        entropies = rows.values("entropy")
        valid = rows.valid & np.isfinite(entropies)
        if not valid.any():
            return state
        return {"sum": state["sum"] + float(entropies[valid].mean()), "iterations": state["iterations"] + 1}


@dataclass(frozen=True)
class EntropyBand(EntropyTerm):
    """Reward entropy, and penalise entropies outside a band around the mean entropy of past iterations.

        L = - coefficient * sum of w (H - (smoothing + early) P)

    h is the mean entropy of past iterations (stream `entropy_history`); without past iterations it is 0, and P = 0.
    `hinge`: P = outside (max(0, low h - H) + max(0, H - high h)). `indicator`: P = 0 inside (low h, high h), else
    `outside`; this is the penalty of the public code, and has no gradient.

    Args:
        coefficient: factor of the whole term, above 0.
        smoothing: weight of the penalty, at least 0.
        low: lower edge of the band, as a multiple of h; at least 0.
        high: upper edge of the band, as a multiple of h; above `low`.
        kind: `hinge` or `indicator`, see above.
        outside: the penalty outside the band, above 0: for each nat with `hinge`, in total with `indicator`.
        early: added to `smoothing`, at least 0; a schedule of it gives the paper's phases.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import Tokens
        >>> from agentrl_core.recipes.epo import EntropyBand
        >>> one, history = torch.ones(1), torch.tensor([0.4])
        >>> streams = {"weight_kl": one, "weight_entropy": one, "entropy_history": history}
        >>> EntropyBand(0.1)(Tokens(torch.zeros(1), one, streams)).item()  # -0.1 (1 - 0.1 * 0.2)
        -0.098
    """

    reads: ClassVar[tuple[str | Column, ...]] = ("weight_entropy", token("entropy_history"))

    coefficient: float = option(0.001, above=0)
    smoothing: float = option(1.0, at_least=0)
    low: float = option(0.0, at_least=0)
    high: float = 2.0
    kind: Literal["hinge", "indicator"] = "hinge"
    outside: float = option(0.1, above=0)
    early: float = option(0.0, at_least=0)

    def check_options(self) -> None:
        """Check that the band is not empty."""
        self.require(self.low < self.high, "low", f"give a number below high={self.high}")

    def __call__(self, tokens: Tokens) -> Tensor:
        """Return the loss term: minus the entropy bonus, plus the penalty outside the band."""
        history = tokens.stream("entropy_history")
        below, above = self.low * history - tokens.entropy, tokens.entropy - self.high * history
        if self.kind == "hinge":
            penalty = self.outside * (below.clamp(min=0.0) + above.clamp(min=0.0))
        else:
            penalty = self.outside * ((below >= 0) | (above >= 0)).to(history)
        penalty = torch.where(history > 0, penalty, 0.0)
        penalised_entropy = tokens.entropy - (self.smoothing + self.early) * penalty
        return -self.coefficient * (tokens.stream("weight_entropy") * penalised_entropy).sum()


_EARLY = Schedule(start=1.0, end=exp(-6.0), iterations=150, kind="exponential")
"""Schedule of exp(-3 k / 75) for a run of 150 iterations."""

EPO = Recipe(
    name="epo",
    source="arXiv:2509.22576",
    advantage=GroupRelative(),
    weight=EntropyHistory(),
    loss=Policy(entropy=EntropyBand(0.001, 1.0, 0.0, 2.0, early=_EARLY)),
)
