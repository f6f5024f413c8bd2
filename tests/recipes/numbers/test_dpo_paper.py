"""Worked examples of the paper of dpo, computed by the recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from common_examples import path_of
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes

EXAMPLES = PaperExamples("dpo")
LOSS = recipes.DPO.loss


def pair_loss(
    pairs: Sequence[tuple[tuple[Value, Value], tuple[Value, Value]]],
    members: Sequence[dict[str, Any]] | None = None,
    **options: Any,
) -> Found:
    """Return loss and gradient of pairs: log-probs of the policy and of the reference for chosen and rejected."""
    if members is None:
        members = [
            {**answer, "group": f"{place}"}
            for place, pair in enumerate(pairs)
            for answer in answers([len(new) for new, _ in pair], [1.0, 0.0])
        ]
    new, reference = (np.concatenate([each[at] for pair in pairs for each in pair]).tolist() for at in range(2))
    return dict(
        computed(
            recipes.DPO.replace(loss=replace(LOSS, **options)),
            ["loss", "gradient.logprob"],
            members=members,
            columns={"token": {"reference_logprob": reference}},
            policy={"logprob": new},
        )
    )


def margin(value: float, **options: Any) -> Found:
    """Return the same of a pair of one-token answers with this margin."""
    at = np.full(1, -3.0)
    return pair_loss([((at + value, at), (at, at))], **options)


@EXAMPLES.by("two pairs of unequal length")
def two_pairs(example: Example) -> Found:
    given = example.values
    assert float(given["beta"]) == LOSS.beta
    counts = {"w": [10, 25], "l": [8, 30]}

    def spread(name: str, place: int) -> tuple[Value, Value]:
        count = counts[name][place]
        new, reference = np.full(count, given[name][place]), np.full(count, given[f"ref_{name}"][place])
        return new / count, reference / count

    result = pair_loss([(spread("w", place), spread("l", place)) for place in range(2)])
    return {"loss": result["loss"], "gradient_wrt_logp_chosen": result["gradient.logprob"][[0, 18]]}


@EXAMPLES.by("sums and not means")
def sums(example: Example) -> Found:
    given = example.values
    own_tokens = given["mw"] > 0
    members = [{"path": path_of(given["mw"]), "reward": 1.0}, {"path": "1 | 3 3", "reward": 0.0}]
    pair = ((given["tw"][own_tokens], given["ref_tw"][own_tokens]), (given["tl"], given["ref_tl"]))
    return {"loss": pair_loss([pair], members, beta=float(given["beta"]))["loss"]}


@EXAMPLES.by("at the start the policy is the reference")
def start(example: Example) -> Found:
    result = margin(float(example.values["h"]))
    return {"loss": result["loss"], "gradient_wrt_logp_chosen": result["gradient.logprob"][:1]}


@EXAMPLES.by("answers of equal scores are no pair")
def equal(example: Example) -> Found:
    first, second = (np.full(1, -3.0 + away) for away in example.values["h"])
    at = np.full(1, -3.0)
    one = answers([1], [1.0])[0]
    members = [
        *({**each, "group": "preferred"} for each in answers([1, 1], [1.0, 0.0])),
        *({**each, "group": "equal"} for each in answers([1, 1], [0.0, 0.0])),
        *({**one, "group": alone} for alone in ("alone", "alone too")),
        {**one, "group": "unscored"},
        {"path": "1 | 3", "group": "unscored"},
    ]
    pairs = [((first, at), (at, at)), ((second, at), (at, at)), ((second, at), (second, at)), ((at, at), (at, at))]
    result = pair_loss(pairs, members)
    return {"loss": result["loss"], "gradient_wrt_logp_chosen": result["gradient.logprob"][[0, 2]]}


@EXAMPLES.by("label smoothing and IPO")
def options(example: Example) -> Found:
    away, share = float(example.values["h"]), float(example.values["e"])
    return {
        "loss_smoothed": margin(away, smoothing=share)["loss"],
        "loss_ipo": margin(away, kind="square")["loss"],
    }


@EXAMPLES.by("a second step on the same pair")
def later_step(example: Example) -> Found:
    first, second = (margin(float(example.values[name])) for name in ("h1", "h2"))
    return {
        "loss_first": first["loss"],
        "loss_second": second["loss"],
        "weight_first": -first["gradient.logprob"][:1] / example.values["beta"],
        "weight_second": -second["gradient.logprob"][:1] / example.values["beta"],
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
