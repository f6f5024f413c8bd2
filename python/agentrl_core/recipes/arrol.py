"""ARRoL: stop half of a group early, so that right and wrong rollouts are balanced (arXiv:2603.24840).

Each of 16 rollouts generates 512 tokens; then half of them continue (`PruneRunning`), and GRPO compares only these. The
first 20 iterations prune nothing and only measure. The quality head of the abstract and its training are left out: it
reads the policy's hidden states, which packs do not return. Without a head, the score of a rollout is the mean
probability of its tokens. The share of right rollouts among earlier ones with a score in the same bin turns it into a
probability.

Equations:
    Read: summaries by others. The paper's text was not read, and its public code was empty.

    - N1, quality head: left out: its training; `PruneRunning(head=...)` queries the collector's model of that name.
    - N2, posterior: `PruneRunning.next` counts, and `PruneRunning.posterior` reads the counts, in 10 bins; the sources
      do not give their number.
    - N3, quotas: `PruneRunning`, `keep=0.5` and `balance=0.5`.
    - N4, survival: `PruneRunning.survival`, whose solution includes the cap at 1; `systematic` chooses the survivors.
    - N5, advantage over survivors: `GroupRelative`, std of n - 1; pruned rollouts are not drawn. At least two stay.
    - N6, variance of the rewards: not computed: it is largest at `balance=0.5`, which is the reason for this value.
    - N7, vote: left out: it weights answers at test time.

Differs:
    - Clip ranges, group size, optimizer steps: not given; GRPO's here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import IterationRecord, Rows, option
from agentrl_core.env import ExtraColumn
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.loss import Policy
from agentrl_core.rollout import Branch, Group, TextMemory

if TYPE_CHECKING:
    from agentrl_core.component import State


@dataclass(frozen=True)
class PruneRunning(TextMemory):
    """Stop part of a group after its first tokens, to balance right and wrong rollouts (ARRoL, arXiv:2603.24840).

    All branches generate `tokens` tokens. With p_i the probability that branch i will succeed (`quality`), the branches
    that are still running survive with the probabilities

        s_i = min(1, l1 p_i + l2 (1 - p_i)),   l1, l2 >= 0,   sum s_i = K,   sum s_i p_i = balance K

    K is `keep` times the group size, at least two, minus the branches that ended before, which are kept. If no l1 and
    l2 reach the balance, the nearest ones are used. Exactly K survive, by systematic sampling (one uniform number for
    the group). The rest is pruned: kept in the files, but neither scored nor drawn, so that the statistics of the group
    cover only survivors. Slots of pruned branches go to groups that wait for one (`Group.release_slots`).

    The paper trains a head on the policy's last hidden states. To use one, pass it to the collector as a model, and its
    name as `head`. Without a head, the score is the (geometric) mean probability of the tokens so far, which needs no
    model. With `bins`, p is the share of right rollouts in the bin of the score, over the finished rollouts of all
    earlier iterations. In an empty bin, and with `bins=0`, p is the score itself. The draw column `quality` is the
    score.

    Args:
        tokens: number of tokens of the first action after which branches are pruned.
        keep: share of the group that continues.
        balance: share of the survivors that should succeed.
        begin: the first iteration that prunes.
        head: name of the collector's model that computes the score, for all groups at once; empty: none.
        bins: number of equal bins of [0, 1] that calibrate the score; 0: p is the score.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> import numpy as np
        >>> from agentrl_core.recipes.arrol import PruneRunning
        >>> PruneRunning(balance=0.5).survival(np.array([0.9, 0.9, 0.9, 0.1]), 2).round(4).tolist()
        [0.3333, 0.3333, 0.3333, 1.0]
    """

    facts: ClassVar[Mapping[str, ExtraColumn]] = {"quality": ExtraColumn("trajectory")}

    tokens: int = option(512, at_least=1)
    keep: float = option(0.5, above=0, at_most=1)
    balance: float = option(0.5, at_least=0, at_most=1)
    begin: int = option(20, at_least=0)
    head: str = ""
    bins: int = option(10, at_least=0)

    @property
    def queried_models(self) -> tuple[str, ...]:
        """Return the name of the head, if there is one."""
        return (self.head,) if self.head else ()

    def initial_state(self) -> State:
        """Return counts of 0 for each bin."""
        return {"seen": np.zeros(self.bins), "right": np.zeros(self.bins)}

    def next(self, state: State, closed: IterationRecord) -> State:
        """Return each bin's numbers of scored rollouts and of right ones among them, with the iteration's added."""
        rows = Rows(closed.finished, "draw")
        if not closed.finished.has("quality", "draw"):  # rollouts of another program
            return state
        scores = rows.values("quality")
        known = np.isfinite(scores) & rows.is_known("success")
        places, right = self._bin(scores[known]), rows.flags("success")[known]
        return {
            "seen": state["seen"] + np.bincount(places, minlength=self.bins)[: self.bins],
            "right": state["right"] + np.bincount(places, right, minlength=self.bins)[: self.bins],
        }

    def posterior(self, state: State, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the probability of success for each score: the share of right rollouts in its bin.

        In an empty bin, and without bins (`bins=0`), it is the score itself.
        """
        if not self.bins:
            return scores
        places = self._bin(scores)
        rollouts, right = state["seen"][places], state["right"][places]
        return np.where(rollouts > 0, right / np.maximum(rollouts, 1), scores)

    def _bin(self, scores: NDArray[np.float64]) -> NDArray[np.int64]:
        return np.clip((scores * self.bins).astype(np.int64), 0, max(self.bins - 1, 0))

    async def group(self, group: Group) -> None:
        """Generate the first tokens, select the survivors, and run them to their ends."""
        branches = group.start_many(group.size)
        pruned: list[Branch] = []
        segments = await group.advance(branches, tokens=self.tokens)
        running = [
            branch
            for branch, segment in zip(branches, segments, strict=True)
            if segment is not None and segment.finish_reason != "stop" and len(segment.tokens) == self.tokens
        ]
        scores = await self.quality(group, running) if running else np.zeros(0)
        for branch, score in zip(running, scores.tolist(), strict=True):
            branch.record.begin({"quality": score})
        num_kept = max(2, round(self.keep * group.size)) - (len(branches) - len(running))
        if group.iteration >= self.begin and num_kept < len(running):
            chances = self.survival(self.posterior(self.recall(group), scores), max(num_kept, 0))
            survive = systematic(chances, group.uniform("survival"))
            pruned = [branch for branch, survives in zip(running, survive, strict=True) if not survives]
        for branch in pruned:
            branch.stop("quality")
        group.release_slots(pruned)
        await group.run([branch for branch in branches if not branch.over], self._go_on)

    async def _go_on(self, branch: Branch) -> None:
        """Run a branch from its first tokens to its end."""
        if branch.has_open_action and not branch.path.cut:
            await branch.submit()
        await self.branch(branch)

    async def quality(self, group: Group, branches: Sequence[Branch]) -> NDArray[np.float64]:
        """Return the predicted quality of each branch, `float64[branches]` in [0, 1]."""
        if self.head:
            return await group.query(self.head, branches)
        segments = [branch.path.open[-1] for branch in branches]
        return np.array([np.exp(np.mean(segment.logprobs)) for segment in segments])  # type: ignore[union-attr]

    def survival(self, quality: NDArray[np.float64], count: int) -> NDArray[np.float64]:
        """Return the survival probability of each branch; their sum is `count`.

        Args:
            quality: probability of success of each branch, in [0, 1].
            count: number of survivors, at most the number of branches.

        Raises:
            InvalidInputError: a quality is outside [0, 1], or `count` is below 0 or above the number of branches.
        """
        quality = np.asarray(quality, np.float64)
        if not ((quality >= 0) & (quality <= 1)).all():
            odd = int(np.flatnonzero(~((quality >= 0) & (quality <= 1)).ravel())[0])
            raise InvalidInputError(
                f"{self.title()}: quality[{odd}] is {quality.flat[odd]}; give a probability, in [0, 1]"
            )
        if not 0 <= count <= len(quality):
            raise InvalidInputError(
                f"{self.title()}: count is {count}; give a number from 0 to {len(quality)}, the number of qualities"
            )
        # With l1 : l2 = t : 1 - t, the share of right rollouts rises with t.
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            chances = _filled(middle * quality + (1 - middle) * (1 - quality), count)
            low, high = (middle, high) if chances @ quality < self.balance * count else (low, middle)
        return _filled(high * quality + (1 - high) * (1 - quality), count)


def _filled(weights: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Return min(1, factor * weights), with the factor that gives the sum `count`; equal values if no factor does."""
    chances = np.zeros(len(weights))
    certain = np.zeros(len(weights), bool)
    while (remaining := count - int(certain.sum())) > 0 and not certain.all():
        open_ = weights[~certain]
        total = open_.sum()
        chances[~certain] = remaining * open_ / total if total > 0 else remaining / len(open_)
        chances[certain] = 1.0
        saturated = ~certain & (chances >= 1.0)
        if not saturated.any():
            return chances
        certain |= saturated
    chances[certain], chances[~certain] = 1.0, 0.0
    return chances


def systematic(chances: NDArray[np.float64], uniform: float) -> NDArray[np.bool_]:
    """Select each row with its probability, and exactly as many rows as the probabilities sum to.

    A grid of step 1 is laid over the cumulative sum of the probabilities; rows that contain a grid line are selected.

    Args:
        chances: probability of each row, in [0, 1].
        uniform: start of the grid, in [0, 1).

    Example:
        >>> import numpy as np
        >>> from agentrl_core.recipes.arrol import systematic
        >>> systematic(np.array([0.5, 0.5, 1.0]), 0.75).tolist()
        [False, True, True]
    """
    ends = np.cumsum(chances)
    lines = np.floor(np.round(ends - uniform, 9)).astype(np.int64)
    return np.diff(lines, prepend=int(np.floor(np.round(-uniform, 9)))).astype(bool)


ARROL = Recipe(
    name="arrol",
    source="arXiv:2603.24840",
    rollout=PruneRunning(tokens=512, keep=0.5, balance=0.5, begin=20),
    advantage=GroupRelative(),
    loss=Policy(),
)
