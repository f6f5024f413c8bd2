"""Worked examples of the paper of asearcher, computed by the recipe."""

from __future__ import annotations

import numpy as np
import pytest
from common_examples import advantages, given_advantages, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes

EXAMPLES = PaperExamples("asearcher")
UNWEIGHTED = recipes.ASEARCHER.replace(weight=None)
CENTRED = UNWEIGHTED.replace(advantage=recipes.ASEARCHER.chain("advantage")[0])
LOSSES = given_advantages(recipes.ASEARCHER).replace(weight=recipes.ASEARCHER.weight)


@EXAMPLES.by("scores of a group of four")
def scores(example: Example) -> Found:
    del example
    return {"centred": advantages(CENTRED, [0.8, 0.0, -0.5, 0.0])[0]}


@EXAMPLES.by("groups without difference, and of one, are dropped")
def dropped(example: Example) -> Found:
    group_scores = [example.values["score"], np.ravel(example.values["one"])]
    equal, alone = advantages(CENTRED, *group_scores)
    places = np.repeat(np.arange(2, dtype=np.uint32), [len(each) for each in group_scores])
    kept = recipes.ASEARCHER.admit(np.concatenate(group_scores), places)
    return {"centred": equal, "centred_of_one": alone, "kept": kept}


@EXAMPLES.by("advantage over the tokens of two trajectories")
def whitened(example: Example) -> Found:
    """The two sequences of the first trajectory are its steps."""
    first, second = example.values["s"].tolist()
    members = [{"path": "1 | 3*3 ~ 9 | 3", "reward": first}, {"path": "1 | 3*2", "reward": second}]
    result = computed(UNWEIGHTED, ["token.advantage"], members=members)
    return {"advantage": result["token.advantage"]}


@EXAMPLES.by("one trajectory of three has no score (convention)")
def unscored(example: Example) -> Found:
    return {"advantage": advantages(UNWEIGHTED, [*example.values["score"], np.nan])[0]}


@EXAMPLES.by("loss with a token above the cap")
def capped(example: Example) -> Found:
    own_tokens = example.values["mask"] > 0
    behave, prox, theta, advantage_values = (
        example.values[name][own_tokens] for name in ("behave", "prox", "theta", "A")
    )
    result = single_tokens(LOSSES, behave, theta, advantage_values, proximal_logprob=prox)
    weights = computed(
        LOSSES,
        ["token.weight"],
        members=[
            {**member, "logprobs": [old]}
            for member, old in zip(answers([1] * 3, advantage_values), behave, strict=True)
        ],
        columns={"token": {"proximal_logprob": prox}},
    )["token.weight"]
    return {"loss": result["loss"], "kept": np.insert(weights, 2, 0.0)}


@EXAMPLES.by("clip 0.4 at a second step on the same batch")
def second_step(example: Example) -> Found:
    prox, second, advantage_values = (example.values[name] for name in ("prox", "second", "A"))
    result = single_tokens(LOSSES, prox, second, advantage_values, proximal_logprob=prox)
    return {"loss": result["loss"], "has_gradient": result["gradient.logprob"] != 0}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
