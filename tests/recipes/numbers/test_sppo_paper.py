"""Worked examples of the paper of sppo, computed by the recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes
from agentrl_core.recipe import Recipe
from agentrl_core.reward import OutcomeScore

EXAMPLES = PaperExamples("sppo")


def wins(*groups: Value, recipe: Recipe = recipes.SPPO) -> list[Value]:
    """Return win probabilities of groups with these preference scores; one of `nan` is not compared."""
    largest = max(map(len, groups))
    chances = [1 / (1 + np.exp(np.subtract.outer(scores, scores).T)) for scores in groups]
    facts = [
        {f"preference.{place}": float(row[place]) if place < len(row) else np.nan for place in range(largest)}
        for group in chances
        for row in group
    ]
    names = [str(place) for place, group in enumerate(groups) for _ in group]
    members = [{"group": name, "path": "1 | 3", "facts": each} for name, each in zip(names, facts, strict=True)]
    draw_scores = computed(recipe, ["draw.score"], members=members)["draw.score"]
    return np.split(draw_scores, np.cumsum([len(group) for group in groups])[:-1])


def regression_loss(answers: Sequence[tuple[Value, Value]], chances: Sequence[float], beta: float) -> Found:
    """Return the loss of a group of answers with new and old log-probs and win probabilities."""
    recipe = recipes.SPPO.replace(reward=OutcomeScore(), loss=replace(recipes.SPPO.loss, beta=beta))
    members = [
        {"path": f"1 | 3*{np.size(old)}", "logprobs": np.ravel(old).tolist(), "reward": float(chance)}
        for (_, old), chance in zip(answers, chances, strict=True)
    ]
    now = np.concatenate([np.ravel(new) for new, _ in answers]).tolist()
    return dict(computed(recipe, ["loss", "gradient.logprob"], members=members, policy={"logprob": now}))


def targets(chances: Sequence[float], beta: float) -> Value:
    """Return the regression targets of answers' log-ratios: their gradients at a log-ratio of 0."""
    still = (np.full(1, -1.0), np.full(1, -1.0))
    result = regression_loss([still] * len(chances), chances, beta)
    return -len(chances) / 2 * result["gradient.logprob"]


@EXAMPLES.by("win probabilities of groups of three and of two")
def win_rates(example: Example) -> Found:
    score_groups = example.values["s"], example.values["u"]
    first, second = wins(*score_groups)
    alone = wins(*score_groups, recipe=recipes.SPPO.replace(reward=replace(recipes.SPPO.reward, include_self=False)))[0]
    return {"win": first, "win_second_group": second, "best_and_worst_if_self_did_not_count": alone[[0, 2]]}


def test_a_response_without_comparisons_is_not_an_opponent() -> None:
    scores = np.array([1.0, 0.2, -0.5])
    np.testing.assert_allclose(wins(np.append(scores, np.nan))[0], [*wins(scores)[0], 0.5])


@EXAMPLES.by("loss of best and worst, of unequal length")
def best_and_worst(example: Example) -> Found:
    given = example.values
    answers = [(given["w"], given["w_t"]), (np.ravel(given["l"]), np.ravel(given["l_t"]))]
    result = regression_loss(answers, [float(given["P_w"]), float(given["P_l"])], float(given["beta"]))
    return {"loss": result["loss"], "derivative_by_log_ratio": result["gradient.logprob"][[0, -1]]}


@EXAMPLES.by("the paper's scale, and a tie")
def scale(example: Example) -> Found:
    return {"target": targets(example.values["P"].tolist(), recipes.SPPO.loss.beta)}


@EXAMPLES.by("the sample's log Z instead of the constant")
def constant(example: Example) -> Found:
    return {"target_of_4_6": targets(example.values["P"].tolist(), 1 / float(example.values["eta"]))}


@EXAMPLES.by("two steps of an iteration and the first of the next")
def steps(example: Example) -> Found:
    given = example.values
    rows = zip(given["logp"], given["logp_t"], given["P"].tolist(), strict=True)
    beta = float(given["beta"])
    return {
        "square": np.concatenate([regression_loss([(now, old)], [chance], beta)["loss"] for now, old, chance in rows])
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
