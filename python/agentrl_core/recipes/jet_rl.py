"""Jet-RL: use one precision for rollouts and training, and measure the remaining mismatch (arXiv:2601.14243).

    GRPO with ratios to p_trainer_old, which equals p_engine if engine and trainer have one precision

With rollouts in FP8 and training in BF16, engine and trainer drift apart in long answers. The precision in which each
action was sampled is a fact (`rollout.RecordPrecision`). For each precision, `mismatch` measures how far engine and
trainer are apart. The paper corrects nothing. If the two differ, `weight=ImportanceWeight()` weighs each token by
min(p_trainer_old / p_engine, 2), which is not in the paper.

The paper also adds quantised matrix products. They are left out, because they belong to the engine and to the trainer.

Equations:
    Read: the paper's abstract, and notes of others.

    - N1, one precision flow: `mismatch` finds no difference; the weights of `ImportanceWeight`, an option, are then 1.
    - N2, quantisation: left out: it is inside the engine's and the trainer's matrix products.
    - N3, mixed scheme: `mismatch` measures it, with ratios of a sequence up to exp(20); `ImportanceWeight` weighs
      tokens by their ratios.
    - N4, objective: `GroupRelative` and `Policy`, with the trainer's old log-probs, `old_logprob="recomputed"`.

Differs:
    - Clip range, KL: those of the base method in the paper; 0.2 and no KL here.

Needs: `recomputed_logprob`, computed by the trainer before the first update; an engine that reports its precision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import Rows
from agentrl_core.loss import Policy
from agentrl_core.operators.importance import importance_diagnostics
from agentrl_core.rollout import RecordPrecision

if TYPE_CHECKING:
    from agentrl_core import Batch


class _Mismatch(NamedTuple):
    """Difference between the trainer and an engine of one precision, with d = ln p_trainer - ln p_engine of a token.

    Attributes:
        mean_difference: mean of |d| over the trained tokens.
        diagnostics: divergences, effective sample size and extreme ratios (`importance_diagnostics`).
    """

    mean_difference: float
    diagnostics: Any

    @property
    def is_large(self) -> bool:
        """Whether `mean_difference` is above 0.02, or the effective sample size below 0.9 of the draws (our bounds)."""
        return self.mean_difference > 0.02 or self.diagnostics.effective_fraction < 0.9


def mismatch(batch: Batch) -> dict[int, _Mismatch]:
    """Return the difference between engine and trainer for each sampling precision, by its number of bits.

    Args:
        batch: a batch with `recomputed_logprob` on tokens and the fact `rollout_precision` on steps. Tokens for which
            either is unknown are left out.

    Raises:
        RecipeError: there are no log-probs to compare.

    Example:
        >>> import agentrl_core as arl
        >>> from agentrl_core.recipes.jet_rl import mismatch
        >>> forest = arl.Forest(facts={"step": {"rollout_precision": "number"}})
        >>> forest.add_group(0, "task")
        >>> for member, bits in enumerate((8, 16)):
        ...     branch = forest.start(0, member=member)
        ...     _ = forest.append(branch, [1], kind="prompt")
        ...     _ = forest.append(branch, [3, 4], kind="action", logprobs=[-1.0, -1.0])
        ...     forest.step(branch, facts={"rollout_precision": bits})
        ...     forest.finish(branch, reward=1.0)
        >>> batch = forest.freeze().with_columns("token", recomputed_logprob=[-1.5, -0.5, -1.0, -1.0])
        >>> {bits: (found.mean_difference, found.is_large) for bits, found in mismatch(batch).items()}
        {8: (0.5, True), 16: (0.0, False)}
    """
    rows = Rows(batch, "token")
    bits = rows.values("rollout_precision")
    known = rows.known("recomputed_logprob") & rows.known("behaviour_logprob") & np.isfinite(bits)
    differences = np.where(known, rows.values("recomputed_logprob") - rows.values("behaviour_logprob"), 0.0)
    offsets = batch.offsets("token")[batch.offsets("step")]
    mismatches = {}
    for precision in np.unique(bits[known]).tolist():
        mask = known & (bits == precision)
        diagnostics = importance_diagnostics(differences, offsets, mask=mask)
        mismatches[int(precision)] = _Mismatch(float(np.abs(differences[mask]).mean()), diagnostics)
    return mismatches


JET_RL = Recipe(
    name="jet_rl",
    source="arXiv:2601.14243",
    rollout=RecordPrecision(),
    advantage=GroupRelative(),
    loss=Policy(),
    old_logprob="recomputed",
)
