"""Rank-GRPO: the items of a written list are compared place by place (arXiv:2510.20150).

Each item has one ratio, the geometric mean over its tokens; the end of the list has its own. Other tokens of no item,
such as separators, are out of the loss. The loss is the mean over the K items of a list, each the mean over its tokens,
then over lists.

Equations:
    Read: the public code, the abstract, and notes of others with the paper's objective; its text was not found.

    - C1, causal reward: `ItemRelative(credit="log_discount")`.
    - C2, each rank by itself: `ItemRelative(credit="independent")`.
    - C3, advantage of a rank: `ItemRelative`, std of n - 1 and 1e-4.
    - C4, ratio of a rank: `Ratio("item")`.
    - N1, objective of the paper: `ItemShares`, mean over the K items of a list; clip ranges and KL as C5.
    - C5, loss in the code: `RANK_GRPO.replace(weight=None)`, the mean over the tokens of a list; clip ranges 0.06 and
      0.08, KL 0.001; `ItemRelative` writes `keep`.
    - C6 and C8, length and end of a list: `overflow`, `complete` and `incomplete` of `ItemRelative`.
    - C7, lists that cannot be read: hits that are NaN are worth 0.

Differs:
    - Items beyond the last: one ratio for all of them in the public code, one for each here. For one, cut the column
      `item` at K + 1.
    - Reward: the abstract has the causal one, as here; the command of the public code trains with
      `credit="independent"`.
    - Optimizer steps a batch: 1, in the code and here; the paper also has 2. The clip range acts on off-policy lists
      alone, or with `RANK_GRPO.replace(epochs=2)`.
    - Warm start by behaviour cloning: left out, it comes before this recipe.

Needs: the draw columns `hit.0`, `hit.1`, ...; the token column `item`, of `arl.annotate(batch, "item",
spans.Parsed(...))` with what finds the items of a written list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import Normalisation
from agentrl_core.component import BatchComponent, Column, Rows, draw, step, token
from agentrl_core.loss import KL, Clip, Policy, Ratio

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class ItemRelative(BatchComponent):
    """Gives each item of a list that a draw writes an advantage of its own: items are compared place by place.

    The advantage of a token is that of the item it writes, compared with the item at the same place in the other draws.
    The draw columns `hit.0`, `hit.1`, ..., one for each of K items, hold what each is worth; the token column `item`
    has the item that a token writes: 1 to K, more where it is beyond the last, 0 none. The end of a list is the last
    token of a draw that was not cut off, where it writes no item. An item that was not written is worth 0, and votes.
    Other tokens of no item have no advantage and are left out of the loss.

    Args:
        credit: `independent`: an item is worth its own hit; `log_discount`: sum_{j >= k} hit_j / log2(j + 1), from
            place 1.
        overflow: advantage of tokens beyond the last item.
        complete: advantage of the end token where all K items were written and no more.
        incomplete: advantage of the end token where one was not.
        normalisation: how items are compared.

    Example:
        >>> from agentrl_core.recipes.rank_grpo import ItemRelative
        >>> ItemRelative().needs
        (draw('score'), draw('hit.0'), draw('group_id'), token('item'), step('truncated'))
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (
        draw("score"),
        draw("hit.0"),
        draw("group_id"),
        token("item", model="spans"),
        step("truncated"),
    )
    makes: ClassVar[tuple[Column, ...]] = (token("advantage"), token("keep"))

    credit: Literal["independent", "log_discount"] = "log_discount"
    overflow: float = -0.1
    complete: float = 0.1
    incomplete: float = -0.1
    normalisation: Normalisation = Normalisation(eps=1e-4)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the columns `advantage` and `keep` on tokens."""
        draws, tokens = Rows(batch, "draw"), Rows(batch, "token")
        worth = np.nan_to_num(draws.matrix("hit"), nan=0.0)
        count = worth.shape[1]
        if self.credit == "log_discount":
            gains = worth / np.log2(np.arange(2.0, count + 2.0))
            worth = np.cumsum(gains[:, ::-1], axis=1)[:, ::-1]
        groups = draws.keys("group_id")
        compared = np.stack([self.normalisation.compare(item, groups, valid=draws.valid) for item in worth.T], axis=1)
        item = np.nan_to_num(tokens.values("item"), nan=0.0).astype(np.int64) - 1
        inside = (item >= 0) & (item < count)
        written = np.zeros((len(draws), count + 1), dtype=np.bool_)
        listed = tokens.valid & (item >= 0)
        written[tokens.draws[listed], np.minimum(item[listed], count)] = True
        exact = written[:, :count].all(axis=1) & ~written[:, count]
        short = ~written[:, :count].all(axis=1)
        end = np.where(exact, self.complete, np.where(short, self.incomplete, 0.0))
        advantages = np.where(inside, compared[tokens.draws, np.clip(item, 0, count - 1)], 0.0)
        advantages = np.where(item >= count, self.overflow, advantages)
        ended = tokens.last & (item < 0) & ~tokens.flags("truncated")
        advantages = np.where(ended, end[tokens.draws], advantages)
        made = tokens.write(advantage=np.where(tokens.valid, advantages, 0.0))
        return Rows(made, "token").keep((item >= 0) | ended)


@dataclass(frozen=True)
class ItemShares(BatchComponent):
    """Counts the items of a list alike: the tokens of an item share 1 / K of the list, as does the end of it.

    With `Policy("sequence_mean")`, whose mean is over the tokens of a list, the weight of a token is that list's tokens
    over K times those of its item. K is the number of columns `hit.0`, `hit.1`, ...: an item that was not written has
    no tokens and is worth 0. The KL stays a mean over the tokens of a list.

    Example:
        >>> from agentrl_core.recipes.rank_grpo import ItemShares
        >>> ItemShares().makes
        (token('weight'),)
    """

    phase: ClassVar[str] = "weight"
    needs: ClassVar[tuple[Column, ...]] = (draw("hit.0"), token("item", model="spans"), token("keep"))
    makes: ClassVar[tuple[Column, ...]] = (token("weight"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `weight` on tokens."""
        tokens = Rows(batch, "token")
        count = Rows(batch, "draw").matrix("hit").shape[1]
        counted = tokens.valid & tokens.flags("keep")
        item = np.where(counted, np.nan_to_num(tokens.values("item"), nan=0.0), -1.0)
        _, place, size = np.unique(np.stack([tokens.draws, item]), axis=1, return_inverse=True, return_counts=True)
        lengths = np.bincount(tokens.draws, counted, minlength=batch.num_draws)
        return tokens.write(weight=np.where(counted, lengths[tokens.draws] / (count * size[place.reshape(-1)]), 1.0))


RANK_GRPO = Recipe(
    name="rank_grpo",
    source="arXiv:2510.20150",
    advantage=ItemRelative(),
    weight=ItemShares(),
    loss=Policy("sequence_mean", ratio=Ratio("item"), clip=Clip(0.06, 0.08), kl=KL(0.001)),
)
