"""V0.5: sample a task until one more rollout is not worth its cost, given a prior of its value (arXiv:2603.10848).

A task has k rewards of -1 and 1 so far, with mean v, and a prior V. The squared distance between prior and true mean is
estimated as D2 = max(0, (v - V)^2 - 1/k). The mean has the weight w = D2 / (D2 + 1/k) in the baseline b = w v + (1 - w)
V, with risk R(k) = w^2 / k + (1 - w)^2 D2. After 4 rollouts a task gets one more while this lowers the risk by more
than c = 1/256 (with D2 unchanged), up to 16. A = r - b. The paper's prior is the prediction of a frozen value model,
whose training is left out: `CostAwareSampling(model=...)` queries a model of the collector. Without a model the prior
is the task's success rate p in the run so far, as a reward: 2 p - 1, or 0 for a new task. For rewards of 0 and 1, set
`variance=0.25` here and in the baseline.

Equations:
    Read: a review of the paper, notes by others, and a summary of the abstract. The paper's text was not read.

    - N1, baseline: `BaselineRelative(kind="shrunk")`.
    - N2, error: `CostAwareSampling.error`, with the best weight.
    - N3, estimated bias and weight: `BaselineRelative(kind="shrunk")`, `CostAwareSampling.gain`.
    - N4, one more rollout: `CostAwareSampling`, from 4 to 16.
    - N5, advantage: `BaselineRelative`, without a std.
    - N6, objective: `Policy`.

Differs:
    - Prior: predicted by a value model in the paper; here the success rate so far, unless `CostAwareSampling` has a
      model.
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
class CostAwareSampling(Rounds):
    """Sample a task until the next rollout is not worth its cost; the module has the formula.

    The draw column `prior` is V.

    Args:
        at_most: size of the largest group.
        cost: c; a rollout has to lower the risk by more than this.
        variance: variance of one score: 1 for scores -1 and 1, 0.25 for 0 and 1.
        model: name of the collector's model that predicts V from the prompt; empty: V is the success rate so far.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.v05 import CostAwareSampling
        >>> CostAwareSampling().gain(mean=0.0, prior=1.0, count=4)  # D2 = 3/4; R(4) = 3/16, R(5) = 3/19
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
        """Return the name of the value model, if there is one."""
        return (self.model,) if self.model else ()

    def error(self, distance: float, count: int) -> float:
        """Return the squared error of the baseline of `count` rewards, with the best weight.

        Args:
            distance: D2, the squared distance between the prior and the true mean.
            count: k, the number of rewards.
        """
        noise = self.variance / count
        weight = distance / (distance + noise)
        return weight**2 * noise + (1.0 - weight) ** 2 * distance

    def gain(self, mean: float, prior: float, count: int) -> float:
        """Return by how much one more rollout lowers the squared error of the baseline."""
        distance = max(0.0, (mean - prior) ** 2 - self.variance / count)
        return self.error(distance, count) - self.error(distance, count + 1)

    async def prior(self, group: Group) -> float:
        """Return the prior value of a task: the model's prediction, or the success rate so far as a reward."""
        if self.model:
            probe = group.start(role="helper")
            await probe.begin()
            [value] = await group.query(self.model, [probe])
            probe.stop("its value was queried")
            return float(value)
        attempts = group.statistics.get("attempts", 0)
        rate = group.statistics["successes"] / attempts if attempts else 0.5
        return float(2.0 * rate - 1.0 if self.variance == 1.0 else rate)

    async def next_round(self, group: Group, rounds: list[RoundResult]) -> RolloutSpec | None:
        """Return the first round, then one more rollout at a time while its gain is above the cost."""
        if not rounds:
            return replace(self.members, fact="prior", value=await self.prior(group))
        prior = float(rounds[0].branches[0].record.facts["prior"])
        scores = np.concatenate([result.scores for result in rounds])
        known = scores[np.isfinite(scores)]
        if not len(known) or len(scores) >= self.at_most:
            return None
        pays = self.gain(float(known.mean()), prior, len(known)) > self.cost
        return RolloutSpec(1, fact="prior", value=prior) if pays else None


V05 = Recipe(
    name="v05",
    source="arXiv:2603.10848",
    rollout=CostAwareSampling(),
    reward=OutcomeScore(success=1.0, failure=-1.0),
    advantage=BaselineRelative(kind="shrunk", column="prior", variance=1.0),
    loss=Policy(),
)
