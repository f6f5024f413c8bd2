"""Worked examples of the paper of grpo_asr, computed by the recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from arithmetic import Value
from common_examples import advantages, given_advantages, plain_reward, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Clip
from agentrl_core.recipe import Recipe

EXAMPLES = PaperExamples("grpo_asr")
ASR = recipes.GRPO_ASR
KINDS = {"wer": "rate", "exact_match": "exact", "total_errors": "edits"}


def scored_transcripts(errors: Sequence[float], words: int, kind: str = "rate", **advantage: str) -> dict[str, Value]:
    """Return scores and advantages of transcripts with these error counts, for a reference with a number of words."""
    reference_words = [f"word{place}" for place in range(words)]
    members = []
    for count in map(int, errors):
        wrong = min(count, words - 1)
        spoken_words = ["wrong"] * wrong + reference_words[wrong:] + ["more"] * (count - wrong)
        facts = {"transcript": " ".join(spoken_words), "reference": " ".join(reference_words)}
        members.append({"path": "1 | 3", "facts": facts})
    recipe = ASR.replace(reward=replace(ASR.reward, kind=kind), advantage=replace(ASR.advantage, **advantage))
    return dict(computed(recipe, ["draw.score", "draw.advantage"], members=members))


@EXAMPLES.by("three rewards of four hypotheses")
def rewards(example: Example) -> Found:
    errors, words = example.values["errors"].tolist(), int(example.values["N"])
    return {name: scored_transcripts(errors, words, kind)["draw.score"] for name, kind in KINDS.items()}


@EXAMPLES.by("advantages by each reward")
def by_reward(example: Example) -> Found:
    errors, words = example.values["errors"].tolist(), int(example.values["N"])
    return {name: scored_transcripts(errors, words, kind)["draw.advantage"] for name, kind in KINDS.items()}


@EXAMPLES.by("total errors and WER part without the deviation")
def without_deviation(example: Example) -> Found:
    return {
        f"{name}_{end}": scored_transcripts(
            example.values[name].tolist(), int(example.values[f"N_{name}"]), kind, scale="none"
        )["draw.advantage"]
        for name in ("short", "long")
        for end, kind in (("wer", "rate"), ("errors", "edits"))
    }


@EXAMPLES.by("one hypothesis has no advantage")
def alone(example: Example) -> Found:
    raw = plain_reward(ASR)
    reward = example.values["R"].tolist()
    return {
        "advantage": advantages(raw, reward)[0],
        "without_deviation": advantages(raw.replace(advantage=replace(ASR.advantage, scale="none")), reward)[0],
    }


def objective(recipe: Recipe, old: Value, new: Value, advantage_values: Value, reference: Value) -> Value:
    """Return the objective of two hypotheses, of one and of three tokens, each with its own advantage."""
    by_token = GroupRelative(column="given", level="token", center="none", scale="none")
    members = [
        {**member, "logprobs": part.tolist()}
        for member, part in zip(answers([1, 3], [1, 1]), np.split(old, [1]), strict=True)
    ]
    columns = {"token": {"reference_logprob": reference.tolist(), "given": advantage_values.tolist()}}
    result = computed(
        recipe.replace(advantage=by_token),
        ["loss"],
        members=members,
        columns=columns,
        policy={"logprob": new.tolist()},
    )
    return -result["loss"]


@EXAMPLES.by("objective of two hypotheses after a step, with the divergence")
def after_a_step(example: Example) -> Found:
    old, new, advantage_values, reference = (example.values[name] for name in ("lp_old", "lp", "A", "lp_ref"))
    losses, free = given_advantages(ASR), given_advantages(ASR, kl=None)
    tokens = [slice(place, place + 1) for place in range(len(old))]
    parts = np.concatenate([-single_tokens(free, old[at], new[at], advantage_values[at])["loss"] for at in tokens])
    priced = [
        single_tokens(losses, old[at], new[at], advantage_values[at], reference_logprob=reference[at]) for at in tokens
    ]
    return {
        "surrogate": parts,
        "divergence": (np.concatenate([each["loss"] for each in priced]) + parts) / example.values["beta"],
        "objective": objective(losses, old, new, advantage_values, reference),
    }


@EXAMPLES.by("the same by DAPO's mean over tokens and by Dr. GRPO's constant length")
def variants(example: Example) -> Found:
    values = example.values
    old, new = np.full(4, -1.0), np.log(values["rho"]) - 1.0
    dapo = given_advantages(
        ASR, kl=None, aggregate="token_mean", clip=Clip(float(values["eps"]), float(values["high"]))
    )
    dr_grpo = given_advantages(ASR, kl=None, aggregate="constant", constant=float(values["longest"]))
    return {
        "dapo": objective(dapo, old, new, values["A"], new),
        "dr_grpo": objective(dr_grpo, old, new, values["A"], new),
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
