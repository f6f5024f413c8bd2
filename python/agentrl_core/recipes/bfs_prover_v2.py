"""BFS-Prover-V2: best-first search for proofs, whose steps train the prover (arXiv:2509.06493).

A tree of each theorem grows where the log-prob of the path, divided by the square of its depth, is largest; `BestFirst`
has the rules. A branch that ends is
worth 1 if the theorem is proved, else 0. The steps of proofs are imitated, except those whose mean negative log-prob is
in the lower or upper tenth of the batch's: too easy, or noise. If the success rate of the rollouts gains no more than
0.5 % in three iterations, the policy is set back to the model `base`. The planner, the second contribution of the
title, is left out: it serves inference alone.

Equations:
    Read: the abstract, the public code of the search, its README, and summaries by others. The training code is not
    public, and the paper's text was not read.

    - C1, score of a tactic: left out: a mean over its tokens in the code; `BestFirst` sums them, as the notes have it.
    - C2, priority of a node: `BestFirst(depth_exponent=2.0)`, as in the script; not computed: it grows trees, as in
      the tests of rollouts.
    - C3, outcome of a node: `BestFirst`, which stops at the first solution; not computed: the same.
    - C4, distance: `SearchTree.solution` has the shortest path; not computed: the same.
    - C5, preference pairs: left out: the code does not train on them; `SearchTree.pairs` has them.
    - C6, planner: left out: it is of the inference.
    - N1, tactic filter: `TacticBand`.
    - N4, training: `Imitation("step_mean")` over the kept steps.
    - N7, reward: `GroupRelative(center="none", scale="none")`, 1 for the steps of a proof.
    - R1, periodic retraining: `SyncModel("base", "policy", when=Plateau("success"))`; not computed: a hook
      between iterations.

Differs:
    - Bounds of the band: not given; the middle 80 % here.
    - Rule of the plateau: not given; 0.5 % in three iterations here.
    - After a retraining the paper solves all problems again; here the next iterations do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe, group
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, option, step, sum_rows, token
from agentrl_core.loss import Imitation
from agentrl_core.rollout import Group, Rollout, SearchTree, StoredSearches
from agentrl_core.schedule import SyncModel
from agentrl_core.schedule.condition import Plateau

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class TacticBand(BatchComponent):
    """Keeps the steps of proofs whose mean negative log-prob lies between two quantiles of the batch's.

    The mean is over the behaviour log-probs of the trained tokens; steps with an advantage of at most 0, or without
    log-probs, are left out and do not count.

    Args:
        low: the lower quantile, 0 to 1.
        high: the upper quantile, at least `low`.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.bfs_prover_v2 import TacticBand
        >>> TacticBand().makes
        (step('keep'),)
    """

    phase: ClassVar[str] = "weight"
    needs: ClassVar[tuple[Column, ...]] = (token("behaviour_logprob"), step("advantage"))
    makes: ClassVar[tuple[Column, ...]] = (step("keep"),)

    low: float = option(0.1, at_least=0, at_most=1)
    high: float = option(0.9, at_least=0, at_most=1)

    def check_options(self) -> None:
        """Require a band."""
        self.require(self.low <= self.high, "high", f"give a number of at least low={self.low}")

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with `keep` on steps."""
        tokens, rows = Rows(batch, "token"), Rows(batch, "step")
        known = tokens.known("behaviour_logprob") & tokens.flags("trainable")
        steps = tokens.within("step")
        counts = sum_rows(known.astype(np.float64), steps, len(rows))
        surprise = -sum_rows(np.where(known, tokens.values("behaviour_logprob"), 0.0), steps, len(rows))
        surprise /= np.maximum(counts, 1.0)
        proof = rows.valid & (rows.values("advantage") > 0.0) & (counts > 0.0)
        if not proof.any():
            return rows.keep(proof)
        everything = np.zeros(int(proof.sum()), np.uint32)
        low, high = (float(group.quantile(surprise[proof], everything, q)[0]) for q in (self.low, self.high))
        return rows.keep(proof & (surprise >= low) & (surprise <= high))


_BEGIN = -1
"""Where `SearchTree.expand` tries first actions."""


@dataclass(frozen=True)
class BestFirst(Rollout):
    """Tries several actions in the most promising state, again and again (BFS-Prover-V2, arXiv:2509.06493).

    A state is given by the environment (`state_key`), however many ways lead to it, and is expanded once. Each
    round takes the `width` open states with the largest log p / depth^depth_exponent, and tries `samples` actions in
    each; log p is the sum over the sampled tokens of all actions of the path, and depth the number of these actions. As
    log p is negative, a larger exponent favours deep states. A branch that comes to a state which was reached before
    stops there. A state is solved if an action leads from it to a solved one, and failed if all that were tried lead to
    failed ones. The search ends with the first solution (where `until_solved`), without open states, or when `budget`
    actions were sampled. Branches that ended are drawn; those that the search left standing are kept.

    `Group.tree` has the solution, the distances and the preference pairs then; `SearchTree.of` finds them again in the
    stored batch.

    Args:
        samples: actions that are tried in a state.
        width: states that are expanded in a round.
        depth_exponent: of the depth; 0: the likeliest path is first.
        budget: actions of a group, at most.
        until_solved: whether the first solution ends the search.
        searches: the folder of a store: a task whose search is stored there goes on where it stood; empty: none does.

    Example:
        >>> from agentrl_core.recipes.bfs_prover_v2 import BestFirst
        >>> BestFirst(samples=4, budget=64).samples
        4
    """

    samples: int = option(8, at_least=1)
    width: int = option(1, at_least=1)
    depth_exponent: float = option(0.0, at_least=0)
    budget: int = option(128, at_least=1)
    until_solved: bool = True
    searches: str = ""

    async def group(self, group: Group) -> None:
        """Rounds of one action in each of the most promising states."""
        StoredSearches(self.searches).resume(group)
        turns = self._promising(group.tree) if len(group.tree) else [_BEGIN]
        left = self.budget
        while turns and left:
            tree = group.tree
            known = len(tree)
            tried = [turn for turn in turns for _ in range(self.samples)][:left]
            await group.turn(tree.expand(tried))
            left -= len(tried)
            tree = group.tree
            for turn in tree.repeated(known):
                tree.branch(turn).stop("state reached before")
            solved = self.until_solved and bool(tree.solution())
            turns = [] if solved else self._promising(tree)

    def _promising(self, tree: SearchTree) -> list[int]:
        """Turns to the open states that are expanded next, best first; ties: the earlier one."""
        turns = np.array(tree.frontier(len(tree)), np.int64)
        scores = tree.path_logprob[turns] / (tree.step[turns] + 1.0) ** self.depth_exponent
        best: list[int] = turns[np.argsort(-scores, kind="stable")[: self.width]].tolist()
        return best


BFS_PROVER_V2 = Recipe(
    name="bfs_prover_v2",
    source="arXiv:2509.06493",
    rollout=BestFirst(samples=8, width=1, depth_exponent=2.0, budget=128),
    advantage=GroupRelative(center="none", scale="none"),
    weight=TacticBand(),
    loss=Imitation("step_mean"),
    hooks=SyncModel("base", "policy", when=Plateau("success")),
)
