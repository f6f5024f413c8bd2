"""TurnOPD: distil a teacher over an adaptive number of turns, and move to equal weights for all turns.

It sets two budgets of on-policy distillation over long trajectories (arXiv:2607.05804): the number of turns and the
weight of each turn. Every eighth iteration and the first three have full rollouts, from which the depth follows. With
K_t the mean reverse KL of turn t = 0, 1, ... and n_t the number of trajectories that have this turn,

    m_t = max(K_t, 0) n_t / n_0,   H_eff = round(sum of t m_t / sum of m_t)
    H_cov = the smallest H by which 80 % of the successful trajectories end (at least 8 of them, else as before)
    H <- 0.7 H + 0.3 max(H_eff, H_cov),   limit = clip(round(H) + 1, 2, 50) turns

The weight of a token changes from its share of the trajectory's tokens to an equal share for every turn:

    w = (1 - a) / N + a / (T n),   a from 0 to 1 over the run
    L = mean over trajectories of the sum over tokens of w KL(p || q)

N: tokens of the trajectory; T: its turns; n: tokens of the token's turn. Annotate the batch before its credit is
computed; the limit reads `teacher_logprob`:

    batch = arl.annotate(batch, "teacher_logprob", teacher, top_k=64)

Needs: a model `teacher` with the policy's tokenizer.

Equations:
    Read: the abstract, and two notes with the formulas and settings of the paper; the paper's text was not read, and no
    code is public.

    - N1, distillation: `Divergence("sequence_mean", beta=1.0)`.
    - N2, supervision mass: `AdaptiveDepth.next`, from `teacher_logprob` and `behaviour_logprob`.
    - N3, coverage: `AdaptiveDepth(coverage=0.8, successes=8)`.
    - N4, smoothed depth: `AdaptiveDepth(mix=0.3, at_least=2, turns=50)`.
    - N5, blended weights: `TurnBalanced`.

Differs:
    - K_t: over whole distributions in the paper; here its estimate, the mean of log p - log q of the sampled tokens.
    - Support: here the 64 most likely tokens of the teacher and one bin for all other tokens; in the notes the whole
      vocabulary, an option: `Divergence("sequence_mean", beta=1.0, support="vocabulary")`.
    - First depth: not stated; here the depth of the first full rollouts. There is no limit before an iteration has 8
      successes.
    - Blend: from 0 to 1 over 100 iterations; the notes have a window of the run, but do not give its ends.
    - Floor of survivors: named in a note without a number; none here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe, Schedule
from agentrl_core.component import (
    BatchComponent,
    Column,
    IterationRecord,
    Rows,
    State,
    Stateful,
    option,
    sum_rows,
    token,
)
from agentrl_core.exceptions import RecipeError
from agentrl_core.loss import Divergence
from agentrl_core.rollout import Branch, Rollout

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentrl_core import Batch


@dataclass(frozen=True)
class AdaptiveDepth(Rollout, Stateful):
    """Limit turns by where full rollouts diverge from the teacher, and by the length of the successful ones.

    A trajectory that reaches the limit before its end is truncated, and keeps its rewards so far. Iterations with full
    rollouts have no limit, and only they change it. Evaluation has no limit.

    Args:
        warm_up: number of first iterations with full rollouts.
        every: afterwards, iterations that are multiples of it have full rollouts.
        coverage: share of the successes that the limit does not cut.
        successes: smallest number of successes that updates their part of the limit.
        mix: weight of the newest depth.
        at_least: smallest limit.
        turns: largest limit.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.turn_opd import AdaptiveDepth
        >>> program = AdaptiveDepth()
        >>> state = {"covered": 4.0, "depth": 4.6}
        >>> [program.limit(iteration, state) for iteration in (2, 3, 8, 9)]
        [None, 6, None, 6]
    """

    warm_up: int = option(3, at_least=0)
    every: int = option(8, at_least=1)
    coverage: float = option(0.8, above=0, at_most=1)
    successes: int = option(8, at_least=1)
    mix: float = option(0.3, above=0, at_most=1)
    at_least: int = option(2, at_least=1)
    turns: int = option(50, at_least=1)

    def limit(self, iteration: int, state: Mapping[str, float | None]) -> int | None:
        """Return the largest number of turns of a trajectory, or None for full rollouts. Iterations count from 0."""
        depth = state["depth"]
        if iteration < self.warm_up or iteration % self.every == 0 or depth is None:
            return None
        return min(max(round(depth) + 1, self.at_least), self.turns)

    async def branch(self, branch: Branch) -> None:
        """Run turns until the branch is over or reaches its limit."""
        group = branch.group
        state = group.state.get(f"rollout[0].{type(self).__name__}") or self.initial_state()
        limit = self.limit(group.key[0], state) if group.mode == "train" else None
        while not branch.over:
            if limit is not None and len(branch.turns) >= limit:
                branch.stop("the depth of this iteration", status="truncated")
                return
            await branch.turn()

    def initial_state(self) -> State:
        """Return the state without measurements."""
        return {"covered": None, "depth": None}

    def next(self, state: State, closed: IterationRecord) -> State:
        """Return the depth after an iteration; it only moves after full rollouts."""
        if self.limit(closed.iteration, state) is not None or not closed.batch.num_draws:
            return dict(state)
        draws = Rows(closed.batch, "draw")
        depths = np.diff(closed.batch.offsets("step")) - 1
        solved_depths = np.sort(depths[draws.values("success") == 1.0])
        covered = state["covered"]
        if len(solved_depths) >= self.successes:
            covered = float(solved_depths[int(np.ceil(self.coverage * len(solved_depths) - 1e-9)) - 1])
        if covered is None:
            return {"covered": None, "depth": None}
        measured = max(float(self.taught(closed.batch)), covered)
        depth = measured if state["depth"] is None else (1.0 - self.mix) * state["depth"] + self.mix * measured
        return {"covered": covered, "depth": depth}

    def taught(self, batch: Batch) -> int:
        """Return H_eff, the mean turn number, from 0, weighted by the divergence from the teacher at each turn.

        Raises:
            RecipeError: the batch has no log-probs of the teacher.
        """
        tokens = Rows(batch, "token")
        if not batch.has("teacher_logprob", "token"):
            raise RecipeError(
                "turn_opd.AdaptiveDepth: the batch has no column 'teacher_logprob', which the depth follows; add the "
                "column before the credit: batch = arl.annotate(batch, 'teacher_logprob', teacher, top_k=64)"
            )
        log_ratio = tokens.values("behaviour_logprob") - tokens.values("teacher_logprob")
        known = tokens.flags("trainable") & np.isfinite(log_ratio)
        offsets = batch.offsets("step")
        number = np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))
        turn, most = number[tokens.within("step")], int(number.max(initial=0)) + 1
        counts = np.bincount(turn[known], minlength=most)
        totals = np.bincount(turn[known], weights=log_ratio[known], minlength=most)
        survivors = np.bincount(number, minlength=most)
        mass = np.maximum(totals / np.maximum(counts, 1), 0.0) * survivors
        return round(float((np.arange(most) * mass).sum() / mass.sum())) if mass.sum() else 0


@dataclass(frozen=True)
class TurnBalanced(BatchComponent):
    """Balance the weights of a trajectory's turns: kl_weight *= (1 - share) + share N / (T n).

    N: trained tokens of the draw; T: its steps with trained tokens; n: trained tokens of the step. The sum of a draw's
    weights does not change. With `sequence_mean`, share 0 is the mean over its tokens, and share 1 the mean over its
    steps.

    Args:
        share: degree of balancing: 0 keeps all weights, 1 gives all steps the same total weight.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.turn_opd import TurnBalanced
        >>> TurnBalanced().makes
        (token('kl_weight'),)
    """

    phase: ClassVar[str] = "weight"
    makes: ClassVar[tuple[Column, ...]] = (token("kl_weight"),)

    share: float = option(1.0, at_least=0, at_most=1)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with a changed token column `kl_weight`, the factor of a divergence."""
        rows = Rows(batch, "step")
        step_tokens, draws = rows.trained, rows.draws
        draw_tokens, steps = (
            sum_rows(each, draws, batch.num_draws)[draws]
            for each in (step_tokens, (step_tokens > 0).astype(np.float64))
        )
        equal = draw_tokens / np.maximum(steps * step_tokens, 1.0)
        factors = np.where(step_tokens > 0, 1.0 + self.share * (equal - 1.0), 1.0)
        tokens = Rows(batch, "token")
        return tokens.scale(factors[tokens.within("step")], "kl_weight")


TURN_OPD = Recipe(
    name="turn_opd",
    source="arXiv:2607.05804",
    rollout=AdaptiveDepth(),
    weight=TurnBalanced(share=Schedule(0.0, 1.0, iterations=100)),
    loss=Divergence("sequence_mean", beta=1.0, support="top"),
    frozen=("teacher",),
)
