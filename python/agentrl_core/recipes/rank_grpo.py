"""Rank-GRPO: compare the items of a written list with items at the same rank (arXiv:2510.20150).

Each item has one ratio, the geometric mean over its tokens; the end of the list has its own ratio. All other tokens,
such as separators, are left out of the loss. The loss of an item is the mean over its tokens. The total loss is the
mean over the K items of a list, then over lists.

Equations:
    Read: the public code, the abstract, and notes of others with the paper's objective; its text was not found.

    - C1, causal reward: `ItemRelative(credit="log_discount")`.
    - C2, each rank by itself: `ItemRelative(credit="independent")`.
    - C3, advantage of a rank: `ItemRelative`, std of n - 1 and 1e-4.
    - C4, ratio of a rank: `Ratio("item")`.
    - N1, objective of the paper: `ItemShares`, mean over the K items of a list; clip ranges and KL as in C5.
    - C5, loss in the code: `RANK_GRPO.replace(weight=None)`, the mean over the tokens of a list; clip ranges 0.06 and
      0.08, KL 0.001; `ItemRelative` writes `keep`.
    - C6 and C8, length and end of a list: `overflow`, `complete` and `incomplete` of `ItemRelative`.
    - C7, lists that cannot be read: hits that are NaN are worth 0.

Differs:
    - Items beyond the last: one ratio for all of them in the public code, one for each here. To get one ratio, clip
      the column `item` at K + 1.
    - Reward: the abstract has the causal reward, as here; the command of the public code trains with
      `credit="independent"`.
    - Optimizer steps a batch: 1, in the code and here; the paper also has 2. The clip range acts on off-policy lists
      alone, or with `RANK_GRPO.replace(epochs=2)`.
    - Warm start by behaviour cloning: left out, it comes before this recipe.

Needs: the draw columns `hit.0`, `hit.1`, ...; the token column `item`, computed by `arl.annotate(batch, "item",
spans.Parsed(...))` with a function that finds the items of a written list.
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
    """Compute a separate advantage for each item of a written list, relative to the items at the same rank.

    The advantage of a token is that of the item it belongs to, compared with the items at the same rank in the other
    draws of the group. The draw columns `hit.0`, `hit.1`, ..., one for each of K items, hold the worth of each item.
    The token column `item` holds the item that a token belongs to: 1 to K, more if it is beyond the last, 0 for none.
    The end of a list is the last token of a draw, if the draw was not truncated and the token belongs to no item. A
    missing item is worth 0, and votes. All other tokens without an item have no advantage and are left out of the
    loss.

    Args:
        credit: worth of an item: its own hit (`independent`), or sum_{j >= k} hit_j / log2(j + 1), from rank 1
            (`log_discount`).
        overflow: advantage of tokens beyond the last item.
        complete: advantage of the end token if all K items were written and no more.
        incomplete: advantage of the end token if an item is missing.
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
        new_batch = tokens.write(advantage=np.where(tokens.valid, advantages, 0.0))
        return Rows(new_batch, "token").keep((item >= 0) | ended)


@dataclass(frozen=True)
class ItemShares(BatchComponent):
    """Weight items of a list equally: each item's tokens share 1 / K of the list, as does the end of the list.

    `Policy("sequence_mean")` takes the mean over the tokens of a list. So the weight of a token is the number of the
    list's tokens divided by K times the number of its item's tokens. K is the number of columns `hit.0`, `hit.1`,
    ...: a missing item has no tokens and adds 0 to the loss. The KL remains a mean over the tokens of a list.

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
