"""SDPO: the policy under a prompt with feedback is its own teacher (arXiv:2601.20802).

A failed rollout is read again by the teacher, an average of the policy's weights, under a prompt that also has feedback
or a successful attempt of the same task. The policy learns the teacher's answers about the tokens that it sampled:

    L = mean over tokens with a teacher of min(p / p_old, 2) sg(log p - log q) log p
    teacher <- 0.95 teacher + 0.05 policy   after every optimizer step

Rollouts without feedback or a solution have no teacher and are left out. `successful_siblings` names a successful
attempt for each rollout; annotate those that have one:

    found = successful_siblings(batch)
    batch = arl.annotate(batch, "teacher_logprob", teacher, prompts=prompts, draws=found >= 0)

Needs: a model `teacher`, a copy of the policy, given to `recipe.updates`.

Equations:
    Read: the abstract, and TRL's notes; the paper's text was not read.

    - N1, loss of a sampled token: `Divergence`, of sampled tokens.
    - N2, importance ratio: `Divergence(ratio_at_most=2.0)`.
    - N3, loss: mean over tokens, and `AnsweredTokens`.
    - N4, teacher: `SyncModel`.
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
    """Return for each draw the first other draw of its group with a score above a number, -1 if there is none.

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
        [1, 2, 1]
    """
    groups = batch.keys("group_id", "draw")
    succeeded = batch.column("score", "draw") > above
    first = arg_extreme(succeeded, groups, valid=succeeded)[groups]
    own = np.arange(len(groups))
    second = arg_extreme(succeeded, groups, valid=succeeded & (first != own))[groups]
    return np.where(first == own, second, first)


SDPO = Recipe(
    name="sdpo",
    source="arXiv:2601.20802",
    weight=AnsweredTokens(),
    loss=Divergence(beta=1.0, support="sampled", ratio_at_most=2.0),
    hooks=SyncModel("policy", "teacher", mix=0.05, unit="steps"),
)
