"""SAFE: two pessimistic value heads, and a price on divergence that a controller sets from reward and entropy.

    V = -0.3 log mean_k exp(-v_k / 0.3)
    L_critic = mean over draws of (huber(V, R) + huber(V_old + clip(V - V_old, +-0.2), R)) / 2,   delta 0.5
    A = R - V_old, compared over the batch, the same for all tokens of an answer;   L = PPO's, with 0.01 of entropy and
    beta of k3 to the reference, beta = 0.2 (KL - threshold) gate where KL is above it (`PredictivePenalty`)

Its public code adds the penalty as a plain number, which has no gradient; here its slope is the coefficient of one. Its
asymmetric variant and its bound on steps of large divergence are not here.

Equations:
    Read: the paper file's sources, the public code first; the paper's text was not read.

    - C1, soft-min of two critics: `Value(heads="soft_minimum", temperature=0.3, level="step")`, one value a response.
    - C2, advantage: `Gae(level="step")` and `GroupRelative(group_by="batch", eps=1e-8)`.
    - C3, critic loss: `Value(kind="huber", delta=0.5, clip=0.2, combine="mean")`.
    - C4, PID on the velocity of the reward: `PredictivePenalty.move`.
    - C5, phase: `PredictivePenalty`, from the last 100 rewards.
    - C6, threshold: `PredictivePenalty`, between 0.1 and 0.6.
    - C7, entropy-gated penalty: as N1, since its value has no gradient.
    - C8, loss: `Policy(entropy=0.01)`; the critic's loss is a step of its own optimizer.
    - N1, coefficient of a differentiable KL: `KL(PredictivePenalty())`.

Differs:
    - Value: read after the last token in the code, so that the baseline knows the answer; here before the first one.
    - KL: the penalty's value has no gradient in the code; here the coefficient is its slope. The controller reads the
      mean of log p - log p_ref in the code, which may be negative, and that of k3 here.
    - Controller: moved in each of the two epochs in the code, with the same reward; here once an iteration.
    - Rewards: divided by a running normaliser in the code; here as the environment pays them.
    - Target critic: moved by 0.05 in the code, which reads it nowhere; there is none here.

Source: SAFE: Stable Alignment Finetuning with Entropy-Aware Predictive Control for RLHF (arXiv:2602.04651). Needs: the
critic as step columns `value` and `old_value`, answering `value` as `[N, 2]`; the model reference; the loop's metric
`reward`.
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
    """The price on divergence: 0 below a threshold that moves with the reward, rising above it, more so at low entropy.

    kl <- 0.9 kl + 0.1 KL;   e: the change of the reward's average (0.95) less 0.001;   I: the sum of e within +-1
    threshold = clip((0.3 + 0.3 e + 0.01 I + 0.05 (e - e of before)) phase, 0.1, 0.6)
    number = 0.2 (kl - threshold) max(0.5, entropy_floor / (H + 0.1)) where kl is above it, else `at_least`

    kl and the e of before begin at 0. The phase is 1.5 before `window` rewards are known; then 1.2 if the mean of the
    last `window` is above that of the `window` before by more than 0.01; else 1 if they are within a spread of 0.02
    above 0.7; else 0.8.

    Args:
        entropy_floor: entropy below which the price rises, above 0.
        window: rewards that decide the phase, at least 2.
        at_least: the price below the threshold, above 0: a coefficient is not 0.

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
        """Divergence, entropy, reward."""
        return ("reference_kl", "entropy", "reward")

    def begin(self) -> State:
        """Nothing measured."""
        return {"value": self.at_least, "kl": 0.0, "average": None, "error": 0.0, "integral": 0.0, "rewards": []}

    def move(self, state: State, *metrics: float) -> State:
        """One measurement."""
        divergence, entropy, reward = metrics
        smooth = 0.9 * state["kl"] + 0.1 * divergence
        average, error, integral, moved = reward, 0.0, 0.0, 0.0
        if state["average"] is not None:
            average = 0.95 * state["average"] + 0.05 * reward
            error = average - state["average"] - 0.001
            integral = min(max(state["integral"] + error, -1.0), 1.0)
            moved = 0.3 * error + 0.01 * integral + 0.05 * (error - state["error"])
        rewards = [*state["rewards"], reward][-2 * self.window :]
        threshold = min(max((0.3 + moved) * self._phase(rewards), 0.1), 0.6)
        gate = max(0.5, self.entropy_floor / (entropy + 0.1))
        price = max(0.2 * (smooth - threshold) * gate, self.at_least)
        found = {"value": price, "kl": smooth, "average": average, "error": error, "integral": integral}
        return {**found, "rewards": rewards}

    def _phase(self, rewards: list[float]) -> float:
        if len(rewards) < self.window:
            return 1.5
        newer, older = rewards[-self.window :], rewards[: self.window]
        if len(rewards) == 2 * self.window and np.mean(newer) - np.mean(older) > 0.01:
            return 1.2
        return 1.0 if np.std(newer) < 0.02 and np.mean(newer) > 0.7 else 0.8

    def value(self, state: State) -> float:
        """The price."""
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
