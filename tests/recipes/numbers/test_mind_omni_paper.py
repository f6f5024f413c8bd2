"""Worked examples of the paper of mind_omni, computed by the recipe."""

from __future__ import annotations

import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import KL, Policy
from agentrl_core.reward import OutcomeScore

EXAMPLES = PaperExamples("mind_omni")
WEIGHTED = recipes.MIND_OMNI.replace(
    reward=OutcomeScore(),
    advantage=GroupRelative(center="none", scale="none"),
    loss=Policy("sequence_mean", kl=KL(1.0)),
)
"""The recipe with the advantages of an example as scores."""
TEXT = {"steps": [{"facts": {"image": 0}}]}


def scored_texts(similarities: Value, formats: Value) -> dict[str, Value]:
    """Return scores and advantages of answers in text."""
    members = [
        {**answer, "rewards": {"format": text_format}, **TEXT}
        for answer, text_format in zip(
            answers([1] * len(similarities), similarities.tolist()), formats.tolist(), strict=True
        )
    ]
    result = computed(
        recipes.MIND_OMNI,
        ["draw.score", "draw.advantage"],
        members=members,
        columns={"token": {"reference_logprob": [-1.0] * len(similarities)}},
    )
    return {"reward": result["draw.score"], "advantage": result["draw.advantage"]}


@EXAMPLES.by("rewards and advantages")
def rewards(example: Example) -> Found:
    return scored_texts(example.values["cosine"].clip(min=0.0), example.values["format"])


@EXAMPLES.by("one rollout of four has no score (convention)")
def unscored(example: Example) -> Found:
    scores = [*example.values["R"].tolist(), float("nan")]
    members = [answer | TEXT for answer in answers([1] * 4, scores)]
    recipe = recipes.MIND_OMNI.replace(reward=OutcomeScore())
    columns = {"token": {"reference_logprob": [-1.0] * 4}}
    advantages = computed(recipe, ["draw.advantage"], members=members, columns=columns)["draw.advantage"]
    return {
        "advantage": [*advantages[:3], float("nan") if advantages[3] == 0 else advantages[3]]
    }  # 0: no loss is computed


@EXAMPLES.by("text loss over responses of two lengths")
def text_loss(example: Example) -> Found:
    gaps = [*example.values["d_a"], *example.values["d_b"]]
    members = [answer | TEXT for answer in answers([2, 4], example.values["A"].tolist())]
    columns = {"token": {"reference_logprob": [gap - 1.0 for gap in gaps]}}
    return {"loss": computed(WEIGHTED, ["loss"], members=members, columns=columns)["loss"]}


@EXAMPLES.by("two optimizer steps of a batch, were there any (eps 0.2 as an example)")
def later_step(example: Example) -> Found:
    members = [answer | TEXT for answer in answers([1] * 3, example.values["A"].tolist())]
    results = {}
    for step in ("first", "second"):
        log_probs = example.values[step].tolist()
        numbers = computed(
            WEIGHTED,
            ["loss", "gradient.logprob"],
            members=members,
            columns={"token": {"reference_logprob": log_probs}},
            policy={"logprob": log_probs},
        )
        results |= {f"{step}_loss": numbers["loss"], f"{step}_has_gradient": abs(numbers["gradient.logprob"]) > 1e-6}
    del results["first_has_gradient"]
    return results


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
