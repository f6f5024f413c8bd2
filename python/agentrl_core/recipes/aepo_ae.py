"""AEPO (arbitrary entropy): hold the entropy at a target by training on hotter or colder samples (arXiv:2510.08141).

Each task gets two groups. The second one is sampled at temperature 1.2 if the policy's entropy was at most 0.5, else at
0.8. Advantages are GRPO's within each group. Good samples of the second groups (A > 0.05) then replace plain samples:
the first n = min(60, number of good samples) of the batch are trained with A = 1, and the first n plain samples are
dropped. If the entropy was above the target, n is halved. The gradient is thus the sum of GRPO's and of REINFORCE's on
good samples of another temperature: hot ones raise the entropy, cold ones lower it. All samples are trained at
temperature 1, with recomputed old log-probs.

The entropy is the mean of - log p of the sampled tokens in the code, and the metric `entropy` of the updates here. The
AEPO of arXiv:2510.14545 is a different method: `recipes.AEPO`.

Equations:
    Read: the authors' code and the introduction of its repository.

    - R1, gradient: GRPO's for plain samples and the gradient of log p for the good samples, in one batch.
    - R2, temperature: `BangBang("entropy", threshold=0.5, below=1.2, above=0.8)`, 1.2 before the first update.
    - C1, samples of the regulator: `SubstituteSamples`; its `share` halves their number if the entropy is above the
      target.
    - C2, batch: `SubstituteSamples`.
    - C3, advantage of GRPO: `GroupRelative(group_by="group_id,tilted")`, std of n - 1 and 1e-6 added to it.
    - C4, loss: `Policy`, clip range 0.2, dual clip 3, mean over tokens; `UnitTemperature` and recomputed log-probs.

Differs:
    - Tasks of the regulator: the first quarter of a batch in the code; all tasks here and in notes on the paper. n is
      at most 60 in both.
    - Form of the regulator: the paper adds a term of log p to GRPO's objective, with a weight alpha that has no given
      value; in the code and here, the regulator's samples replace others in the clipped loss.
    - Later version of the paper (SCOPE-RL), by axolotl's documentation: the temperature is clip(1 + target - H, 0.8,
      1.2), and alpha = 1/64 is also the share of the regulator's tasks; this recipe follows the authors' code.
    - No good sample: the code fails; here all plain samples are trained as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, State, draw, option
from agentrl_core.loss import Clip, Policy
from agentrl_core.reward import OutcomeScore, UnitTemperature
from agentrl_core.rollout import RolloutSpec, Rounds
from agentrl_core.schedule import Controller

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class BangBang(Controller):
    """Switch between two numbers when a metric crosses a threshold.

    AEPO's temperature (arXiv:2510.08141) is BangBang("entropy", threshold=..., below=1.2, above=0.8): hot if the
    entropy is at most the target.

    Args:
        metric: name of the metric.
        threshold: value of the metric at which the number switches.
        below: the number if the metric is at most the threshold, and before the first metric.
        above: the number if the metric is above the threshold.

    Example:
        >>> from agentrl_core.recipes.aepo_ae import BangBang
        >>> temperature = BangBang("entropy", threshold=0.5, below=1.2, above=0.8)
        >>> temperature.value(temperature.moved(temperature.initial_state(), {"entropy": 0.7}))
        0.8
    """

    metric: str = option("entropy", filled=True)
    threshold: float = 0.5
    below: float = 1.2
    above: float = 0.8

    @property
    def reads(self) -> tuple[str, ...]:
        """Return the name of the metric."""
        return (self.metric,)

    @property
    def examples(self) -> tuple[float, ...]:
        """Return both numbers."""
        return self.below, self.above

    def begin(self) -> State:
        """Return the state before the first metric, which gives the number `below`."""
        return {"above": False}

    def move(self, state: State, *metrics: float) -> State:  # noqa: ARG002 - only the last metric counts
        """Return whether the metric is above the threshold, as the new state."""
        return {"above": metrics[0] > self.threshold}

    def value(self, state: State) -> float:
        """Return the number for a state."""
        return self.above if state["above"] else self.below


@dataclass(frozen=True)
class SubstituteSamples(BatchComponent):
    """Replace plain samples by good samples of another temperature.

    Draws are ordered by their ids. Of the n_t draws with `tilted` whose advantage is above `above`, the first
    floor(share * min(at_most, n_t)) are kept, with an advantage of 1; the rest with `tilted` are dropped. The same
    number of draws without `tilted` is dropped, the first ones, or all if there are fewer.

    Args:
        at_most: largest number of good draws to keep, before `share` is applied.
        above: a draw is good if its advantage is above this number.
        share: share of the good draws to keep, 0 to 1.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.aepo_ae import SubstituteSamples
        >>> SubstituteSamples().at_most
        60
    """

    phase: ClassVar[str] = "weight"
    needs: ClassVar[tuple[Column, ...]] = (draw("tilted"), draw("advantage"))
    makes: ClassVar[tuple[Column, ...]] = (draw("advantage"), draw("keep"))

    at_most: int = option(60, at_least=0)
    above: float = 0.05
    share: float = option(1.0, at_least=0, at_most=1)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with a new `advantage`, and with `keep` on draws."""
        rows = Rows(batch, "draw")
        tilted, advantages = rows.flags("tilted"), rows.values("advantage")
        order = np.argsort(batch.column("trajectory_id", "draw"), kind="stable")
        good = order[(tilted & rows.valid & (advantages > self.above))[order]]
        chosen = good[: int(self.share * min(self.at_most, len(good)))]
        untilted = order[~tilted[order]]
        keep = np.zeros(len(rows), np.bool_)
        keep[chosen] = True
        keep[untilted[len(chosen) :]] = True
        advantages[chosen] = 1.0
        return Rows(rows.write(advantage=advantages), "draw").keep(keep)


AEPO_AE = Recipe(
    name="aepo_ae",
    source="arXiv:2510.08141",
    rollout=Rounds(
        RolloutSpec() + RolloutSpec(fact="tilted", temperature=BangBang("entropy", threshold=0.5, below=1.2, above=0.8))
    ),
    reward=(OutcomeScore(), UnitTemperature()),
    advantage=GroupRelative(group_by="group_id,tilted"),
    weight=SubstituteSamples(share=BangBang("entropy", threshold=0.5, below=1.0, above=0.5)),
    loss=Policy(clip=Clip(dual=3.0)),
    old_logprob="recomputed",
    minibatches=4,
)
