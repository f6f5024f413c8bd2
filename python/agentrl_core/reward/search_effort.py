"""The score of a research agent: less for redundant search after a success, more for wide search after a failure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core.component.component import BatchComponent, Column
from agentrl_core.component.rows import Rows, needed

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class SearchEffort(BatchComponent):
    """score of a success = format * f + max(1 - redundant / calls, least); of a failure, what it searched.

    With the draw columns `tool_calls`, `searches_unique`, `searches_redundant`, `queries_unique`, `queries_redundant`
    and the format reward f (`reward.format`):

        success: format * f + max(1 - (searches_redundant + queries_redundant) / tool_calls, least)
        failure: format * f + breadth * min(1, D_s / search_cap) + depth * min(1, D_q / query_cap)

    where D = max(unique - redundant, 0); without a call nothing is redundant. Draws whose reward is unknown (NaN) have
    no score. Source: Fathom-DeepResearch, arXiv:2509.24107.

    Args:
        search_cap: so many new searches are worth all of `breadth`, at least 1.
        query_cap: so many new queries are worth all of `depth`, at least 1.
        breadth: most that new searches of a failure are worth, at least 0.
        depth: most that new queries of a failure are worth, at least 0.
        format: weight of the format reward, at least 0.
        least: a success is worth at least so much besides its format, 0 to 1.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.reward import SearchEffort
        >>> SearchEffort().makes
        (('draw', 'score'),)
    """

    phase: ClassVar[str] = "reward"

    search_cap: int = 8
    query_cap: int = 16
    breadth: float = 0.2
    depth: float = 0.2
    format: float = 0.1
    least: float = 0.5

    def check_options(self) -> None:
        """Ranges as documented."""
        for option in ("search_cap", "query_cap"):
            self.require(getattr(self, option) >= 1, option, "give a number of at least 1")
        for option in ("breadth", "depth", "format"):
            self.require(getattr(self, option) >= 0.0, option, "give a number of at least 0")
        self.require(0.0 <= self.least <= 1.0, "least", "give a number from 0 to 1")

    @property
    def needs(self) -> tuple[Column, ...]:
        """Success, format and what was searched."""
        counts = ("searches_unique", "searches_redundant", "queries_unique", "queries_redundant")
        return needed("draw", "reward", "success", "reward.format", "tool_calls", *counts)

    @property
    def makes(self) -> tuple[Column, ...]:
        """The score of each draw."""
        return (("draw", "score"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `score` on draws."""
        rows = Rows(batch, "draw")
        searches, queries = rows.values("searches_redundant"), rows.values("queries_redundant")
        redundant = (searches + queries) / np.maximum(rows.values("tool_calls"), 1.0)
        wide = np.clip((rows.values("searches_unique") - searches) / self.search_cap, 0.0, 1.0)
        deep = np.clip((rows.values("queries_unique") - queries) / self.query_cap, 0.0, 1.0)
        made = self.format * rows.values("reward.format") + np.where(
            rows.flags("success"), np.maximum(1.0 - redundant, self.least), self.breadth * wide + self.depth * deep
        )
        return rows.write(score=np.where(np.isfinite(rows.values("reward")), made, np.nan))
