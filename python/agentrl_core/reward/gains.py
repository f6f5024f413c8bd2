"""What each step added to the likelihood of the right answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentrl_core import _core
from agentrl_core.component.component import BatchComponent, Column
from agentrl_core.component.rows import Rows

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class InformationGain(BatchComponent):
    """gain = P_k - P_{k-1} of each step but the last, with P = exp(l), or l itself.

    l is the mean log-probability of the right answer's tokens when it is probed: the step column `answer_logprob` after
    each step, the draw column `answer_logprob_before` before the first. The last step ends with the answer that the
    outcome pays, so it has no gain (NaN), and neither has a draw that was not probed after every step. The score stays
    what it is: `advantage.Discounted(column="gain", outcome="score")` puts both together. Source: IGPO,
    arXiv:2510.14967.

    Args:
        mode: `prob_diff` or `log_prob_diff`.

    Example:
        >>> from agentrl_core.reward import InformationGain
        >>> InformationGain().makes
        (('step', 'gain'),)
    """

    phase: ClassVar[str] = "reward"

    mode: Literal["prob_diff", "log_prob_diff"] = "prob_diff"

    @property
    def needs(self) -> tuple[Column, ...]:
        """The probes of each step, and before the first."""
        return (("step", "answer_logprob"), ("draw", "answer_logprob_before"))

    @property
    def makes(self) -> tuple[Column, ...]:
        """The gain of each step."""
        return (("step", "gain"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `gain` on steps."""
        rows = Rows(batch, "step")
        offsets = batch.offsets("step")
        probes, before = rows.values("answer_logprob"), Rows(batch, "draw").values("answer_logprob_before")
        gap = np.bincount(rows.draws, weights=~np.isfinite(probes), minlength=batch.num_draws) > 0.0
        probed = np.isfinite(before) & ~gap
        at_step = probed[rows.draws]
        unit = "probability" if self.mode == "prob_diff" else "log_probability"
        lengths = np.append(0, np.cumsum(np.diff(offsets)[probed]))
        gain = np.full(len(rows), np.nan)
        gain[at_step] = _core.reward_information_gain(probes[at_step], lengths, before[probed], unit)
        gain[offsets[1:][np.diff(offsets) > 0] - 1] = np.nan
        return rows.write(gain=gain)
