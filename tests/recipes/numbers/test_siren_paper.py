"""Worked examples of the paper of siren, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from arithmetic import Value
from common_examples import CommonExamples, advantages, given_advantages
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.loss import Tokens
from agentrl_core.model.logit_statistics import top_p_entropy

EXAMPLES = PaperExamples("siren")
CommonExamples(EXAMPLES, recipes.SIREN)
ANCHOR = recipes.SIREN.loss.entropy


def response_tokens(*responses: Value) -> tuple[Tokens, torch.Tensor]:
    """Return tokens of responses with these entropies, and the entropies."""
    lengths = torch.tensor([len(each) for each in responses])
    ids = torch.arange(len(lengths)).repeat_interleave(lengths)
    entropy = torch.tensor(np.concatenate(responses), requires_grad=True)
    streams = {"weight_kl": torch.ones(len(ids)), "sequence": ids}
    return Tokens(torch.zeros(len(ids)).double(), None, streams, SimpleNamespace(top_p_entropy=entropy)), entropy


def peak_response(entropy: float) -> Value:
    """Return a response whose only peak has this entropy."""
    return np.array([0.0, 0.0, entropy])


@EXAMPLES.by("nucleus of three distributions")
def nucleus(example: Example) -> Found:
    def entropy(name: str, include_crossing: bool = False) -> Value:
        logits = torch.from_numpy(example.values[name])[None].log()
        return top_p_entropy(logits, float(example.values["p"]), include_crossing=include_crossing).numpy()

    return {
        "entropy_a": entropy("a"),
        "entropy_a_with_the_token_that_reaches_p": entropy("a", include_crossing=True),
        "entropy_b": entropy("b"),
        "entropy_c": entropy("c"),
    }


@EXAMPLES.by("peaks of responses of six, three and two tokens")
def peaks(example: Example) -> Found:
    tokens, entropy = response_tokens(*(example.values[name] for name in ("Ha", "Hb", "Hc")))
    replace(ANCHOR, anchor=1.0).peak_entropy(tokens).backward()
    kept = np.split(entropy.grad.numpy() != 0, [6, 9])
    return dict(zip(("kept_a", "kept_b", "kept_c"), kept, strict=True))


@EXAMPLES.by("the anchor of the first batch holds in later ones")
def anchored(example: Example) -> Found:
    penalties, slopes = [], []
    first = ANCHOR.anchor
    state = first.initial_state()
    for mean in example.values["H"]:
        tokens, entropy = response_tokens(peak_response(mean))
        penalty = replace(ANCHOR, anchor=first.value(state))(tokens)
        state = first.moved(state, {first.metric: mean})
        penalty.backward()
        penalties.append(penalty.item())
        slopes.append(entropy.grad.sum().item())
    return {"penalty": np.array(penalties), "slope_in_H": np.array(slopes)}


@EXAMPLES.by("square of each micro-batch")
def square(example: Example) -> Found:
    anchor = replace(ANCHOR, anchor=float(example.values["H0"]))
    penalty = anchor(response_tokens(*map(peak_response, example.values["H"]))[0])
    return {"of_the_whole_mini_batch": penalty.item() / anchor.coefficient}


@EXAMPLES.by("groups of five and of one")
def groups(example: Example) -> Found:
    one, other = advantages(recipes.SIREN, example.values["R"], np.atleast_1d(example.values["S"]))
    return {"advantage_a": one, "advantage_b": other}


@EXAMPLES.by("policy loss of responses of three and one tokens, padded to four")
def losses(example: Example) -> Found:
    given = example.values
    anchor = replace(ANCHOR, anchor=float(given["H0"]))
    recipe = given_advantages(recipes.SIREN, constant=4.0, entropy=anchor)
    moved = np.append(given["d_a"], given["d_b"]) - 1.0

    def loss(logprob: Value, entropy: Value) -> Value:
        members = answers([3, 1], given["A"].tolist())
        policy = {"logprob": logprob.tolist(), "top_p_entropy": [*peak_response(float(entropy)).tolist(), 0.0]}
        return computed(recipe, ["loss"], members=members, policy=policy)["loss"]

    return {
        "policy_loss_first": loss(np.full(4, -1.0), given["H0"]),
        "policy_loss_second": loss(moved, given["H0"]),
        "loss_second": loss(moved, given["H"]),
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
