"""Every loss through `recipe.updates`: its streams, whole units, and packs that add up to all rows at once."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hand_made import tiny_model
from systems import LOSSES
from torch import nn
from updates import BINS, Rollouts, close, grow, largest_unit

from agentrl_core import annotate, loss, recipes
from agentrl_core.exceptions import InvalidInputError, UnsupportedError
from agentrl_core.model import logit_statistics as answers
from agentrl_core.model.pack import Pack
from agentrl_core.update.metrics import Metrics
from agentrl_core.update.optimizer_step import Update

EACH = pytest.mark.parametrize("name", LOSSES)
# Bounds, shares or means of these are over all rows: packs without the whole update do not add up.
OVER_ALL_ROWS = [
    "covariance",
    "clip_cov",
    "kl_cov",
    "d3s",
    "forking_tokens",
    "bapo",
    "drpo",
    "grpo_guard",
    "hapo",
    "light_if, policy, warm_start",
    "light_if, policy, update",
    "m2po",
    "siren",
    "spear, policy, update",
    "steer",
    "strata",
    "second moment",
    "exponential steer",
]
NOT_ANSWERED = ["full"]  # the divergence over the whole vocabulary needs two models; here is one


@EACH
def test_packs_of_any_size_are_all_rows_at_once(name: str) -> None:
    policy = LOSSES[name]
    rollouts = Rollouts.random(policy, seed=len(name) % 3)
    update = rollouts.update(policy)
    expected = rollouts.at_once(policy)
    assert expected[0].isfinite()
    assert max(gradient.abs().max() for gradient in expected[1]) > 1e-7
    least = largest_unit(rollouts.batch, update, policy.unit)
    with pytest.raises(InvalidInputError, match=f"max_tokens is {least - 1}, but"):
        list(update.pack(max_tokens=least - 1))
    (single,) = update.pack(max_tokens=10**6)
    # Streams are float32, and so is the product of weight and advantage in `at_once`.
    result = rollouts.by_packs(update, [single])
    assert close(result, expected, 1e-5)
    for limit in (least, least + 9):
        packs = list(update.pack(max_tokens=limit))
        assert (len(packs) > 1) == (name not in OVER_ALL_ROWS)
        assert all(len(pack.input_ids) <= limit for pack in packs)
        assert sorted(itertools.chain(*(pack.token.tolist() for pack in packs))) == sorted(single.token.tolist())
        assert close(rollouts.by_packs(update, packs), result, 1e-6)


def test_the_losses_that_need_the_whole_update() -> None:
    assert {name for name, policy in LOSSES.items() if policy.unit == "update"} == set(OVER_ALL_ROWS)
    share = loss.TopTokens("covariance", scope="sequence")
    assert share.unit == "update"
    assert loss.TopTokens(scope="sequence").unit == "trajectory"


@pytest.mark.parametrize("name", OVER_ALL_ROWS)
def test_smaller_packs_of_these_would_be_another_loss(name: str) -> None:
    """They are refused for a reason: if packs were allowed, value or gradient would change."""
    policy = LOSSES[name]
    rollouts = Rollouts.random(policy, seed=len(name) % 3)
    update = rollouts.update(policy)
    expected = rollouts.by_packs(update, list(update.pack(max_tokens=10**6)))
    groups = rollouts.batch.keys("group_id", "draw").astype(np.int64)
    update = Update(replace(update.prepared, units=groups), update.draws, Metrics())
    packs = list(update.pack(max_tokens=largest_unit(rollouts.batch, update, "group")))
    assert len(packs) > 1
    assert not close(rollouts.by_packs(update, packs), expected, 1e-6)


@functools.cache
def network() -> nn.Module:
    return tiny_model("llama")


@EACH
def test_a_model_answers(name: str) -> None:
    """Forward and backward through a model with a value head; outputs that it lacks are reported."""
    policy, model = LOSSES[name], network()
    torch.manual_seed(1)
    heads = BINS if "value_logits" in policy.outputs else 2 if "soft_minimum" in repr(policy) else 1
    model.value_head = nn.Linear(32, heads).double()
    update = Rollouts.random(policy, 0).update(policy)
    model.zero_grad()
    for pack in update.pack(max_tokens={"group": 200, "update": 1000}.get(policy.unit, 90)):
        assert pack.outputs == policy.outputs
        if name in NOT_ANSWERED:
            with pytest.raises(UnsupportedError, match=r"cannot give the answer 'full_kl'.*dataclasses\.replace"):
                pack.run(model)
            outputs = pack.run(model, outputs=())
            outputs = replace(outputs, full_kl=outputs.entropy)
        else:
            distils = any(output.startswith("divergence:") for output in pack.outputs)
            outputs = pack.run(model, teacher=tiny_model("llama", seed=1) if distils else None)
        update.loss(outputs, pack).backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert max(gradient.abs().max() for gradient in gradients) > 1e-8


def test_outputs_of_a_pack_equal_those_of_the_models_own_forward() -> None:
    model = tiny_model("qwen3")
    model.value_head = nn.Linear(32, 2).double()
    batch = grow(3)
    (plan,) = batch.plan([0], max_tokens=999)
    scale = np.asarray(batch.column("inverse_temperature", "token"), np.float32)[plan.token]
    names = ("value", "top_p_entropy", "mean_logprob")
    pack = Pack.from_plan(plan, {"inverse_temperature": scale}, outputs=names)
    output = pack.run(model)
    assert output.value_logits is None
    starts = plan.cu_seqlens.tolist()
    hidden = torch.cat(
        [
            model.model(torch.from_numpy(plan.input_ids[a:b])[None]).last_hidden_state[0]
            for a, b in itertools.pairwise(starts)
        ]
    )[pack.source_row]
    logits = model.lm_head(hidden) * pack.streams.inverse_temperature[:, None]
    torch.testing.assert_close(output.value, model.value_head(hidden))
    torch.testing.assert_close(output.top_p_entropy, answers.top_p_entropy(logits))
    torch.testing.assert_close(output.mean_logprob, logits.log_softmax(-1).mean(-1))
    assert output.value.requires_grad
    assert output.top_p_entropy.requires_grad


def test_outputs_packs_and_buffers_of_the_wrong_type_are_refused() -> None:
    rollouts = Rollouts.random(loss.Policy(), seed=0)
    (update,) = recipes.GRPO.replace(loss=loss.Policy()).updates(rollouts.batch)
    pack = next(update.pack(max_tokens=1000))
    output = pack.run(tiny_model("llama"))
    with pytest.raises(
        InvalidInputError, match=r"outputs is of type Pack; call update\.loss\(pack\.run\(model\), pack\)"
    ):
        update.loss(pack, output)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="pack is of type PackOutput"):
        update.loss(output, output)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="buffers is of type int; give a PackBuffers"):
        next(update.pack(max_tokens=1000, buffers=3))  # type: ignore[arg-type]


def test_a_model_without_a_value_head_is_refused() -> None:
    update = Rollouts.random(loss.Value(), 0).update(loss.Value())
    pack = next(update.pack(max_tokens=99))
    with pytest.raises(UnsupportedError, match=r"has no value head for the answer 'value'.*model\.value_head = "):
        pack.run(tiny_model("llama"))


def test_annotate_takes_values_for_a_column_of_values() -> None:
    model, batch = tiny_model("llama"), grow(0)
    model.value_head = nn.Linear(32, 1).double()
    values = annotate(batch, "old_value", model).column("old_value", "token")
    expected = annotate(batch, "mine", lambda pack: pack.run(model, outputs=("value",)).value).column("mine", "token")
    np.testing.assert_array_equal(values, expected)
    assert np.isfinite(values).sum() == batch.column("trainable", "token").sum()
    logprobs = annotate(batch, "reference_logprob", model).column("reference_logprob", "token")
    assert not np.allclose(values, logprobs, equal_nan=True)


@pytest.mark.parametrize("policy", [loss.Preference(), loss.OutcomeClassifier()], ids=["pair", "group"])
def test_minibatches_keep_units_whole(policy: loss.Loss) -> None:
    batch = Rollouts.random(policy, 0).batch
    units = batch.column("pair", "draw") if policy.unit == "pair" else batch.keys("group_id", "draw")
    recipe = recipes.GRPO.replace(loss=policy, minibatches=3, epochs=2)
    updates = recipe.updates(batch)
    parts = [set(units[update.draws].tolist()) for update in updates]
    assert len(parts) == len(updates) == 6
    for epoch in (parts[:3], parts[3:]):
        assert sum(map(len, epoch)) == len(set.union(*epoch))
    assert parts[:3] != parts[3:]
    for update in recipe.replace(minibatches=99).updates(batch):
        assert len(set(units[update.draws].tolist())) == 1


def test_groups_of_two_are_pairs() -> None:
    policy = loss.Preference()
    rollouts = Rollouts.random(policy, 0)
    two = rollouts.batch.select_draws([0, 1, 4, 5])
    by_column, by_group = (
        recipes.GRPO.replace(loss=policy).updates(batch) for batch in (two, two.with_columns("draw", pair=[5, 5, 9, 9]))
    )
    for one, other in zip(by_column, by_group, strict=True):
        np.testing.assert_array_equal(one.draws, other.draws)
    alone = two.with_columns("draw", pair=[5, -1, -1, 5])
    (update,) = recipes.GRPO.replace(loss=policy).updates(alone)
    assert update.draws.tolist() == [0, 3]


def test_the_better_of_a_pair_has_the_higher_advantage() -> None:
    """Of 3 and 1 the first is preferred though both are above 0; of equal ones neither, and they are in no mean."""
    policy = loss.Preference("sequence_mean", beta=1.0)
    batch = Rollouts.random(policy, 0).batch.select_draws([0, 1, 4, 5])
    steps = np.repeat(np.arange(4), np.diff(batch.offsets("step")))
    of_tokens = np.repeat(steps, np.diff(batch.offsets("token")))
    batch = batch.with_columns("token", advantage=np.array([3.0, 1.0, 2.0, 2.0])[of_tokens])
    (update,) = recipes.GRPO.replace(loss=policy).updates(batch.with_columns("draw", pair=[0, 0, 1, 1]))
    assert update.draws.tolist() == [0, 1]
    signs = []
    for gains in ((3.0, 1.0), (1.0, 3.0), (1.0, -1.0)):
        half = torch.full((2,), 0.5)
        streams = {"weight_kl": half, "advantage_positive": half * torch.tensor(gains).clamp(min=0.0)}
        streams |= {"advantage_negative": half * torch.tensor(gains).clamp(max=0.0), "sequence": torch.tensor([0, 1])}
        streams |= {"pair": torch.tensor([0, 0]), "reference_logprob": torch.zeros(2)}
        rows = torch.tensor([0.0, 0.0], requires_grad=True)
        policy.evaluate(loss.Tokens(rows, None, streams))[0].backward()
        assert rows.grad is not None
        signs.append(rows.grad.tolist())
    assert signs == [[-0.5, 0.5], [0.5, -0.5], [-0.5, 0.5]]


def test_groups_of_any_size_count_the_same() -> None:
    policy = loss.ListMatch("token_mean")
    batch = Rollouts.random(policy, 0).batch
    groups = np.asarray(batch.keys("group_id", "draw"))
    first, second = (np.flatnonzero(groups == group) for group in np.unique(groups)[:2])
    uneven = batch.select_draws([*first, *second[:2]])
    (update,) = recipes.GRPO.replace(loss=policy).updates(uneven)
    weights = update.prepared.weights(update.draws)[0]
    steps = np.repeat(np.arange(uneven.num_draws), np.diff(uneven.offsets("step")))
    of_tokens = np.repeat(steps, np.diff(uneven.offsets("token")))
    per_draw = np.bincount(of_tokens, weights)
    np.testing.assert_allclose([per_draw[: len(first)].sum(), per_draw[len(first) :].sum()], [0.5, 0.5])


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ([0, 0, 0, 1], "needs pairs, but pair 0 has 3 draws; call batch.with_columns"),
        ([0.0, 0.0, 1.0, 1.0], "column 'pair' has dtype float64"),
        (None, "needs pairs, but group 0 has 4 draws"),
    ],
)
def test_draws_that_are_not_pairs_are_refused(pair: list[float] | None, message: str) -> None:
    batch = grow(0).select_draws(range(4))
    batch = batch.with_columns("token", advantage=np.ones(len(batch.column("token", "token"))))
    batch = batch.with_columns("token", reference_logprob=batch.column("behaviour_logprob", "token"))
    batch = batch.with_columns("draw", pair=pair) if pair else batch
    with pytest.raises(InvalidInputError, match=message):
        recipes.GRPO.replace(loss=loss.Preference()).updates(batch)
