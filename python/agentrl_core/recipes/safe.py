"""SAFE: use two pessimistic value heads, and a KL penalty that a controller sets from reward and entropy.

    V = -0.3 log mean_k exp(-v_k / 0.3)
    L_critic = mean over draws of (huber(V, R) + huber(V_old + clip(V - V_old, +-0.2), R)) / 2,   delta 0.5
    A = R - V_old, normalised over the batch, the same for all tokens of an answer
    L = PPO's loss, with 0.01 of entropy and beta of k3 to the reference
    beta = 0.2 (KL - threshold) gate if KL is above the threshold (`PredictivePenalty`)

The public code adds the penalty as a plain number, which has no gradient; here the slope of this penalty is the
coefficient of a differentiable KL. The code's asymmetric variant and its bound on steps of large divergence are left
out.

Equations:
    Read: the sources that the project's file on the paper lists, the public code first; the paper's text was not read.

    - C1, soft-min of two critics: `Value(heads="soft_minimum", temperature=0.3, level="step")`, one value per response.
    - C2, advantage: `Gae(level="step")` and `GroupRelative(group_by="batch", eps=1e-8)`.
    - C3, critic loss: `Value(kind="huber", delta=0.5, clip=0.2, combine="mean")`.
    - C4, PID on the velocity of the reward: `PredictivePenalty.move`.
    - C5, phase: `PredictivePenalty`, from the last 100 rewards.
    - C6, threshold: `PredictivePenalty`, between 0.1 and 0.6.
    - C7, entropy-gated penalty: as N1, since the value of the penalty has no gradient.
    - C8, loss: `Policy(entropy=0.01)`; the critic's loss has a step of its own optimizer.
    - N1, coefficient of a differentiable KL: `KL(PredictivePenalty())`.

Differs:
    - Value: the code reads it after the last token, so the baseline depends on the answer; here it is read before the
      first token.
    - KL: the penalty's value has no gradient in the code; here its slope is the coefficient of a KL. The controller
      reads the mean of log p - log p_ref in the code, which may be negative, and the mean of k3 here.
    - Controller: moves in each of the two epochs in the code, with the same reward; once an iteration here.
    - Rewards: divided by a running normaliser in the code; used as the environment gives them here.
    - Target critic: the code moves one by 0.05, but never reads it; there is none here.

Source: SAFE: Stable Alignment Finetuning with Entropy-Aware Predictive Control for RLHF (arXiv:2602.04651). Needs: a
critic that returns `value` as `[N, 2]`, and its step columns `value` and `old_value`; the model `reference`; the loop's
metric `reward`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import Gae, GroupRelative
from agentrl_core.component import State, option
from agentrl_core.loss import KL, Policy, Train, Value
from agentrl_core.schedule import Controller


@dataclass(frozen=True)
class PredictivePenalty(Controller):
    """Compute a KL coefficient: near 0 below a threshold that follows the reward, and rising above it.

    kl <- 0.9 kl + 0.1 KL
    e: change of the moving average (0.95) of the reward, minus 0.001;   I: sum of e, held within +-1
    threshold = clip((0.3 + 0.3 e + 0.01 I + 0.05 (e - previous e)) phase, 0.1, 0.6)
    number = 0.2 (kl - threshold) max(0.5, entropy_floor / (H + 0.1)) if kl is above the threshold, else `at_least`

    The coefficient rises faster at low entropy. kl and the previous e start at 0. The phase is 1.5 until there are
    `window` rewards. Then it is 1.2 if the mean of the last `window` rewards is more than 0.01 above the mean of the
    `window` rewards before. Otherwise it is 1 if the last `window` rewards have a mean above 0.7 and a standard
    deviation below 0.02, else 0.8.

    Args:
        entropy_floor: numerator of the entropy factor, above 0; the lower the entropy, the larger the coefficient.
        window: number of rewards that determine the phase, at least 2.
        at_least: the coefficient below the threshold; above 0, since a coefficient must not be 0.

    Example:
        >>> from agentrl_core.recipes.safe import PredictivePenalty
        >>> price = PredictivePenalty()
        >>> state = price.moved(price.initial_state(), {"reference_kl": 9.0, "entropy": 1.9, "reward": 0.5})
        >>> round(price.value(state), 6)  # 0.2 (0.1 * 9 - 0.3 * 1.5) * 2 / 2
        0.09
    """

    entropy_floor: float = option(2.0, above=0)
    window: int = option(50, at_least=2)
    at_least: float = option(1e-8, above=0)

    @property
    def reads(self) -> tuple[str, ...]:
        """Return the names of the metrics: divergence, entropy, reward."""
        return ("reference_kl", "entropy", "reward")

    def begin(self) -> State:
        """Return the state before the first measurement."""
        return {"value": self.at_least, "kl": 0.0, "average": None, "error": 0.0, "integral": 0.0, "rewards": []}

    def move(self, state: State, *metrics: float) -> State:
        """Return the state after one measurement of the metrics."""
        divergence, entropy, reward = metrics
        smooth = 0.9 * state["kl"] + 0.1 * divergence
        average, error, integral, adjustment = reward, 0.0, 0.0, 0.0
        if state["average"] is not None:
            average = 0.95 * state["average"] + 0.05 * reward
            error = average - state["average"] - 0.001
            integral = min(max(state["integral"] + error, -1.0), 1.0)
            adjustment = 0.3 * error + 0.01 * integral + 0.05 * (error - state["error"])
        rewards = [*state["rewards"], reward][-2 * self.window :]
        threshold = min(max((0.3 + adjustment) * self._phase(rewards), 0.1), 0.6)
        gate = max(0.5, self.entropy_floor / (entropy + 0.1))
        price = max(0.2 * (smooth - threshold) * gate, self.at_least)
        new_state = {"value": price, "kl": smooth, "average": average, "error": error, "integral": integral}
        return {**new_state, "rewards": rewards}

    def _phase(self, rewards: list[float]) -> float:
        if len(rewards) < self.window:
            return 1.5
        newer, older = rewards[-self.window :], rewards[: self.window]
        if len(rewards) == 2 * self.window and np.mean(newer) - np.mean(older) > 0.01:
            return 1.2
        return 1.0 if np.std(newer) < 0.02 and np.mean(newer) > 0.7 else 0.8

    def value(self, state: State) -> float:
        """Return the coefficient."""
        return float(state["value"])


SAFE = Recipe(
    name="safe",
    source="arXiv:2602.04651",
    advantage=(Gae(level="step"), GroupRelative(column="advantage", level="step", group_by="batch", eps=1e-8)),
    loss=(
        Train(
            Value(
                kind="huber",
                delta=0.5,
                clip=0.2,
                combine="mean",
                heads="soft_minimum",
                temperature=0.3,
                level="step",
            ),
            model="critic",
        ),
        Train(Policy(kl=KL(PredictivePenalty()), entropy=0.01)),
    ),
    epochs=2,
)
