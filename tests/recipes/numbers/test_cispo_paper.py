"""Worked examples of the paper of cispo, computed by the recipe."""

from __future__ import annotations

import numpy as np
import pytest
from case_files import rollouts
from common_examples import CommonExamples, given_advantages, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes

EXAMPLES = PaperExamples("cispo")
TOOL = "two rollouts of two turns with tool tokens"
COMMON = CommonExamples(EXAMPLES, recipes.CISPO, but=[TOOL])
LOSSES = given_advantages(recipes.CISPO)


@EXAMPLES.by("weights, losses and gradients of four tokens")
def weights(example: Example) -> Found:
    old, new, advantages = (example.values[name] for name in ("old", "new", "A"))
    result = single_tokens(LOSSES, old, new, advantages)
    slope = result["gradient.logprob"]
    return {"loss": result["loss"], "gradient_by_logprob": slope, "weight": -slope * len(advantages) / advantages}


@EXAMPLES.by("the second step still moves a token beyond the range")
def beyond(example: Example) -> Found:
    result = single_tokens(LOSSES, *(example.values[name] for name in ("old", "second", "A")))
    return {"gradient_by_logprob": result["gradient.logprob"]}


@EXAMPLES.by(TOOL)
def tool(example: Example) -> Found:
    result = COMMON.tool_tokens(example)
    del result["loss"]  # the file's loss is at a ratio of 1; this one is of log-probs, with the same gradient
    return result


@EXAMPLES.by("which groups stay")
def filtered(example: Example) -> Found:
    right = example.values["right"].astype(int)
    admit = recipes.CISPO.admit
    assert admit.judged == "reward", "the outcome, not the score with its penalty for length"
    rewards = np.concatenate([np.where(np.arange(16) < count, 1.0, 0.0) for count in right])
    return {"keep": admit(rewards, np.repeat(np.arange(len(right), dtype=np.uint32), 16))}


@EXAMPLES.by("overlong penalties")
def overlong(example: Example) -> Found:
    lengths = example.values["l"].astype(int).tolist()
    scores = computed(recipes.CISPO, ["draw.score"], members=answers(lengths, [1] * len(lengths)))["draw.score"]
    return {"reward_if_right": scores, "penalty": scores - 1}


@EXAMPLES.by("tokens of one optimizer step weigh the same")
def steps(example: Example) -> Found:
    count = int(example.values["members"])
    batch = recipes.CISPO.credit(rollouts(answers([1] * count, [place % 2 for place in range(count)]), 0))
    updates = list(recipes.CISPO.updates(batch))
    return {"answers_in_a_step": count / len(updates)}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
