"""OER: train again on the stored successes that the policy itself is most likely to produce (arXiv:2305.13804).

Experience that resembles the policy preserves its knowledge without pulling it elsewhere. The recipe uses only this
idea of the paper. The paper's model of transitions and its second network with behaviour cloning are left out: a
language model's environment has no states to which a model could be fitted, and there is no Q-learned policy that
imitation would disturb. Shares and sizes are chosen here. With p the policy at the start of a step, a stored success
has the priority

    exp(1/T sum over its T trained tokens of log p).

The successes with the highest priority are drawn again, as a third of the batch, and imitated; fresh rollouts are
trained with GRPO. Likely experience alone would end exploration, so only successes are stored. Successes that are drawn
again get a new priority; the priority of the other successes does not change.

Equations:
    Read: the paper's abstract, and notes by others.

    - N1, replay score: `Likelihood`, the exponential of the score, over trained tokens.
    - N2, selection: `Memory(order="best", priority="likelihood")`; to sample with temperature tau, use
      `order="proportional", exponent=1 / tau`.
    - N3, filter by reward: `Memory(where=Where(column="score", above=0.0))`, before the ranking.

Differs:
    - Score of an item: in the notes the current policy scores all items, here the policy of an item's last use.
    - Selection: by states, once at the end of a task, in the paper.

Needs: the column `recomputed_logprob`, computed by the policy before the first update.
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
    """Compute the likelihood of each draw under the policy, per token: exp of the mean log-prob of its tokens.

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
