"""Worked examples of the paper of grpo_guard, computed by the recipe."""

from __future__ import annotations

import numpy as np
import pytest
from common_examples import CommonExamples, given_advantages
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes
from agentrl_core.loss import Clip, Ratio
from agentrl_core.weight import ColumnScaled

EXAMPLES = PaperExamples("grpo_guard")
CommonExamples(EXAMPLES, recipes.GRPO_GUARD)


@EXAMPLES.by("objective of two samples of three and two steps")
def two_samples(example: Example) -> Found:
    """A denoising step is a turn of one token, with its weight as a fact; its log-ratios are normalised already."""
    given = example.values
    members = [
        {
            "path": "1 | " + " ~ 9 | ".join(["3"] * len(given[f"dt_{name}"])),
            "steps": [{"facts": {"delta": 1.0 / length}} for length in given[f"dt_{name}"].tolist()],
            "reward": reward,
        }
        for name, reward in zip("ab", given["A"].tolist(), strict=True)
    ]
    losses = given_advantages(recipes.GRPO_GUARD, ratio=Ratio(), clip=Clip(0.01, 0.01))
    logprobs = np.concatenate([given["hat_a"], given["hat_b"]]) - 1.0
    result = computed(
        losses.replace(weight=ColumnScaled(column="delta", level="step")),
        ["loss"],
        members=members,
        policy={"logprob": logprobs.tolist()},
    )
    return {"loss": result["loss"]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
