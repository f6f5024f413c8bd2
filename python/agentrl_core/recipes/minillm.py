"""MiniLLM: minimise the reverse KL to a teacher by policy gradient, with an exact term for the next token.

    r_t = log q(y_t) - log p_old(y_t)
    A_t = mean of r_s over s > t, 0 at the last token
    L = mean of max(-A r, -A clip(r, 0.8, 1.2)) + mean of KL(p || q) over the vocabulary

The first term measures the effect of a token on later ones. The second term is exact for the token itself, so that A
does not include the token's own reward. q is the teacher: annotate `teacher_logprob` before credit is computed, and
call `pack.run(policy, teacher=teacher)`. A batch has 16 optimizer steps: the clip acts from the second one on.

The paper samples from a mixture of both models, 0.2 q + 0.8 p, and weights tokens by w = p_old / mixture. If the
rollouts have the log-probs of the mixture, r is p / mixture, so it includes w.

Source: MiniLLM: Knowledge Distillation of Large Language Models (arXiv:2306.08543). Needs: a model `teacher` with the
policy's tokenizer.

Equations:
    Read: the abstract, a translation of the paper's section 2, and the authors' code.

    - 3, gradient in two parts: `Policy` on returns without the token's own reward, and `Divergence`.
    - 3a, reward of a token: `ImplicitProcess`, beta 1; its bound is not set.
    - 4, teacher-mixed sampling: left out: it needs an engine that mixes two models; see above for its log-probs.
    - 5, weight of mixed sampling: `Policy`, clip range 0.2; w is in the ratio.
    - 6, length normalisation: `Discounted`, gamma 1, and `MeanReturn`.
    - 7, single-step part: `Divergence`, beta 1, over the vocabulary.
    - C2, return of the code: `MeanReturn(own=True)`: the mean from the token itself on.
    - C3, whitening of the code: an option, `GroupRelative` over the tokens of the batch.
    - C6, language-modelling loss: left out: it needs a corpus; add `Train(Imitation(...), stage="warm_start")`.

Differs:
    - Mean over tokens: as in the code; the paper sums over the tokens of a response.
    - Discount: an option of the code's script; 1 here, as in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe, returns
from agentrl_core.advantage import Discounted
from agentrl_core.component import BatchComponent, Column, Rows, column_name, token
from agentrl_core.loss import Divergence, Policy, Sum
from agentrl_core.reward import ImplicitProcess, OutcomeScore

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class MeanReturn(BatchComponent):
    """Turn the advantage of a token, a sum of rewards, into the mean reward of the trained tokens after it.

    Args:
        rewards: token column of the rewards that were summed.
        own: whether the mean includes the token itself, as in the public code.

    Example:
        >>> from agentrl_core.recipes.minillm import MeanReturn
        >>> MeanReturn().makes
        (token('advantage'),)
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (token("advantage"),)
    makes: ClassVar[tuple[Column, ...]] = (token("advantage"),)

    rewards: str = column_name("process_reward", level="token")
    own: bool = False

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with a new `advantage` on tokens."""
        rows = Rows(batch, "token")
        trained = rows.flags("trainable")
        remaining = returns.discounted(trained.astype(np.float64), rows.draws, gamma=1.0)
        total = rows.values("advantage")
        if not self.own:
            remaining, total = remaining - 1.0, total - np.where(trained, rows.values(self.rewards), 0.0)
        return rows.write(advantage=np.where(remaining > 0.0, total / np.maximum(remaining, 1.0), 0.0))


MINILLM = Recipe(
    name="minillm",
    source="arXiv:2306.08543",
    reward=(OutcomeScore(), ImplicitProcess(beta=1.0, model="teacher_logprob", reference="behaviour_logprob")),
    advantage=(Discounted(column="process_reward", level="token"), MeanReturn()),
    loss=Sum(Policy(), Divergence(beta=1.0, support="vocabulary")),
    frozen=("teacher",),
    epochs=4,
    minibatches=4,
)
