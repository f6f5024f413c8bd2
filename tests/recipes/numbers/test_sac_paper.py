"""Worked examples of the paper of sac, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from common_examples import given_advantages
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes
from agentrl_core.schedule import Dual

EXAMPLES = PaperExamples("sac")
TEMPERATURE = recipes.SAC.loss.entropy


def temperature(**options: Any) -> Dual:
    """Return the recipe's temperature with the numbers of an example, without bounds."""
    return replace(TEMPERATURE, at_least=0.0, at_most=None, **options)


@EXAMPLES.by("temperature below and above the target")
def below_and_above(example: Example) -> Found:
    given = example.values
    controller = temperature(target=float(given["target"]), rate=float(given["lr"]), start=1.0)
    state = controller.initial_state()
    results = [controller.value(state)]
    for logprobs in (given["logp"], given["later"]):
        state = controller.moved(state, {controller.metric: float(-logprobs.mean())})
        results.append(controller.value(state))
    return {"alpha": np.array(results)}


@EXAMPLES.by("language model: token entropies with a tool token")
def tokens(example: Example) -> Found:
    """The advantages are 0.25 and the log-probs -1, so the policy's loss is 0.25."""
    given = example.values
    alpha = float(np.exp(given["log_alpha"]))
    controller = temperature(target=float(given["target"]), rate=float(given["lr"]), start=alpha)
    own_tokens = given["mask"] > 0
    loss = computed(
        given_advantages(recipes.SAC, entropy=controller),
        ["loss"],
        members=[{"path": "1 | 3 3 ~ 9 | 3", "reward": 0.25}],
        policy={"entropy": given["H"][own_tokens].tolist()},
    )["loss"]
    entropy = (0.25 - loss) / alpha
    state = controller.moved(controller.initial_state(), {controller.metric: float(entropy[0])})
    return {"loss": loss, "entropy": entropy, "next_log_alpha": np.log(controller.value(state))}


def test_the_temperature_stays_within_its_bounds() -> None:
    state, results = TEMPERATURE.initial_state(), []
    for entropy in (-1e4, 1e4):
        state = TEMPERATURE.moved(state, {"entropy": entropy})
        results.append(TEMPERATURE.value(state))
    assert results == [0.01, 1e-5]


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
