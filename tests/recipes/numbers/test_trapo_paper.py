"""Worked examples of the paper of trapo, computed by the recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.recipes.trapo import SimilarCurves

EXAMPLES = PaperExamples("trapo")
CURVES = recipes.TRAPO.chain("reward")[1]
WEIGHTED = recipes.TRAPO.replace(advantage=GroupRelative(center="none", scale="none"), minibatches=1)
"""The recipe with the advantages of an example as scores, and one optimizer step."""


def labelled(members: list[dict[str, Any]]) -> dict[str, Any]:
    """Return draws of a task with an answer, at the reference."""
    facts = {"labelled": 1, "answer_cluster": 0, "answer_parsed": 1}
    return {"members": [{**member, "facts": facts} for member in members]}


def trained_tasks(
    labelled: dict[str, list[float]], unlabelled: dict[str, list[float]], component: SimilarCurves
) -> list[float]:
    """Return which unlabelled tasks of a batch are trained."""
    trained_names = component.kept(component.initial_state(), labelled, unlabelled)
    return [float(name in trained_names) for name in unlabelled]


@EXAMPLES.by("votes")
def votes(example: Example) -> Found:
    right = example.values["same_as_first"].tolist()
    members = [
        {**answer, "group": group, "facts": {"labelled": 0, "answer_cluster": 10 * place + same, "answer_parsed": 1}}
        for place, (group, cluster) in enumerate((("one", right), ("tie", [1, 0, 1, 0])))
        for answer, same in zip(answers([1] * 4, [0.0] * 4), cluster, strict=True)
    ]
    recipe = recipes.TRAPO.replace(
        reward=(recipes.TRAPO.chain("reward")[0], SimilarCurves(visits=0, fraction=1.0)),
    )
    members += [{**member, "group": "l"} for member in labelled(answers([1], [1.0]))["members"]]
    columns = {"token": {"reference_logprob": [-1.0] * 9}}
    result = computed(recipe, ["draw.score", "draw.pass_rate"], members=members, columns=columns)
    rates = result["draw.pass_rate"]
    return {
        "reward": result["draw.score"][:4],
        "reward_of_the_tie": result["draw.score"][4:8],
        "pass_rates": rates[[0, 4]],
    }


def highest_bar(
    name: str,
    labelled_curves: dict[str, list[float]],
    unlabelled_curves: dict[str, list[float]],
    best: Value,
    component: SimilarCurves,
) -> float:
    """Return the highest bar that a curve passes, by bisection; the best curve is added, since it is always kept."""
    low, high = -1.0, 1.0
    for _ in range(40):
        bar = (low + high) / 2
        judged = {name: unlabelled_curves[name], "best": best.tolist()}
        passes = name in replace(component, at_least=bar).kept(component.initial_state(), labelled_curves, judged)
        low, high = (bar, high) if passes else (low, bar)
    return low


@EXAMPLES.by("similarity of two curves to two labelled ones")
def similarity(example: Example) -> Found:
    curves = {name: example.values[name].tolist() for name in ("ref1", "ref2", "u1", "u2")}
    labelled_curves = {name: curves[name] for name in ("ref1", "ref2")}
    unlabelled_curves = {name: curves[name] for name in ("u1", "u2")}
    best = sum((np.array(curve) - np.mean(curve)) / np.std(curve) for curve in labelled_curves.values())
    code = SimilarCurves(visits=2, fraction=0.0, similarity="each_curve")
    return {
        "similarity": [highest_bar(name, labelled_curves, unlabelled_curves, best, code) for name in unlabelled_curves],
        "over_the_threshold": trained_tasks(labelled_curves, unlabelled_curves, code),
    }


@EXAMPLES.by("the same by cosine to the mean curve")
def mean_curve(example: Example) -> Found:
    labelled_curves = {name: example.values[name].tolist() for name in ("ref1", "ref2")}
    best = np.mean(list(labelled_curves.values()), axis=0)
    waits = replace(CURVES, visits=2, fraction=0.0)
    return {
        "cosine_without_centring": highest_bar(
            "u2", labelled_curves, {"u2": example.values["u2"].tolist()}, best, waits
        )
    }


@EXAMPLES.by("a curve that does not change")
def constant(example: Example) -> Found:
    curve = example.values["u"].tolist()
    code = SimilarCurves(visits=2, similarity="each_curve")
    only = trained_tasks({"l": [0.0, 0.5, 1.0]}, {"u": curve}, code)
    beside = trained_tasks({"l": [0.0, 0.5, 1.0]}, {"u": curve, "v": [0.0, 0.25, 0.5]}, replace(code, at_least=1e-6))
    assert (only, beside) == ([1.0], [0.0, 1.0]), "one is always kept, by a similarity of 0"
    return {"z": np.array(curve) * beside[0]}


def ranked(similarities: Sequence[float]) -> dict[str, list[float]]:
    """Return curves whose cosine to [-1, 0, 1] is given: in the plane of it and [1, -2, 1]."""
    one, other = np.array([-1.0, 0.0, 1.0]) / np.sqrt(2), np.array([1.0, -2.0, 1.0]) / np.sqrt(6)
    return {
        f"u{place}": (like * one + np.sqrt(1 - like**2) * other).tolist() for place, like in enumerate(similarities)
    }


@EXAMPLES.by("top fraction or threshold")
def selection(example: Example) -> Found:
    similarities = example.values["sim"] + 1e-9  # rounding decides at the edge
    waits = SimilarCurves(visits=2, fraction=CURVES.fraction, at_least=CURVES.at_least)
    return {"keep": trained_tasks({"l": [-1.0, 0.0, 1.0]}, ranked(similarities), waits)}


@EXAMPLES.by("none reaches the threshold")
def best_of_none(example: Example) -> Found:
    curves = ranked(example.values["sim"])
    waits = SimilarCurves(visits=2, fraction=CURVES.fraction, at_least=CURVES.at_least)
    assert CURVES.visits == 8
    return {
        "keep": trained_tasks({"l": [-1.0, 0.0, 1.0]}, curves, waits),
        "keep_in_warm_up": trained_tasks({"l": [-1.0, 0.0, 1.0]}, curves, CURVES),
    }


@EXAMPLES.by("advantages")
def advantages(example: Example) -> Found:
    group = labelled(answers([1] * 4, example.values["R"].tolist()))
    return {"advantage": computed(recipes.TRAPO, ["draw.advantage"], **group)["draw.advantage"]}


def clipped(advantages: Value, log_probs: Value) -> Any:
    """Return the loss and its gradient, of tokens at the reference."""
    return computed(
        WEIGHTED,
        ["loss", "gradient.logprob"],
        columns={"token": {"reference_logprob": log_probs.tolist()}},
        policy={"logprob": log_probs.tolist()},
        **labelled(answers([1] * len(advantages), advantages.tolist())),
    )


@EXAMPLES.by("tokens that another policy sampled")
def off_policy(example: Example) -> Found:
    return {"loss": clipped(example.values["A"], example.values["new"])["loss"]}


@EXAMPLES.by("the second optimizer step of a batch clips")
def later_step(example: Example) -> Found:
    first, second = (clipped(example.values["A"], example.values[step]) for step in ("first", "second"))
    return {
        "first_loss": first["loss"],
        "second_loss": second["loss"],
        "second_has_gradient": abs(second["gradient.logprob"]) > 1e-6,
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
