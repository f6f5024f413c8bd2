"""CORY: two copies of a model learn together; the second answers with the answer of the first in sight.

The pioneer answers the question, y1; the observer answers the question with y1 in its prompt, y2. Both are paid r(x,
y1) + r(x, y2), and every 5 iterations they change roles: which copy is the pioneer. Each copy has a PPO of its own: its
advantages are whitened alone, its losses are means over its own tokens, in 4 passes over a batch, and the KL to where
it began is in its reward, times 0.4. Source: arXiv:2410.06101; its code's reward mode "independent" is the recipe
without `TeamScore`.

Give the collector two engines, `{"first": ..., "second": ...}`. The updates of the models `policy` and `critic` are of
the first copy, those of `second` and `second_critic` of the second; fill `value` with the critic of each draw's copy.
The draw column `copy` is 0 or 1. With one engine for both, the models `policy` and `second` have to be one.

Equations:
    Read: the paper and the public code.

    - 2, reward of a token: `Gae(kl_coefficient=0.4)`.
    - 3, pioneer and observer: `PioneerObserver`.
    - 4, shared reward: `TeamScore`.
    - 5, change of roles: `PioneerObserver(swap_every=5)`; not computed: it needs several iterations.
    - P1, PPO of each copy: `Gae(lam=0.95)`, whitening by copy, `Policy` and `Value` of each, both clipped at 0.2.

Differs:
    - KL: the full one, and its coefficient adapts to a target of 6, in the code; of sampled tokens, and fixed, here.
    - Scores: scaled by their running mean and std in the code, not in the paper; as they are here.
    - Critics: a head on each policy in the code, whose loss counts 0.1; models of their own here.
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
    """Pays those who work together the same: the sum (or mean) of the scores of all draws with the same keys.

    A draw without a score adds nothing and stays without one. Source: CORY, arXiv:2410.06101, whose two agents both
    get the sum of their rewards.

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
        """Return `batch` with another column `score` on draws."""
        rows = Rows(batch, "draw")
        teams, scores = rows.keys(self.group_by), rows.values("score")
        if self.kind == "mean":
            shared = group.statistics(scores, teams, valid=rows.valid).mean[teams]
        else:
            shared = group.sums(np.where(rows.valid, scores, 0.0), teams)[teams]
        return rows.write(score=np.where(rows.valid, shared, np.nan))


@dataclass(frozen=True)
class PioneerObserver(Rollout):
    """Pairs of an answer and another that has seen it, by two agents that change places.

    The draw column `pair` numbers the pairs of a group, `observer` is 1 for the second of a pair, `copy` for an answer
    of the agent `second`.

    Args:
        swap_every: iterations until the agents `first` and `second` change places.
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
        """Pioneer and observer of an iteration."""
        return ("second", "first") if iteration // self.swap_every % 2 else ("first", "second")

    async def group(self, group: Group) -> None:
        """The pioneers side by side, then their observers."""
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
        """The question and an answer to it."""
        asked = pioneer.prompt_messages
        return insert_text(asked, self.template, pioneer.text)

    def final_group_size(self, group_size: int) -> int:
        """Two for each pair."""
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
