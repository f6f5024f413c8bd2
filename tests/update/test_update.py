"""Updates: their draws, weights and packs; and the loss of a batch compared with its definition."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import polars as pl
import pytest
import torch
from transformers import LlamaForCausalLM

from agentrl_core import Batch, Schedule, annotate, loss, recipes
from agentrl_core.exceptions import InvalidInputError, RecipeError
from agentrl_core.recipe import Recipe


def expected_loss(model: LlamaForCausalLM, batch: Batch, recipe: Recipe, reference: LlamaForCausalLM) -> torch.Tensor:
    """Compute the loss per draw by the model's own forward, from the paths and levels of the batch alone."""
    policy = recipe.loss
    offsets, bounds = batch.offsets("step"), batch.offsets("token")
    position = batch.column("position", "token")
    advantages, old = batch.column("advantage", "token"), batch.column("behaviour_logprob", "token")
    scale = batch.column("inverse_temperature", "token")
    stored = batch.column("node_token", "token")
    owner: dict[int, int] = {}
    valid = np.isfinite(batch.column("score", "draw"))
    paths = paths_of(batch)
    terms, shares = [], []
    for draw in np.flatnonzero(valid):
        rows = np.arange(bounds[offsets[draw]], bounds[offsets[draw + 1]])
        inputs = torch.from_numpy(paths[draw])[None]
        picked = []
        for network in (model, reference):
            logits = network(input_ids=inputs).logits[0, position[rows] - 1] * torch.from_numpy(scale[rows])[:, None]
            logprobs = logits.log_softmax(-1)
            picked.append(logprobs.gather(1, inputs[0, position[rows]][:, None])[:, 0])
            if network is model:
                entropy = -(logprobs.exp() * logprobs).sum(-1)
        logprob, anchor = picked[0], picked[1].detach()
        ratio = (logprob - torch.from_numpy(old[rows])).exp()
        advantage = torch.from_numpy(advantages[rows])
        objective = torch.minimum(ratio * advantage, ratio.clamp(1 - policy.clip.low, 1 + policy.clip.high) * advantage)
        difference = anchor - logprob
        divergence = difference.exp() - difference - 1
        terms.append(-objective + policy.kl.coefficient * divergence - policy.entropy * entropy)
        shares.append(np.array([float(owner.setdefault(token, draw) == draw) for token in stored[rows].tolist()]))
    share = [torch.from_numpy(row) if recipe.shared == "owner" else torch.ones(len(row)) for row in shares]
    if policy.aggregate == "token_mean":
        return sum((s * t).sum() for s, t in zip(share, terms, strict=True)) / sum(s.sum() for s in share)
    means = [(s * t).sum() / s.sum() for s, t in zip(share, terms, strict=True) if s.sum() > 0]
    return sum(means) / len(means)


def paths_of(batch: Batch) -> list[np.ndarray]:
    """Return the tokens of every draw, from the tables: leaf to root."""
    nodes = {row["node_id"]: row for row in pl.DataFrame(batch.nodes).iter_rows(named=True)}
    paths = []
    for leaf in pl.DataFrame(batch.trajectories)["leaf_node_id"]:
        node, end, parts = leaf, None, []
        while node is not None:
            parts.insert(0, nodes[node]["tokens"][:end])
            node, end = nodes[node]["parent_id"], nodes[node]["parent_end"]
        paths.append(np.concatenate(parts))
    return paths


@pytest.mark.parametrize("max_tokens", [40, 999])
@pytest.mark.parametrize("shared", ["each", "owner"])
@pytest.mark.parametrize("aggregate", ["token_mean", "sequence_mean"])
def test_loss_and_gradients_of_a_batch_with_branches(
    batch: Batch, model: LlamaForCausalLM, aggregate: str, shared: str, max_tokens: int
) -> None:
    reference = LlamaForCausalLM(model.config).double()
    recipe = recipes.GRPO.replace(loss=loss.Policy(kl=loss.KL(0.1), entropy=0.05, aggregate=aggregate), shared=shared)
    credited = annotate(recipe.credit(batch), "reference_logprob", reference, max_tokens=50)
    expected = expected_loss(model, credited, recipe, reference)
    expected.backward()
    expected_gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()

    updates = recipe.updates(credited)
    (update,) = updates
    packs = list(update.pack(max_tokens=max_tokens))
    assert (len(packs) > 1) == (max_tokens == 40)
    total = 0.0
    for pack in packs:
        value = update.loss(pack.run(model), pack)
        value.backward()
        total += value.item()
    # The columns of a batch are float32, hence 1e-6 and not less.
    assert total == pytest.approx(expected.item(), abs=1e-6)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected_gradients[name], rtol=0, atol=1e-6, msg=name)
    assert updates.metrics["loss"] == pytest.approx(total)
    assert updates.metrics["updates"] == 1
    assert updates.metrics["tokens"] == sum(len(pack.target) for pack in packs) - (
        sum(int((pack.streams.weight_kl == 0).sum()) for pack in packs)
    )


def test_epochs_and_minibatches_cover_the_valid_draws(make_batch: Callable[..., Batch]) -> None:
    recipe = recipes.GRPO.replace(epochs=3, minibatches=4)
    credited = recipe.credit(make_batch(groups=5))
    valid = np.flatnonzero(np.isfinite(credited.column("score", "draw")))
    updates = recipe.updates(credited, seed=5)
    parts = [update.draws for update in updates]
    assert len(parts) == len(updates) == 12
    orders = []
    for epoch in range(3):
        mine = parts[4 * epoch : 4 * epoch + 4]
        assert sorted(np.concatenate(mine).tolist()) == valid.tolist()
        assert np.ptp([len(part) for part in mine]) <= 1
        orders.append([part.tolist() for part in mine])
    assert orders[0] != orders[1] != orders[2]
    assert [update.draws.tolist() for update in recipe.updates(credited, seed=5)] == [part.tolist() for part in parts]
    assert [update.draws.tolist() for update in recipe.updates(credited, seed=6)] != [part.tolist() for part in parts]


def test_fewer_draws_than_minibatches(make_batch: Callable[..., Batch]) -> None:
    recipe = recipes.GRPO.replace(minibatches=50)
    credited = recipe.credit(make_batch(groups=1, unrewarded=None))
    assert [len(update.draws) for update in recipe.updates(credited)] == [1] * 5


def test_a_batch_without_valid_draws_has_no_updates(batch: Batch) -> None:
    recipe = recipes.GRPO
    nothing = recipe.credit(batch.with_columns("draw", score=np.full(batch.num_draws, np.nan)))
    updates = recipe.updates(nothing)
    assert len(updates) == 0
    assert list(updates) == []
    assert updates.metrics == {}


def test_weights_of_an_update_sum_to_one(batch: Batch) -> None:
    recipe = recipes.GRPO.replace(minibatches=2)
    for update in recipe.updates(recipe.credit(batch)):
        weights = [pack.streams.weight_kl.sum().item() for pack in update.pack(max_tokens=60)]
        assert sum(weights) == pytest.approx(1.0, abs=1e-6)


def test_metrics_are_means_over_tokens_of_all_updates(batch: Batch, model: LlamaForCausalLM) -> None:
    recipe = recipes.GRPO.replace(epochs=2)
    updates = recipe.updates(recipe.credit(batch))
    assert updates.metrics == {}
    ratios, losses = [], []
    for update in updates:
        losses.append(0.0)
        for pack in update.pack(max_tokens=60):
            outputs = pack.run(model)
            losses[-1] += update.loss(outputs, pack).item()
            ratios.append((outputs.logprob - pack.streams.old_logprob).exp())
    metrics = updates.metrics
    assert metrics["ratio"] == pytest.approx(torch.cat(ratios).mean().item(), rel=1e-6)
    assert metrics["loss"] == pytest.approx(np.mean(losses))
    assert metrics["updates"] == 2
    names = {"loss", "ratio", "clip_fraction", "approximate_kl", "entropy", "tokens", "idle_tokens", "updates"}
    assert set(metrics) == names


def test_recomputed_old_log_probs(batch: Batch, model: LlamaForCausalLM) -> None:
    recipe = recipes.GRPO.replace(old_logprob="recomputed")
    credited = recipe.credit(batch)
    with pytest.raises(RecipeError, match=r"arl\.annotate\(batch, 'recomputed_logprob', policy\)"):
        recipe.updates(credited)
    updates = recipe.updates(annotate(credited, "recomputed_logprob", model))
    for update in updates:
        for pack in update.pack(max_tokens=999):
            update.loss(pack.run(model), pack)
    assert updates.metrics["ratio"] == pytest.approx(1.0, abs=1e-6)
    assert updates.metrics["clip_fraction"] == 0.0


def test_credit_must_come_first(batch: Batch) -> None:
    with pytest.raises(RecipeError, match=r"recipe 'grpo': .* add the credit first: batch = recipe\.credit\(batch\)"):
        recipes.GRPO.updates(batch)


def test_options_of_packs(batch: Batch) -> None:
    (update,) = recipes.GRPO.updates(recipes.GRPO.credit(batch))
    with pytest.raises(InvalidInputError, match="layout: 'forest' is not a layout; use auto, tree, sequence, padded"):
        update.pack(max_tokens=999, layout="forest")
    with pytest.raises(InvalidInputError, match='balance is "rows"; use "tokens" or "work"'):
        update.pack(max_tokens=999, balance="rows")
    with pytest.raises(InvalidInputError, match="shards is 0; give the number of ranks, from 1"):
        update.pack(max_tokens=999, shards=0)
    with pytest.raises(InvalidInputError, match="max_tokens is 3, but draw"):
        update.pack(max_tokens=3)


def test_a_trained_token_without_a_log_prob_is_refused(batch: Batch) -> None:
    recipe = recipes.GRPO.replace(loss=loss.Policy(kl=loss.KL(0.1)))
    values = np.zeros(len(batch.column("token", "token")), dtype=np.float32)
    values[2] = np.nan
    credited = recipe.credit(batch).with_columns("token", reference_logprob=values)
    (update,) = recipe.updates(credited)
    with pytest.raises(InvalidInputError, match=r"column 'reference_logprob' is nan at trained token 2 \(1 such"):
        list(update.pack(max_tokens=999))


def test_a_given_advantage_needs_no_score(batch: Batch) -> None:
    annotated = batch.with_columns("token", advantage=np.ones(len(batch.column("token", "token"))))
    (update,) = recipes.GRPO.updates(annotated)
    assert len(update.draws) == batch.num_draws
    (pack,) = update.pack(max_tokens=999)
    torch.testing.assert_close(pack.streams.advantage_positive, pack.streams.weight_kl)


def test_numbers_of_a_loss_follow_the_iteration_of_the_batch(batch: Batch) -> None:
    policy = loss.Policy(
        entropy=Schedule(0.8, 0.0, iterations=8), clip=loss.Clip(high=Schedule(0.2, 0.3, iterations=2))
    )
    recipe = recipes.GRPO.replace(loss=policy)
    (update,) = recipe.updates(recipe.credit(batch))  # from iteration 4
    assert update.prepared.loss == loss.Policy(entropy=0.4, clip=loss.Clip(high=0.3))


def test_sources_are_dealt_evenly(make_batch: Callable[..., Batch]) -> None:
    """Every draw occurs once; minibatches differ by at most one draw of each source, and of all."""
    batch = make_batch(groups=4)
    ids = batch.column("trajectory_id", "draw")
    batch = batch.with_draws(ids[::3], source="replay").with_draws(ids[1::6], source="expert")
    batch = batch.with_columns("draw", score=np.ones(batch.num_draws), advantage=np.ones(batch.num_draws))
    sources = np.asarray(batch.column("source", "draw"))
    assert len(set(sources.tolist())) == 3
    training = loss.Train(loss.Policy(), minibatches=3, epochs=2, deal="by_source")
    recipe = recipes.GRPO.replace(loss=training)
    assert Recipe.from_toml(recipe.to_toml()) == recipe
    parts = [update.draws for update in recipe.updates(batch, seed=1)]
    assert len(parts) == 6
    for epoch in (parts[:3], parts[3:]):
        assert sorted(np.concatenate(epoch).tolist()) == list(range(batch.num_draws))
        for chosen in (slice(None), *(sources == source for source in set(sources.tolist()))):
            rows = set(np.arange(batch.num_draws)[chosen].tolist())
            assert np.ptp([len(rows & set(part.tolist())) for part in epoch]) <= 1
    assert parts[0].tolist() != parts[3].tolist(), "another order in each epoch"
    assert [part.tolist() for part in parts] == [update.draws.tolist() for update in recipe.updates(batch, seed=1)]
