"""Worked examples of the paper of light_if, computed by the recipe."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples, advantages, given_advantages, plain_reward, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes

EXAMPLES = PaperExamples("light_if")
CommonExamples(EXAMPLES, recipes.LIGHT_IF)
LOSSES = given_advantages(recipes.LIGHT_IF)


def bonus(lengths: Sequence[int], advantage_values: Sequence[float], logprobs: Value, entropies: Value) -> Found:
    """Return the entropy term, and the coefficient of each token, of responses at ratio 1."""
    members = [
        {**member, "logprobs": part.tolist()}
        for member, part in zip(
            answers(lengths, advantage_values), np.split(logprobs, np.cumsum(lengths)[:-1].tolist()), strict=True
        )
    ]
    iteration = {
        "members": members,
        "columns": {"token": {"reference_logprob": logprobs.tolist()}},
        "policy": {"logprob": logprobs.tolist(), "entropy": entropies.tolist()},
    }
    result = computed(LOSSES, ["loss", "gradient.entropy"], **iteration)
    free = computed(given_advantages(recipes.LIGHT_IF, entropy=0.0), ["loss"], **iteration)
    return {
        "entropy_term": result["loss"] - free["loss"],
        "coefficient": -result["gradient.entropy"] * len(logprobs),
    }


@EXAMPLES.by("coefficients of responses of three and two tokens")
def coefficients(example: Example) -> Found:
    given = example.values
    return bonus([3, 2], [float(given["A"][0]), float(given["A"][-1])], given["logp"], given["H"])


@EXAMPLES.by("a long response has small coefficients")
def lengths(example: Example) -> Found:
    counts = example.values["n"].astype(int).tolist()
    logprobs = np.full(sum(counts), -1.0)
    coefficient_values = np.asarray(bonus(counts, [0.0] * len(counts), logprobs, np.ones(len(logprobs)))["coefficient"])
    return {"coefficient": coefficient_values[np.cumsum([0, *counts[:-1]])]}


@EXAMPLES.by("supervised loss over ten tokens")
def supervised(example: Example) -> Found:
    given = example.values
    result = computed(
        recipes.LIGHT_IF,
        ["loss", "gradient.logprob"],
        stage="warm_start",
        members=answers([len(given["CE"])], [1]),
        policy={"logprob": (-given["CE"]).tolist(), "entropy": given["H"].tolist()},
    )
    return {"kept": result["gradient.logprob"] != 0, "loss": result["loss"]}


@EXAMPLES.by("dense rewards of a group")
def dense(example: Example) -> Found:
    shares = (example.values["met"] / example.values["of"]).tolist()
    recipe = plain_reward(recipes.LIGHT_IF)
    members = [{"path": "1 | 3", "reward": share} for share in shares]
    one, alone = advantages(recipe, shares, example.values["one"].tolist())
    scores = computed(recipes.LIGHT_IF, ["draw.score"], members=members)["draw.score"]
    return {"reward": scores, "advantage": one, "advantage_of_one": alone}


@EXAMPLES.by("wide clips at a second optimizer step")
def wide(example: Example) -> Found:
    assert recipes.LIGHT_IF.minibatches > 1
    old, second, advantage_values, reference = (example.values[name] for name in ("old", "second", "A", "ref"))
    free = given_advantages(recipes.LIGHT_IF, kl=None)
    alone = [
        single_tokens(free, *(each[[at]] for each in (old, second, advantage_values)))["loss"] for at in range(len(old))
    ]
    return {
        "first_loss": single_tokens(LOSSES, old, old, advantage_values)["loss"],
        "token_loss": np.concatenate(alone),
        "second_loss": single_tokens(LOSSES, old, second, advantage_values, reference_logprob=reference)["loss"],
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
