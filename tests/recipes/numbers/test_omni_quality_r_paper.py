"""Worked examples of the paper of omni_quality_r, computed by the recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from common_examples import advantages, given_advantages, ratios_of_one_token
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes
from agentrl_core.select import AcceptAll

EXAMPLES = PaperExamples("omni_quality_r")
OMNI = recipes.OMNI_QUALITY_R
RELATIVE, TOKENS = OMNI.chain("advantage")
LOSSES = given_advantages(OMNI.replace(admit=AcceptAll()))
NO_NUMBER = 100.0
"""The recorded error of an answer without a number."""


def errors_of(accuracies: Value, width: float = 0.8) -> list[float]:
    """Return errors that have these accuracy rewards."""
    errors = np.full(len(accuracies), NO_NUMBER)
    known = accuracies > 0
    errors[known] = width * np.sqrt(np.maximum(-2.0 * np.log(accuracies[known]), 0.0))
    return errors.tolist()


def judged(errors: Sequence[float], formats: Sequence[float]) -> Mapping[str, Value]:
    """Return accuracy, score and advantage of the rollouts of a group."""
    members = [
        {"path": "1 | 3", "facts": {"error": error}, "rewards": {"format": right}}
        for error, right in zip(errors, formats, strict=True)
    ]
    names = ["draw.accuracy", "draw.score", "draw.advantage"]
    return computed(OMNI.replace(advantage=RELATIVE), names, members=members)


def trained_groups(*accuracies: Value) -> Value:
    """Return which of the groups are trained."""
    groups = np.repeat(np.arange(len(accuracies)), [len(each) for each in accuracies]).astype(np.uint32)
    assert OMNI.admit.judged == "accuracy"
    return OMNI.admit(np.concatenate(accuracies), groups)


@EXAMPLES.by("Gaussian reward")
def rewards(example: Example) -> Found:
    given = example.values
    errors = [*(given["p"] - given["y"]).tolist(), NO_NUMBER]
    formats = [*(given["format"] / 0.5).tolist(), float(given["missing_format"])]
    result = judged(errors, formats)
    return {"accuracy": result["draw.accuracy"][:3], "reward": result["draw.score"]}


@EXAMPLES.by("filter and group norm")
def norm(example: Example) -> Found:
    given = example.values
    first, second = (
        judged(errors_of(given[f"a_{name}"]), np.round((given[f"r_{name}"] - given[f"a_{name}"]) / 0.5).tolist())
        for name in "12"
    )
    return {"kept": trained_groups(first["draw.accuracy"], second["draw.accuracy"]), "z": first["draw.advantage"]}


@EXAMPLES.by("group of equal sizes, one response in a group")
def spreads(example: Example) -> Found:
    """Groups of two whose values differ just enough for these spreads, from below."""
    assert trained_groups(np.array([0.5])).all()
    groups = [np.array([0.0, spread * np.sqrt(2.0) * (1.0 - 1e-12)]) for spread in example.values["spread"].tolist()]
    return {"kept": trained_groups(*groups)}


@EXAMPLES.by("advantage by token")
def by_token(example: Example) -> Found:
    given = example.values
    result = computed(
        OMNI.replace(advantage=TOKENS),
        ["token.advantage"],
        members=[{"path": "1 | 3 3 3", "facts": {"error": 0}, "rewards": {"format": 0}}],
        columns={
            "draw": {"advantage": [float(given["z"])]},
            "token": {"reference_logprob": (-1 - given["d"]).tolist()},
        },
    )
    return {"advantage": result["token.advantage"]}


def sequences(*rollouts: tuple[Value, Value, float]) -> Mapping[str, Value]:
    """Return loss and gradient of rollouts with these entropies, ratios and advantages; all have tool tokens too."""
    members: list[dict[str, Any]] = [
        {"path": "1 | 3 ~ 9 |" + " 3" * (len(entropies) - 1), "reward": advantage}
        for entropies, _, advantage in rollouts
    ]
    entropies, ratios = (np.concatenate([each[at] for each in rollouts]) for at in (0, 1))
    policy = {"entropy": entropies.tolist(), "logprob": (np.log(ratios) - 1.0).tolist()}
    return computed(LOSSES, ["loss", "gradient.logprob"], members=members, policy=policy)


@EXAMPLES.by("entropy gate of two sequences")
def gates(example: Example) -> Found:
    """A token that is kept has a gradient at ratio 1."""
    given = example.values
    both = [(given[f"H_{name}"], given[f"u_{name}"], float(given[f"A_{name}"])) for name in "12"]
    gate = [sequences((entropies, np.ones(len(ratios)), 1.0))["gradient.logprob"] != 0 for entropies, ratios, _ in both]
    first, second = (sequences(each)["loss"] for each in both)
    return {
        "gate_1": gate[0],
        "gate_2": gate[1],
        "first": first,
        "second": second,
        "loss": sequences(*both)["loss"],
    }


@EXAMPLES.by("two steps on one token")
def two_steps(example: Example) -> Found:
    return ratios_of_one_token(LOSSES, example)


@EXAMPLES.by("a response without a reward (convention)")
def unscored(example: Example) -> Found:
    plain = OMNI.replace(reward=recipes.GRPO.reward, advantage=RELATIVE)
    return {"z": advantages(plain, [*example.values["r"], np.nan])[0]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
