"""Fathom-DeepResearch (RAPO): reward successes with few redundant searches, and failures that search widely.

The reward depends on the number of tool calls, the numbers of unique and of redundant searches and queries, and the
format reward f:

    success: 0.1 f + max(1 - (redundant searches + redundant queries) / calls, 0.5)
    failure: 0.1 f + 0.2 min(1, D_s / 8) + 0.2 min(1, D_q / 16),   D = unique - redundant

D_s counts searches, D_q queries. Groups whose rewards are all equal give no signal, so the advantages of the other
groups are scaled up by G / G_live. If no rollout of a prompt scores above 0.5, its latest stored rollout with a score
above 0.5 replaces a random one. Prompts that are solved in 9 of 10 rollouts leave the pool after an epoch. A batch has
2 optimizer steps.

Equations:
    Read: the paper's sections 2.2 to 2.6. Its repository has no training code.

    - 2, loss: `Policy("sequence_mean")`.
    - 3, advantage: `GroupRelative(ddof=0, eps=0.0)`.
    - 4, reward of stage 1: left out: use `FATHOM.replace(reward=OutcomeScore())` with an environment that computes it.
    - 5, pruning: `PoolFilter(below=0.9, newest=True, per="epoch")`, which reads `success`.
    - 6, advantage scaling: `SignalRescale`.
    - 2.4, replay: `Inject`, one stored success per prompt.
    - 7, tallies: `SearchEffort`.
    - 8, reward of stage 2: `SearchEffort`.

Differs:
    - Solved, of 5: a reward above 0 in the paper, which gives 0.1 to a wrong answer in good format; a success here.
    - Clip range: not given; 0.2 here.

Source: arXiv:2509.24107. Needs: the reward components `tool_calls`, `searches_unique`, `searches_redundant`,
`queries_unique`, `queries_redundant` and `format`; the fact success.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, Where, draw, option
from agentrl_core.loss import Policy
from agentrl_core.replay import GroupFailed, Inject, Memory
from agentrl_core.select import ComposedSelector, PoolFilter
from agentrl_core.weight import SignalRescale

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class SearchEffort(BatchComponent):
    """Score a success by its share of redundant searches, and a failure by its number of new searches.

    The module docstring has the formula; without tool calls the redundant share is 0. Draws with an unknown reward or
    success (NaN) have no score. New means unique minus redundant.

    Args:
        searches: number of new searches at which a failure gets all of `breadth`.
        queries: number of new queries at which a failure gets all of `depth`.
        breadth: largest reward of a failure for new searches.
        depth: largest reward of a failure for new queries.
        format: coefficient of the format reward.
        at_least: smallest score of a success without its format reward.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.fathom import SearchEffort
        >>> SearchEffort().makes
        (draw('score'),)
    """

    phase: ClassVar[str] = "reward"
    needs: ClassVar[tuple[Column, ...]] = (
        draw("reward"),
        draw("success"),
        draw("reward.format"),
        draw("reward.tool_calls"),
        draw("reward.searches_unique"),
        draw("reward.searches_redundant"),
        draw("reward.queries_unique"),
        draw("reward.queries_redundant"),
    )
    makes: ClassVar[tuple[Column, ...]] = (draw("score"),)

    searches: int = option(8, at_least=1)
    queries: int = option(16, at_least=1)
    breadth: float = option(0.2, at_least=0)
    depth: float = option(0.2, at_least=0)
    format: float = option(0.1, at_least=0)
    at_least: float = option(0.5, at_least=0, at_most=1)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `score` on draws."""
        rows = Rows(batch, "draw")
        searches, queries = rows.values("reward.searches_redundant"), rows.values("reward.queries_redundant")
        calls = rows.values("reward.tool_calls")
        redundant = np.where(calls > 0.0, (searches + queries) / np.maximum(calls, 1.0), 0.0)
        breadth = np.minimum((rows.values("reward.searches_unique") - searches) / self.searches, 1.0)
        depth = np.minimum((rows.values("reward.queries_unique") - queries) / self.queries, 1.0)
        success = np.maximum(1.0 - redundant, self.at_least)
        failure = self.breadth * breadth + self.depth * depth
        scores = self.format * rows.values("reward.format") + np.where(rows.flags("success"), success, failure)
        return rows.write(score=np.where(rows.is_known("reward") & rows.is_known("success"), scores, np.nan))


FATHOM = Recipe(
    name="fathom",
    source="arXiv:2509.24107",
    select=ComposedSelector(pool=PoolFilter(below=0.9, newest=True, per="epoch")),
    reward=SearchEffort(),
    replay=Inject(
        Memory(per_task=1, where=Where(column="score", above=0.5)), GroupFailed(best_at_most=0.5), replaces="random"
    ),
    advantage=GroupRelative(ddof=0, eps=0.0),
    weight=SignalRescale(),
    loss=Policy("sequence_mean"),
    minibatches=2,
)
