"""EPO: an entropy bonus, and a penalty for leaving the band of past entropies (arXiv:2509.22576).

In many-turn tasks with sparse rewards the entropy first collapses and then explodes. The penalty holds the entropy of a
token near the mean of all iterations before, which `EntropyHistory` remembers; it weighs most in the beginning:

    L = L_policy - 0.001 (mean H - beta_k mean P),   beta_k = 1 + exp(-3 k / 75) at iteration k
    P = 0.1 (max(0, low h - H) + max(0, H - high h)),   h = mean over the iterations before k of their mean entropy

The half of the run, 75 iterations, is the paper's for ALFWorld; `EntropyBand.early` is a schedule over a whole run. The
public code's penalty is `kind="indicator"`, which is a constant outside the band and so has no gradient.

Equations:
    Read: the paper's sections 3.2, 4 and B.1.4, its algorithm 1, the public code and the abstract.

    - 2, entropy: `Policy(entropy=EntropyBand(0.001))`; the paper's mean over tokens, then turns, then trajectories is
      one over tokens here.
    - H, history: `EntropyHistory`.
    - 3, penalty: `EntropyBand(kind="hinge", low=0.0, high=2.0)`.
    - 4, smoothing: `EntropyBand(outside=0.1)`; 0.05 for ScienceWorld.
    - 5, phase weight: `EntropyBand(smoothing=1.0, early=...)`.
    - 6, loss: `Policy` with `EntropyBand`; clip range 0.2.
    - C1, policy loss of the code: as 6, with its penalty.
    - C2, penalty of the code: `EntropyBand(kind="indicator")`; its history is that of the step's number.
    - C3, phase weight of the code: left out: another one than the paper's, an option there.
    - C4, when, in the code: left out: every batch has the penalty in the paper and here, in the code those that reach
      the second half of an episode.
    - C5, no history, in the code: left out: the penalty is then 1 for every token, a constant without a gradient; 0 in
      the paper and here.

Differs:
    - Aggregation: a mean over tokens, then turns, then trajectories in the paper, over all tokens here.
    - Optimizer steps a batch: mini-batches of 128 or 256 steps in the source, so that their number depends on how long
      the episodes are; 1 here.
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
    """Remembers how uncertain the policy was.

    entropy_history of a token = mean over past iterations of the mean entropy of their trained tokens; 0 if there is
    none. The entropies are those of the rollout.

    Example:
        >>> from agentrl_core.recipes.epo import EntropyHistory
        >>> EntropyHistory().makes
        (token('entropy_history'),)
    """

    phase: ClassVar[str] = "weight"
    needs: ClassVar[tuple[Column, ...]] = (token("entropy"),)
    makes: ClassVar[tuple[Column, ...]] = (token("entropy_history"),)

    def initial_state(self) -> dict[str, Any]:
        """No iteration is known."""
        return {"sum": 0.0, "iterations": 0}

    def add_columns(self, state: dict[str, Any], batch: Batch) -> Batch:
        """Return `batch` with the column `entropy_history`."""
        rows = Rows(batch, "token")
        return rows.write(entropy_history=np.full(len(rows), state["sum"] / max(state["iterations"], 1)))

    def next(self, state: dict[str, Any], closed: IterationRecord) -> dict[str, Any]:
        """The history with the mean entropy of another iteration; the same if none of its tokens has one."""
        rows = Rows(closed.batch, "token")
        entropies = rows.values("entropy")
        valid = rows.valid & np.isfinite(entropies)
        if not valid.any():
            return state
        return {"sum": state["sum"] + float(entropies[valid].mean()), "iterations": state["iterations"] + 1}


@dataclass(frozen=True)
class EntropyBand(EntropyTerm):
    """Rewards entropy, and holds it in a band around its history.

        L = - coefficient * sum of w (H - (smoothing + early) P)

    With h the mean entropy of past iterations (stream `entropy_history`; 0 if there is none, and then P = 0): `hinge`:
    P = outside (max(0, low h - H) + max(0, H - high h)). `indicator`: P = 0 inside (low h, high h), else `outside`;
    this is the public code, and has no gradient.

    Args:
        coefficient: above 0.
        smoothing: weight of the penalty, at least 0.
        low: at least 0.
        high: above `low`.
        kind: `hinge` or `indicator`.
        outside: what it costs to be outside: of `hinge` for each nat, of `indicator` at all; above 0.
        early: added to `smoothing`; the paper's phases are a schedule of it.

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
        """The band is not empty."""
        self.require(self.low < self.high, "low", "give 0 <= low < high")

    def __call__(self, tokens: Tokens) -> Tensor:
        """The entropy bonus, and a price on leaving the band."""
        history = tokens.stream("entropy_history")
        below, above = self.low * history - tokens.entropy, tokens.entropy - self.high * history
        if self.kind == "hinge":
            penalty = self.outside * (below.clamp(min=0.0) + above.clamp(min=0.0))
        else:
            penalty = self.outside * ((below >= 0) | (above >= 0)).to(history)
        penalty = torch.where(history > 0, penalty, 0.0)
        kept = tokens.entropy - (self.smoothing + self.early) * penalty
        return -self.coefficient * (tokens.stream("weight_entropy") * kept).sum()


_EARLY = Schedule(start=1.0, end=exp(-6.0), iterations=150, kind="exponential")
"""exp(-3 k / 75) in a run of 150 iterations."""

EPO = Recipe(
    name="epo",
    source="arXiv:2509.22576",
    advantage=GroupRelative(),
    weight=EntropyHistory(),
    loss=Policy(entropy=EntropyBand(0.001, 1.0, 0.0, 2.0, early=_EARLY)),
)
