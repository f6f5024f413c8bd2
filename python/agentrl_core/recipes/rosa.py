"""ROSA: after each turn, regress the policy towards the optimal policy for the turn's feedback (T2PAM).

    D = r / beta - log Z,   Z = 1 - p + p exp(r / beta),   p = p_old of the turn's whole answer
    L = mean over turns of (log p - log p_old - D)^2

The optimal policy trades the feedback r against the distance from the last policy. It multiplies the probability of the
answer by exp(r / beta) / Z; Z is near 1 for a long answer. Every turn is a separate problem; turns without feedback are
left out. The value of beta is not stated; it is 1 here.

Equations:
    Read: public reviews of the paper, and a note on it; the paper's text was not read.

    - S1, objective of a turn: not computed: the loss uses its optimum, S2.
    - S2, optimum: the minimum of `Regression(level="step", residual="log_ratio")`.
    - S3, target shift: `TargetShift`; `AnsweredTurns` leaves turns without feedback out of the mean.
    - S4, linear step: left out: the user's optimizer makes the step; a recipe defines the loss.
    - S5, damped solution: left out: as S4; conjugate gradients need the Jacobian of the chosen parameters.

Differs:
    - Step: one least-squares solution over a small set of parameters in the paper; here steps of the user's optimizer
      on the squared residual.

Source: T2PAM, "Test-Time Policy Adaptation for Enhanced Multi-Turn Interactions with LLMs", arXiv:2509.23166. Needs:
rewards of steps, the feedback on each turn: -1 for a wrong answer, 0 for an accepted one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe
from agentrl_core.component import BatchComponent, Column, Rows, option, step, token
from agentrl_core.loss import Regression

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class TargetShift(BatchComponent):
    """Compute each answer's log-ratio under the optimal policy: r / beta - log(1 - p + p exp(r / beta)).

    p is the probability with which the whole answer of a turn was sampled. A turn without feedback (NaN) gets 0.

    Args:
        beta: weight of the distance from the last policy, above 0.

    Raises:
        RecipeError: the option is out of range.

    Example:
        >>> from agentrl_core.recipes.rosa import TargetShift
        >>> TargetShift(beta=0.5).makes
        (step('advantage'),)
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (step("reward"), token("behaviour_logprob"))
    makes: ClassVar[tuple[Column, ...]] = (step("advantage"),)

    beta: float = option(1.0, above=0)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `advantage` on steps."""
        steps, tokens = Rows(batch, "step"), Rows(batch, "token")
        sampled = np.where(tokens.valid, np.nan_to_num(tokens.values("behaviour_logprob")), 0.0)
        probability = np.exp(np.bincount(tokens.within("step"), weights=sampled, minlength=len(steps)))
        gain = np.nan_to_num(steps.values("reward")) / self.beta
        return steps.write(advantage=gain - np.log1p(probability * np.expm1(gain)))


@dataclass(frozen=True)
class AnsweredTurns(BatchComponent):
    """Leave turns without feedback out of the loss and of its mean.

    Example:
        >>> from agentrl_core.recipes.rosa import AnsweredTurns
        >>> AnsweredTurns().makes
        (token('keep'),)
    """

    phase: ClassVar[str] = "weight"
    needs: ClassVar[tuple[Column, ...]] = (step("reward"),)
    makes: ClassVar[tuple[Column, ...]] = (token("keep"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with `keep` set to 0 for tokens of turns without feedback."""
        tokens, has_feedback = Rows(batch, "token"), Rows(batch, "step").is_known("reward")
        return tokens.keep(has_feedback[tokens.within("step")])


ROSA = Recipe(
    name="rosa",
    source="arXiv:2509.23166",
    advantage=TargetShift(),
    weight=AnsweredTurns(),
    loss=Regression("step_mean", level="step", residual="log_ratio"),
)
