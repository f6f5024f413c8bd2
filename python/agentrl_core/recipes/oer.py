"""OER: of what is remembered, what the policy itself is most likely to do is learned again.

Experience that resembles the policy keeps what it knows without pulling it elsewhere. With p the policy when a step
begins, a remembered success has the priority

    exp(1/T sum over its T trained tokens of log p),

the largest come back, as a third of the batch, and are imitated; fresh rollouts are trained with GRPO. Likely
experience alone would end exploration, therefore successes alone are remembered. The priority of what is drawn again
is renewed, that of the others stays.

Source: OER: Offline Experience Replay for Continual Offline Reinforcement Learning (arXiv:2305.13804), of which this
idea alone is used: neither its model of transitions nor its two policies fit language models. Shares and sizes are
ours. Needs: `recomputed_logprob`, by the policy before the first update.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, Where, draw, sum_rows, token
from agentrl_core.loss import Imitation, Policy, Train
from agentrl_core.replay import Memory, Mix

if TYPE_CHECKING:
    from agentrl_core import Batch

FRESH, STORED = Where(source="fresh"), Where(source="replay")


@dataclass(frozen=True)
class Likelihood(BatchComponent):
    """Makes the likelihood of each draw under the policy, token by token: exp of their mean log-prob.

    Example:
        >>> from agentrl_core.recipes.oer import Likelihood
        >>> Likelihood().makes
        (draw('likelihood'),)
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (token("recomputed_logprob", model="policy"),)
    makes: ClassVar[tuple[Column, ...]] = (draw("likelihood"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `likelihood` on draws."""
        tokens, draws = Rows(batch, "token"), Rows(batch, "draw")
        known = tokens.known("recomputed_logprob") & tokens.valid
        logprobs = np.where(known, tokens.values("recomputed_logprob"), 0.0)
        total, count = (sum_rows(values, tokens.draws, len(draws)) for values in (logprobs, known))
        return draws.write(likelihood=np.where(count > 0.0, np.exp(total / np.maximum(count, 1.0)), 0.0))


OER = Recipe(
    name="oer",
    source="arXiv:2305.13804",
    replay=Mix(Memory(order="best", priority="likelihood", where=Where(column="score", above=0.0)), share=0.34),
    advantage=(GroupRelative(), Likelihood()),
    loss=(Train(Policy(), where=FRESH), Train(Imitation(), where=STORED)),
    old_logprob="recomputed",
)
