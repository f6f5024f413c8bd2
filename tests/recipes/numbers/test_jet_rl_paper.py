"""Worked examples of the paper of jet_rl, computed by the recipe."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from case_files import rollouts
from common_examples import CommonExamples
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.recipes.jet_rl import mismatch
from agentrl_core.weight import ImportanceWeight

EXAMPLES = PaperExamples("jet_rl")
RECIPE = recipes.JET_RL
CORRECTED = RECIPE.replace(weight=ImportanceWeight())
"""The recipe with weights for the mismatch of engine and trainer, as an option."""
CommonExamples(EXAMPLES, RECIPE.replace(old_logprob="behaviour"))


def measured(engine: Value, trainer: Value) -> Any:
    """Return how far the engine, in eight bits, and the trainer differ on one rollout."""
    step = {"facts": {"rollout_precision": 8}}
    members = [{**answers([len(engine)], [1.0])[0], "logprobs": engine.tolist(), "steps": [step]}]
    return mismatch(rollouts(members, 0).with_columns("token", recomputed_logprob=trainer))[8].diagnostics


def weights(engine: Value, trainer: Value) -> Value:
    members = [{**answers([len(engine)], [1.0])[0], "logprobs": engine.tolist()}]
    columns = {"token": {"recomputed_logprob": trainer.tolist()}}
    return computed(CORRECTED, ["token.weight"], members=members, columns=columns)["token.weight"]


@EXAMPLES.by("ratios of one sequence under one flow and under two")
def ratios(example: Example) -> Found:
    engine, trainer = example.values["engine"], example.values["trainer"]
    result = measured(engine, trainer)
    return {
        "ratio_mixed": weights(engine, trainer),
        "sequence_ratio_mixed": np.sqrt(result.chi_squared_sequence + 1.0),
        "ratio_unified": weights(engine, engine),
        "kl_k1": result.k1,
        "kl_k3": result.k3,
    }


def test_the_mismatch_grows_with_length_up_to_exp_20() -> None:
    """The example of 16 000 tokens, exp(32), is out of the range of `mismatch`."""
    example = EXAMPLES.example("the mismatch grows with length")
    gap = float(example.values["d"])
    results = [measured(np.full(int(n), -gap), np.zeros(int(n))) for n in example.values["n"]]
    ratios = [np.sqrt(each.chi_squared_sequence + 1.0) for each in results]
    np.testing.assert_allclose(ratios, np.minimum(example.expect["sequence_ratio"], np.exp(20.0)), rtol=1e-5)


@EXAMPLES.by("the second optimizer step: only the update moves the ratio")
def later_step(example: Example) -> Found:
    """The trainer's log-probs are the old ones, even if the engine's differ."""
    given = example.values
    count, numbers = len(given["A"]), GroupRelative(center="none", scale="none")
    recipe = RECIPE.replace(advantage=numbers)

    def loss(ratio_kind: str) -> Value:
        apart = given["mismatch"] if ratio_kind == "mixed" else np.zeros(count)
        members = [
            {**each, "logprobs": [float(-1.0 - gap)]}
            for each, gap in zip(answers([1] * count, given["A"].tolist()), apart, strict=True)
        ]
        return computed(
            recipe,
            ["loss"],
            members=members,
            columns={"token": {"recomputed_logprob": [-1.0] * count}},
            policy={"logprob": (given["move"] - 1.0).tolist()},
        )["loss"]

    np.testing.assert_allclose(loss("mixed"), loss("unified"), rtol=1e-6)
    return {"loss": loss("unified")}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
