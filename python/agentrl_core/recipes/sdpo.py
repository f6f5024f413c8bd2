"""SDPO: the policy under a prompt with feedback is its own teacher (arXiv:2601.20802).

A rollout is read again by the teacher, an average of the policy's weights, under a prompt that also has feedback of the
environment or a successful attempt at the task. The policy learns the teacher's distributions of the next token along
its own rollout:

    L = mean over tokens with a teacher of min(p / p_old, 2) KL(p || q)
    teacher <- 0.95 teacher + 0.05 policy   after every optimizer step

The KL is over the teacher's 100 likeliest tokens and one bin for all others. Rollouts without feedback or a solution
have no teacher and are left out. `successful_siblings` names a successful attempt for each rollout; annotate those that
have one:

    found = successful_siblings(batch)
    batch = arl.annotate(batch, "teacher_logprob", teacher, top_k=100, prompts=prompts, draws=found >= 0)

Needs: a model `teacher`, a copy of the policy, given to `recipe.updates`.

Equations:
    Read: the paper's section 2, appendix A and table 12; TRL's notes.

    - 1, loss: `Divergence(beta=1.0)`.
    - 2, gradient: of `Divergence(beta=1.0)`, over the distribution and not the sampled token alone.
    - C1, teacher: `SyncModel`.
    - 9, top-K distillation: `Divergence(support="top")`.
    - 10, mean and importance ratio: mean over tokens, `AnsweredTokens`, and `Divergence(ratio_at_most=2.0)`.
    - C2, symmetric divergence: an option, `Divergence(beta=0.5, ratio_at_most=2.0)`.
    - N1, loss of a sampled token: an option of TRL, `Divergence(beta=1.0, support="sampled", ratio_at_most=2.0)`.

Differs:
    - Likeliest tokens: the student's in equation 9; the teacher's here, which it answers once for all steps.
    - Settings: table 12 has the symmetric divergence, one step and 0.05 without feedback of the environment; with it
      reverse KL, the likeliest 20, mini-batches of one question of 32 and 0.01. Here equation 1, one step and 0.05.
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
    """Train only tokens with an answer: keep = 1 if the column is known, else 0.

    Args:
        column: token column, NaN where nothing was computed.

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
    """Return for each draw the first draw of its group with a score above a number, -1 if there is none.

    A success is its own: the paper's teacher reads it again as the solution (table 2).

    Args:
        batch: with the column `score`.
        above: scores of successes are above it.

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
