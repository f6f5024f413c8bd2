"""T-PPO: update on windows of unfinished responses, without waiting for the longest response (arXiv:2506.15050).

    A_t = sum_k lambda^k delta_{t+k},   delta_t = r_t + V_{t+1} - V_t,   V after the last token of a window: V_{l-1}
    L_policy = - mean over the tokens of this window of min(r A, clip(r, 0.8, 1.2) A)
    L_critic = mean over all tokens of the responses that have ended of 1/2 (V - R)^2,   R their score

with lambda 0.95 and no discount. Each iteration samples at most l tokens of each response; an unfinished response
continues in the next iteration, with the newer weights. Collect with
`Collector(..., batch_policy=BatchPolicy(max_new_tokens=8192))` for responses of at most 24 K tokens, 512 tasks and
groups of 16. A batch has sixteen optimizer steps of 512 responses. If the critic returns 0, windows without an end
give no signal: warm up the critic on responses that have ended.

Needs: the critic's values as token column `value`.

Equations:
    Read: the abstract, third-party reviews and summaries; the paper's text was not read.

    - N1, truncated rollout: `BatchPolicy(max_new_tokens=l)` of the collector, which makes the batches.
    - N2, EGAE of an unfinished response: `CutOff`, then `Gae(at_truncation="repeat")`.
    - N3, GAE of a finished response: the same `Gae`, with value 0 after the end.
    - N4, policy tokens: `LatestVersionOnly`.
    - N5, value tokens: `ScoreAsReturn`, and `Where(column="success", at_least=0.0)` in the critic's `Train`.

Differs:
    - Lambda and discount: not stated; 0.95 and none here, the usual ones.
    - Window, group size, optimizer steps and no KL: from a reader's notes. They do not state whether a minibatch of
      512 counts responses (sixteen steps, taken here) or tasks (one step).
    - Clip range: not stated; 0.2 here.
    - Batch: constant in the paper, because a new prompt takes the slot of each finished response; here an iteration
      collects the number of groups that the caller requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import Gae
from agentrl_core.component import BatchComponent, Column, Rows, Where, draw, token
from agentrl_core.loss import Policy, Train, Value

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class LatestVersionOnly(BatchComponent):
    """Of each draw, train only the tokens that its newest policy version sampled; older tokens are context.

    A token is kept if its policy version is the largest of its draw; older tokens do not count in the denominator of
    the loss. The loss of a critic does not read `keep`, and trains all tokens. Use it with
    `collect.BatchPolicy(max_new_tokens=...)`, one iteration at a time, so that the same weights sample all tokens
    that an iteration adds. Source: T-PPO, arXiv:2506.15050.

    Example:
        >>> import agentrl_core as arl
        >>> from agentrl_core.recipes.t_ppo import LatestVersionOnly
        >>> forest = arl.Forest()
        >>> forest.add_group(0, "task")
        >>> path = forest.start(0, 0)
        >>> _ = forest.append(path, [1], kind="prompt")
        >>> for version, tokens in enumerate([[3, 4, 5], [6]]):
        ...     _ = forest.append(path, tokens, kind="action", logprobs=[-1.0] * len(tokens), policy_version=version)
        >>> forest.finish(path, reward=1.0)
        >>> batch = forest.freeze().with_columns("draw", score=[1.0])
        >>> LatestVersionOnly()(batch).column("keep", "token").tolist()
        [0, 0, 0, 1]
    """

    phase: ClassVar[str] = "weight"
    needs: ClassVar[tuple[Column, ...]] = (token("policy_version"),)
    makes: ClassVar[tuple[Column, ...]] = (token("keep"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with a new `keep` on tokens."""
        rows = Rows(batch, "token")
        versions = rows.values("policy_version")
        newest = np.full(batch.num_draws, -np.inf)
        np.maximum.at(newest, rows.draws, versions)
        return rows.keep(versions == newest[rows.draws])


@dataclass(frozen=True)
class CutOff(BatchComponent):
    """Mark the tokens of responses that a window cut off; their `success` is unknown.

    Example:
        >>> from agentrl_core.recipes.t_ppo import CutOff
        >>> CutOff().makes
        (token('truncated'),)
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (draw("success"),)
    makes: ClassVar[tuple[Column, ...]] = (token("truncated"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `truncated` on tokens."""
        rows = Rows(batch, "token")
        return rows.write(truncated=np.isnan(rows.values("success")))


@dataclass(frozen=True)
class ScoreAsReturn(BatchComponent):
    """Set the critic's target to the score of the response: R_t = score, for each of its tokens (lambda = 1).

    Example:
        >>> from agentrl_core.recipes.t_ppo import ScoreAsReturn
        >>> ScoreAsReturn().needs, ScoreAsReturn().makes
        ((draw('score'),), (token('return'),))
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (draw("score"),)
    makes: ClassVar[tuple[Column, ...]] = (token("return"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with a new `return` on tokens."""
        rows = Rows(batch, "token")
        return rows.write(**{"return": np.where(rows.valid, rows.values("score"), 0.0)})


T_PPO = Recipe(
    name="t_ppo",
    source="arXiv:2506.15050",
    advantage=(CutOff(), Gae(lam=0.95, at_truncation="repeat"), ScoreAsReturn()),
    weight=LatestVersionOnly(),
    loss=(
        Train(Value("token_mean"), model="critic", where=Where(column="success", at_least=0.0)),
        Policy("token_mean"),
    ),
    minibatches=16,
)
