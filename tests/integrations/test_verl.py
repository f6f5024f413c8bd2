"""Recipes under their names in the installed verl, run by verl's own functions on its own data."""

from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
import torch
from hand_made import random_case
from verl_rows import data

from agentrl_core import advantage, loss, recipes
from agentrl_core.exceptions import InvalidInputError, RecipeError
from agentrl_core.integrations import verl as plugin
from agentrl_core.integrations.verl.registry import PREFIX, Estimator, extra_columns

verl = pytest.importorskip("verl", reason="verl is installed by `make test`")
core_algos = pytest.importorskip("verl.trainer.ppo.core_algos")
ray_trainer = pytest.importorskip("verl.trainer.ppo.ray_trainer")
verl_config = pytest.importorskip("verl.workers.config")


@pytest.fixture(scope="module")
def registered() -> dict[str, tuple[str, ...]]:
    return plugin.register_all()


def credited(rows: verl.DataProto, name: str, **options: object) -> torch.Tensor:
    """Return the advantages as verl computes them."""
    config = verl_config_of_algorithm()
    result = ray_trainer.compute_advantage(rows, adv_estimator=name, config=config, **options)
    return result.batch["advantages"].double()


def verl_config_of_algorithm() -> object:
    from verl.trainer.config import AlgoConfig

    return AlgoConfig()


def test_the_names_are_ours_and_those_of_verl_stay(registered: dict[str, tuple[str, ...]]) -> None:
    estimators = {name for name in core_algos.ADV_ESTIMATOR_REGISTRY if name.startswith(PREFIX)}
    losses = {name for name in core_algos.POLICY_LOSS_REGISTRY if name.startswith(PREFIX)}
    for registry in (core_algos.ADV_ESTIMATOR_REGISTRY, core_algos.POLICY_LOSS_REGISTRY):
        theirs = {name for name in registry if not name.startswith(PREFIX)}
        assert all(registry[name].__module__ == core_algos.__name__ for name in theirs)
        assert len(theirs) >= 12
    assert {estimator.value for estimator in core_algos.AdvantageEstimator} <= set(core_algos.ADV_ESTIMATOR_REGISTRY)
    assert {PREFIX + name for name, parts in registered.items() if "advantage" in parts} <= estimators
    assert {PREFIX + name for name, parts in registered.items() if "loss" in parts} <= losses
    alone = [name for name in estimators if not core_algos.ADV_ESTIMATOR_REGISTRY[name].needs]
    assert len(alone) >= 65
    assert len(losses) >= 110
    assert {"agentrl_grpo", "agentrl_rloo", "agentrl_opo"} <= set(alone)
    assert {"agentrl_gspo", "agentrl_cispo", "agentrl_dapo"} <= losses


def test_the_entry_point_is_the_one_that_verl_loads() -> None:
    root = Path(__file__).resolve().parents[2]
    assert 'entry_points(group="verl.plugins")' in Path(verl.__file__).read_text(encoding="utf-8")
    points = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    ((name, value),) = points["verl.plugins"].items()
    EntryPoint(name, value, "verl.plugins").load()
    assert "agentrl_grpo" in core_algos.ADV_ESTIMATOR_REGISTRY


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("ours", "theirs", "options"),
    [
        ("agentrl_grpo", "grpo", {}),
        ("agentrl_dr_grpo", "grpo", {"norm_adv_by_std_in_grpo": False}),
        ("agentrl_rloo", "rloo", {}),
        ("agentrl_opo", "opo", {}),
    ],
)
@pytest.mark.usefixtures("registered")
def test_shared_names_have_verls_numbers(ours: str, theirs: str, options: dict[str, bool], seed: int) -> None:
    expected = credited(data(seed), theirs, **options)
    advantages = credited(data(seed), ours)
    assert expected.abs().max() > 0.1
    torch.testing.assert_close(advantages, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("registered")
def test_gae_equals_verls_if_values_are_given() -> None:
    rows = data(3)
    plugin.register(
        recipes.PPO.replace(
            name="gae",
            advantage=(
                advantage.Gae(gamma=0.9, lam=0.8),
                advantage.GroupRelative(
                    column="advantage", level="token", group_by="batch", eps=0.0, variance_eps=1e-8
                ),
            ),
        )
    )
    expected = credited(data(3), "gae", gamma=0.9, lam=0.8) * rows.batch["response_mask"]
    with pytest.raises(RecipeError, match=r"'value'.*trainer\.v1.trainer_mode=agentrl_sync"):
        credited(data(3), "agentrl_gae")
    with extra_columns(columns={"value": list(rows.batch["values"].numpy())}):
        advantages = credited(data(3), "agentrl_gae")
    torch.testing.assert_close(advantages, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("registered")
def test_every_estimator_equals_its_recipe_on_the_same_rollouts() -> None:
    rows, checked = data(5), 0
    batch = plugin.from_dataproto(rows)
    for name, estimator in core_algos.ADV_ESTIMATOR_REGISTRY.items():
        if not isinstance(estimator, Estimator) or estimator.needs:
            continue
        credit = estimator.recipe.credit(batch)
        expected = credit.column("advantage", "token")
        if credit.has("weight", "token"):
            expected = expected * credit.column("weight", "token")
        advantages = credited(data(5), name)
        mask = rows.batch["response_mask"].bool()
        assert (advantages[~mask] == 0).all()
        # The draws of a batch are by group; the first row of each uid gives the order of the groups.
        uids = rows.non_tensor_batch["uid"].tolist()
        order = sorted(range(len(uids)), key=lambda row: (uids.index(uids[row]), row))
        np.testing.assert_allclose(advantages[order][mask[order]], expected, rtol=1e-5, atol=1e-6, err_msg=name)
        checked += 1
    assert checked >= 65


def actor(**options: object) -> object:
    return verl_config.ActorConfig(
        strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, clip_ratio=0.2, clip_ratio_low=0.2, **options
    )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("vanilla", loss.Policy(clip=loss.Clip(0.2, 0.28, dual=3.0))),
        ("gspo", loss.Policy(clip=loss.Clip(0.2, 0.28), ratio=loss.Ratio("sequence"))),
        ("cispo", loss.Policy(clip=loss.Clip(0.2, 0.28), surrogate=loss.Reinforce("clamped", "clamped"))),
    ],
)
def test_losses_have_verls_value_and_gradient(theirs: str, ours: loss.Policy, mode: str, seed: int) -> None:
    if theirs == "gspo" and mode != "seq-mean-token-mean":
        pytest.skip("verl has one aggregation for GSPO")
    rows, old, logprob, mask = random_case(seed)
    config = actor(clip_ratio_high=0.28, clip_ratio_c=3.0)
    advantages = torch.from_numpy(rows.advantage)[:, None] * torch.linspace(0.5, 1.5, old.shape[1]).double()
    if theirs == "gspo":
        advantages = torch.from_numpy(rows.advantage)[:, None].expand_as(old)
    correction = (
        None if theirs == "gspo" else 0.5 + torch.rand(old.shape, generator=torch.Generator().manual_seed(seed))
    )
    plugin.register(recipes.GRPO.replace(name="compared", loss=ours))
    results = []
    for name in (theirs, "agentrl_compared"):
        policy = logprob.clone().requires_grad_()
        value, metrics = core_algos.get_policy_loss_fn(name)(
            old_log_prob=old,
            log_prob=policy,
            advantages=advantages,
            response_mask=mask,
            loss_agg_mode=mode,
            config=config,
            rollout_is_weights=correction,
        )
        results.append((value.detach(), torch.autograd.grad(value, policy)[0], metrics))
    (expected, their_gradient, _), (actual, our_gradient, metrics) = results
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(our_gradient, their_gradient, rtol=1e-6, atol=1e-7)
    assert their_gradient.abs().max() > 1e-4
    assert {"actor/compared/ratio", "actor/compared/clip_fraction"} <= set(metrics)
    assert "actor/compared/entropy" not in metrics  # verl does not report a loss


def test_the_loss_of_an_actor_is_made_of_ours() -> None:
    """Run verl's `ppo_loss` with KL and entropy terms over two ranks: `dp_size` and the global counts are used."""
    from tensordict import TensorDict
    from verl.workers.utils.losses import ppo_loss

    _, old, logprob, mask = random_case(0)
    keep = mask.sum(1) > 0
    old, logprob, mask = old[keep].float(), logprob[keep].float(), mask[keep].long()
    lengths = mask.shape[1]

    def nested(values: torch.Tensor) -> torch.Tensor:
        return torch.nested.as_nested_tensor(list(values), layout=torch.jagged)

    plugin.register(recipes.GRPO.replace(name="actor", loss=loss.Policy(clip=loss.Clip(0.2, 0.2, dual=3.0))))
    loss_values = {}
    for mode in ("vanilla", "agentrl_actor"):
        fields = {
            "prompts": nested(torch.ones(len(old), 2, dtype=torch.long)),
            "responses": nested(torch.ones(len(old), lengths, dtype=torch.long)),
            "response_mask": nested(mask),
            "old_log_probs": nested(old),
            "ref_log_prob": nested(old - 0.1),
            "advantages": nested((torch.arange(len(old))[:, None] - 1.5) * mask),
        }
        rows = TensorDict(fields, batch_size=len(old))
        for name, number in {"dp_size": 2, "batch_num_tokens": 50, "global_batch_size": 8}.items():
            rows.set_non_tensor(name, number)
        full = torch.cat([torch.zeros(len(old), 1), logprob, torch.zeros(len(old), 1)], dim=1)
        config = actor(
            clip_ratio_high=0.2,
            clip_ratio_c=3.0,
            use_kl_loss=True,
            kl_loss_coef=0.3,
            entropy_coeff=0.1,
            policy_loss=verl_config.PolicyLossConfig(loss_mode=mode),
        )
        output = {"log_probs": nested(full), "entropy": nested(torch.ones_like(full))}
        value, metrics = ppo_loss(config, output, rows)
        loss_values[mode] = value.item()
        assert "actor/kl_loss" in str(metrics.keys()) or "kl_loss" in str(metrics)
    assert loss_values["agentrl_actor"] == pytest.approx(loss_values["vanilla"], rel=1e-5)
    assert abs(loss_values["vanilla"]) > 1e-3


def test_unsupported_recipes_and_missing_inputs_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"recipe 'dpo' has no advantage.*'pair'"):
        plugin.register(recipes.DPO.replace(advantage=None, name="dpo"))
    with pytest.raises(RecipeError, match="reference_logprob"):
        plugin.register(recipes.GRPO.replace(name="x", advantage=None, loss=loss.Policy(kl=loss.KL(0.1))))
    by_entropy = loss.Policy(mask=loss.TopTokens("entropy", 0.2, scope="sequence"))
    with pytest.raises(RecipeError, match="'entropy'"):
        plugin.register(recipes.GRPO.replace(name="x", advantage=None, loss=by_entropy))
    with pytest.raises(RecipeError, match=r"index is None, but .*; give index="):
        Estimator(recipes.GRPO)(torch.zeros(1, 2), torch.ones(1, 2))


@pytest.mark.parametrize("seed", range(3))
def test_a_dataproto_round_trips(seed: int) -> None:
    rows = data(seed)
    batch = plugin.from_dataproto(rows)
    back = plugin.to_dataproto(batch)
    again = plugin.from_dataproto(back)
    assert isinstance(back, verl.DataProto)
    for name, level in (("token", "token"), ("behaviour_logprob", "token"), ("value", "token"), ("reward", "draw")):
        np.testing.assert_allclose(again.column(name, level), batch.column(name, level), rtol=1e-6)
    assert again.keys("group_id", "draw").tolist() == batch.keys("group_id", "draw").tolist()
    # The same rows in another order: groups are contiguous.
    uids = rows.non_tensor_batch["uid"].tolist()
    order = sorted(range(len(uids)), key=lambda row: (uids.index(uids[row]), row))
    for row, place in enumerate(order):
        is_token = rows.batch["attention_mask"][place].bool()
        tokens = torch.cat([rows.batch["prompts"][place], rows.batch["responses"][place]])[is_token].tolist()
        ours = back.batch["input_ids"][row][back.batch["attention_mask"][row].bool()].tolist()
        last = int(rows.batch["response_mask"][place].nonzero().max()) + 1
        assert ours == tokens[: int(is_token[:3].sum()) + last]
        assert int(back.batch["response_mask"][row].sum()) == int(rows.batch["response_mask"][place].sum())


def test_a_dataproto_without_groups_is_refused() -> None:
    rows = data(0)
    del rows.non_tensor_batch["uid"]
    with pytest.raises(InvalidInputError, match="no 'uid'"):
        plugin.from_dataproto(rows)
    rows = data(0)
    del rows.batch["token_level_rewards"]
    with pytest.raises(InvalidInputError, match="no rewards"):
        plugin.from_dataproto(rows)
