"""Tiny students learn from a tiny teacher on their own rollouts: the divergence falls to a fifth."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hand_made import tiny_model
from riddles import TOKENIZER
from torch import nn

from agentrl_core import Batch, Forest, annotate, engine, loss, recipes
from agentrl_core.recipe import Recipe

PROMPTS = np.random.default_rng(0).integers(0, len(TOKENIZER), (16, 3)).astype(np.int32)
LENGTH = 6


def sharp(seed: int) -> nn.Module:
    """A model whose distributions are far from uniform."""
    model = tiny_model("qwen3", torch.float32, seed=seed, vocab_size=len(TOKENIZER)).eval()
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(4.0)
    return model


def rollouts(policy: nn.Module, iteration: int) -> Batch:
    """Samples of the policy, one for each prompt; no reward is known."""
    sampling = engine.Sampling(max_tokens=LENGTH)
    requests = [engine.Request(prompt, 1000 * iteration + place, sampling) for place, prompt in enumerate(PROMPTS)]
    forest = Forest(iteration=iteration)
    for place, segment in enumerate(engine.complete(engine.Transformers(policy, TOKENIZER), requests)):
        forest.add_group(place, f"prompt {place}")
        trajectory = forest.start(place, member=0)
        forest.append(trajectory, PROMPTS[place], kind="prompt")
        forest.append(trajectory, segment.tokens, kind="action", logprobs=segment.logprobs)
        forest.finish(trajectory, reward=0.0)
    return forest.freeze()


def distance(policy: nn.Module, teacher: nn.Module, batch: Batch) -> float:
    """Mean KL(p || q) over the sampled tokens."""
    (update,) = recipes.GKD.updates(batch)
    (pack,) = update.pack(max_tokens=4096, model=policy)
    with torch.no_grad():
        found = pack.run(policy, teacher=teacher, outputs=("divergence:1.0",)).divergence
    assert found is not None
    return float(found.mean())


TOP = recipes.GKD.replace(loss=loss.Divergence(support="top"))
FORWARD = recipes.GKD.replace(loss=loss.Divergence(beta=0.0, support="vocabulary"))
LEARNED = {
    "gkd": (recipes.GKD, 40),
    "gkd, forward": (FORWARD, 40),
    "gkd, 16 of 37 tokens": (TOP, 40),
    "on-policy distillation": (recipes.ON_POLICY_DISTILLATION, 120),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNED)
def test_a_student_learns_from_its_own_rollouts(name: str) -> None:
    recipe, iterations = LEARNED[name]
    teacher, student = sharp(1), sharp(2)
    optimizer = torch.optim.AdamW(student.parameters(), lr=3e-3, weight_decay=0.0)
    first = 0.0
    for iteration in range(iterations):
        batch = rollouts(student, iteration)
        if iteration == 0:
            first = distance(student, teacher, batch)
        batch = annotate(batch, "teacher_logprob", teacher, top_k=16)
        updates = recipe.updates(recipe.credit(batch))
        for update in updates:
            for pack in update.pack(max_tokens=4096, model=student):
                update.loss(pack.run(student, teacher=teacher), pack).backward()
            update.step(optimizer)
    last = distance(student, teacher, rollouts(student, iterations))
    assert last < first / 5


def test_recipes_are_whole() -> None:
    for recipe in (recipes.GKD, TOP.replace(frozen=("teacher",)), recipes.ON_POLICY_DISTILLATION):
        assert Recipe.from_toml(recipe.to_toml()) == recipe
        recipe.check()
