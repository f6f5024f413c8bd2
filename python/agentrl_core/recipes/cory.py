"""CORY: train two copies of a model together; the second copy answers with the first copy's answer in its prompt.

The pioneer answers the question with y1. The observer answers it with y2, and has y1 in its prompt. Both get the reward
r(x, y1) + r(x, y2). Every 5 iterations the copies swap these roles. Each copy has its own PPO: its advantages are
whitened separately, its losses are means over its own tokens, and a batch is trained in 4 passes. The KL to its initial
weights, times 0.4, is subtracted from its reward. Source: arXiv:2410.06101; the reward mode "independent" of its code
is this recipe without `TeamScore`.

Give the collector two engines, `{"first": ..., "second": ...}`. The updates of the models `policy` and `critic` belong
to the first copy, the updates of `second` and `second_critic` to the second copy. Fill the column `value` with the
critic of each draw's copy. The draw column `copy` is 0 for the first copy and 1 for the second. If one engine serves
both copies, the models `policy` and `second` must be the same model.

Equations:
    Read: the paper and the public code.

    - 2, reward of a token: `Gae(kl_coefficient=0.4)`.
    - 3, pioneer and observer: `PioneerObserver`.
    - 4, shared reward: `TeamScore`.
    - 5, change of roles: `PioneerObserver(swap_every=5)`; not computed: it needs several iterations.
    - P1, PPO of each copy: `Gae(lam=0.95)`, whitening per copy, and `Policy` and `Value` for each copy, both clipped at
      0.2.

Differs:
    - KL: in the code, the full KL, with a coefficient that adapts to a target of 6; here the KL of the sampled tokens,
      with a fixed coefficient.
    - Scores: scaled by their running mean and std in the code, but not in the paper; unscaled here.
    - Critics: in the code, a head on each policy, with a loss coefficient of 0.1; here separate models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentrl_core import Recipe, group
from agentrl_core.advantage import Gae, GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, Where, column_name, draw, option
from agentrl_core.env import Content, ExtraColumn
from agentrl_core.loss import Policy, Train, Value
from agentrl_core.reward import OutcomeScore
from agentrl_core.rollout import Branch, Group, Rollout, insert_text

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class TeamScore(BatchComponent):
    """Give all members of a team one score: the sum (or mean) of the scores of all draws with the same keys.

    A draw without a score adds nothing and stays without one. Source: CORY, arXiv:2410.06101, whose two agents both get
    the sum of their rewards.

    Args:
        group_by: comma-joined key columns that identify teams.
        kind: `sum` or `mean`.

    Raises:
        RecipeError: `group_by` is empty.

    Example:
        >>> from agentrl_core.recipes.cory import TeamScore
        >>> TeamScore().needs
        (draw('score'), draw('episode_id'))
    """

    phase: ClassVar[str] = "reward"
    needs: ClassVar[tuple[Column, ...]] = (draw("score"),)
    makes: ClassVar[tuple[Column, ...]] = (draw("score"),)

    group_by: str = column_name("episode_id", level="draw")
    kind: Literal["sum", "mean"] = "sum"

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with a changed `score` on draws."""
        rows = Rows(batch, "draw")
        teams, scores = rows.keys(self.group_by), rows.values("score")
        if self.kind == "mean":
            shared = group.statistics(scores, teams, valid=rows.valid).mean[teams]
        else:
            shared = group.sums(np.where(rows.valid, scores, 0.0), teams)[teams]
        return rows.write(score=np.where(rows.valid, shared, np.nan))


@dataclass(frozen=True)
class PioneerObserver(Rollout):
    """Generate answers in pairs: the second agent sees the first agent's answer; the two agents swap roles.

    The draw column `pair` is the number of the pair in its group. `observer` is 1 for the second answer of a pair, and
    `copy` is 1 for an answer of the agent `second`.

    Args:
        swap_every: number of iterations after which the agents `first` and `second` swap roles.
        template: the observer's prompt: `{prompt}` is the question, `{text}` the pioneer's answer.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.cory import PioneerObserver
        >>> [PioneerObserver().roles(iteration)[0] for iteration in (0, 4, 5, 9, 10)]
        ['first', 'first', 'second', 'second', 'first']
    """

    facts: ClassVar[Mapping[str, ExtraColumn]] = {
        "pair": ExtraColumn("trajectory"),
        "observer": ExtraColumn("trajectory"),
        "copy": ExtraColumn("trajectory"),
    }

    swap_every: int = option(5, at_least=1)
    template: str = option("{prompt}\n\nAnother answer:\n{text}", filled=True)

    def roles(self, iteration: int) -> tuple[str, str]:
        """Return the pioneer and the observer of an iteration."""
        return ("second", "first") if iteration // self.swap_every % 2 else ("first", "second")

    async def group(self, group: Group) -> None:
        """Run all pioneers concurrently, then their observers."""
        pioneer, observer = self.roles(group.iteration)
        copy = int(pioneer == "second")
        facts = {"observer": 0, "copy": copy}
        first = [group.start(agent=pioneer, facts={"pair": pair, **facts}) for pair in range(group.size)]
        await group.run(first)
        facts = {"observer": 1, "copy": 1 - copy}
        second = [
            group.start(self.shown(branch), agent=observer, parent=branch, facts={"pair": pair, **facts})
            for pair, branch in enumerate(first)
            if branch.status in ("finished", "truncated")
        ]
        await group.run(second)

    def shown(self, pioneer: Branch) -> Content:
        """Return the observer's prompt: the question and the pioneer's answer."""
        messages = pioneer.prompt_messages
        return insert_text(messages, self.template, pioneer.text)

    def final_group_size(self, group_size: int) -> int:
        """Return the number of answers: two per pair."""
        return 2 * group_size


_FIRST, _SECOND = Where(column="copy", at_most=0.5), Where(column="copy", at_least=0.5)

CORY = Recipe(
    name="cory",
    source="arXiv:2410.06101",
    rollout=PioneerObserver(),
    reward=(OutcomeScore(), TeamScore(group_by="group_id,pair")),
    advantage=(
        Gae(lam=0.95, kl_coefficient=0.4),
        GroupRelative(column="advantage", level="token", group_by="copy", eps=0.0, variance_eps=1e-8),
    ),
    loss=(
        Train(Value("token_mean", clip=0.2), model="critic", where=_FIRST),
        Train(Value("token_mean", clip=0.2), model="second_critic", where=_SECOND),
        Train(Policy(), where=_FIRST),
        Train(Policy(), model="second", where=_SECOND),
    ),
    epochs=4,
)
