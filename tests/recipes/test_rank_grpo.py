"""Rank-GRPO: items of a list, by hand."""

from __future__ import annotations

import numpy as np
import torch
from compared import close, column
from rollouts import small

from agentrl_core import recipes
from agentrl_core.advantage import Normalisation
from agentrl_core.loss import Tokens
from agentrl_core.recipes.rank_grpo import ItemRelative


def test_items_of_a_list() -> None:
    # Two lists of up to three items: 1 0 1 complete and one too many, 0 0 - incomplete.
    batch = small(
        [(0, [6]), (0, [4])],
        draw_score=[1.0, 0.0],
        **{"draw_hit.0": [1.0, 0.0], "draw_hit.1": [0.0, 0.0], "draw_hit.2": [1.0, 0.0]},
        token_item=[1, 1, 2, 3, 4, 0, 1, 2, 0, 0],
    )
    component = ItemRelative(normalisation=Normalisation(scale="none"))
    close(
        column(component(batch), level="token"),
        [0.75, 0.75, 0.25, 0.25, -0.1, 0.0, -0.75, -0.25, 0.0, -0.1],
        1e-7,
    )
    independent = ItemRelative(credit="independent", normalisation=Normalisation(scale="none"))
    close(column(independent(batch), level="token")[:4], [0.5, 0.5, 0.0, 0.5])
    with_items = batch.with_columns("token", item=np.array([1, 1, 2, 3, 0, 0, 1, 2, 3, 0]))
    close(np.array(column(component(with_items), level="token"))[[5, 9]], [0.1, 0.1])


def test_every_item_has_its_own_ratio() -> None:
    streams = {
        "weight_kl": torch.ones(5),
        "old_logprob": torch.zeros(5) - 2.0,
        "sequence": torch.zeros(5, dtype=torch.int64),
        "item": torch.tensor([1.0, 1.0, 2.0, 2.0, 0.0]),
    }
    tokens = Tokens(torch.tensor([0.75, 0.25, -0.75, -0.25, 0.1]) - 2.0, None, streams)
    log_ratio, factor = recipes.RANK_GRPO.loss.ratio(tokens)
    torch.testing.assert_close(log_ratio, torch.tensor([0.5, 0.5, -0.5, -0.5, 0.1]))
    assert factor is None
