"""ARSQ: a soft value for every token of an action, which passes on undiscounted inside the action (arXiv:2502.00288).

    V(s) = a log sum_b exp(Q(s, b) / a),   pi = exp((Q - V) / a)
    y of a token = V of the action's next one;   of its last: r_t + 0.99 V of the next action's first (0 at the end)
    L = mean over tokens of 1/2 (Q - y)^2

Only the border between two actions is a step of time. The policy is the softmax of Q / a, so Q are its logits, a the
temperature that it samples at; V is the token column `soft_value`, by a target copy, which becomes the policy after
each iteration. The paper's actions are coarse-to-fine bins of a robot's joints; its mixing of demonstrations is left to
the batch. The discount and how the target follows are proposals.

Needs: rewards of steps; the token column `soft_value`, of `arl.annotate(batch, "soft_value", target)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe
from agentrl_core.component import BatchComponent, Column, Rows, option, step, token
from agentrl_core.loss import Train, Value
from agentrl_core.schedule import SyncModel

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class SoftTargets(BatchComponent):
    """Targets of token values, from the value of the next token: columns `return` and `advantage`.

    return = V of the next trained token of the step; of the last one reward + gamma * V of the next step's first, or
    the reward alone at the end. advantage = return - V. V is `soft_value`; a step without a reward was paid 0.

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
        """Return `batch` with the columns `advantage` and `return` on tokens."""
        rows = Rows(batch, "token")
        trained = np.flatnonzero(rows.valid)
        values = rows.values("soft_value")[trained]
        steps, draws = rows.within("step")[trained], rows.draws[trained]
        rewards = np.nan_to_num(Rows(batch, "step").values("reward"), nan=0.0)[steps]
        ahead = np.append(values[1:], 0.0)[: len(values)]
        goes_on = np.append(draws[1:] == draws[:-1], False)[: len(values)]
        inside = np.append(steps[1:] == steps[:-1], False)[: len(values)]
        target = np.where(inside, ahead, rewards + self.gamma * np.where(goes_on, ahead, 0.0))
        returned, advantages = np.zeros(len(rows)), np.zeros(len(rows))
        returned[trained], advantages[trained] = target, target - values
        return rows.write(advantage=advantages, **{"return": returned})


ARSQ = Recipe(
    name="arsq",
    source="arXiv:2502.00288",
    advantage=SoftTargets(),
    loss=Train(Value("token_mean", of="logit")),
    hooks=SyncModel("policy", "target"),
)
