"""SPA-RL: distribute the outcome over the steps by the contribution of each step (arXiv:2505.20732).

    c_t = head(hidden state at the last token of turn t),   L_progress = mean over draws of (sum_t c_t - R)^2
    r_t = c_t + 0.5 [the environment executed the action],   at the last token of the turn
    A: GAE of tokens, gamma 1, lambda 0.95, minus 0.01 (log p - log p_ref) at each token;   L: PPO's, with a critic

The stage `warm_start` trains the estimator `progress` on trajectories with their outcomes; its outputs are the step
column `progress`. A batch is used in four passes, as in the library of the public code, so that the clip acts. gamma,
lambda and the KL coefficient are not stated. The released data have a leave-one-out outcome in place of c. The released
trainer multiplies the reward of a step by the number of remaining steps, which removes the last step's reward. Neither
is reproduced here.

Needs: the fact `executed` of steps (a last step without this fact counts as executed); step column `progress`; the
critic as token column `value`; the reference model.

Equations:
    Read: the public code and the abstract; notes on the paper.

    - C1, progress model: `ProgressLoss`, in the stage `warm_start`.
    - N1, step reward: `Contribution(grounding=0.5)`.
    - C2, step reward in the data script: left out: it replaces the contributions, the paper's subject, by a
      leave-one-out outcome.
    - C3, placement in the trainer: left out: it multiplies by the number of remaining turns, so that the last one gets
      nothing.
    - C4, PPO: `Gae(kl_coefficient=0.01)`, then whitened; `Policy` and `Value`.

Differs:
    - Head of the progress model: on the logits in the code, on the hidden state here.
    - Optimizer steps a batch: the configuration was not seen; 4 passes here, the default of TRL's PPO.
    - Clip range, gamma, lambda and the price on leaving the reference: not seen; the usual values of PPO here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import Gae, GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, step, token
from agentrl_core.loss import Policy, Tokens, Train, Unit, Value, WeightedLoss, metric_sums, torch
from agentrl_core.reward import OutcomeScore, TurnEndReward

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl_core import Batch


@dataclass(frozen=True)
class Contribution(BatchComponent):
    """Reward a step for its share of the outcome and for an action that could be executed.

    step_score = progress + grounding * executed. The last step of a draw, which no observation follows, counts as
    executed if `executed` is unknown; any other step with unknown `executed` counts as not executed.

    Args:
        grounding: reward of an executed action.

    Example:
        >>> from agentrl_core.recipes.spa_rl import Contribution
        >>> Contribution().needs
        (step('progress'), step('executed'))
    """

    phase: ClassVar[str] = "reward"
    needs: ClassVar[tuple[Column, ...]] = (step("progress", model="progress"), step("executed"))
    makes: ClassVar[tuple[Column, ...]] = (step("step_score"),)

    grounding: float = 0.5

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `step_score` on steps."""
        rows = Rows(batch, "step")
        executed = rows.flags("executed") | (rows.last & ~np.isfinite(rows.values("executed")))
        return rows.write(step_score=rows.values("progress") + self.grounding * executed)


@dataclass(frozen=True)
class ProgressLoss(WeightedLoss):
    """Train an estimator of step contributions that add up to the outcome, without labels for steps.

        L = sum over draws of w (sum of `value` at the last tokens of its steps - score)^2

    Args:
        aggregate: how weights are normalised, see `WeightedLoss`.
        constant: see `WeightedLoss`.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import Tokens
        >>> from agentrl_core.model.pack import PackOutput
        >>> from agentrl_core.recipes.spa_rl import ProgressLoss
        >>> ProgressLoss().streams
        ('weight_kl', 'sequence', 'step', 'score')
    """

    def own_reads(self) -> Iterable[str | Column]:
        """Return the columns that the loss reads: weights, the ids of draws and steps, and the outcome."""
        return ("weight_kl", "sequence", "step", token("score"))

    def own_reads_outputs(self) -> Iterable[str]:
        """Return the model output that the loss reads: the value."""
        return ("value",)

    def own_unit(self) -> Unit:
        """Return `trajectory`: the loss has one term per trajectory."""
        return "trajectory"

    def own_foldable(self) -> bool:
        """Return False: a contribution counts for every branch, so shared prefixes cannot be folded."""
        return False

    def evaluate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the squared distance between the summed contributions and the outcome, and metrics."""
        sequences, steps = tokens.segments("sequence"), tokens.segments("step")
        last = tokens.trained & (steps.following(torch.ones_like(tokens.logprob)) == 0)
        total = sequences.sum(torch.where(last, tokens.output("value"), 0.0))
        squared_error = (total - sequences.mean(tokens.stream("score"))).square()
        loss = (sequences.sum(tokens.stream("weight_kl")) * squared_error).sum()
        return loss, metric_sums(tokens, value_error=sequences.spread(squared_error))


SPA_RL = Recipe(
    name="spa_rl",
    source="arXiv:2505.20732",
    reward=(OutcomeScore(), Contribution(), TurnEndReward()),
    advantage=(
        Gae(column="turn_reward", outcome="", lam=0.95, kl_coefficient=0.01),
        GroupRelative(column="advantage", level="token", group_by="batch", eps=0.0, variance_eps=1e-8),
    ),
    loss=(
        Train(Value("token_mean"), model="critic"),
        Train(Policy()),
        Train(ProgressLoss(), model="progress", stage="warm_start", epochs=1),
    ),
    epochs=4,
)
