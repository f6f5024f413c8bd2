"""Worked examples of the paper of inpo, computed by the recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from arithmetic import Value
from compared import column
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed
from rollouts import small

from agentrl_core import recipes
from agentrl_core.recipe import Recipe
from agentrl_core.replay import Pairs

EXAMPLES = PaperExamples("inpo")


def recipe_at(example: Example) -> Recipe:
    """The recipe has the example's eta and tau."""
    eta, tau = float(example.values["eta"]), float(example.values["tau"])
    return recipes.INPO.replace(loss=replace(recipes.INPO.loss, beta=eta, reference_share=tau / eta))


def pairs(recipe: Recipe, *answers: Sequence[Value]) -> Found:
    """Return the loss of answers, preferred and rejected in turn, from log-probs: now, of pi_t, of the reference."""
    now, reference = (np.concatenate([np.ravel(each[place]) for each in answers]).tolist() for place in (0, 2))
    members = [
        {
            "group": str(place // 2),
            "path": f"1 | 3*{np.size(each[1])}",
            "logprobs": np.ravel(each[1]).tolist(),
            "reward": float(place % 2 == 0),
        }
        for place, each in enumerate(answers)
    ]
    columns = {"token": {"reference_logprob": reference}}
    names = ["loss", "gradient.logprob"]
    return dict(computed(recipe, names, members=members, columns=columns, policy={"logprob": now}))


@EXAMPLES.by("loss of two pairs of unequal length")
def two_pairs(example: Example) -> Found:
    given = example.values
    result = pairs(
        recipe_at(example),
        *([given[f"{name}{end}"] for end in ("", "_t", "_ref")] for name in ("w1", "l1", "w2", "l2")),
    )
    slopes = result["gradient.logprob"][[0, 4]]  # the first tokens of the preferred answers
    return {"loss": result["loss"], "derivative_by_margin": slopes, "margin": slopes + 0.5 / given["eta"]}


@EXAMPLES.by("the paper's scale")
def scale(example: Example) -> Found:
    """At pi = pi_t = pi_ref the margin is 0."""
    apart = float(example.values["h"][1])
    answers = [([-50.0], [-50.0], [-50.0])] * 3
    at_zero = pairs(recipes.INPO, *answers[:2])
    moved = pairs(recipes.INPO, *answers[:2], ([apart - 50.0], [-50.0], [-50.0]), answers[0])
    return {"target": -at_zero["gradient.logprob"][:1] / 2, "loss": moved["loss"]}


@EXAMPLES.by("best and worst of unequal groups")
def best_and_worst(example: Example) -> Found:
    scores = [*example.values["s"].tolist(), np.nan, *example.values["u"].tolist(), *np.ravel(example.values["one"])]
    batch = small([(group, [1]) for group in (0, 0, 0, 0, 1, 1, 2)], draw_score=scores)
    pair_items = Pairs().mix({}, batch, 0)
    assert pair_items is not None
    rows = -1 - np.asarray(pair_items.trajectory_ids)
    paired = np.array(column(batch, "score"))[rows]
    assert len(paired) == 4, "a group of one gives no pair"
    return {"best": paired[::2], "worst": paired[1::2]}


@EXAMPLES.by("two iterations move the anchor and keep the reference")
def iterations(example: Example) -> Found:
    given = {name: float(example.values[name]) for name in ("ref", "t1", "first", "second", "t2", "eta")}
    results = [
        pairs(recipe_at(example), [now - 10, old - 10, given["ref"] - 10], [-10.0] * 3)
        for now, old in ((given["first"], given["t1"]), (given["second"], given["t1"]), (given["t2"], given["t2"]))
    ]
    slopes = np.array([each["gradient.logprob"][0] for each in results])
    return {"loss": np.concatenate([each["loss"] for each in results]), "margin": slopes / 2 + 0.5 / given["eta"]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
