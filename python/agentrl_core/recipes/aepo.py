"""AEPO: branching that does not run away along one chain, and gradients for uncertain tokens (arXiv:2510.14545).

A rollout of its own, before the others, measures where the uncertainty is: at the question, or after tool results
(`PremonitoredBranching`). The more of it is at the question, the more of the 16 rollouts start there. A token whose
advantage is positive keeps its gradient above the clip range, and advantages are scaled by the entropy of their tokens,
by 1 + 0.2 z.

Equations:
    Read: copies of the public code in other repositories, notes, and the abstract.

    - N1, split of the budget: `PremonitoredBranching.starting`.
    - N2, branching: `PremonitoredBranching.penalised`, by the code.
    - N3, balanced clip: `Clipped(soft="upper")`, clip range 0.2, dual clip 3.
    - N4, entropy-aware advantage: `EntropyScaled(coefficient=0.2)`, over all trained tokens of the batch.
    - N5, group advantage: `GroupRelative`, std of n - 1 and 1e-6 added to it.

Differs:
    - Statistics of entropies: of a micro-batch in the code, of the batch here.
    - Optimizer steps a batch: not stated; 8 here, as in ARPO, since the balanced clip acts from the second one on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp

import numpy as np
from numpy.typing import NDArray

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import option
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.loss import Clip, Clipped, Policy
from agentrl_core.rollout import EntropyBranching, Group, Turn
from agentrl_core.weight import EntropyScaled


@dataclass(frozen=True)
class PremonitoredBranching(EntropyBranching):
    """ARPO's branching with a probe before it and a penalty for branch upon branch (AEPO, arXiv:2510.14545).

    A probe, kept and never drawn, runs to its end. With H as in `EntropyBranching`, H_root that of its first segment
    and H_tool the mean of those at tool results (H_root where it used none), the group starts with

        m = min(max(int(budget * sigmoid(gap * (H_root - H_tool))) + 1, 1), budget)

    branches; the others are left for copies. A branch makes each of its up to `beam - 1` copies at a tool result iff

        min(max((u + entropy_weight * dH) * max(0, 1 - penalty * l), 0), 1) >= probability

    with u ~ U[0, 1) its own, dH by how much H is above that of the branch's first segment, and l the copies that the
    group made so far. (The paper writes (alpha + gamma dH)(1 - P(l)); this is the public code.) `initial` is not used.

    Args:
        gap: how much the difference of entropies counts.
        penalty: by how much each copy makes the next one less likely.

    Example:
        >>> from agentrl_core.recipes.aepo import PremonitoredBranching
        >>> PremonitoredBranching(budget=16).starting(0.9, 0.1), PremonitoredBranching(budget=16).starting(0.5, 0.5)
        (10, 9)
    """

    gap: float = option(0.5, at_least=0)
    penalty: float = option(0.05, at_least=0)

    async def group(self, group: Group) -> None:
        """The probe; then rounds of one turn for each live branch, and copies as far as the budget goes."""
        probe = group.start(role="helper")
        await group.run([probe])
        entropies = self.entropies(probe.turns, group.vocabulary_size)
        at_tools = [entropies[turn.index] for turn in probe.turns if turn.follows_tool and turn.segments]
        root = float(entropies[0]) if len(entropies) else float("nan")
        live = group.start_many(self.starting(root, float(np.mean(at_tools)) if at_tools else root))
        copies = 0
        while live:
            branches = live
            turns = await group.turn(branches)
            firsts = [branch.turns[0] for branch in branches]
            entropy, initial = np.split(self.entropies([*turns, *firsts], group.vocabulary_size), 2)
            made = self.penalised(turns, entropy - initial, copies, self.budget - group.count)
            live = [branch for branch in branches if not branch.over]
            for branch, turn, number, score in zip(branches, turns, made, entropy, strict=True):
                live += branch.fork_many(number, at=turn.begin, score=float(score))
            copies += sum(made)
            if not live and group.count < self.budget:
                live = [group.start()]

    def starting(self, root: float, tool: float) -> int:
        """How many branches start at the prompt."""
        if not np.isfinite(root - tool):
            raise self._unknown()
        return min(max(int(self.budget / (1.0 + exp(-self.gap * (root - tool)))) + 1, 1), self.budget)

    def penalised(self, turns: Sequence[Turn], change: NDArray[np.float64], copies: int, room: int) -> list[int]:
        """How many copies each turn makes.

        Args:
            turns: those of a round, in the order of the branches.
            change: `float64[turns]`, by how much the entropy is above that of the branch's first segment.
            copies: that the group made before.
            room: how many it may make.
        """
        made = [0] * len(turns)
        for row, turn in enumerate(turns):
            if turn.failed or not turn.follows_tool:
                continue
            if not np.isfinite(change[row]):
                raise self._unknown()
            for copy in range(self.beam - 1):
                fear = max(0.0, 1.0 - self.penalty * (copies + sum(made)))
                score = min(max((turn.uniform(copy) + self.entropy_weight * float(change[row])) * fear, 0.0), 1.0)
                made[row] += sum(made) < room and score >= self.probability
        return made

    def _unknown(self) -> InvalidInputError:
        return InvalidInputError(
            f"{self.title()}: the entropy of a turn that may branch, or of the probe, is not known; use an engine that "
            "reports entropies"
        )


AEPO = Recipe(
    name="aepo",
    source="arXiv:2510.14545",
    rollout=PremonitoredBranching(budget=16, initial=8, beam=2, probability=0.5, entropy_weight=0.2),
    advantage=GroupRelative(),
    weight=EntropyScaled(coefficient=0.2, at_least=None),
    loss=Policy(surrogate=Clipped(soft="upper"), clip=Clip(0.2, 0.2, dual=3.0)),
    minibatches=8,
)
