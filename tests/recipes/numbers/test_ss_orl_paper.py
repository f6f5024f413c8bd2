"""Worked examples of the paper of ss_orl, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes

EXAMPLES = PaperExamples("ss_orl")
RECIPE = recipes.SS_ORL


@EXAMPLES.by("windows of a trajectory of four states")
def windows(example: Example) -> Found:
    """The inputs of the inverse model; a missing state is 0, and all are normalised as in the example."""
    states, mean, spread = (example.values[name] for name in ("s", "m", "d"))
    program = replace(RECIPE.rollout, question="{seen}\n{next}")

    def window(step: int) -> Value:
        inputs = [float(line) for line in program.question_of([str(state) for state in states], step).split()]
        return (np.append(np.zeros(program.past + 2 - len(inputs)), inputs) - mean) / spread

    return {"first": window(0), "second": window(1), "last": window(len(states) - 1)}


@EXAMPLES.by("one model and a trajectory of one step")
def inverse_loss(example: Example) -> Found:
    """A density of the example is the log-prob of one token."""
    mean, spread, action = (torch.as_tensor(example.values[name]) for name in ("m", "sigma", "a"))
    density = float(torch.distributions.Normal(mean, spread).log_prob(action))
    member = {"path": "1 | 3", "reward": 1, "unsampled": True, "facts": {"imputed": 0, "inverse": 1}}
    result = computed(RECIPE, ["loss.inverse"], members=[member], inverse={"logprob": [density]})
    return {"loss": result["loss.inverse"]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
