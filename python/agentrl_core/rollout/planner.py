"""The planner protocol: the collector shows the frontier as columns, the planner answers with copies per row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core.component.component import Component


@dataclass(frozen=True)
class Frontier:
    """Trajectories whose segment has just ended (and been answered, if it was a tool call), one row each.

    A segment is what the engine generated in one request. Rows are in the order in which trajectories were started, so
    that a plan does not depend on the order in which segments arrived.

    Attributes:
        trajectory: `int64[rows]`, handles in the forest.
        group: `uint32[rows]`, dense group of the row, an index into `existing`.
        entropy: `float64[rows]`, of the segment just generated, as `Planner.segment_entropy` measured it.
        initial_entropy: `float64[rows]`, of the first segment of the row's trajectory.
        is_after_tool: `bool[rows]`, the segment just generated followed a tool result.
        has_tool_result: `bool[rows]`, the segment just generated was answered by a tool result (now appended).
        existing: `uint32[groups]`, trajectories that each group has so far, finished ones included.
        uniform: `float64[rows, Planner.random_columns]`, numbers in [0, 1) keyed by the structure of the rollout.
    """

    trajectory: NDArray[np.int64]
    group: NDArray[np.uint32]
    entropy: NDArray[np.float64]
    initial_entropy: NDArray[np.float64]
    is_after_tool: NDArray[np.bool_]
    has_tool_result: NDArray[np.bool_]
    existing: NDArray[np.uint32]
    uniform: NDArray[np.float64]


@dataclass(frozen=True)
class Planner(Component, ABC):
    """Base of the rollout components. The defaults are those of a planner that never forks."""

    phase: ClassVar[str] = "rollout"

    @property
    def fork_at(self) -> Literal["end", "segment_start"]:
        """Where a copy leaves its row: at the end of the trajectory, or where the segment just generated starts."""
        return "end"

    @property
    def needs_entropy(self) -> bool:
        """Whether `Frontier.entropy` must be measured, so that the engine has to report entropies."""
        return False

    @property
    def needs_tool_results(self) -> bool:
        """Whether it forks at tool results only, so that the environment has to report them (`env.TOOL_RESULT`)."""
        return False

    @property
    def random_columns(self) -> int:
        """How many columns `Frontier.uniform` has."""
        return 0

    @abstractmethod
    def roots(self, group_size: int) -> int:
        """How many trajectories of a group start at its prompt when the iteration begins."""

    def segment_entropy(
        self, entropies: NDArray[np.float32], offsets: NDArray[np.int64], vocabulary: int
    ) -> NDArray[np.float64]:
        """One number for each segment from the entropies of its tokens. Here NaN: nothing is measured.

        Args:
            entropies: `float32[tokens]`, of the tokens of all segments, in nats.
            offsets: `int64[segments + 1]`, where each segment starts and ends in `entropies`.
            vocabulary: number of tokens the model chooses from.

        Returns:
            `float64[segments]`.
        """
        del entropies, vocabulary
        return np.full(len(offsets) - 1, np.nan)

    def plan(self, frontier: Frontier) -> NDArray[np.uint32]:
        """How many copies to fork from each row, `uint32[rows]`, at `fork_at`. Here none."""
        return np.zeros(len(frontier.trajectory), dtype=np.uint32)

    def top_up(self, existing: NDArray[np.uint32], active: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """How many further roots to start now, `uint32[groups]`. Here none.

        Args:
            existing: `uint32[groups]`, trajectories that each group has so far.
            active: `uint32[groups]`, those of them that are still being generated.
        """
        del active
        return np.zeros(len(existing), dtype=np.uint32)
