"""Vision-Zero: a game of who is the spy, in which clues and votes are learned by turns (arXiv:2509.25541).

Each player gives clues, then the civilians vote for whom they take for the spy. Two phases alternate, by how well the
votes are: once their moving average has reached 0.7 clues are trained, once it has fallen to 0.3 votes are (the paper's
thresholds are not public; its code changes every step). Of the votes v that a player gets:

    clues:  r_spy = -0.1 (v_spy - mean v_civilians),   r_j = 0.1/n (v_spy - mean) - 0.1 (v_j - mean)
            A = r - b of the player's role,  b <- 0.9 b + 0.1 mean r, moved before it is taken off
    votes:  1 right, -0.5 none, -1 wrong: paid by the environment;  A is GRPO's over the votes of a game

The rewards of the clues of a game add up to 0.

Needs: trajectories with the facts `suspected`, how many valid votes the player got, and `spy`, 1 for the spy; steps
with the fact `vote`, 1 for a vote; rewards of steps; the metric `right_votes` of the iteration, their share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative, TrackedBaseline
from agentrl_core.component import BatchComponent, Column, Rows, State, draw, option, step, sum_rows
from agentrl_core.loss import Policy
from agentrl_core.reward import OutcomeScore
from agentrl_core.rollout import SelfPlay
from agentrl_core.schedule import Choice, Controller

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class Hysteresis(Controller):
    """0 or 1: 1 once the average of a metric has reached `high`, 0 again once it has fallen to `low`.

    average <- momentum average + (1 - momentum) metric, at first the metric itself. In a `Choice` it changes between
    phases that each go on until they are saturated (Vision-Zero, arXiv:2509.25541: momentum 0.9).

    Args:
        metric: name of the metric.
        low: where it falls back to 0.
        high: where it rises to 1, above `low`.
        momentum: of the average, at least 0 and below 1.

    Example:
        >>> from agentrl_core.recipes.vision_zero import Hysteresis
        >>> phase = Hysteresis("success", low=0.3, high=0.7, momentum=0.0)
        >>> state, values = phase.initial_state(), []
        >>> for success in (0.5, 0.8, 0.5, 0.2, 0.5):
        ...     state = phase.moved(state, {"success": success})
        ...     values.append(phase.value(state))
        >>> values
        [0.0, 1.0, 1.0, 0.0, 0.0]
    """

    metric: str = option("success", filled=True)
    low: float = 0.3
    high: float = 0.7
    momentum: float = option(0.9, at_least=0, below=1)

    def check_options(self) -> None:
        """There is room between the thresholds."""
        self.require(self.low < self.high, "low", f"give a number below high={self.high}")

    @property
    def reads(self) -> tuple[str, ...]:
        """The metric."""
        return (self.metric,)

    @property
    def examples(self) -> tuple[float, ...]:
        """Both."""
        return 0.0, 1.0

    def begin(self) -> State:
        """0, and no average."""
        return {"value": 0.0, "average": None}

    def move(self, state: State, *metrics: float) -> State:
        """One measurement."""
        before = metrics[0] if state["average"] is None else state["average"]
        average = self.momentum * before + (1.0 - self.momentum) * metrics[0]
        value = 1.0 if average >= self.high else 0.0 if average <= self.low else state["value"]
        return {"value": value, "average": average}

    def value(self, state: State) -> float:
        """0 or 1."""
        return float(state["value"])


@dataclass(frozen=True)
class ZeroSumVotes(BatchComponent):
    """Reward of each player for the votes of a game: votes for the spy pay the civilians.

        score_spy = -coefficient (v_spy - mean of v over the civilians)
        score_j = coefficient / n (v_spy - mean) - suspicion (v_j - mean)       (n civilians)

    A game has one spy and at least one civilian; the players of another have no score.

    Args:
        coefficient: of the votes for the spy, 0 or more.
        suspicion: of the votes for a civilian, 0 or more.

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
        theirs = self.coefficient / np.maximum(civilians, 1.0) * caught - self.suspicion * (votes - mean)
        scores = np.where(spy, -self.coefficient * caught, theirs)
        return rows.write(score=np.where((spies == 1.0) & (civilians > 0.0), scores, np.nan))


@dataclass(frozen=True)
class PhaseSteps(BatchComponent):
    """Only the steps of one phase are in the loss.

    Args:
        votes: whether those are the votes, or the clues.

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


_PHASE = Hysteresis("right_votes", low=0.3, high=0.7)

VISION_ZERO = Recipe(
    name="vision_zero",
    source="arXiv:2509.25541",
    rollout=SelfPlay(agents=("spy", "first", "second", "third")),
    reward=Choice((OutcomeScore(), ZeroSumVotes()), _PHASE),
    advantage=Choice(
        (
            GroupRelative(column="reward", level="step", group_by="episode_id,vote"),
            TrackedBaseline(kind="ema", key="spy", decay=0.9, initial=0.0, update="before"),
        ),
        _PHASE,
    ),
    weight=Choice((PhaseSteps(votes=True), PhaseSteps(votes=False)), _PHASE),
    loss=Policy(),
)
