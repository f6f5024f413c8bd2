"""The precision in which an engine sampled, as a fact of the rollouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from agentrl_core.env.base import Fact
from agentrl_core.rollout.independent import Independent
from agentrl_core.rollout.record import PRECISION


@dataclass(frozen=True)
class WithPrecision(Independent):
    """Independent rollouts that say in which precision they were sampled.

    The step column `rollout_precision` is the number of bits of a weight (32, 16, 8, 4) in the engine that sampled the
    step's action, as the engine says (`Engine.precision`); NaN where it does not, and where nothing was sampled. What
    is cheap and not exact can so be told from the rest, also where several engines speak and where a run goes on with
    another one: by a component (`Where`), and by who looks at how far engine and trainer are apart.

    Every program can record it: `facts = {"rollout_precision": env.Fact("step")}`; with `Fact("trajectory")` it is a
    column of draws, where the last action of a trajectory counts.

    Source: Jet-RL arXiv:2601.14243, Sol-RL arXiv:2604.06916.

    Example:
        >>> from agentrl_core.rollout import WithPrecision
        >>> WithPrecision().facts
        {'rollout_precision': Fact(level='step', kind='number')}
    """

    facts: ClassVar[Mapping[str, Fact]] = {PRECISION: Fact("step")}
