"""IGPO: reward a turn for the increase in the probability of the right answer (arXiv:2510.14967).

    g_k = P_k - P_{k-1},   P_k = exp(mean log p of the right answer's tokens, probed after turn k)
    A_k = sum over k' >= k of the normalised reward of turn k': its gain, or the outcome for the last turn
    normalised: (x - mean) / sqrt(variance + 1e-8) over all turns of the group, gains and outcomes together

The last turn gives the answer: it has the outcome and no gain. Two scripts are public. The newer one uses the
difference of log-probs, `InformationGain("log_probability")`, and normalises gains and outcomes separately, by

    GroupRelative(column="gain", level="step", ddof=0, eps=0.0, variance_eps=1e-8),
    GroupRelative(level="step", rows="last", add=True, ddof=0, eps=0.0, variance_eps=1e-8),

in place of the first link; both leave gains of exactly 0 out of the statistics.

Needs: `answer_logprob` after every step and before the first, from `arl.annotate` with a probe; the reference model.

Equations:
    Read: the older public code and the abstract; notes for the newer code and on the paper's equations 5 to 7.

    - C1, probability of the truth: `InformationGain`, from the probe's mean log-prob.
    - C2, turn reward: `InformationGain`; the last turn has the outcome.
    - C3, return: left out: the older code cuts the return at tool results; here it flows over all turns.
    - C4, advantage of the older code: left out: N1 is the newer one; the older one is computed by position in the
      sequence, without a std, and has the same policy loss, `Policy` with a clip range of 0.2.
    - N1, advantage of the newer code: an option, two `GroupRelative`, one for each kind of reward, and `Discounted`.
    - N2, advantage of the paper: `GroupRelative` over all turns of the group, and `Discounted`.

Differs:
    - Gains of exactly 0: left out of the statistics in the newer code; they count here, as in the paper.
    - Group size: 16 in the code; set by `collect` here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import Discounted, GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, draw, step
from agentrl_core.loss import KL, Policy
from agentrl_core.operators.process_rewards import information_gain
from agentrl_core.reward import OutcomeScore

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class InformationGain(BatchComponent):
    """Reward a step k by its gain P_k - P_{k-1}, with P = exp(l) or l, and l the right answer's mean log-prob.

    l is the mean log-probability of the right answer's tokens when the policy is probed: the step column
    `answer_logprob` after each step, the draw column `answer_logprob_before` before the first. The last step ends
    with the answer, which the outcome rewards, so it has no gain (NaN). A draw that was not probed after every step
    has no gains either. The `turn_reward` of a step is its gain; for the last step it is the draw's score. Source:
    IGPO, arXiv:2510.14967.

    Args:
        kind: P is a `probability`, or a `log_probability` (the newer public script).

    Example:
        >>> from agentrl_core.recipes.igpo import InformationGain
        >>> InformationGain().makes
        (step('gain'), step('turn_reward'))
    """

    phase: ClassVar[str] = "reward"
    needs: ClassVar[tuple[Column, ...]] = (
        step("answer_logprob", model="policy"),
        draw("answer_logprob_before", model="policy"),
        draw("score"),
    )
    makes: ClassVar[tuple[Column, ...]] = (step("gain"), step("turn_reward"))

    kind: Literal["probability", "log_probability"] = "probability"

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the columns `gain` and `turn_reward` on steps."""
        rows = Rows(batch, "step")
        offsets = batch.offsets("step")
        probes, before = rows.values("answer_logprob"), Rows(batch, "draw").values("answer_logprob_before")
        gaps = np.bincount(rows.draws, weights=~np.isfinite(probes), minlength=batch.num_draws) > 0.0
        probed = np.isfinite(before) & ~gaps
        at_step = probed[rows.draws]
        lengths = np.append(0, np.cumsum(np.diff(offsets)[probed]))
        gains = np.full(len(rows), np.nan)
        gains[at_step] = information_gain(probes[at_step], lengths, before[probed], kind=self.kind)
        last = offsets[1:][np.diff(offsets) > 0] - 1
        gains[last] = np.nan
        turn_rewards = gains.copy()
        turn_rewards[last] = Rows(batch, "draw").values("score")[rows.draws[last]]
        return rows.write(gain=gains, turn_reward=turn_rewards)


IGPO = Recipe(
    name="igpo",
    source="arXiv:2510.14967",
    reward=(OutcomeScore(), InformationGain()),
    advantage=(
        GroupRelative(column="turn_reward", level="step", ddof=0, eps=0.0, variance_eps=1e-8),
        Discounted(column="advantage"),
    ),
    loss=Policy(kl=KL(0.001)),
)
