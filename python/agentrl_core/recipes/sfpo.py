"""SFPO: take three fast steps, go back part of the way, then take a slow step, all on the same rollouts.

    theta_1, theta_2, theta_3: steps of the optimizer from theta_0 on L
    theta' = theta_0 + 0.8 (theta_3 - theta_0)
    theta_next: a step from theta' on L

The fast steps find a direction that single noisy gradients miss; going back part of the way keeps the slow step near
the policy that sampled. L is GRPO's loss. When the entropy H of an iteration rises above the earlier ones,

    H - mean >= std + 1e-8   over the last thirty entropies, including H,

the fast steps are skipped from the next iteration on, so each iteration has one step.

Equations:
    Read: notes on the paper with its algorithm 1, the abstract, and the authors' code; the paper's text was not read.

    - N1, fast trajectory: the first three of four `epochs`, with the old log-probs and advantages of the iteration.
    - N2, reposition: `SyncModel("begin", "policy", mix=0.2)` after the third step.
    - N3, slow correction: the fourth of the `epochs`.
    - N4, schedule of alpha: `DeviationSwitch`; from the next iteration on, `SkipStep` skips the first three steps.
    - C1, trigger of the code: `DeviationSwitch(window=30, threshold=1.0, side="above")`.
    - N5, loss: `Policy`, mean over tokens, then over rollouts; `GroupRelative`.
    - N6, gain along an eigenvector: the effect of the three fast steps on a quadratic loss.

Differs:
    - Constants: the notes do not state them; here K = 3, alpha = 0.8, a window of thirty and a threshold of 1, as in
      the code (its alpha is 0.9 for Qwen3-4B).
    - Trigger: the notes call it one-sided but compare |H - mean|; the code compares H - mean, as here. `side="both"`
      compares |H - mean|.
    - Steps: in the notes, an inner step is one optimizer step; in the code, inner steps and the slow step are passes of
      four minibatches. To follow the code, use `minibatches=4`, with `once=12` and `until=13` in the hooks.
    - Moments of the optimizer: they do not move back with the weights, as in the code.
    - KL: in the notes, a term of the objective without a stated coefficient; none in the code and here.
      `SFPO.replace(loss=Policy(aggregate="sequence_mean", kl=KL(0.001)))` adds one.
    - Entropy bonus: 0.001 by the default of the code's framework; none in the notes and here.

Skipped fast steps still cost forward and backward passes. After the trigger, `SFPO.replace(hooks=None, epochs=1)` does
the same at lower cost.

Source: arXiv:2510.04072. Needs: the metric `entropy` of each iteration, passed to `Collector.end_iteration`; the
policy, passed to `recipe.updates`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import State, option
from agentrl_core.loss import Policy
from agentrl_core.schedule import Choice, Controller, SkipStep, SyncModel

FAST = 3
"""Number of steps before the policy goes back part of the way."""


@dataclass(frozen=True)
class DeviationSwitch(Controller):
    """0 until a metric differs from its recent values, and 1 from then on: |x - mean| >= threshold (std + 1e-8).

    It stays 0 until there are `window` values. The std is the population's (divided by n).

    Args:
        metric: name of the metric.
        window: number of compared values, including x, at least 2.
        threshold: smallest difference, in units of std + 1e-8, above 0.
        side: `both`; or `above`: only a value above the mean counts.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.sfpo import DeviationSwitch
        >>> trigger = DeviationSwitch("entropy", window=3, threshold=1.4)
        >>> state, values = trigger.initial_state(), []
        >>> for entropy in (1.0, 1.1, 1.0, 1.0, 3.0, 1.0):
        ...     state = trigger.moved(state, {"entropy": entropy})
        ...     values.append(trigger.value(state))
        >>> values  # 3.0 of 1, 1, 3 is sqrt(2) standard deviations from the mean
        [0.0, 0.0, 0.0, 0.0, 1.0, 1.0]
    """

    metric: str = option("entropy", filled=True)
    window: int = option(10, at_least=2)
    threshold: float = option(2.5, above=0)
    side: Literal["both", "above"] = "both"

    @property
    def reads(self) -> tuple[str, ...]:
        """Return the name of the metric that the controller reads."""
        return (self.metric,)

    @property
    def examples(self) -> tuple[float, ...]:
        """Return both possible values, 0 and 1."""
        return 0.0, 1.0

    def begin(self) -> State:
        """Return the state without measurements."""
        return {"value": 0.0, "recent": []}

    def move(self, state: State, *metrics: float) -> State:
        """Return the state after one more measurement."""
        recent = [*state["recent"], metrics[0]][-self.window :]
        mean = math.fsum(recent) / len(recent)
        deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in recent) / len(recent))
        distance = metrics[0] - mean if self.side == "above" else abs(metrics[0] - mean)
        is_outlier = len(recent) == self.window and distance >= self.threshold * (deviation + 1e-8)
        return {"value": max(state["value"], float(is_outlier)), "recent": recent}

    def value(self, state: State) -> float:
        """Return 1 if the metric has differed from its recent values, otherwise 0."""
        return float(state["value"])


SFPO = Recipe(
    name="sfpo",
    source="arXiv:2510.04072",
    advantage=GroupRelative(),
    loss=Policy(aggregate="sequence_mean"),
    epochs=FAST + 1,
    hooks=Choice(
        (
            SyncModel("begin", "policy", mix=0.2, once=FAST, unit="steps_of_iteration"),
            SkipStep(until=FAST + 1, unit="steps_of_iteration"),
        ),
        by=DeviationSwitch(window=30, threshold=1.0, side="above"),
    ),
)
