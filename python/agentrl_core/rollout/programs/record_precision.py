"""Independent rollouts that record the precision of their engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from agentrl_core.env.base import ExtraColumn
from agentrl_core.rollout.branch_record import PRECISION
from agentrl_core.rollout.program import Independent


@dataclass(frozen=True)
class RecordPrecision(Independent):
    """Independent rollouts that record the bits per weight of the engine that sampled each step.

    The step column `rollout_precision` is the number of bits of a weight (32, 16, 8, 4) in the engine that sampled the
    step's action (`Engine.precision`); NaN if it is unknown or nothing was sampled. It marks low-precision rollouts if
    several engines are used or a run changes its engine. Components can select by it (`Where`), and analyses of the gap
    between engine and trainer can group by it.

    Every program can record it: `facts = {"rollout_precision": env.ExtraColumn("step")}`; with
    `ExtraColumn("trajectory")` it is a column of draws, with the value of the last action.

    Source: Jet-RL arXiv:2601.14243, Sol-RL arXiv:2604.06916.

    Example:
        >>> from agentrl_core.rollout import RecordPrecision
        >>> RecordPrecision().facts
        {'rollout_precision': ExtraColumn(level='step', kind='number')}
    """

    facts: ClassVar[Mapping[str, ExtraColumn]] = {PRECISION: ExtraColumn("step")}
