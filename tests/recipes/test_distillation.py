"""Train tiny students on a tiny teacher with their own rollouts: the divergence falls to a fifth."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hand_made import tiny_model
from riddles import TOKENIZER
from transformers import PreTrainedModel

from agentrl_core import Batch, Forest, annotate, engine, loss, recipes
from agentrl_core.recipe import Recipe
from agentrl_core.recipes.sdpo import successful_siblings

PROMPTS = np.array([[1, 2], [3, 4]], np.int32)
GROUP = 12
TOP = recipes.GKD.replace(loss=loss.Divergence(support="top"))
BESIDE = recipes.GRPO.replace(loss=loss.Sum(loss.Policy(), loss.Divergence(support="top")))


@dataclass(frozen=True)
class Task:
    """The training time of a student, and how far from uniform the distributions are."""

    recipe: Recipe
    iterations: int
    sharpness: float = 4.0
    length: int = 3
    top_k: int = 64


LEARNED = {
    "gkd": Task(recipes.GKD, 60),
    "gkd on the top 64 of 261 tokens": Task(TOP, 60),
    "beside grpo, all rewards equal": Task(BESIDE, 60),
    "tcod": Task(recipes.TCOD, 60),
    "turn opd": Task(recipes.TURN_OPD, 60),
    "minillm": Task(recipes.MINILLM, 28, sharpness=2.0, length=2),
    "on-policy distillation": Task(recipes.ON_POLICY_DISTILLATION, 250, sharpness=2.0, length=2),
}


def tiny(seed: int, sharpness: float = 1.0) -> PreTrainedModel:
    model = tiny_model("qwen3", torch.float32, seed=seed, vocab_size=len(TOKENIZER)).eval()
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(sharpness)
    return model


def rollouts(
    generate: engine.Transformers, iteration: int, length: int = 3, rewards: tuple[float, ...] = (0.0,)
) -> Batch:
    """Return a group of samples for each prompt; rewards repeat over the members."""
    sampling = engine.Sampling(max_tokens=length)
    places = [(group, member) for group in range(len(PROMPTS)) for member in range(GROUP)]
    requests = [
        engine.Request(PROMPTS[group], 1000 * iteration + 100 * group + member, sampling) for group, member in places
    ]
    forest = Forest(iteration=iteration)
    for group in range(len(PROMPTS)):
        forest.add_group(group, f"prompt {group}")
    for (group, member), segment in zip(places, engine.complete(generate, requests), strict=True):
        trajectory = forest.start(group, member=member)
        forest.append(trajectory, PROMPTS[group], kind="prompt")
        forest.append(trajectory, segment.tokens, kind="action", logprobs=segment.logprobs)
        forest.finish(trajectory, reward=rewards[member % len(rewards)])
    return forest.freeze()


def distance(policy: PreTrainedModel, teacher: PreTrainedModel, batch: Batch) -> float:
    """Return the mean KL(p || q) over the vocabulary at the sampled tokens."""
    (update,) = recipes.GKD.updates(batch)
    (pack,) = update.pack(max_tokens=4096, model=policy)
    with torch.no_grad():
        divergence = pack.run(policy, teacher=teacher, outputs=("divergence:1.0",)).divergence
    assert divergence is not None
    return float(divergence.mean())


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if task.iterations > 100 else name for name, task in LEARNED.items()],
)
def test_a_student_learns_from_its_own_rollouts(name: str) -> None:
    task = LEARNED[name]
    teacher, student = tiny(1, task.sharpness), tiny(2, task.sharpness)
    generate = engine.Transformers(student, TOKENIZER)
    optimizer = torch.optim.Adam(student.parameters(), lr=0.01)
    first = distance(student, teacher, rollouts(generate, 0, task.length))
    for iteration in range(task.iterations):
        batch = annotate(rollouts(generate, iteration, task.length), "teacher_logprob", teacher, top_k=task.top_k)
        for update in task.recipe.updates(task.recipe.credit(batch)):
            for pack in update.pack(max_tokens=4096, model=student):
                update.loss(pack.run(student, teacher=teacher), pack).backward()
            update.step(optimizer)
        generate.update_weights(student, version=iteration + 1)
    assert distance(student, teacher, rollouts(generate, task.iterations, task.length)) < first / 5


def test_sdpo_trains_failures_on_a_teacher_prompted_with_a_successful_sibling() -> None:
    """SDPO: failures with a successful sibling have a teacher, which follows the policy after the step."""
    student = tiny(2)
    teacher = copy.deepcopy(student)
    batch = rollouts(engine.Transformers(student, TOKENIZER), 0, rewards=(0.0, 0.0, 1.0))
    batch = recipes.SDPO.score(batch)
    siblings = successful_siblings(batch)
    score, groups = batch.column("score", "draw"), batch.keys("group_id", "draw")
    assert np.array_equal(siblings == np.arange(batch.num_draws), score == 1.0)
    assert (score[siblings] == 1.0).all()
    assert (groups[siblings] == groups).all()
    contexts = batch.contexts()
    answers = np.split(contexts.tokens, contexts.offsets[1:-1])
    prompts = [
        [9, *answers[sibling].tolist(), *PROMPTS[group]] for sibling, group in zip(siblings, groups, strict=True)
    ]
    chosen = (score == 0.0) & (siblings >= 0)
    batch = annotate(batch, "teacher_logprob", teacher, top_k=64, prompts=prompts, draws=chosen)
    before = [each.detach().clone() for each in teacher.parameters()]
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    batch = recipes.SDPO.credit(batch)
    keep = np.repeat(np.repeat(chosen, np.diff(batch.offsets("step"))), np.diff(batch.offsets("token")))
    assert np.array_equal(batch.column("keep", "token") != 0, keep)
    updates = recipes.SDPO.updates(batch, models={"policy": student, "teacher": teacher})
    for update in updates:
        for pack in update.pack(max_tokens=4096, model=student):
            update.loss(pack.run(student), pack).backward()
        assert max(float(each.grad.abs().max()) for each in student.parameters() if each.grad is not None) > 0.0
        update.step(optimizer)
    assert updates.metrics["tokens"] > 0
    moved = 0.0
    for old, new, policy in zip(before, teacher.parameters(), student.parameters(), strict=True):
        torch.testing.assert_close(new.detach(), 0.95 * old + 0.05 * policy.detach(), rtol=0, atol=1e-6)
        moved = max(moved, float((new.detach() - old).abs().max()))
    assert moved > 0.0


def test_a_skill_in_the_prompt_trains_groups_with_equal_rewards() -> None:
    """SDAR: no rollouts are compared, the reference is the policy, and the gated term raises every sampled token."""
    student = tiny(2, 4.0)
    teacher = copy.deepcopy(student)
    batch = rollouts(engine.Transformers(student, TOKENIZER), 0)
    prompts = [[9, 8, *PROMPTS[group]] for group in batch.keys("group_id", "draw")]
    batch = annotate(annotate(batch, "reference_logprob", student), "teacher_logprob", teacher, prompts=prompts)
    batch = recipes.SDAR.credit(batch)
    assert not batch.column("advantage", "draw").any()
    updates = recipes.SDAR.updates(batch, models={"policy": student, "teacher": teacher})
    optimizer, slopes = torch.optim.SGD(student.parameters(), lr=0.1), []
    for update in updates:
        for pack in update.pack(max_tokens=4096, model=student):
            output = pack.run(student)
            output.logprob.retain_grad()
            update.loss(output, pack).backward()
            assert output.logprob.grad is not None
            slopes += output.logprob.grad.tolist()
        update.step(optimizer)
    assert max(slopes) < 0.0
    away = batch.column("teacher_logprob", "token") - batch.column("behaviour_logprob", "token")
    gates = 1.0 / (1.0 + np.exp(-5.0 * away))  # draws have equally many tokens
    assert sum(slopes) == pytest.approx(-0.01 * gates.mean(), rel=1e-4)
    assert 0.1 < gates.mean() < 0.9
    assert gates.min() < updates.metrics["gate"] < gates.max()  # a mean over the rows that are run
    recipes.SDAR.run_hooks(updates)
    for student_parameter, teacher_parameter in zip(student.parameters(), teacher.parameters(), strict=True):
        assert torch.equal(student_parameter, teacher_parameter)


def test_recipes_are_whole() -> None:
    built_in = (recipes.GKD, recipes.ON_POLICY_DISTILLATION, recipes.SDPO, recipes.SDAR, recipes.TCOD, recipes.TURN_OPD)
    for recipe in (*built_in, TOP.replace(frozen=("teacher",))):
        assert Recipe.from_toml(recipe.to_toml()) == recipe
        recipe.check()
