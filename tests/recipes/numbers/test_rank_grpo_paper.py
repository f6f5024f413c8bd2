"""Worked examples of the paper of rank_grpo, computed by the recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from compared import column
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed
from rollouts import small

from agentrl_core import recipes
from agentrl_core.advantage import Normalisation
from agentrl_core.recipe import Recipe
from agentrl_core.recipes.rank_grpo import ItemRelative

EXAMPLES = PaperExamples("rank_grpo")


def ranks(hits: Value, items: Sequence[Sequence[int]], **options: Any) -> Value:
    """Return advantages of the tokens of lists with these hits, `[lists, ranks]`."""
    columns = {f"draw_hit.{rank}": of_rank for rank, of_rank in enumerate(np.transpose(hits))}
    columns |= {"draw_score": [1.0] * len(items), "token_item": np.concatenate(items)}
    batch = small([(0, [len(each)]) for each in items], **columns)
    return np.array(column(replace(recipes.RANK_GRPO.advantage, **options)(batch), level="token"))


@EXAMPLES.by("DCG to go of two lists of three")
def rank_rewards(example: Example) -> Found:
    hits = np.array([example.values["hit_a"], example.values["hit_b"]])
    result = ranks(hits, [[1, 2, 3], [1, 2, 3]], normalisation=Normalisation(center="none", scale="none"))
    return {"reward_a": result[:3], "reward_b": result[3:]}


@EXAMPLES.by("advantages of each rank in a group of three")
def rank_advantages(example: Example) -> Found:
    hits = np.transpose([example.values[f"rank{rank}"] for rank in (1, 2, 3)])
    result = ranks(hits, [[1, 2, 3]] * 3, credit="independent").reshape(3, 3)
    return {f"advantage_rank_{rank}": result[:, rank - 1] for rank in (1, 2, 3)}


@EXAMPLES.by("a short list has no tokens for a rank but its 0 counts")
def rank_short(example: Example) -> Found:
    hits = np.transpose([[0.0, 0.0], example.values["rank2"]])
    first = ranks(hits, [[1, 2], [1]], credit="independent")[1]
    second = ranks(hits[::-1], [[1, 2], [1]], credit="independent")[1]
    return {"advantage_rank_2": np.array([first, second])}


@EXAMPLES.by("length shaping")
def rank_lengths(example: Example) -> Found:
    del example
    token_advantages = ranks(np.zeros((3, 2)), [[1, 2, 0], [1, 0], [1, 2, 3, 3, 0]])
    return {
        "end_token_a": token_advantages[2],
        "end_token_b": token_advantages[4],
        "overflow_tokens_c": token_advantages[7:9],
        "end_token_c": token_advantages[9],
    }


def lists(differences: Value, recipe: Recipe) -> Mapping[str, Value]:
    """Return loss and gradient of a list of two items and a separator with these log-ratios, and of a one-token list.

    Hits of 2 and -1 against 0 and 0 are advantages of 1 and -0.5; those of the other list are -1 and 0.5.
    """
    advantage = ItemRelative(credit="independent", normalisation=Normalisation(scale="none"))
    logprobs = [*(differences - 1.0).tolist(), -1.0]
    return computed(
        recipe.replace(advantage=advantage),
        ["loss", "gradient.logprob"],
        members=answers([6, 1], [1, 1]),
        columns={
            "draw": {"hit.0": [2, 0], "hit.1": [-1, 0]},
            "token": {"item": [1, 1, 0, 2, 2, 2, 1], "reference_logprob": logprobs},
        },
        policy={"logprob": logprobs},
    )


@EXAMPLES.by("ratios of two items and a separator")
def rank_loss(example: Example) -> Found:
    result = lists(example.values["d"], recipes.RANK_GRPO.replace(weight=None))
    assert result["gradient.logprob"][2] == 0.0
    return {"loss_without_kl": 2 * result["loss"] - 1, "ratio_1": -10 * result["gradient.logprob"][:1]}


@EXAMPLES.by("each rank counts alike")
def rank_shares(example: Example) -> Found:
    result = lists(example.values["d"], recipes.RANK_GRPO)
    # The other list wrote one item of two, with a loss of 1.
    return {
        "loss_without_kl": 2 * result["loss"] - 1 / 2,
        "gradient_of_a_token_of_item_1": 2 * result["gradient.logprob"][:1],
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
