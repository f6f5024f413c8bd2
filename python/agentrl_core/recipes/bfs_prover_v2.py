"""BFS-Prover-V2: search for proofs best-first, and train the prover on the steps of these proofs (arXiv:2509.06493).

Each theorem has a search tree. The search expands the state with the largest log-prob of its path, divided by the
square of its depth; `BestFirst` has the rules. A branch that ended has reward 1 if the theorem is proved, else 0. The
loss imitates the steps of proofs, except those whose mean negative log-prob is in the lower or upper tenth of the
batch: they are too easy, or noise. If the success rate of the rollouts rises by at most 0.5 % in three iterations,
the policy is reset to the model `base`. The planner, the second contribution of the title, is left out: it is used
only at inference.

Equations:
    Read: the abstract, the public code of the search, its README, and summaries by others. The training code is not
    public, and the paper's text was not read.

    - C1, score of a tactic: left out: the code takes the mean over the tokens of a tactic; `BestFirst` sums over
      them, as in the notes.
    - C2, priority of a node: `BestFirst(depth_exponent=2.0)`, as in the script; not computed: it grows trees; the
      tests of rollouts cover it.
    - C3, outcome of a node: `BestFirst`, which stops at the first solution; not computed: for the same reason.
    - C4, distance: `SearchTree.solution` returns the shortest path; not computed: for the same reason.
    - C5, preference pairs: left out: the code does not train on them; `SearchTree.pairs` returns them.
    - C6, planner: left out: it is a part of inference.
    - N1, tactic filter: `TacticBand`.
    - N4, training: `Imitation("step_mean")` over the kept steps.
    - N7, reward: `GroupRelative(center="none", scale="none")`, 1 for the steps of a proof.
    - R1, periodic retraining: `SyncModel("base", "policy", when=Plateau("success"))`; not computed: it is a hook
      between iterations.

Differs:
    - Bounds of the band: not given in the sources; the middle 80 % here.
    - Rule of the plateau: not given in the sources; 0.5 % in three iterations here.
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
from agentrl_core.schedule import Plateau, SyncModel

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class TacticBand(BatchComponent):
    """Keep the steps of proofs whose mean negative log-prob lies between two quantiles of the batch.

    The mean is over the behaviour log-probs of the trained tokens. Steps with an advantage of at most 0 and steps
    without log-probs are dropped; the quantiles ignore them.

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
        """Require that the upper quantile is not below the lower one."""
        self.require(self.low <= self.high, "high", f"give a number of at least low={self.low}")

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `keep` on steps."""
        tokens, rows = Rows(batch, "token"), Rows(batch, "step")
        known = tokens.known("behaviour_logprob") & tokens.flags("trainable")
        steps = tokens.within("step")
        counts = sum_rows(known.astype(np.float64), steps, len(rows))
        surprise = -sum_rows(np.where(known, tokens.values("behaviour_logprob"), 0.0), steps, len(rows))
        surprise /= np.maximum(counts, 1.0)
        proof = rows.valid & (rows.values("advantage") > 0.0) & (counts > 0.0)
        if not proof.any():
            return rows.keep(proof)
        one_group = np.zeros(int(proof.sum()), np.uint32)
        low, high = (float(group.quantile(surprise[proof], one_group, q)[0]) for q in (self.low, self.high))
        return rows.keep(proof & (surprise >= low) & (surprise <= high))


_BEGIN = -1
"""Number that stands for the start in place of a turn: `GroupTree.expand` tries first actions there."""


@dataclass(frozen=True)
class BestFirst(Rollout):
    """Try several actions in the most promising state, round after round (BFS-Prover-V2, arXiv:2509.06493).

    The environment identifies a state (`state_key`). A state is expanded once, even if several paths lead to it. Each
    round takes the `width` open states with the largest log p / depth^depth_exponent, and tries `samples` actions in
    each; log p is the sum over the sampled tokens of all actions of the path, and depth is the number of these
    actions. As log p is negative, a larger exponent favours deep states. A branch that reaches a state that was
    reached before stops there. A state is solved if an action leads from it to a solved state, and failed if all
    tried actions lead to failed states. The search ends with the first solution (if `until_solved`), if no state is
    open, or when `budget` actions were sampled. Branches that ended are drawn; branches that the search left
    unfinished are stored, but not drawn.

    `Group.tree` then has the solution, the distances and the preference pairs; `SearchTree.of` reads them from the
    stored batch.

    Args:
        samples: actions tried in a state.
        width: states expanded in a round.
        depth_exponent: exponent of the depth; 0: the most likely path is first.
        budget: largest number of actions of a group.
        until_solved: whether the first solution ends the search.
        searches: folder of a store: a task whose search is stored there continues that search; empty: every search
            starts anew.

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
        """Run rounds of `samples` actions in each of the most promising states."""
        StoredSearches(self.searches).resume(group)
        turns = self._promising(group.tree) if len(group.tree) else [_BEGIN]
        remaining = self.budget
        while turns and remaining:
            tree = group.tree
            known = len(tree)
            parents = [turn for turn in turns for _ in range(self.samples)][:remaining]
            await group.turn(tree.expand(parents))
            remaining -= len(parents)
            tree = group.tree
            for turn in tree.repeated(known):
                tree.branch(turn).stop("state reached before")
            solved = self.until_solved and bool(tree.solution())
            turns = [] if solved else self._promising(tree)

    def _promising(self, tree: SearchTree) -> list[int]:
        """Return the turns that lead to the open states to expand next, best first; ties: the earlier turn."""
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
