"""AEPO: penalise repeated branching, and keep gradients for uncertain tokens (arXiv:2510.14545).

A probe rollout runs first and measures where the policy is uncertain: at the question, or after tool results
(`PremonitoredBranching`). The more uncertain it is at the question, the more of the 16 rollouts start there. A token
with a positive advantage keeps its gradient above the clip range. Advantages are scaled by the entropy of their tokens,
by 1 + 0.2 z with z the standard score of the entropy.

Equations:
    Read: copies of the public code in other repositories, notes, and the abstract.

    - N1, split of the budget: `PremonitoredBranching.starting`.
    - N2, branching: `PremonitoredBranching.penalised`, as in the code.
    - N3, balanced clip: `Clipped(soft="upper")`, clip range 0.2, dual clip 3.
    - N4, entropy-aware advantage: `EntropyScaled(coefficient=0.2)`, over all trained tokens of the batch.
    - N5, group advantage: `GroupRelative`, std with divisor n - 1, plus 1e-6.

Differs:
    - Statistics of entropies: over a micro-batch in the code, over the batch here.
    - Optimizer steps a batch: not stated; 8 here, as in ARPO, because the balanced clip acts only from the second step
      on.
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
    """Branch as in ARPO, but start with a probe and penalise repeated copies (AEPO, arXiv:2510.14545).

    A probe rollout runs to its end first; it is stored but never drawn. H is the entropy of `EntropyBranching`, H_root
    that of the probe's first segment, and H_tool the mean H of its segments after tool results (H_root if it used no
    tool). The group starts with

        m = min(max(int(budget * sigmoid(gap * (H_root - H_tool))) + 1, 1), budget)

    branches; the rest of the budget is left for copies. At a tool result a branch makes each of its up to `beam - 1`
    copies iff

        min(max((u + entropy_weight * dH) * max(0, 1 - penalty * l), 0), 1) >= probability

    with a separate u ~ U[0, 1) for each copy, dH the increase of H since the first segment of the branch, and l the
    number of copies that the group has made so far. (The paper writes (alpha + gamma dH)(1 - P(l)); this is the form of
    the public code.) `initial` is not used.

    Args:
        gap: weight of the difference of entropies.
        penalty: how much each copy of the group reduces the score of the next one.

    Example:
        >>> from agentrl_core.recipes.aepo import PremonitoredBranching
        >>> PremonitoredBranching(budget=16).starting(0.9, 0.1), PremonitoredBranching(budget=16).starting(0.5, 0.5)
        (10, 9)
    """

    gap: float = option(0.5, at_least=0)
    penalty: float = option(0.05, at_least=0)

    async def group(self, group: Group) -> None:
        """Run the probe, then rounds of one turn for each live branch, with copies within the budget."""
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
            copies_per_turn = self.penalised(turns, entropy - initial, copies, self.budget - group.count)
            live = [branch for branch in branches if not branch.over]
            for branch, turn, number, score in zip(branches, turns, copies_per_turn, entropy, strict=True):
                live += branch.fork_many(number, at=turn.begin, score=float(score))
            copies += sum(copies_per_turn)
            if not live and group.count < self.budget:
                live = [group.start()]

    def starting(self, root: float, tool: float) -> int:
        """Return how many branches start at the prompt at first, from entropies there and after tool results."""
        if not np.isfinite(root - tool):
            raise self._unknown("the probe")
        return min(max(int(self.budget / (1.0 + exp(-self.gap * (root - tool)))) + 1, 1), self.budget)

    def penalised(self, turns: Sequence[Turn], change: NDArray[np.float64], copies: int, room: int) -> list[int]:
        """Return the number of copies that each turn makes.

        Args:
            turns: turns of a round, in the order of the branches.
            change: `float64[turns]`, entropy of each turn minus the entropy of the first segment of its branch.
            copies: number of copies that the group made before.
            room: number of copies that still fit into the budget.
        """
        copies_per_turn = [0] * len(turns)
        for row, turn in enumerate(turns):
            if turn.failed or not turn.follows_tool:
                continue
            if not np.isfinite(change[row]):
                raise self._unknown(f"turn {turn.index} of live branch {row}, or of the first turn of this branch,")
            for copy in range(self.beam - 1):
                discount = max(0.0, 1.0 - self.penalty * (copies + sum(copies_per_turn)))
                score = min(max((turn.uniform(copy) + self.entropy_weight * float(change[row])) * discount, 0.0), 1.0)
                copies_per_turn[row] += sum(copies_per_turn) < room and score >= self.probability
        return copies_per_turn

    def _unknown(self, of: str) -> InvalidInputError:
        return InvalidInputError(
            f"{self.title()}: the entropy of {of} is not known; use an engine that reports entropies (for VllmServer, "
            "entropies=True)"
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
