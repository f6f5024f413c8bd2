"""ARRoL: half of a group is stopped early, so that right and wrong ones are balanced (arXiv:2603.24840).

Each of 16 rollouts generates 512 tokens; half go on (`PruneRunning`), and GRPO compares those alone. The first
20 iterations prune nothing, but measure. The quality head of the abstract and its training are left out: it reads the
policy's hidden states, which packs do not return. Without a head the score of a rollout is the mean probability of its
tokens; the share of right rollouts among earlier ones with a score in the same bin makes a probability of it.

Equations:
    Read: summaries by others. The paper's text was not read, and its public code was empty.

    - N1, quality head: left out: its training; `PruneRunning(head=...)` asks the collector's model of that name.
    - N2, posterior: `PruneRunning.next` counts, `PruneRunning.posterior` reads, in 10 bins; their number is not given.
    - N3, quotas: `PruneRunning`, `keep=0.5` and `balance=0.5`.
    - N4, survival: `PruneRunning.survival`, with the cap at 1 in the solution; `systematic` chooses the survivors.
    - N5, advantage over survivors: `GroupRelative`, std of n - 1; pruned rollouts are no draws. Two stay at least.
    - N6, variance of the rewards: not computed: it is the reason for `balance=0.5`, where it is largest.
    - N7, vote: left out: it weighs answers at test time.

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
    """Stops part of a group after its first tokens, to balance right and wrong ones (ARRoL, arXiv:2603.24840).

    All branches generate `tokens` tokens. With p_i the probability that branch i will succeed (`quality`), the ones
    that still run survive with the chances

        s_i = min(1, l1 p_i + l2 (1 - p_i)),   l1, l2 >= 0,   sum s_i = K,   sum s_i p_i = balance K

    where K is what is left of `keep` times the size of the group, at least two; those that ended before are kept and
    count for it. If no l1 and l2 can balance them, the nearest ones are taken. Exactly K survive, by systematic
    sampling (one uniform number for the group). The others are pruned: kept in the files, neither scored nor drawn, so
    that the statistics of the group are those of the survivors; their places go to groups that wait for room
    (`Group.release_slots`).

    The paper trains a head on the policy's last hidden states: give the collector one as a model, and its name as
    `head`. Without one the score is the mean probability of the tokens so far (geometric), which needs no model. With
    `bins`, p is the share of right rollouts in the bin of the score, over the finished ones of all earlier iterations;
    in a bin without any, and with `bins=0`, p is the score itself. The draw column `quality` is the score.

    Args:
        tokens: after how many of the first action it is decided.
        keep: share of the group that goes on.
        balance: share of the survivors that should succeed.
        begin: the first iteration that prunes.
        head: the collector's model of the score, for all groups at once; empty: none.
        bins: equal bins of [0, 1] that calibrate the score; 0: it is p.

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
        """The head."""
        return (self.head,) if self.head else ()

    def initial_state(self) -> State:
        """No rollout in any bin."""
        return {"seen": np.zeros(self.bins), "right": np.zeros(self.bins)}

    def next(self, state: State, closed: IterationRecord) -> State:
        """Return the counts of finished rollouts and of right ones, with those of the iteration added."""
        rows = Rows(closed.finished, "draw")
        if not closed.finished.has("quality", "draw"):  # of another program
            return state
        scores = rows.values("quality")
        known = np.isfinite(scores) & rows.is_known("success")
        places, right = self._bin(scores[known]), rows.flags("success")[known]
        return {
            "seen": state["seen"] + np.bincount(places, minlength=self.bins)[: self.bins],
            "right": state["right"] + np.bincount(places, right, minlength=self.bins)[: self.bins],
        }

    def posterior(self, state: State, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the probability of each score by the share of right rollouts in its bin."""
        if not self.bins:
            return scores
        places = self._bin(scores)
        seen, right = state["seen"][places], state["right"][places]
        return np.where(seen > 0, right / np.maximum(seen, 1), scores)

    def _bin(self, scores: NDArray[np.float64]) -> NDArray[np.int64]:
        return np.clip((scores * self.bins).astype(np.int64), 0, max(self.bins - 1, 0))

    async def group(self, group: Group) -> None:
        """The first tokens, who survives, the rest."""
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
        kept = max(2, round(self.keep * group.size)) - (len(branches) - len(running))
        if group.iteration >= self.begin and kept < len(running):
            chances = self.survival(self.posterior(self.recall(group), scores), max(kept, 0))
            survive = systematic(chances, group.uniform("survival"))
            pruned = [branch for branch, survives in zip(running, survive, strict=True) if not survives]
        for branch in pruned:
            branch.stop("quality")
        group.release_slots(pruned)
        await group.run([branch for branch in branches if not branch.over], self._go_on)

    async def _go_on(self, branch: Branch) -> None:
        """From the first tokens to the end."""
        if branch.has_open_action and not branch.path.cut:
            await branch.submit()
        await self.branch(branch)

    async def quality(self, group: Group, branches: Sequence[Branch]) -> NDArray[np.float64]:
        """`float64[branches]` in [0, 1]: the score of each."""
        if self.head:
            return await group.query(self.head, branches)
        segments = [branch.path.open[-1] for branch in branches]
        return np.array([np.exp(np.mean(segment.logprobs)) for segment in segments])  # type: ignore[union-attr]

    def survival(self, quality: NDArray[np.float64], count: int) -> NDArray[np.float64]:
        """The chance of each branch to survive, `count` in sum.

        Args:
            quality: in [0, 1].
            count: how many survive, at most as many as there are.

        Raises:
            InvalidInputError: a number is outside [0, 1], or count of what there is.
        """
        quality = np.asarray(quality, np.float64)
        if not ((quality >= 0) & (quality <= 1)).all():
            raise InvalidInputError(f"{self.title()}: quality is {quality.tolist()}; give probabilities, in [0, 1]")
        if not 0 <= count <= len(quality):
            raise InvalidInputError(
                f"{self.title()}: count is {count}; give a number from 0 to {len(quality)}, the number of qualities"
            )
        # With l1 : l2 = t : 1 - t the share of right ones rises with t.
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            chances = _filled(middle * quality + (1 - middle) * (1 - quality), count)
            low, high = (middle, high) if chances @ quality < self.balance * count else (low, middle)
        return _filled(high * quality + (1 - high) * (1 - quality), count)


def _filled(weights: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """min(1, factor * weights) with the factor that makes it sum to `count`; equal ones where no factor does."""
    chances = np.zeros(len(weights))
    certain = np.zeros(len(weights), bool)
    while (left := count - int(certain.sum())) > 0 and not certain.all():
        open_ = weights[~certain]
        total = open_.sum()
        chances[~certain] = left * open_ / total if total > 0 else left / len(open_)
        chances[certain] = 1.0
        over = ~certain & (chances >= 1.0)
        if not over.any():
            return chances
        certain |= over
    chances[certain], chances[~certain] = 1.0, 0.0
    return chances


def systematic(chances: NDArray[np.float64], uniform: float) -> NDArray[np.bool_]:
    """Each row with its chance, as many in all as the chances sum to: rows in which a grid of step 1 has a line.

    Args:
        chances: in [0, 1].
        uniform: where the grid begins, in [0, 1).

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
