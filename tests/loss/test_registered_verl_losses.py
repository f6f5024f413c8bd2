"""Every policy loss that the installed verl registers, values and gradients; its bypass mode only chooses one of them.

verl adds 1e-8 to the token count of a sequence, hence the tolerance.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hand_made import random_case

from agentrl_core import loss
from agentrl_core.recipes.dppo import DivergenceMask
from agentrl_core.recipes.gmpo import GeometricMean
from agentrl_core.recipes.sapo import Smooth

core_algos = pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is installed by `make test`")
verl_config = pytest.importorskip("verl.workers.config")

CLIP = loss.Clip(0.2, 0.28)
SAMPLED = loss.Reinforce("ratio", "ratio", at_most=3.0)
LOSSES = {
    "vanilla": loss.Policy(clip=loss.Clip(0.2, 0.28, dual=3.0)),
    "dppo_tv": loss.Policy(clip=None, surrogate=SAMPLED, mask=DivergenceMask("tv", 0.2, 0.28)),
    "dppo_kl": loss.Policy(clip=None, surrogate=SAMPLED, mask=DivergenceMask("kl", 0.2, 0.28)),
    "gspo": loss.Policy(clip=CLIP, ratio=loss.Ratio("sequence")),
    "sapo": loss.Policy(clip=None, surrogate=Smooth(1.0, 1.05), aggregate="sequence_mean"),
    "gpg": loss.Policy(clip=None, surrogate=loss.Reinforce()),
    "clip_cov": loss.Policy(clip=CLIP, mask=loss.CovarianceMask(0.9, 0.2, 1.5)),
    "kl_cov": loss.Policy(clip=None, drift=loss.KL(0.7, "abs", only=loss.TopTokens("covariance", 0.05, kind="floor"))),
    "geo_mean": loss.Policy(
        clip=loss.Clip(0.2, 0.28, scale="log"), surrogate=GeometricMean(), aggregate="sequence_mean"
    ),
    "dro": loss.Policy(clip=None, surrogate=loss.Reinforce(), drift=loss.KL(0.3, "k2")),
    "cispo": loss.Policy(clip=CLIP, surrogate=loss.Reinforce("clamped", "clamped")),
}
AGGREGATES = {"token_mean": "token-mean", "sequence_mean": "seq-mean-token-mean"}


def test_all_of_them_are_here() -> None:
    registered = {
        name for name in core_algos.POLICY_LOSS_REGISTRY if not name.startswith("agentrl_")
    }  # ours are there too
    assert registered - {"bypass_mode"} == set(LOSSES)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", LOSSES)
def test_value_and_gradient(name: str, seed: int) -> None:
    rows, old, logprob, mask = random_case(seed)
    old = old.clamp(max=-0.02)
    logprob = logprob.clamp(max=-0.01)
    config = verl_config.ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio=0.2,
        clip_ratio_low=0.2,
        clip_ratio_high=0.28,
        clip_ratio_c=3.0,
        policy_loss=verl_config.PolicyLossConfig(
            clip_cov_ratio=0.9, clip_cov_lb=0.2, clip_cov_ub=1.5, kl_cov_ratio=0.05, ppo_kl_coef=0.7, dro_beta=0.3
        ),
    )
    policy = LOSSES[name]
    aggregate = policy.aggregate
    advantage = torch.from_numpy(rows.advantage)[:, None].expand_as(old)
    theirs = logprob.clone().requires_grad_()
    expected, _ = core_algos.get_policy_loss_fn(name)(
        old, theirs, advantage, mask, loss_agg_mode=AGGREGATES[aggregate], config=config
    )
    if name == "geo_mean":  # a plain mean over rows, the one without trained tokens included
        expected = expected * len(mask) / (mask.sum(1) > 0).sum()
    (their_gradient,) = torch.autograd.grad(expected, theirs)

    counts = mask.sum(1).long()
    weights = rows.weights(aggregate)
    scaled = np.repeat(rows.advantage, counts.numpy()) * weights
    streams = {
        "old_logprob": old[mask > 0],
        "weight_kl": torch.from_numpy(weights),
        "advantage_positive": torch.from_numpy(scaled.clip(min=0.0)),
        "advantage_negative": torch.from_numpy(scaled.clip(max=0.0)),
        "sequence": torch.repeat_interleave(torch.arange(int((counts > 0).sum())), counts[counts > 0]),
    }
    ours = logprob[mask > 0].requires_grad_()
    value, _ = policy.evaluate(loss.Tokens(ours, None, streams))
    (our_gradient,) = torch.autograd.grad(value, ours)
    assert value.item() == pytest.approx(expected.item(), abs=1e-6)
    torch.testing.assert_close(our_gradient, their_gradient[mask > 0], rtol=0, atol=1e-6)
    assert their_gradient.abs().max() > 1e-4


@pytest.mark.parametrize("theirs", ["k1", "k2", "k3", "abs", "k3+"])
def test_divergences(theirs: str) -> None:
    _, old, logprob, _ = random_case(1)
    new, reference = logprob.flatten().clone().requires_grad_(), old.flatten()
    expected = core_algos.kl_penalty(new, reference, theirs)
    (their_gradient,) = torch.autograd.grad(expected.sum(), new)
    penalty = loss.KL(1.0, theirs.rstrip("+"), straight_through=theirs.endswith("+"))
    streams = {"weight_kl": torch.ones_like(reference), "reference_logprob": reference}
    ours = logprob.flatten().clone().requires_grad_()
    value = penalty.divergence(loss.Tokens(ours, None, streams), "reference_logprob")
    (gradient,) = torch.autograd.grad(value.sum(), ours)
    assert expected.max() < 10  # beyond it verl cuts k3 off
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient, their_gradient)


@pytest.mark.parametrize("away", [2.5, 2.6, 2.7, 5.0])
def test_bounded_k3_equals_verls(away: float) -> None:
    new = torch.tensor([-6.0], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([-6.0 + away], dtype=torch.float64)
    expected = core_algos.kl_penalty(new, reference, "k3")
    (their_gradient,) = torch.autograd.grad(expected.sum(), new)
    streams = {"weight_kl": torch.ones_like(reference), "reference_logprob": reference}
    tokens = loss.Tokens(new, None, streams)
    bounded = loss.KL(1.0, at_most=10.0).divergence(tokens, "reference_logprob")
    (gradient,) = torch.autograd.grad(bounded.sum(), new)
    torch.testing.assert_close(bounded, expected)
    torch.testing.assert_close(gradient, their_gradient)
    assert (gradient == 0) == (away > 2.61)
    free = loss.KL(1.0).divergence(loss.Tokens(new, None, streams), "reference_logprob")
    (gradient,) = torch.autograd.grad(free.sum(), new)
    torch.testing.assert_close(gradient, 1.0 - (reference - new).exp())  # a token that is lost is pulled back


@pytest.mark.parametrize("away", [9.0, 12.0])
def test_bounded_gspo_equals_verls(away: float) -> None:
    old = torch.tensor([[-13.0, -13.0]], dtype=torch.float64)
    logprob = (old + torch.tensor([[away + 0.5, away - 0.5]])).requires_grad_()
    advantage, mask = -torch.ones_like(old), torch.ones_like(old)
    config = verl_config.ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, clip_ratio=0.2)
    expected, _ = core_algos.get_policy_loss_fn("gspo")(
        old, logprob, advantage, mask, loss_agg_mode="seq-mean-token-mean", config=config
    )
    (their_gradient,) = torch.autograd.grad(expected, logprob)
    streams = {
        "weight_kl": torch.full((2,), 0.5, dtype=torch.float64),
        "advantage_positive": torch.zeros(2, dtype=torch.float64),
        "advantage_negative": torch.full((2,), -0.5, dtype=torch.float64),
        "old_logprob": old[0],
        "sequence": torch.zeros(2, dtype=torch.int64),
    }
    ours = logprob[0].detach().requires_grad_()
    policy = loss.Policy(ratio=loss.Ratio("sequence", log_at_most=10.0), aggregate="sequence_mean")
    value, _ = policy.evaluate(loss.Tokens(ours, None, streams))
    (gradient,) = torch.autograd.grad(value, ours)
    assert value.item() == pytest.approx(expected.item(), rel=1e-6)
    torch.testing.assert_close(gradient, their_gradient[0], rtol=1e-6, atol=1e-6)
    assert bool((gradient == 0).all()) == (away > 10.0)
    free, _ = loss.Policy(ratio=loss.Ratio("sequence"), aggregate="sequence_mean").evaluate(
        loss.Tokens(ours, None, streams)
    )
    assert free.item() == pytest.approx(torch.tensor(away, dtype=torch.float64).exp().item())


def test_value_loss() -> None:
    _, old, logprob, mask = random_case(2)
    target = torch.rand(old.shape, dtype=torch.float64)
    predicted = logprob.clone().requires_grad_()
    expected, _ = core_algos.compute_value_loss(predicted, target, old, mask, 0.3)
    (their_gradient,) = torch.autograd.grad(expected, predicted)
    inside = mask > 0
    streams = {
        "weight_kl": torch.full((int(mask.sum()),), 1.0 / mask.sum().item(), dtype=torch.float64),
        "return": target[inside],
        "old_value": old[inside],
    }
    answers = type("Answers", (), {"value": logprob[inside].clone().requires_grad_()})
    tokens = loss.Tokens(torch.zeros_like(target[inside]), None, streams, answers)
    value, _ = loss.Value("token_mean", clip=0.3).evaluate(tokens)
    (gradient,) = torch.autograd.grad(value, answers.value)
    assert value.item() == pytest.approx(expected.item(), abs=1e-9)
    torch.testing.assert_close(gradient, their_gradient[inside])
