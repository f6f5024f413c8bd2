"""The same numbers as verl 0.9.1 on random batches: rollout correction, the overlong penalty, pass@k advantages."""

from __future__ import annotations

import math
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from agentrl_core.operators.group_comparison import top_gap
from agentrl_core.operators.importance import importance_diagnostics, importance_weights, trust_region
from agentrl_core.operators.score_shaping import excess_penalty
from agentrl_core.weight.denominators import sequence_mean, token_mean

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # verl imports a part of ray that has moved
    from verl import DataProto
    from verl.trainer.ppo import core_algos, rollout_corr_helper
    from verl.workers.reward_manager.dapo import DAPORewardManager


@pytest.fixture(params=[0, 1, 2])
def batch(request: pytest.FixtureRequest) -> SimpleNamespace:
    """Return rows of different length with masked tokens inside, padded for verl and flat for us."""
    random = np.random.default_rng(request.param)
    lengths = random.integers(1, 12, size=7)
    width = int(lengths.max())
    new, old = random.normal(-1.0, 0.6, size=(2, 7, width))
    mask = (np.arange(width) < lengths[:, None]) & (random.random((7, width)) < 0.8)
    mask[:, 0] = True
    inside = np.arange(width) < lengths[:, None]
    return SimpleNamespace(
        lengths=lengths,
        new=torch.tensor(new),
        old=torch.tensor(old),
        mask=torch.tensor(mask.astype(np.float64)),
        inside=inside,
        log_ratios=(new - old)[inside],
        flat_mask=mask[inside],
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        sequence=np.repeat(np.arange(7), lengths),
    )


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize(
    ("threshold", "options"),
    [
        (1.3, {"at_most": 1.3}),
        ("0.2_3.0", {"at_least": 0.2, "at_most": 3.0, "kind": "mask"}),
    ],
)
def test_importance_weights(batch: SimpleNamespace, level: str, threshold: float | str, options: dict) -> None:
    theirs, _ = rollout_corr_helper.compute_rollout_correction_weights(
        batch.new - batch.old, batch.mask, rollout_is=level, rollout_is_threshold=threshold
    )
    ours = importance_weights(batch.log_ratios, batch.offsets, level=level, mask=batch.flat_mask, **options)
    np.testing.assert_allclose(ours, theirs.numpy()[batch.inside], rtol=1e-6)


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
@pytest.mark.parametrize("aggregate", ["token", "sum", "mean", "max"])
def test_rejection_masks(batch: SimpleNamespace, kind: str, aggregate: str) -> None:
    mode = f"token_{kind}" if aggregate == "token" else f"seq_{aggregate}_{kind}"
    if mode not in rollout_corr_helper.SUPPORTED_ROLLOUT_RS_OPTIONS:
        assert mode == "seq_max_k1"
        return
    bounds = {"at_least": math.log(0.6), "at_most": math.log(1.5)} if kind == "k1" else {"at_most": 0.35}
    theirs, _ = rollout_corr_helper.compute_rollout_rejection_mask(
        batch.new - batch.old, batch.mask, mode, "0.6_1.5" if kind == "k1" else 0.35
    )
    ours = trust_region(batch.log_ratios, batch.offsets, kind=kind, aggregate=aggregate, mask=batch.flat_mask, **bounds)
    assert np.array_equal(ours, theirs.numpy()[batch.inside] > 0)


def test_diagnostics(batch: SimpleNamespace) -> None:
    theirs = rollout_corr_helper.compute_offpolicy_metrics(batch.new, batch.old, batch.mask)
    ours = importance_diagnostics(batch.log_ratios, batch.offsets, mask=batch.flat_mask)
    assert ours.k1 == pytest.approx(theirs["kl"], rel=1e-6)
    assert ours.k3 == pytest.approx(theirs["k3_kl"], rel=1e-6)
    assert ours.chi_squared_token == pytest.approx(theirs["chi2_token"], rel=1e-6)
    assert ours.chi_squared_sequence == pytest.approx(theirs["chi2_seq"], rel=1e-6)


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_denominators(batch: SimpleNamespace, mode: str) -> None:
    losses = torch.randn(batch.mask.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    theirs = core_algos.agg_loss(loss_mat=losses, loss_mask=batch.mask, loss_agg_mode=mode)
    lengths = batch.mask.sum(-1).numpy().astype(np.int64)
    weights = token_mean(lengths) if mode == "token-mean" else sequence_mean(lengths)
    ours = weights @ losses.numpy()[batch.mask.numpy() > 0]
    assert ours == pytest.approx(float(theirs), abs=1e-7)  # verl adds 1e-8 to the length of a sequence


@pytest.mark.parametrize("scaled", [False, True])
def test_pass_at_k_advantage(scaled: bool) -> None:
    random = np.random.default_rng(3)
    scores = random.integers(0, 5, size=24).astype(np.float32)
    groups = random.permutation(np.repeat(np.arange(6), 4))
    theirs, _ = core_algos.compute_grpo_passk_outcome_advantage(
        torch.tensor(scores)[:, None], torch.ones(24, 1), groups, config={"norm_adv_by_std_in_grpo": scaled}
    )
    ours = top_gap(scores, groups)
    if scaled:
        deviations = np.array([np.std(scores[groups == group], ddof=1) for group in range(6)])
        ours = ours / (deviations[groups] + 1e-6)
    np.testing.assert_allclose(ours, theirs.numpy()[:, 0], rtol=1e-6)


def test_overlong_penalty() -> None:
    lengths, longest, buffer, factor = np.array([3, 12, 14, 17, 20]), 20, 8, 0.7
    mask = (np.arange(longest) < lengths[:, None]).astype(np.int64)
    data = DataProto.from_dict(
        tensors={
            "prompts": torch.ones(5, 1, dtype=torch.int64),
            "responses": torch.ones(5, longest, dtype=torch.int64),
            "attention_mask": torch.tensor(np.concatenate([np.ones((5, 1), np.int64), mask], axis=1)),
        },
        non_tensors={
            "reward_model": np.array([{"ground_truth": ""}] * 5, dtype=object),
            "data_source": np.array(["none"] * 5, dtype=object),
        },
    )
    manager = DAPORewardManager(
        SimpleNamespace(decode=lambda *_, **__: "text", eos_token="<eos>"),
        num_examine=0,
        compute_score=lambda **_: 1.0,
        max_resp_len=longest,
        overlong_buffer_cfg=SimpleNamespace(enable=True, len=buffer, penalty_factor=factor, log=False),
    )
    theirs = manager(data).sum(-1).numpy()
    ours = 1.0 + excess_penalty(lengths, free=longest - buffer, full_at=longest, coefficient=factor)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
