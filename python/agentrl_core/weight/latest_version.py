"""Windows: of a trajectory that goes on over several iterations, only what the last one has added is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core.component import BatchComponent, Column, Rows, token

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class LatestVersionOnly(BatchComponent):
    """Trains of each draw the tokens that its newest weights have said; what older ones said is context.

    weight *= N / M where a token's policy version is the largest of its draw, and 0 elsewhere, with N trained tokens in
    the batch and M that remain: so the mean over all tokens is the mean over those that remain. A critic's loss does
    not see the weight, and trains all tokens. For `collect.BatchPolicy(max_new_tokens=...)`, one iteration at a time,
    where what an iteration adds is what the weights of that iteration said. Source: T-PPO, arXiv:2506.15050.

    Example:
        >>> import agentrl_core as arl
        >>> from agentrl_core.weight import LatestVersionOnly
        >>> forest = arl.Forest()
        >>> forest.add_group(0, "task")
        >>> path = forest.start(0, 0)
        >>> _ = forest.append(path, [1], kind="prompt")
        >>> for version, tokens in enumerate([[3, 4, 5], [6]]):
        ...     _ = forest.append(path, tokens, kind="action", logprobs=[-1.0] * len(tokens), policy_version=version)
        >>> forest.finish(path, reward=1.0)
        >>> batch = forest.freeze().with_columns("draw", score=[1.0])
        >>> LatestVersionOnly()(batch).column("weight", "token").tolist()
        [0.0, 0.0, 0.0, 4.0]
    """

    phase: ClassVar[str] = "weight"
    needs: ClassVar[tuple[Column, ...]] = (token("policy_version"),)
    makes: ClassVar[tuple[Column, ...]] = (token("weight"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with another `weight` on tokens."""
        rows = Rows(batch, "token")
        versions = rows.values("policy_version")
        newest = np.full(batch.num_draws, -np.inf)
        np.maximum.at(newest, rows.draws, versions)
        remain = versions == newest[rows.draws]
        share = (remain & rows.valid).sum() / max(int(rows.valid.sum()), 1)
        return rows.scale(np.where(remain, 1.0 / share if share else 1.0, 0.0))
