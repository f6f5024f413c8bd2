"""DPPO: masks by divergence, one token at a time, and with the likeliest tokens of a model."""

from __future__ import annotations

import copy
import math
from typing import Literal

import pytest
import torch
from cases import Case, Objective, agree, transcribed
from hand_made import VOCABULARY, tiny_model
from torch import Tensor

from agentrl_core import Forest, annotate, loss, recipes
from agentrl_core.recipes.dppo import DivergenceMask


def dppo_tv(case: Case, ratio: Tensor, logprob: Tensor, t: int) -> Tensor:
    a, moved = case.advantage[t], logprob[t].exp() - case.old_logprob[t].exp()
    is_trained = moved <= 0.05 if a > 0 else moved >= -0.04
    return a * min(ratio[t].item(), 1.3) * logprob[t] * float(is_trained)


def dppo_kl(case: Case, ratio: Tensor, logprob: Tensor, t: int) -> Tensor:
    a, p, q = case.advantage[t], logprob[t].exp().item(), case.old_logprob[t].exp().item()
    divergence = q * math.log(q / p) + (1 - q) * math.log((1 - q + 1e-8) / (1 - p + 1e-8))
    is_trained = divergence <= 0.02 or (p <= q if a > 0 else p >= q)
    return a * min(ratio[t].item(), 1.3) * logprob[t] * float(is_trained)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("mask", "objective"), [(DivergenceMask("tv", 0.04, 0.05), dppo_tv), (DivergenceMask("kl", 0.02, 0.02), dppo_kl)]
)
def test_one_token_at_a_time(mask: DivergenceMask, objective: Objective, seed: int) -> None:
    case = Case.random(seed)
    surrogate = loss.Reinforce("ratio", "ratio", at_most=1.3)
    agree(loss.Policy(clip=None, surrogate=surrogate, mask=mask), case, transcribed(case, objective))


PROMPT = [1, 2, 3]
ACTIONS = {1.0: [4, 5, 6, 7], 0.0: [8, 9, 10]}
"""Tokens of two answers, by their rewards."""


def distance(old: Tensor, new: Tensor, sampled: int, kind: str) -> float:
    """Return the divergence over the two likeliest tokens, the sampled one and all others as one class."""
    classes = sorted({*old.topk(2).indices.tolist(), sampled})
    q, p = ([*each.exp()[classes].tolist(), 1 - each.exp()[classes].sum().item()] for each in (old, new))
    if kind == "tv":
        return sum(abs(one - other) for one, other in zip(q, p, strict=True)) / 2
    return sum(one * math.log(one / other) for one, other in zip(q, p, strict=True))


@pytest.mark.parametrize(("kind", "bound"), [("tv", 0.02), ("kl", 0.002)])
def test_the_likeliest_tokens_of_a_model(kind: Literal["tv", "kl"], bound: float) -> None:
    """Compare with whole distributions of a model before and after it moved."""
    before = tiny_model(vocab_size=VOCABULARY).eval()
    after = copy.deepcopy(before)
    with torch.no_grad():
        for weights in after.parameters():
            weights.add_(0.02 * torch.sin(torch.arange(weights.numel()).double()).reshape(weights.shape))
    forest = Forest()
    forest.add_group(0, "task")
    for member, (reward, action) in enumerate(ACTIONS.items()):
        handle = forest.start(0, member=member)
        forest.append(handle, PROMPT, kind="prompt")
        forest.append(handle, action, kind="action", logprobs=[-1.0] * len(action))
        forest.finish(handle, reward=reward)
    batch = annotate(forest.freeze(), "sampler_logprob", before, top_k=2)
    batch = annotate(batch, "recomputed_logprob", before)
    policy = loss.Policy(
        clip=None,
        surrogate=loss.Reinforce("ratio", "ratio"),
        mask=DivergenceMask(kind, bound, bound, support="top"),
    )
    recipe = recipes.DPPO.replace(loss=policy, minibatches=1, old_logprob="recomputed")
    [update] = recipe.updates(recipe.credit(batch))
    total = sum(update.loss(pack.run(after), pack).item() for pack in update.pack(max_tokens=1000))

    expected, masked = 0.0, 0
    for reward, action in ACTIONS.items():
        ids = torch.tensor([[*PROMPT, *action]])
        with torch.no_grad():
            old, new = (model(input_ids=ids).logits[0, 2:-1].log_softmax(-1) for model in (before, after))
        for one, other, sampled in zip(old, new, action, strict=True):
            away = (other[sampled] - one[sampled]).item()
            far = distance(one, other, sampled, kind) > bound and away * (reward - 0.5) > 0
            masked += far
            if not far:
                expected -= (reward - 0.5) * math.exp(away) * other[sampled].item() / 7
    assert 0 < masked < 7
    assert total == pytest.approx(expected, rel=1e-4)
