"""Group-in-group advantages: an episode part over the group, and a step part over comparable steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core.advantage.normalisation import Normalisation, votes_of
from agentrl_core.component.component import BatchComponent, Column
from agentrl_core.component.rows import Rows, Unit, key_columns, needed
from agentrl_core.operators import group, keys, returns

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class GroupInGroup(BatchComponent):
    """advantage = episode_weight * A_E + step_weight * A_S of each step.

    A_E compares the score of the step's draw with its group. A_S compares the step's return
    G_t = sum_{k >= t} gamma^(k - t) r_k with those of its anchor: the steps that have the same `anchor` keys, in any
    draw at any time. With `levels` above 1 the steps must also agree in their last states, level k in k of them, and

        A_S = sum_k w_k A^(k) / sum_k w_k,   w_k = (k + 1)^level_power

    over the levels at which the step has company. Steps of draws without a score neither vote nor get a value; a step
    that was paid nothing has reward 0. Sources: GiGPO arXiv:2505.10978 (the defaults); HGPO arXiv:2602.22817
    (`levels=3, episode_weight=0.0, step=Normalisation(ddof=0)`); UI-S1 arXiv:2509.11543 (`anchor="group_id,step",
    breaks="matched", gamma=0.5`); iStar arXiv:2509.19199 (`anchor="group_id", column="process_reward", gamma=0.0`).

    States that are similar rather than equal: make a column of `agentrl_core.keys.similar`, and name it in `anchor`.

    Args:
        anchor: comma-joined key columns of steps that are compared; without `group_id`, steps of different tasks are.
        levels: how many of the last states may have to agree, at least 1.
        level_power: how much more a level counts that agrees in more states.
        absent: at which levels a step has no company: where it is alone (`mask`), or where its advantage is 0 (`zero`,
            the public code of HGPO).
        column: reward of steps.
        gamma: discount, 0 to 1; at 0 the reward of a step is its return.
        breaks: name of a step column of 0 and 1; rewards flow back only between two steps that both have 1. Empty:
            everywhere.
        episode_weight: weight of the episode part, at least 0.
        step_weight: weight of the step part, at least 0.
        episode_column: what the episode part compares.
        group_by: key columns of the groups of the episode part.
        episode_unit: what votes once in the episode part: every `step` (public code) or every `trajectory`.
        step_votes: whether `all` steps of a draw vote at an anchor, or only its `first` (a fault of iStar's public
            code).
        episode: how the episode part compares (GiGPO: a group of one counts as mean 0 and spread 1).
        step: how the step part compares.
        shared: how draws that share a step count it: `each`, `split` or `owner` (`Recipe.shared`).

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.advantage import GroupInGroup
        >>> GroupInGroup().needs
        (('step', 'score'), ('step', 'group_id'), ('step', 'reward'), ('step', 'group_id'), ('step', 'state_key'))
    """

    phase: ClassVar[str] = "advantage"

    anchor: str = "group_id,state_key"
    levels: int = 1
    level_power: float = 1.0
    absent: Literal["mask", "zero"] = "mask"
    column: str = "reward"
    gamma: float = 0.95
    breaks: str = ""
    episode_weight: float = 1.0
    step_weight: float = 1.0
    episode_column: str = "score"
    group_by: str = "group_id"
    episode_unit: Literal["step", "trajectory"] = "step"
    step_votes: Literal["all", "first"] = "all"
    episode: Normalisation = Normalisation(scale="none", singleton="raw")
    step: Normalisation = Normalisation(scale="none")
    shared: Literal["each", "split", "owner"] = "each"

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(bool(self.anchor), "anchor", 'name key columns, or "batch"')
        self.require(bool(self.group_by), "group_by", 'name key columns, or "batch"')
        self.require(self.levels >= 1, "levels", "give a number of at least 1")
        self.require(0.0 <= self.gamma <= 1.0, "gamma", "give a number from 0 to 1")
        for option in ("episode_weight", "step_weight"):
            self.require(getattr(self, option) >= 0.0, option, "give a number of at least 0")

    @property
    def needs(self) -> tuple[Column, ...]:
        """Score and group of each draw; reward, anchor and breaks of each step."""
        names = (self.episode_column, *key_columns(self.group_by), self.column, *key_columns(self.anchor))
        return needed("step", *names, *key_columns(self.breaks))

    @property
    def makes(self) -> tuple[Column, ...]:
        """The advantage of each step."""
        return (("step", "advantage"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `advantage` on steps."""
        rows = Rows(batch, "step")
        unit: Unit = "trajectory" if self.episode_unit == "trajectory" else "row"
        episode = self.episode.compare(
            rows.values(self.episode_column),
            rows.keys(self.group_by),
            valid=rows.valid,
            **votes_of(rows, unit, self.shared),
        )
        advantage = self.episode_weight * episode + self.step_weight * self._of_steps(rows)
        return rows.write(advantage=advantage)

    def _of_steps(self, rows: Rows) -> NDArray[np.float64]:
        ends = None
        if self.breaks:
            matched = rows.flags(self.breaks)
            ends = ~(matched & np.append(matched[1:], False))
        rewards = np.nan_to_num(rows.values(self.column), nan=0.0)
        values = returns.discounted(rewards, rows.draws, gamma=self.gamma, ends=ends)
        votes = rows.votes("row", self.shared)
        if self.step_votes == "first":
            first = np.append(True, rows.draws[1:] != rows.draws[:-1])[: len(rows)].astype(np.float64)
            votes = first if votes is None else votes * first
        anchors = rows.keys(self.anchor)
        if self.levels == 1:
            return self.step.compare(values, anchors, valid=rows.valid, weights=votes)
        total, weight = np.zeros(len(rows)), np.zeros(len(rows))
        # The anchor holds the group already, so histories need no group of their own.
        histories = keys.history(anchors, rows.draws, np.zeros(len(rows), np.uint32), self.levels)
        for level, (same, known) in enumerate(histories, start=1):
            part = self.step.compare(values, same, valid=rows.valid & known, weights=votes)
            company = group.statistics(values, same, valid=rows.valid & known).count[same] > 1
            present = known & (company if self.absent == "mask" else part != 0.0)
            share = np.where(present, (level + 1.0) ** self.level_power, 0.0)
            total, weight = total + share * part, weight + share
        return np.divide(total, weight, out=np.zeros(len(rows)), where=weight > 0.0)
