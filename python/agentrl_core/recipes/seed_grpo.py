"""SEED-GRPO: lower the weight of tasks with inconsistent answers, by their semantic entropy (arXiv:2505.12346).

If the answers to a task differ in meaning, the model is uncertain about it, and the task should change the model less.
The draws of a group have weight f(x), with x in [0, 1] the semantic entropy of its answers divided by ln(group size),
and A = R - mean(R).

    f(x) = 1 - coefficient x (`linear`),  exp(-coefficient x),  1 / (1 + coefficient x) (`inverse`)
           or (1 - coefficient x)^exponent (`focal`).

The paper's entropy is the mean of -ln p over the clusters of answers. Its coefficient is not known; 0.0417 is the
coefficient of a public port, which corresponds to `AnswerEntropyScaled(entropy="exact", kind="inverse")`. The
environment reports which answers have the same meaning, as the facts `answer_cluster` and `answer_parsed` of its
episodes. The loss is GRPO's.

Equations:
    Read: the abstract, and a review and notes by others.

    - N1, advantage before scaling: `GroupRelative(scale="none")`.
    - N2, mass of a meaning: the share of the answers that are in its cluster.
    - N3, semantic entropy: `AnswerEntropyScaled(entropy="sampled")`.
    - N4, scaled advantage: the weight of `AnswerEntropyScaled`, a factor of the policy's term.
    - N5, semantic entropy of the port: `AnswerEntropyScaled(entropy="exact")`.
    - N6, loss: `Policy`, clip range 0.2.

Differs:
    - Mass of a meaning: shares of counts here. The notes also have masses from probabilities; with them the entropy may
      exceed its maximum ln G, and the factor may be below 0.
    - Clip range and steps per batch: not known; 0.2 and 1 here.
    - Aggregation: not known; the mean over tokens here. A public port offers the sum of Dr. GRPO,
      `Policy(aggregate="constant", constant=1.0)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentrl_core import Recipe, group
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, column_name, draw, option
from agentrl_core.loss import Policy
from agentrl_core.operators.votes import cluster_votes

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class AnswerEntropyScaled(BatchComponent):
    """Lower the weight of tasks whose answers agree little.

    The module docstring has the formula. A group of one has x = 0.

    Args:
        cluster: draw column of whole numbers, equal for answers with the same meaning.
        parsed: draw column, 0 if a draw gave no answer.
        entropy: `sampled`: -mean_c ln p_c, each cluster of answers once; `exact`: -sum_c p_c ln p_c.
        kind: the function f.
        coefficient: factor of x; a larger one takes more weight from groups without agreement.
        exponent: exponent of `focal`.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.seed_grpo import AnswerEntropyScaled
        >>> AnswerEntropyScaled().makes
        (draw('weight'),)
    """

    phase: ClassVar[str] = "weight"
    needs: ClassVar[tuple[Column, ...]] = (draw("group_id"),)
    makes: ClassVar[tuple[Column, ...]] = (draw("weight"),)

    cluster: str = column_name("answer_cluster", level="draw")
    parsed: str = column_name("answer_parsed", level="draw")
    entropy: Literal["sampled", "exact"] = "sampled"
    kind: Literal["linear", "exponential", "inverse", "focal"] = "linear"
    coefficient: float = option(0.0417, at_least=0.0, at_most=1.0)
    exponent: float = option(2.0, above=0.0)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the scaled `weight` of draws."""
        rows = Rows(batch, "draw")
        groups = rows.keys("group_id")
        votes = cluster_votes(rows.keys(self.cluster), groups, parsed=rows.flags(self.parsed), valid=rows.valid)
        entropies = votes.cluster_entropy if self.entropy == "sampled" else votes.entropy
        sizes = group.statistics(np.zeros(len(rows)), groups, valid=rows.valid).count
        parts = self.coefficient * np.nan_to_num(entropies, nan=0.0) / np.log(np.maximum(sizes, 2.0))
        factors = {
            "linear": 1.0 - parts,
            "exponential": np.exp(-parts),
            "inverse": 1.0 / (1.0 + parts),
            "focal": np.maximum(1.0 - parts, 0.0) ** self.exponent,
        }[self.kind]
        return rows.scale(factors[groups])


SEED_GRPO = Recipe(
    name="seed_grpo",
    source="arXiv:2505.12346",
    advantage=GroupRelative(scale="none"),
    weight=AnswerEntropyScaled(),
    loss=Policy(),
)
