"""ARSQ: a soft Q of a whole action, the value of its step plus an advantage of each of its tokens (arXiv:2502.00288).

    A of a token = a log pi,   Q of an action = V + sum of A over its tokens,   V = a log sum_b exp(l_b / a)
    y = r + 0.99 V' of the next step (0 at the end),   L = mean over steps of 1/2 (Q - y)^2
    V' <- 0.99 V' + 0.01 V after each optimizer step

A dimension of the paper's actions is a token here. The exponentials of A / a add up to 1 over the vocabulary, so the
policy is the model itself, and the advantages of later tokens need no value of their own. V is of the logits l of the
action's first token, a the temperature that it was sampled at. V is soft: the target needs no maximum over the next
action. Discount, temperature and the rate of the target are not stated: 0.99 and 0.01 are proposals.

Equations:
    Read: a digest of the paper, the authors' README and notes of others.

    - N1, dimensional soft advantage: a times the log-prob of the token.
    - N2, soft advantage and policy: the sum over the tokens of the action, in `StepQ`.
    - N3, TD loss: `SoftTargets` and `StepQ`.
    - N4, behaviour cloning: left out: its margin compares the advantages of all tokens of the vocabulary with the
      demonstrated one; losses read the sampled token's.
    - N5, coarse to fine: left out: the environment decides what an action's tokens mean, and reads their text.
    - N6, targets: `SyncModel(mix=0.01)`.

Differs:
    - Networks: separate ones for values and advantages in the paper; V and A are of the same logits here.
    - Target: the smallest of several values in the paper; of one here.
    - End: an action after which a rollout was cut off has its reward as its target, as at a true end.
    - Data: a buffer with demonstrations and suboptimal transitions in the paper; the batch here, to which `replay.Mix`
      adds stored rollouts.

Needs: rewards of steps; the token column `soft_value`, of `arl.annotate(batch, "soft_value", target)`.
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
    """Targets of actions: columns `return` and `advantage` of tokens, equal for all tokens of an action.

    return = reward + gamma * V' of the next action, or the reward alone at the end; advantage = return - V'. V' of an
    action is `soft_value` of the target at its first trained token; a step without a reward was paid 0.

    Args:
        gamma: discount from step to step, 0 to 1.

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
        """Return `batch` with the column `return` on tokens."""
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
    """Fits the soft Q of a whole action to the stream `return`.

        L = sum of w 1/2 (V + a sum over the action of log p - return)^2

    V is the model's answer `soft_value` at the action's first trained token, a the temperature of the sampling. An
    action counts as the weights of its tokens add up.

    Args:
        aggregate: as of every loss.
        constant: as of every loss.

    Metrics: `value` (V), `soft_advantage` (Q - V) and `residual` (Q - return), of every row its action's.

    Example:
        >>> from agentrl_core.recipes.arsq import StepQ
        >>> StepQ("step_mean").unit
        'step'
    """

    def own_reads(self) -> Iterable[str | Column]:
        """Weights, returns, temperatures, and which step a token is of."""
        return ("weight_kl", token("return"), "inverse_temperature", "step")

    def own_reads_outputs(self) -> Iterable[str]:
        """The value of the place before each token."""
        return ("soft_value",)

    def own_unit(self) -> Unit:
        """The step, over whose tokens it sums."""
        return "step"

    def own_foldable(self) -> bool:
        """No: it sums over the tokens of each branch's step."""
        return False

    def evaluate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """How far the Q of each action is from its target, and metrics."""
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
