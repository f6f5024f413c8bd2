"""Draws without gradient are not run, and equal samples are run once; gradients stay the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hand_made import tiny_model

from agentrl_core import Batch, Forest, Recipe, loss, recipes, schedule
from agentrl_core.update.minibatches import Updates

LOSSES = {
    "grpo": loss.Policy(),
    "sequence ratio": loss.Policy(ratio=loss.Ratio("sequence"), aggregate="sequence_mean"),
    "behind a mask": loss.Policy(mask=loss.InBounds()),
    "cloning": loss.Imitation("token_mean", tokens="positive"),
    "both": loss.Sum(loss.Policy(), loss.Imitation("token_mean", tokens="advantage"), 1.0, 0.5),
}
OTHERS = {
    "kl": loss.Policy(kl=loss.KL(0.1)),
    "drift": loss.Policy(drift=loss.KL(0.1)),
    "entropy": loss.Policy(entropy=0.1),
    "statistics over all rows": loss.Policy(mask=loss.CovarianceMask()),
    "likelihood": loss.Imitation("token_mean"),
    "one of both": loss.Sum(loss.Policy(), loss.Imitation("token_mean"), 1.0, 0.5),
}


REWARDS = [[1.0, 1.0, 1.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [1.0, 0.0, 0.0]]


def late(groups: int = 4) -> Batch:
    """Return groups as late in training: two with equal rollouts, one with equal rewards, one that learns."""
    rng = np.random.default_rng(3)
    forest = Forest()
    for group, rewards in enumerate(REWARDS[:groups]):
        forest.add_group(group, f"task {group}")
        for member, reward in enumerate(rewards):
            trajectory = forest.start(group, member)
            forest.append(trajectory, [1, 2, 3 + group], kind="prompt")
            for turn in range(2):
                action = [7, 8, 9] if group < 2 else [7, *rng.integers(10, 20, 2).tolist()]
                forest.append(trajectory, action, kind="action", logprobs=[-0.5, -0.2, -rng.uniform(0.1, 3.0)])
                forest.step(trajectory)
                if not turn:
                    forest.append(trajectory, [4, 5], kind="observation")
            forest.finish(trajectory, reward=reward)
    return forest.freeze()


def gradients(updates: Updates, layout: str) -> tuple[list[torch.Tensor], int, dict[str, float]]:
    """Return the gradients for an optimizer, the number of run tokens, and the metrics of the updates."""
    model = tiny_model()
    tokens = 0
    for update in updates:
        for pack in update.pack(max_tokens=10**6, layout=layout):
            tokens += len(pack.input_ids)
            update.loss(pack.run(model), pack).backward()
    return [parameter.grad for parameter in model.parameters()], tokens, updates.metrics


def updates_of(recipe: Recipe, batch: Batch, *, metrics_of_all: bool) -> Updates:
    (training,) = recipe.losses()
    return Updates(batch, [replace(training, epochs=1, minibatches=1)], metrics_of_all=metrics_of_all)


@pytest.mark.parametrize("layout", ["sequence", "tree"])
@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_those_of_all_draws(name: str, layout: str) -> None:
    recipe = recipes.GRPO.replace(loss=LOSSES[name])
    batch = recipe.credit(late())
    expected, all_tokens, all_metrics = gradients(updates_of(recipe, batch, metrics_of_all=True), "sequence")
    result, run_tokens, fewer_metrics = gradients(updates_of(recipe, batch, metrics_of_all=False), layout)
    for one, other in zip(result, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-8)
    assert sum(float(gradient.abs().sum()) for gradient in expected) > 0.01
    # Nine of twelve draws agree with their group; of a draw's 10 tokens the last is never an input.
    assert all_tokens == 12 * 10
    assert run_tokens == (3 * 10 if layout == "sequence" else run_tokens)
    assert "idle_tokens" not in all_metrics
    assert fewer_metrics["idle_tokens"] == 9 * 6
    assert fewer_metrics["tokens"] + (0 if layout == "tree" else 9 * 6) <= all_metrics["tokens"]
    assert fewer_metrics["loss"] == pytest.approx(all_metrics["loss"], rel=1e-6)


@pytest.mark.parametrize("name", OTHERS)
def test_losses_that_read_all_draws_run_all_draws(name: str) -> None:
    recipe = recipes.GRPO.replace(loss=OTHERS[name])
    assert not recipe.loss.by_advantage
    batch = recipe.credit(late())
    tokens = len(batch.column("token", "token"))
    batch = batch.with_columns("token", reference_logprob=np.full(tokens, -1.0))
    (update,) = recipe.updates(batch)
    assert sum(len(pack.token) for pack in update.pack(max_tokens=10**6)) == tokens


def test_a_controller_that_reads_metrics_runs_all_draws() -> None:
    clip = loss.Clip(high=schedule.PID("entropy", target=0.5, start=0.2, at_least=0.1, at_most=0.4))
    recipe = recipes.GRPO.replace(loss=loss.Policy(clip=clip))
    batch = recipe.credit(late())
    (update,) = recipe.updates(batch)
    assert sum(len(pack.token) for pack in update.pack(max_tokens=10**6)) == len(batch.column("token", "token"))


def test_a_step_without_any_gradient_is_one_of_zeros() -> None:
    recipe = recipes.GRPO
    batch = recipe.credit(late(groups=2))
    result, tokens, metrics = gradients(updates_of(recipe, batch, metrics_of_all=False), "sequence")
    assert tokens == 6 * 10
    assert "idle_tokens" not in metrics
    assert all(gradient is not None and not gradient.any() for gradient in result)


@pytest.mark.parametrize("layout", ["sequence", "tree"])
def test_ranks_and_gradient_caching_leave_out_the_same(layout: str) -> None:
    recipe = recipes.GRPO
    batch = recipe.credit(late())
    expected, _, _ = gradients(updates_of(recipe, batch, metrics_of_all=True), "sequence")
    for ways in ("ranks", "together"):
        model = tiny_model()
        (update,) = updates_of(recipe, batch, metrics_of_all=False)
        if ways == "ranks":
            for rank in update.pack(max_tokens=20, layout=layout, shards=2):
                for pack in rank:
                    update.loss(pack.run(model), pack).backward()
        else:
            for value in update.gradient_cached(model, max_tokens=11, layout=layout):
                value.backward()
        for parameter, other in zip(model.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, other, rtol=1e-5, atol=1e-8)


def test_repeated_samples_are_run_once() -> None:
    """Run all twelve draws, with a penalty that reads them: the tree follows their tokens, not their storage."""
    recipe = recipes.GRPO.replace(loss=loss.Policy(kl=loss.KL(0.1)))
    batch = recipe.credit(late())
    batch = batch.with_columns("token", reference_logprob=np.full(len(batch.column("token", "token")), -1.0))
    expected, all_tokens, _ = gradients(updates_of(recipe, batch, metrics_of_all=False), "sequence")
    result, run_tokens, _ = gradients(updates_of(recipe, batch, metrics_of_all=False), "tree")
    for one, other in zip(result, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-8)
    (update,) = recipe.updates(batch)
    (pack,) = update.pack(max_tokens=10**6, layout="tree")
    rows = {
        tuple(path[:end])
        for one in update.pack(max_tokens=10**6)
        for begin, stop in zip(one.cu_seqlens[:-1], one.cu_seqlens[1:], strict=True)
        for path in [one.input_ids[begin:stop].tolist()]
        for end in range(1, len(path) + 1)
    }
    assert run_tokens == len(rows) == len(pack.input_ids)
    assert run_tokens < all_tokens / 2
