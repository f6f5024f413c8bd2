"""Vision-Zero: train clues and votes of a who-is-the-spy game in alternating phases (arXiv:2509.25541).

Each player gives clues, then the civilians vote for the player they suspect to be the spy. Two phases alternate,
depending on the quality of the votes (`Hysteresis`): while votes are good, clues are trained; while they are bad, votes
are trained. With v the number of votes that a player gets,

    clues:  r_spy = -0.1 (v_spy - mean v_civilians),   r_j = 0.1/n (v_spy - mean) - 0.1 (v_j - mean)
            A = r - b of the player's role,  b <- 0.95 b + 0.05 mean r, updated before it is subtracted
    votes:  1 right, -0.5 none, -1 wrong: rewards of the environment
            A = (r - mean r) / (std r + 1e-8) over the votes of a game

The clue rewards of a game add up to 0. The loss uses the whole log-likelihood of a player's utterances in the phase,
without a ratio, and the mean is over the players of the phase:

    L = mean over players of sum over tokens of [- A log p + 0.04 k3(p, p_ref)]

The public code has `Policy("step_mean", kl=KL(0.04))`: clipped ratios, and the mean over the tokens of an utterance.

Equations:
    Read: the paper's section 2.2 and table 5, and the public code.

    - 1 and C1, clue reward and potential: `ZeroSumVotes`.
    - C2 and C3, clue rewards of spy and civilians: `ZeroSumVotes`.
    - 2 and C5, role advantage: `TrackedBaseline(kind="ema", key="spy", decay=0.95, update="before")`.
    - 3 and 6, objectives: `Policy(surrogate=Reinforce(), kl=KL(0.04))`, summed over tokens, mean over players.
    - 4, decision reward: from the environment; not computed: only the environment knows the spy.
    - 5 and C7, decision advantage: `GroupRelative(column="reward", level="step", group_by="episode_id,vote", ddof=0)`.
    - 8, averages: `Hysteresis`, of the metrics `right_votes` and `unsure_votes` (equation 7), which the training loop
      measures.
    - 9 and 10, change of the stage: `Hysteresis`.
    - C4, role baseline in the code: an option, `TrackedBaseline(decay=0.9)`.
    - C6, decision reward in the code: left out: it needs an environment that adds a format bonus to the paper's reward.
    - C8, loss in the code: an option, `Policy("step_mean", kl=KL(0.04))`, clip range 0.2; `PhaseSteps` keeps the steps
      of the phase.
    - C9, phase in the code: left out: a fixed cycle; this recipe has the paper's rule (9 and 10).

Differs:
    - Votes: by the civilians in the paper and here; by generations of a judge in the code.
    - Game with one vote: its advantage is its reward in the code, 0 here.
    - Players: three civilians in the code, four in the paper and here.
    - Discount: 0.99 in the code's potential, which has no steps; none here.

Needs: trajectories with the facts `suspected`, the number of valid votes that the player got, and `spy`, 1 for the spy;
steps with the fact `vote`, 1 for a vote; rewards of steps; the metrics `right_votes` and `unsure_votes` of the
iteration, the shares of right votes and of players that did not vote; the model reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative, TrackedBaseline
from agentrl_core.component import BatchComponent, Column, Rows, State, draw, option, step, sum_rows
from agentrl_core.loss import KL, Policy, Reinforce
from agentrl_core.reward import OutcomeScore
from agentrl_core.rollout import SelfPlay
from agentrl_core.schedule import Choice, Controller

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class Hysteresis(Controller):
    """Switch to 1 if a metric's average reaches `high`, to 0 if it falls to `low`, and after `patience` at the latest.

    average <- momentum average + (1 - momentum) metric, starting at 0. In a `Choice`, it alternates between phases that
    each last until they are saturated (Vision-Zero, arXiv:2509.25541). `unsure` adds the average of a second metric,
    the share without an answer: the value becomes 1 only if this average is at most `unsure_low`, and becomes 0 when
    this average reaches `unsure_high`.

    Args:
        metric: name of the metric.
        low: average at which the value returns to 0.
        high: average at which the value becomes 1, above `low`.
        momentum: momentum of the averages, at least 0 and below 1.
        unsure: name of the second metric; empty: none.
        unsure_low: largest second average at which the value can become 1.
        unsure_high: second average at which the value returns to 0, above `unsure_low`.
        dwell: smallest number of iterations between two switches.
        patience: number of iterations after which the value switches in any case; None: never.

    Example:
        >>> from agentrl_core.recipes.vision_zero import Hysteresis
        >>> phase = Hysteresis("success", low=0.3, high=0.7, momentum=0.0, dwell=1)
        >>> state, values = phase.initial_state(), []
        >>> for success in (0.5, 0.8, 0.5, 0.2, 0.5):
        ...     state = phase.moved(state, {"success": success})
        ...     values.append(phase.value(state))
        >>> values
        [0.0, 1.0, 1.0, 0.0, 0.0]
    """

    metric: str = option("success", filled=True)
    low: float = 0.6
    high: float = 0.9
    momentum: float = option(0.95, at_least=0, below=1)
    unsure: str = ""
    unsure_low: float = 0.1
    unsure_high: float = 0.5
    dwell: int = option(5, at_least=1)
    patience: int | None = option(20, at_least=1)

    def check_options(self) -> None:
        """Require low < high, and unsure_low < unsure_high."""
        self.require(self.low < self.high, "low", f"give a number below high={self.high}")
        apart = self.unsure_low < self.unsure_high
        self.require(apart, "unsure_low", f"give a number below unsure_high={self.unsure_high}")

    @property
    def reads(self) -> tuple[str, ...]:
        """Return the names of the metrics."""
        return (self.metric, self.unsure) if self.unsure else (self.metric,)

    @property
    def examples(self) -> tuple[float, ...]:
        """Return both values."""
        return 0.0, 1.0

    def begin(self) -> State:
        """Return the initial state: the value 0, and averages of 0."""
        return {"value": 0.0, "average": 0.0, "unsure": 0.0, "age": 0}

    def move(self, state: State, *metrics: float) -> State:
        """Return the state after one more measurement of the metrics."""
        metric, unsure = metrics if self.unsure else (metrics[0], 0.0)
        average, average_unsure = (
            self.momentum * before + (1.0 - self.momentum) * now
            for before, now in ((state["average"], metric), (state["unsure"], unsure))
        )
        age, value = state["age"] + 1, state["value"]
        if value == 0.0:
            reached = average >= self.high and average_unsure <= self.unsure_low
        else:
            reached = average <= self.low or average_unsure >= self.unsure_high
        if (reached and age >= self.dwell) or (self.patience is not None and age >= self.patience):
            value, age = 1.0 - value, 0
        return {"value": value, "average": average, "unsure": average_unsure, "age": age}

    def value(self, state: State) -> float:
        """Return the value of a state, 0 or 1."""
        return float(state["value"])


@dataclass(frozen=True)
class ZeroSumVotes(BatchComponent):
    """Reward the players of a game by its votes: civilians gain from votes for the spy, and the spy loses.

        score_spy = -coefficient (v_spy - mean of v over the civilians)
        score_j = coefficient / n (v_spy - mean) - suspicion (v_j - mean)       (n civilians)

    A game has one spy and at least one civilian; the players of any other game get no score.

    Args:
        coefficient: weight of the votes for the spy, 0 or more.
        suspicion: weight of the votes for a civilian, 0 or more.

    Example:
        >>> from agentrl_core.recipes.vision_zero import ZeroSumVotes
        >>> ZeroSumVotes().needs
        (draw('suspected'), draw('spy'))
    """

    phase: ClassVar[str] = "reward"
    needs: ClassVar[tuple[Column, ...]] = (draw("suspected"), draw("spy"))
    makes: ClassVar[tuple[Column, ...]] = (draw("score"),)

    coefficient: float = option(0.1, at_least=0)
    suspicion: float = option(0.1, at_least=0)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `score` on draws."""
        rows = Rows(batch, "draw")
        games, spy, votes = rows.keys("episode_id"), rows.flags("spy"), rows.values("suspected")
        length = int(games.max(initial=0)) + 1

        def total(values: np.ndarray) -> np.ndarray:
            return sum_rows(values, games, length)[games]

        spies, civilians = total(spy), total(~spy)
        mean = total(np.where(spy, 0.0, votes)) / np.maximum(civilians, 1.0)
        caught = total(np.where(spy, votes, 0.0)) - mean
        civilian_scores = self.coefficient / np.maximum(civilians, 1.0) * caught - self.suspicion * (votes - mean)
        scores = np.where(spy, -self.coefficient * caught, civilian_scores)
        return rows.write(score=np.where((spies == 1.0) & (civilians > 0.0), scores, np.nan))


@dataclass(frozen=True)
class PhaseSteps(BatchComponent):
    """Keep only the votes, or only the clues, in the loss.

    Args:
        votes: whether to keep votes; if False, keep clues.

    Example:
        >>> from agentrl_core.recipes.vision_zero import PhaseSteps
        >>> PhaseSteps().needs
        (step('vote'),)
    """

    phase: ClassVar[str] = "weight"
    needs: ClassVar[tuple[Column, ...]] = (step("vote"),)
    makes: ClassVar[tuple[Column, ...]] = (step("keep"),)

    votes: bool = True

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with `keep` on steps."""
        rows = Rows(batch, "step")
        return rows.keep(rows.flags("vote") == self.votes)


_PHASE = Hysteresis("right_votes", unsure="unsure_votes")

VISION_ZERO = Recipe(
    name="vision_zero",
    source="arXiv:2509.25541",
    rollout=SelfPlay(agents=("spy", "first", "second", "third", "fourth")),
    reward=Choice((OutcomeScore(), ZeroSumVotes()), _PHASE),
    advantage=Choice(
        (
            GroupRelative(column="reward", level="step", group_by="episode_id,vote", ddof=0, eps=1e-8),
            TrackedBaseline(kind="ema", key="spy", decay=0.95, initial=0.0, update="before"),
        ),
        _PHASE,
    ),
    weight=Choice((PhaseSteps(votes=True), PhaseSteps(votes=False)), _PHASE),
    loss=Policy("constant", constant=1.0, clip=None, surrogate=Reinforce(), kl=KL(0.04)),
)
