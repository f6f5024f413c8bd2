"""DCPO: widen the clip range of unlikely tokens, and use a task's earlier scores in advantages (arXiv:2509.02333).

With a fixed clip range of the ratio, the probability of an unlikely token can hardly grow. Here the range follows
from |(r - 1) r p_old| <= epsilon. The loss is the sum over responses of their mean token losses, not the mean over
responses.

Equations:
    Read: the paper's sections 2 and 3.1 with appendix A.3 to A.9, and the code.

    - 3, constraint: its solutions are the bounds of equation 4.
    - 4, dynamic bounds: `ProbabilityClip(low=0.16, high=0.2, at_most=10.0)`.
    - 5, cumulative advantage: `CumulativeStandardised`, 0 if the deviation is 0.
    - 6, smoothing: `CumulativeStandardised`; a visit is all draws of a task in a batch.
    - 7, choice: `CumulativeStandardised`; if both are equally large, the cumulative one.
    - 8, only token mean loss: `aggregate="sequence_mean_sum"`.
    - 11, advantage of the step: `CumulativeStandardised`, std of n.
    - 15, reward: left out: the environment provides the reward 1, 0 or -1.
    - 29 and 30, cumulative mean and variance: `running_moments`, each visit with the same weight.
    - C1, dual clip: `ProbabilityClip(dual=10.0)`.

Differs:
    - Std: of n in the paper and here; of n - 1 in the code: `CumulativeStandardised(ddof=1)`.
    - Aggregate of the code: one mean over all tokens of a micro-batch; here equation 8.
    - Upper bound in the script: 0.28; here 0.2, as in equation 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core import Recipe
from agentrl_core.advantage import Normalisation
from agentrl_core.component import Column, IterationRecord, Rows, StatefulComponent, column_name, draw, option
from agentrl_core.loss import ClipBounds, ClipRange, Policy, Tokens
from agentrl_core.operators.group.baseline import running_moments

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl_core import Batch


@dataclass(frozen=True)
class CumulativeStandardised(StatefulComponent):
    """Compute advantages from a task's current and earlier scores, so groups of equal scores can still get a signal.

    The advantage is one of two smoothed scores, the one nearer to 0. A_new = (r - mean) / std of the i-th visit to a
    task. A_all is the same with mean and standard deviation over all visits
    (`agentrl_core.operators.group.baseline.running_moments`). Both are 0 if the deviation is 0.

        S_new = ((i - 1) * A_new + A_all) / i,  S_all = (A_new + (i - 1) * A_all) / i

    The advantage is S_new if |S_new| < |S_all|, else S_all. Draws without a score neither vote nor get a value.

    Args:
        key: a draw column with the same meaning in every batch, such as `task_id`: a visit is all draws of a batch
            with the same key.
        ddof: the variance divides by (count - ddof); 0 or 1.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.dcpo import CumulativeStandardised
        >>> CumulativeStandardised().initial_state()
        {}
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (draw("score"),)
    makes: ClassVar[tuple[Column, ...]] = (draw("advantage"),)

    key: str = column_name("task_id", level="draw")
    ddof: Literal[0, 1] = 0

    def initial_state(self) -> dict[str, Any]:
        """Return a state without visits."""
        return {}

    def add_columns(self, state: dict[str, Any], batch: Batch) -> Batch:
        """Return `batch` with the column `advantage` on draws."""
        rows = Rows(batch, "draw")
        score, valid = rows.values("score"), rows.valid
        mean, std, visits, _ = self._moments(rows, state)
        current = Normalisation(ddof=self.ddof, eps=0.0).compare(score, rows.keys(self.key), valid=valid)
        distance = np.where(valid, score - mean, 0.0)
        cumulative = np.divide(distance, std, out=np.zeros(len(rows)), where=std > 0.0)
        before = np.maximum(visits - 1.0, 0.0)
        new = (before * current + cumulative) / np.maximum(visits, 1.0)
        total = (current + before * cumulative) / np.maximum(visits, 1.0)
        return rows.write(advantage=np.where(np.abs(new) < np.abs(total), new, total))

    def next(self, state: dict[str, Any], closed: IterationRecord) -> dict[str, Any]:
        """Return the moments of each task, updated with this batch."""
        return self._moments(Rows(closed.batch, "draw"), state)[-1]

    def _moments(
        self, rows: Rows, state: dict[str, Any]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64], dict[str, Any]]:
        score, names = rows.values("score"), rows.names(self.key)
        return running_moments(state, score, names, ddof=self.ddof, valid=rows.valid)


@dataclass(frozen=True)
class ProbabilityClip(ClipRange):
    """Clip the ratio within a range that is wider for tokens that were less likely.

    With q = p_old,

        lower = 1/2 + 1/2 sqrt(max(0, 1 - 4 low / q)),   upper = min(1/2 + 1/2 sqrt(1 + 4 high / q), at_most)

    are the solutions of |(r - 1) r q| <= epsilon.

    Args:
        low: epsilon of the lower bound, above 0.
        high: epsilon of the upper bound, above 0.
        at_most: largest upper bound, above 1.
        dual: dual clip, as in `Clip`.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import Tokens
        >>> from agentrl_core.recipes.dcpo import ProbabilityClip
        >>> streams = {"weight_kl": torch.ones(2), "old_logprob": torch.tensor([0.8, 0.1]).log()}
        >>> bounds = ProbabilityClip()(Tokens(torch.zeros(2), None, streams), torch.zeros(2))
        >>> bounds.lower.tolist(), bounds.upper.tolist()
        ([0.724, 0.5], [1.207, 2.0])
    """

    reads: ClassVar[tuple[str | Column, ...]] = ("old_logprob",)

    low: float = option(0.16, above=0)
    high: float = option(0.2, above=0)
    at_most: float = option(10.0, above=1)
    dual: float | None = option(10.0, above=1)

    def __call__(self, tokens: Tokens, log_ratio: Tensor) -> ClipBounds:  # noqa: ARG002 - other ranges read it
        """Return the clip bounds of each token: the less likely the token was, the wider its range."""
        unlikely = (-tokens.stream("old_logprob")).clamp(max=60.0).exp()  # 1 / q
        lower = 0.5 + 0.5 * (1.0 - 4.0 * self.low * unlikely).clamp(min=0.0).sqrt()
        upper = 0.5 + 0.5 * (1.0 + 4.0 * self.high * unlikely).sqrt()
        return ClipBounds(lower, upper.clamp(max=self.at_most), self.dual)


DCPO = Recipe(
    name="dcpo",
    source="arXiv:2509.02333",
    advantage=CumulativeStandardised(),
    loss=Policy(clip=ProbabilityClip(), aggregate="sequence_mean_sum"),
    minibatches=16,
)
