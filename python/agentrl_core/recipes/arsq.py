"""ARSQ: fit a soft Q of each action, the value of its step plus the advantages of its tokens (arXiv:2502.00288).

    A of a token = a log pi,   Q of an action = V + sum of A over its tokens,   V = a log sum_b exp(l_b / a)
    y = r + 0.99 V' of the next step (0 at the end),   L = mean over steps of 1/2 (Q - y)^2
    V' <- 0.99 V' + 0.01 V after each optimizer step

A dimension of the paper's actions corresponds to a token here. The exponentials of A / a sum to 1 over the vocabulary,
so the model itself is the policy, and the advantages of later tokens need no separate value. V is computed from the
logits l at the action's first token; a is its sampling temperature. V is soft: the target needs no maximum over the
next action. The discount, the temperature and the rate of the target are not stated: 0.99 and 0.01 are proposals.

Equations:
    Read: a digest of the paper, the authors' README and notes by others.

    - N1, dimensional soft advantage: a times the log-prob of the token.
    - N2, soft advantage and policy: the sum over the tokens of the action, in `StepQ`.
    - N3, TD loss: `SoftTargets` and `StepQ`.
    - N4, behaviour cloning: left out: its margin compares the advantages of all tokens of the vocabulary with the
      advantage of the demonstrated token; losses here read only the advantage of the sampled token.
    - N5, coarse to fine: left out: the environment decides how an action's tokens are interpreted, and reads their
      text.
    - N6, targets: `SyncModel(mix=0.01)`.

Differs:
    - Networks: separate ones for values and advantages in the paper; V and A come from the same logits here.
    - Target: the smallest of several values in the paper; a single value here.
    - End: if a rollout was cut off after an action, the target of the action is its reward, as at a true end.
    - Data: a buffer with demonstrations and suboptimal transitions in the paper; the batch here, to which `replay.Mix`
      adds stored rollouts.

Needs: step rewards; the token column `soft_value`, computed by `arl.annotate(batch, "soft_value", target)`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe
from agentrl_core.component import BatchComponent, Column, Rows, option, step, token
from agentrl_core.loss import Tokens, Train, Unit, WeightedLoss, metric_sums, torch
from agentrl_core.schedule import SyncModel

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl_core import Batch


@dataclass(frozen=True)
class SoftTargets(BatchComponent):
    """Compute the targets of actions: token columns `return` and `advantage`, equal for all tokens of an action.

    return = reward + gamma * V' of the next action, or the reward alone at the end; advantage = return - V'. V' of an
    action is the target model's `soft_value` at its first trained token. A step without a reward has reward 0.

    Args:
        gamma: discount per step, 0 to 1.

    Raises:
        RecipeError: the option is out of range.

    Example:
        >>> from agentrl_core.recipes.arsq import SoftTargets
        >>> SoftTargets().makes
        (token('advantage'), token('return'))
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (step("reward"), token("soft_value", model="target"))
    makes: ClassVar[tuple[Column, ...]] = (token("advantage"), token("return"))

    gamma: float = option(0.99, at_least=0, at_most=1)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the columns `return` and `advantage` on tokens."""
        rows = Rows(batch, "token")
        trained = np.flatnonzero(rows.valid)
        steps, first, action = np.unique(rows.within("step")[trained], return_index=True, return_inverse=True)
        values, draws = rows.values("soft_value")[trained][first], rows.draws[trained][first]
        rewards = np.nan_to_num(Rows(batch, "step").values("reward"), nan=0.0)[steps]
        goes_on = np.append(draws[1:] == draws[:-1], False)[: len(steps)]
        target = rewards + self.gamma * np.where(goes_on, np.append(values[1:], 0.0)[: len(steps)], 0.0)
        returned, advantages = np.zeros(len(rows)), np.zeros(len(rows))
        returned[trained], advantages[trained] = target[action], (target - values)[action]
        return rows.write(advantage=advantages, **{"return": returned})


@dataclass(frozen=True)
class StepQ(WeightedLoss):
    """Fit the soft Q of each action to the stream `return`.

        L = sum of w 1/2 (V + a sum over the action of log p - return)^2

    V is the model output `soft_value` at the action's first trained token, a the sampling temperature. The weight of an
    action is the sum of the weights of its tokens.

    Args:
        aggregate: how weights are normalised, see `WeightedLoss`.
        constant: see `WeightedLoss`.

    Metrics: `value` (V), `soft_advantage` (Q - V) and `residual` (Q - return); each row has the values of its action.

    Example:
        >>> from agentrl_core.recipes.arsq import StepQ
        >>> StepQ("step_mean").unit
        'step'
    """

    def own_reads(self) -> Iterable[str | Column]:
        """Return the streams that the loss reads: weights, returns, temperatures, and the step of each token."""
        return ("weight_kl", token("return"), "inverse_temperature", "step")

    def own_reads_outputs(self) -> Iterable[str]:
        """Return the model output that the loss reads: the soft value at the position before each token."""
        return ("soft_value",)

    def own_unit(self) -> Unit:
        """Return `step`: the loss sums over the tokens of a step."""
        return "step"

    def own_foldable(self) -> bool:
        """Return False: the loss sums over the step's tokens of each branch, so shared tokens cannot be folded."""
        return False

    def evaluate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the squared distance of each action's Q from its target, summed by weight, and metrics."""
        steps, target = tokens.segments("step"), tokens.stream("return")
        temperature = 1.0 / torch.where(tokens.trained, tokens.raw("inverse_temperature"), 1.0)
        first = steps.rank(torch.zeros_like(tokens.logprob)) == 0
        value = steps.spread(steps.sum(torch.where(first, tokens.output("soft_value"), 0.0)))
        advantage = steps.spread(steps.sum(temperature * tokens.logprob))
        residual = value + advantage - target
        loss = 0.5 * (tokens.stream("weight_kl") * residual.square()).sum()
        return loss, metric_sums(tokens, value=value, soft_advantage=advantage, residual=residual)


ARSQ = Recipe(
    name="arsq",
    source="arXiv:2502.00288",
    advantage=SoftTargets(),
    loss=Train(StepQ("step_mean")),
    hooks=SyncModel("policy", "target", mix=0.01, unit="steps"),
)
