"""Worked examples of the paper of f_dpo, computed by the recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes

EXAMPLES = PaperExamples("f_dpo")
F_DPO = recipes.F_DPO
DIVERGENCES = {"reverse": "reverse_kl", "forward": "forward_kl", "js": "js", "alpha": "alpha"}


def pairs(
    answers: Sequence[tuple[Sequence[float], Sequence[float]]], scored: int | None = None, **loss: Any
) -> Mapping[str, Value]:
    """Loss and gradient of pairs of answers, chosen and rejected, each the log-ratios of its tokens.

    Between the tokens of an answer are those of a tool.
    """
    members = [
        {
            "group": str(place),
            "path": "1 " + " ~ 9 ".join(["| 3"] * len(answer)),
            **({"reward": reward} if scored is None or place < scored else {}),
        }
        for place, pair in enumerate(answers)
        for reward, answer in zip((1, 0), pair, strict=True)
    ]
    away = np.concatenate([answer for pair in answers for answer in pair])
    return computed(
        F_DPO.replace(loss=replace(F_DPO.loss, **loss)),
        ["loss", "gradient.logprob"],
        members=members,
        columns={"token": {"reference_logprob": (-1.0 - away).tolist()}},
        policy={"logprob": [-1.0] * len(away)},
    )


def margin(chosen: float, rejected: float, **loss: Any) -> Value:
    """Margin of a pair with these log-ratios, by its loss."""
    return -np.log(np.expm1(pairs([([chosen], [rejected])], **loss)["loss"]))


@EXAMPLES.by("four divergences on two pairs of unequal length")
def divergences(example: Example) -> Found:
    given = example.values
    assert F_DPO.loss.beta == given["beta"]
    first = ((given["w"] - given["w_ref"]).tolist(), (given["l"] - given["l_ref"]).tolist())
    second = ([float(given["x_w2"])], [float(given["x_l2"])])
    found = {f"loss_{name}": pairs([first, second], divergence=kind)["loss"] for name, kind in DIVERGENCES.items()}
    for name, kind in DIVERGENCES.items():
        sums = [[float(np.sum(answer)) for answer in pair] for pair in (first, second)]
        found[f"margin_{name}"] = np.concatenate([margin(*each, divergence=kind) for each in sums])
    return {**found, "loss_alpha": pairs([first, second])["loss"]}


@EXAMPLES.by("coefficients of grad log pi")
def coefficients(example: Example) -> Found:
    xw, xl = float(example.values["xw"]), float(example.values["xl"])
    found = {}
    for name in ("forward", "js", "alpha"):
        gradient = pairs([([xw + 1.0, -1.0], [xl])], divergence=DIVERGENCES[name])["gradient.logprob"]
        assert gradient[0] == pytest.approx(gradient[1])
        found[f"{name}_chosen_and_rejected"] = gradient[1:]
    return found


@EXAMPLES.by("limits of alpha")
def limits(example: Example) -> Found:
    x = example.values["x"].tolist()
    beta = F_DPO.loss.beta
    return {
        "near_reverse_kl": margin(*x, alpha=float(example.values["small"])) / beta,
        "forward_kl": margin(*x, divergence="forward_kl") / beta,
    }


@EXAMPLES.by("two steps from the reference")
def steps(example: Example) -> Found:
    ends = zip(example.values["xw"].tolist(), example.values["xl"].tolist(), strict=True)
    return {"loss": np.concatenate([pairs([([xw], [xl])], divergence="js")["loss"] for xw, xl in ends])}


@EXAMPLES.by("a pair without preference (convention)")
def unlabelled(example: Example) -> Found:
    x = float(example.values["margin"][0]) / F_DPO.loss.beta
    found = pairs([([x], [0.0]), ([0.4], [0.1])], scored=1, divergence="reverse_kl")
    assert not found["gradient.logprob"][2:].any()
    return {"loss": found["loss"]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)


def test_every_example_is_computed() -> None:
    assert EXAMPLES.names == EXAMPLES.all_names
