"""EPO: an entropy bonus, and a penalty for leaving the band of past entropies (arXiv:2509.22576).

In many-turn tasks with sparse rewards the entropy first collapses and then explodes. The penalty holds the entropy of a
step near the mean of the epochs before, which `EntropyHistory` remembers. The paper's penalty is a hinge and
its phases are a schedule of `smoothing`; the public code's is `kind="indicator"`, which is a constant outside the band
and so has no gradient.

Equations:
    Read: the public code and the abstract.

    - C1, policy loss: `Policy(entropy=EntropyBand(0.001))`.
    - C2, penalty: `EntropyBand(kind="indicator", low=0.5, high=1.5)`; the default is the hinge of the paper, which
      has a gradient.
    - C3, phase weight: left out: a schedule of `EntropyBand.smoothing` is the user's, since it depends on the length
      of a run.
    - C4, when: left out: every batch has the penalty here, in the code those that reach the second half of an
      episode.
    - C5, no history: left out: in the code the penalty is then 1 for every token, a constant without a gradient; here
      it is 0.

Differs:
    - Band: 0.5 to 1.5 in a script and 0.8 to 1.2 by default in the code; 0 to 2
      here. The paper's text was not read.
    - Optimizer steps a batch: not seen in the code, 1 here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import Column, IterationRecord, Rows, StatefulComponent, option, step, token
from agentrl_core.loss import EntropyTerm, Policy, Tokens, torch

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl_core import Batch


@dataclass(frozen=True)
class EntropyHistory(StatefulComponent):
    """Remembers how uncertain the policy was at each step of its trajectories.

    entropy_history of a token = mean over past iterations of the mean entropy of the trained tokens at steps of its
    number; 0 if no iteration had one. The entropies are those of the rollout.

    Example:
        >>> from agentrl_core.recipes.epo import EntropyHistory
        >>> EntropyHistory().makes
        (token('entropy_history'),)
    """

    phase: ClassVar[str] = "weight"
    needs: ClassVar[tuple[Column, ...]] = (token("entropy"), step("step"))
    makes: ClassVar[tuple[Column, ...]] = (token("entropy_history"),)

    def initial_state(self) -> dict[str, Any]:
        """No step is known."""
        return {"sums": [], "iterations": []}

    def add_columns(self, state: dict[str, Any], batch: Batch) -> Batch:
        """Return `batch` with the column `entropy_history`."""
        rows = Rows(batch, "token")
        steps = rows.values("step").astype(np.int64)
        sums, iterations = np.append(state["sums"], 0.0), np.append(state["iterations"], 0)
        known = np.minimum(steps, len(sums) - 1)  # the last stands for every step that no iteration had
        return rows.write(entropy_history=sums[known] / np.maximum(iterations[known], 1))

    def next(self, state: dict[str, Any], closed: IterationRecord) -> dict[str, Any]:
        """The history with the mean entropies of another iteration."""
        rows = Rows(closed.batch, "token")
        entropies = rows.values("entropy")
        valid = rows.valid & np.isfinite(entropies)
        steps = rows.values("step").astype(np.int64)[valid]
        length = max(len(state["sums"]), int(steps.max(initial=-1)) + 1)
        counts = np.bincount(steps, minlength=length)
        means = np.bincount(steps, weights=entropies[valid], minlength=length) / np.maximum(counts, 1)
        before = (np.pad(np.asarray(state[name], np.float64), (0, length - len(state[name]))) for name in state)
        sums, iterations = (old + new for old, new in zip(before, (means, counts > 0), strict=True))
        return {"sums": sums.tolist(), "iterations": [int(number) for number in iterations]}


@dataclass(frozen=True)
class EntropyBand(EntropyTerm):
    """Rewards entropy, and holds it in a band around its history.

        L = - coefficient * sum of w (H - smoothing P)

    With h the mean entropy of past epochs at the token's step (stream `entropy_history`; 0 if there is none, and
    then P = 0): `hinge`: P = max(0, low h - H) + max(0, H - high h). `indicator`: P = 0 inside (low h, high h), else
    `outside`; this is the public code, and has no gradient.

    Args:
        coefficient: above 0.
        smoothing: weight of the penalty, at least 0; the paper's phases are a schedule of it.
        low: at least 0.
        high: above `low`.
        kind: `hinge` or `indicator`.
        outside: of `indicator`, above 0.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import Tokens
        >>> from agentrl_core.recipes.epo import EntropyBand
        >>> one, history = torch.ones(1), torch.tensor([0.4])
        >>> streams = {"weight_kl": one, "weight_entropy": one, "entropy_history": history}
        >>> EntropyBand(0.1)(Tokens(torch.zeros(1), one, streams)).item()  # -0.1 (1 - 0.2)
        -0.08
    """

    reads: ClassVar[tuple[str | Column, ...]] = ("weight_entropy", token("entropy_history"))

    coefficient: float = option(0.001, above=0)
    smoothing: float = option(1.0, at_least=0)
    low: float = option(0.0, at_least=0)
    high: float = 2.0
    kind: Literal["hinge", "indicator"] = "hinge"
    outside: float = option(0.1, above=0)

    def check_options(self) -> None:
        """The band is not empty."""
        self.require(self.low < self.high, "low", "give 0 <= low < high")

    def __call__(self, tokens: Tokens) -> Tensor:
        """The entropy bonus, and a price on leaving the band."""
        history = tokens.stream("entropy_history")
        below, above = self.low * history - tokens.entropy, tokens.entropy - self.high * history
        if self.kind == "hinge":
            penalty = below.clamp(min=0.0) + above.clamp(min=0.0)
        else:
            penalty = self.outside * ((below >= 0) | (above >= 0)).to(history)
        penalty = torch.where(history > 0, penalty, 0.0)
        return -self.coefficient * (tokens.stream("weight_entropy") * (tokens.entropy - self.smoothing * penalty)).sum()


EPO = Recipe(
    name="epo",
    source="arXiv:2509.22576",
    advantage=GroupRelative(),
    weight=EntropyHistory(),
    loss=Policy(entropy=EntropyBand(0.001, 1.0, 0.0, 2.0)),
)
