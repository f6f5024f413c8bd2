"""V0.5: a task is sampled until one more rollout would not pay, given what is known of it (arXiv:2603.10848).

With k rewards of -1 and 1 so far, mean v and prior V, the distance is D2 = max(0, (v - V)^2 - 1/k), the mean has the
weight w = D2 / (D2 + 1/k) in the baseline b = w v + (1 - w) V, whose risk is R(k) = w^2 / k + (1 - w)^2 D2. A task gets
one more rollout while that would lower the risk by more than c = 1/256 (D2 as it is), from 4 rollouts on and up to 16.
A = r - b. The paper's prior is the prediction of a frozen value model, whose training is left out:
`UntilSure(model=...)` asks a model of the collector for it. Without one the prior is the task's success rate in the run
so far as a reward, 2 p - 1, and 0 if the task is new. Rewards of 0 and 1: `variance=0.25`, here and in the baseline.

Equations:
    Read: a review of the paper, notes by others, and a summary of the abstract. The paper's text was not read.

    - N1, baseline: `BaselineRelative(kind="shrunk")`.
    - N2, error: `UntilSure.error`, at the best weight.
    - N3, estimated bias and weight: `BaselineRelative(kind="shrunk")`, `UntilSure.gain`.
    - N4, one more rollout: `UntilSure`, from 4 to 16.
    - N5, advantage: `BaselineRelative`, without a std.
    - N6, objective: `Policy`.

Differs:
    - Prior: a value model's; the success rate so far unless `UntilSure` has a model.
    - Clip ranges: not given; 0.2 here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import BaselineRelative
from agentrl_core.component import option
from agentrl_core.env import ExtraColumn
from agentrl_core.loss import Policy
from agentrl_core.reward import OutcomeScore
from agentrl_core.rollout import Group, RolloutSpec, RoundResult, Rounds


@dataclass(frozen=True)
class UntilSure(Rounds):
    """Samples a task until the next rollout is not worth its cost; the formula is that of the file.

    The draw column `prior` is V.

    Args:
        at_most: the largest group.
        cost: c, what a rollout has to lower the risk by.
        variance: of one score: 1 for scores -1 and 1, 0.25 for 0 and 1.
        model: the collector's model that predicts V from the prompt; empty: the success rate so far.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.v05 import UntilSure
        >>> UntilSure().gain(mean=0.0, prior=1.0, count=4)  # D2 = 3/4; R(4) = 3/16, R(5) = 3/19
        0.029605...
    """

    facts: ClassVar[Mapping[str, ExtraColumn]] = {"prior": ExtraColumn("trajectory")}

    members: RolloutSpec = RolloutSpec(4)  # noqa: RUF009 - frozen
    at_most: int = option(16, at_least=1)
    cost: float = option(1 / 256, at_least=0)
    variance: float = option(1.0, above=0)
    model: str = ""

    @property
    def queried_models(self) -> tuple[str, ...]:
        """The value model."""
        return (self.model,) if self.model else ()

    def error(self, distance: float, count: int) -> float:
        """Return the squared error of the baseline of so many rewards, at its best weight.

        Args:
            distance: D2, the squared distance of the prior from the true mean.
            count: k.
        """
        noise = self.variance / count
        weight = distance / (distance + noise)
        return weight**2 * noise + (1.0 - weight) ** 2 * distance

    def gain(self, mean: float, prior: float, count: int) -> float:
        """By how much one more rollout lowers the risk of the baseline."""
        distance = max(0.0, (mean - prior) ** 2 - self.variance / count)
        return self.error(distance, count) - self.error(distance, count + 1)

    async def prior(self, group: Group) -> float:
        """V of a task: what the model predicts, or its success rate so far, as a reward."""
        if self.model:
            asked = group.start(role="helper")
            await asked.begin()
            [value] = await group.query(self.model, [asked])
            asked.stop("asked")
            return float(value)
        attempts = group.statistics.get("attempts", 0)
        rate = group.statistics["successes"] / attempts if attempts else 0.5
        return float(2.0 * rate - 1.0 if self.variance == 1.0 else rate)

    async def next_round(self, group: Group, rounds: list[RoundResult]) -> RolloutSpec | None:
        """One more, as long as it pays."""
        if not rounds:
            return replace(self.members, fact="prior", value=await self.prior(group))
        prior = float(rounds[0].branches[0].record.facts["prior"])
        scores = np.concatenate([tried.scores for tried in rounds])
        known = scores[np.isfinite(scores)]
        if not len(known) or len(scores) >= self.at_most:
            return None
        pays = self.gain(float(known.mean()), prior, len(known)) > self.cost
        return RolloutSpec(1, fact="prior", value=prior) if pays else None


V05 = Recipe(
    name="v05",
    source="arXiv:2603.10848",
    rollout=UntilSure(),
    reward=OutcomeScore(success=1.0, failure=-1.0),
    advantage=BaselineRelative(kind="shrunk", column="prior", variance=1.0),
    loss=Policy(),
)
