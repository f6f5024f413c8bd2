"""MiniLLM: minimise the reverse KL to a teacher by policy gradient, with an exact term for the next token.

    r_t = log q(y_t) - log p_old(y_t)
    R_t = (sum of r_s over s >= t) / (tokens from t on),   A = R whitened over the batch
    L = mean of max(-A r, -A clip(r, 0.8, 1.2)) + mean of KL(p || q) over the vocabulary

The first term follows what a token does to later ones, the second one is exact for the token itself. q is the teacher:
annotate `teacher_logprob` before the credit, and call `pack.run(policy, teacher=teacher)`.

Source: MiniLLM: Knowledge Distillation of Large Language Models (arXiv:2306.08543). Needs: a model `teacher` with the
policy's tokenizer.

Equations:
    Read: the abstract and the authors' code; the paper's text was not read.

    - C1, reward of a token: `ImplicitProcess`, beta 1; its bound is not set.
    - C2, return with length normalisation: `Discounted`, gamma 1, and `MeanReturn`.
    - C3, whitening: `GroupRelative` over the tokens of the batch.
    - C4, policy loss: `Policy`, clip range 0.2; without the factor w.
    - C5, single-step term: `Divergence`, beta 1, over the vocabulary.
    - C6, language-modelling loss: left out: it needs a corpus; add `Train(Imitation(...), stage="warm_start")`.

Differs:
    - Teacher-mixed sampling: the code samples from a mixture of both models, with the weight w; here the policy samples
      alone and w is 1.
    - Discount: an option of the script there; 1 here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe, returns
from agentrl_core.advantage import Discounted, GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, token
from agentrl_core.loss import Divergence, Policy, Sum
from agentrl_core.reward import ImplicitProcess, OutcomeScore

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class MeanReturn(BatchComponent):
    """Divide the advantage of a token by the number of trained tokens from it on: a mean of rewards to come.

    Example:
        >>> from agentrl_core.recipes.minillm import MeanReturn
        >>> MeanReturn().makes
        (token('advantage'),)
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (token("advantage"),)
    makes: ClassVar[tuple[Column, ...]] = (token("advantage"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with a new `advantage` on tokens."""
        rows = Rows(batch, "token")
        trained = rows.flags("trainable")
        left = returns.discounted(trained.astype(np.float64), rows.draws, gamma=1.0)
        return rows.write(advantage=rows.values("advantage") / np.maximum(left, 1.0))


MINILLM = Recipe(
    name="minillm",
    source="arXiv:2306.08543",
    reward=(OutcomeScore(), ImplicitProcess(beta=1.0, model="teacher_logprob", reference="behaviour_logprob")),
    advantage=(
        Discounted(column="process_reward", level="token"),
        MeanReturn(),
        GroupRelative(column="advantage", level="token", group_by="batch", eps=0.0, variance_eps=1e-8),
    ),
    loss=Sum(Policy(), Divergence(beta=1.0, support="vocabulary")),
    frozen=("teacher",),
)
