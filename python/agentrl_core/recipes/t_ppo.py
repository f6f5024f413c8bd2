"""T-PPO: updates on windows of responses that have not ended, so that nobody waits for the longest (arXiv:2506.15050).

    A_t = sum_k lambda^k delta_{t+k},   delta_t = r_t + V_{t+1} - V_t,   V after the last token of a window: V_{l-1}
    L_policy = - mean over the tokens of this window of min(r A, clip(r, 0.8, 1.2) A)
    L_critic = mean over all tokens of the responses that have ended of 1/2 (V - R)^2,   R their score

with lambda 0.95 and no discount. Each iteration samples at most l tokens of each response; one that has not ended goes
on in the next, under the newer weights. Collect with `Collector(..., batch_policy=BatchPolicy(max_new_tokens=8192))`
for responses of at most 24 K tokens, 512 tasks and groups of 16. A batch has sixteen optimizer steps of 512 responses.
A critic that returns 0 gives windows without an end no signal: warm it up on responses that have ended.

Needs: the critic as token column `value`.

Equations:
    Read: the abstract, reviews and summaries of others; the paper's text was not read.

    - N1, truncated rollout: `BatchPolicy(max_new_tokens=l)` of the collector, which gives the batches.
    - N2, EGAE of an unfinished response: `CutOff`, then `Gae(at_truncation="repeat")`.
    - N3, GAE of a finished response: the same `Gae`, with 0 after the end.
    - N4, policy tokens: `LatestVersionOnly`.
    - N5, value tokens: `ScoreAsReturn`, and `Where(column="success", at_least=0.0)` of the critic's `Train`.

Differs:
    - Lambda and discount: not stated; 0.95 and none here, the usual ones.
    - Window, group size, optimizer steps and no KL: of a reader's notes. They do not state whether a minibatch of 512
      counts responses (sixteen steps, taken here) or tasks (one step).
    - Clip range: not stated; 0.2 here.
    - Batch: constant in the paper, since finished responses give their slot to a new prompt; here an iteration asks
      for the number of groups that the caller gives.
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
    """Trains only the tokens of each draw that its newest weights sampled; older tokens are context.

    It keeps a token if its policy version is the largest of its draw; older tokens are not in the denominator of the
    loss. A critic's loss does not read `keep`, and trains all tokens. For `collect.BatchPolicy(max_new_tokens=...)`,
    one iteration at a time, where the weights of an iteration sampled all that it adds. Source: T-PPO,
    arXiv:2506.15050.

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
        """Return `batch` with another `keep` on tokens."""
        rows = Rows(batch, "token")
        versions = rows.values("policy_version")
        newest = np.full(batch.num_draws, -np.inf)
        np.maximum.at(newest, rows.draws, versions)
        return rows.keep(versions == newest[rows.draws])


@dataclass(frozen=True)
class CutOff(BatchComponent):
    """Marks tokens of responses that a window cut off, whose `success` is unknown.

    Example:
        >>> from agentrl_core.recipes.t_ppo import CutOff
        >>> CutOff().makes
        (token('truncated'),)
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (draw("success"),)
    makes: ClassVar[tuple[Column, ...]] = (token("truncated"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `truncated`."""
        rows = Rows(batch, "token")
        return rows.write(truncated=np.isnan(rows.values("success")))


@dataclass(frozen=True)
class ScoreAsReturn(BatchComponent):
    """The target of the critic is what the response came to: R_t = score, of every token of it (lambda = 1).

    Example:
        >>> from agentrl_core.recipes.t_ppo import ScoreAsReturn
        >>> ScoreAsReturn().needs, ScoreAsReturn().makes
        ((draw('score'),), (token('return'),))
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (draw("score"),)
    makes: ClassVar[tuple[Column, ...]] = (token("return"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with another `return`."""
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
