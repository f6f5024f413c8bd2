"""Worked examples of the paper of pacs, computed by the recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes
from agentrl_core.loss import OutcomeClassifier

EXAMPLES = PaperExamples("pacs")
assert isinstance(recipes.PACS.loss, OutcomeClassifier)


def classified(*groups: tuple[Sequence[Sequence[float]], Sequence[float]], **options: Any) -> tuple[Value, list[Value]]:
    """Return the loss of an optimizer step, and for each group the gradient by log-prob of each answer's first token.

    Args:
        groups: log-ratios of the tokens of each answer, and labels; `nan` has none.
        options: replacements for options of the loss.
    """
    members = [
        {
            "group": str(place),
            "path": f"1 | 3*{len(tokens)}",
            **({} if np.isnan(label) else {"reward": float(label)}),
        }
        for place, (answers, labels) in enumerate(groups)
        for tokens, label in zip(answers, labels, strict=True)
    ]
    ratios = [ratio for answers, _ in groups for tokens in answers for ratio in tokens]
    result = computed(
        recipes.PACS.replace(loss=replace(recipes.PACS.loss, **options), minibatches=1),
        ["loss", "gradient.logprob"],
        members=members,
        policy={"logprob": (np.array(ratios) - 1.0).tolist()},
    )
    lengths = [len(tokens) for answers, _ in groups for tokens in answers]
    firsts = result["gradient.logprob"][np.cumsum([0, *lengths[:-1]])]
    return result["loss"], np.split(firsts, np.cumsum([len(answers) for answers, _ in groups])[:-1])


def one_token_answers(scores: Value) -> list[list[float]]:
    """Return answers of one token."""
    return [[score] for score in scores.tolist()]


@EXAMPLES.by("a group of four after a step, responses of unequal length")
def four(example: Example) -> Found:
    given = example.values
    answers, labels = [given[f"d{place}"].tolist() for place in range(4)], given["y"].tolist()
    loss, [gradient] = classified((answers, labels))
    by_score = classified((one_token_answers(given["psi"]), labels), baseline="none")[1][0]
    return {
        "loss": loss,
        "coefficient_of_grad_log_pi_for_each_token": gradient,
        "derivative_by_score": by_score,
        "loss_without_weights": classified((answers, labels), balanced=False)[0],
    }


@EXAMPLES.by("at the first step, mixed groups of four and of three")
def first_step(example: Example) -> Found:
    labels = [example.values[name] for name in "yz"]
    loss, (first, second) = classified(*((one_token_answers(np.zeros(len(each))), each.tolist()) for each in labels))
    return {"loss": loss, "coefficient_first": first, "coefficient_second": second}


@EXAMPLES.by("a group of one class cancels at the first step")
def one_class(example: Example) -> Found:
    """Answers whose log-ratios add up to 0 have scores of 3/2 of them."""
    labels, later = example.values["y"].tolist(), example.values["psi_later"] * 2 / 3
    return {
        "coefficient_first_step": classified((one_token_answers(np.zeros(3)), labels))[1][0],
        "coefficient_later": classified((one_token_answers(later), labels))[1][0],
    }


@EXAMPLES.by("a group of one has no other member")
def one(example: Example) -> Found:
    given = example.values
    answers = one_token_answers(np.ravel(given["q"]))
    return {"loss_without_baseline": classified((answers, [float(given["y"])]), baseline="none")[0]}


@EXAMPLES.by("one response of four has no label (convention)")
def unlabelled(example: Example) -> Found:
    answers, labels = one_token_answers(np.append(example.values["q"], 0.7)), [*example.values["y"].tolist(), np.nan]
    loss, [gradient] = classified((answers, labels))
    assert gradient[-1] == 0.0
    return {"loss": loss}


def test_a_batch_makes_four_optimizer_steps() -> None:
    assert (recipes.PACS.epochs, recipes.PACS.minibatches) == (1, 4)


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
