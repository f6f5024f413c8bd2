"""SDPO: use the policy with feedback in its prompt as its own teacher (arXiv:2601.20802).

The teacher, an average of the policy's weights, evaluates each rollout again under a prompt that also contains
feedback of the environment or a successful attempt at the task. The policy learns the teacher's distributions of the
next token along its own rollout:

    L = mean over tokens with a teacher of min(p / p_old, 2) KL(p || q)
    teacher <- 0.95 teacher + 0.05 policy   after every optimizer step

The KL is over the teacher's 100 likeliest tokens and one bin for all others. Rollouts without feedback or a solution
have no teacher and are left out. `successful_siblings` returns the index of a successful attempt for each rollout;
annotate the rollouts that have one:

    found = successful_siblings(batch)
    batch = arl.annotate(batch, "teacher_logprob", teacher, top_k=100, prompts=prompts, draws=found >= 0)

Needs: a model `teacher`, a copy of the policy, passed to `recipe.updates`.

Equations:
    Read: the paper's section 2, appendix A and table 12; TRL's notes.

    - 1, loss: `Divergence(beta=1.0)`.
    - 2, gradient: the gradient of `Divergence(beta=1.0)`, over the whole distribution, not only the sampled token.
    - C1, teacher: `SyncModel`.
    - 9, top-K distillation: `Divergence(support="top")`.
    - 10, mean and importance ratio: the mean over the tokens that `AnsweredTokens` keeps, and
      `Divergence(ratio_at_most=2.0)`.
    - C2, symmetric divergence: an option, `Divergence(beta=0.5, ratio_at_most=2.0)`.
    - N1, loss of a sampled token: an option of TRL, `Divergence(beta=1.0, support="sampled", ratio_at_most=2.0)`.

Differs:
    - Likeliest tokens: the student's in equation 9; the teacher's here, computed once for all steps.
    - Settings: without feedback of the environment, table 12 has the symmetric divergence, one step and a teacher
      rate of 0.05. With it, table 12 has reverse KL, the 20 likeliest tokens, mini-batches of one question of 32 and
      a rate of 0.01. Here equation 1, one step and 0.05.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe
from agentrl_core.component import BatchComponent, Column, Rows, column_name, token
from agentrl_core.loss import Divergence
from agentrl_core.operators.group.reduce import arg_extreme
from agentrl_core.schedule import SyncModel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from agentrl_core import Batch


@dataclass(frozen=True)
class AnsweredTokens(BatchComponent):
    """Train only tokens with a value of the teacher: keep = 1 if the column is known, else 0.

    Args:
        column: token column, NaN if nothing was computed.

    Example:
        >>> from agentrl_core.recipes.sdpo import AnsweredTokens
        >>> AnsweredTokens().makes
        (token('keep'),)
    """

    phase: ClassVar[str] = "weight"
    makes: ClassVar[tuple[Column, ...]] = (token("keep"),)

    column: str = column_name("teacher_logprob", level="token", model="teacher")

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `keep` on tokens."""
        rows = Rows(batch, "token")
        return rows.keep(np.isfinite(rows.values(self.column)))


def successful_siblings(batch: Batch, *, above: float = 0.5) -> NDArray[np.int64]:
    """Return a successful draw of each draw's group: the draw itself, or else the group's first; -1 if there is none.

    If the draw itself is a success, the paper's teacher also gets it as the solution (table 2).

    Args:
        batch: batch with the column `score`.
        above: a draw is a success if its score is above this number.

    Example:
        >>> import agentrl_core as arl
        >>> from agentrl_core.recipes.sdpo import successful_siblings
        >>> forest = arl.Forest()
        >>> forest.add_group(0, "task")
        >>> for member, reward in enumerate([0.0, 1.0, 1.0]):
        ...     trajectory = forest.start(0, member=member)
        ...     _ = forest.append(trajectory, [1], kind="prompt")
        ...     _ = forest.append(trajectory, [2 + member], kind="action", logprobs=[-0.5])
        ...     forest.finish(trajectory, reward=reward)
        >>> batch = arl.recipes.SDPO.score(forest.freeze())
        >>> successful_siblings(batch).tolist()
        [1, 1, 2]
    """
    groups = batch.keys("group_id", "draw")
    succeeded = batch.column("score", "draw") > above
    first = arg_extreme(succeeded, groups, valid=succeeded)[groups]
    return np.where(succeeded, np.arange(len(groups)), first)


SDPO = Recipe(
    name="sdpo",
    source="arXiv:2601.20802",
    weight=AnsweredTokens(),
    loss=Divergence(beta=1.0, support="top", ratio_at_most=2.0),
    hooks=SyncModel("policy", "teacher", mix=0.05, unit="steps"),
)
