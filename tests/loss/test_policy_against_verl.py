"""Compare loss.Policy with the policy loss, the aggregation and the KL estimator of the installed verl.

verl adds 1e-8 to the token count of a sequence, hence the tolerance of 1e-7 in fp64.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hand_made import Ragged, loose_pack, random_case

from agentrl_core import loss
from agentrl_core.model.pack import PackOutput

core_algos = pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is installed by `make test`")
verl_config = pytest.importorskip("verl.workers.config")

AGGREGATES = {"token_mean": "token-mean", "sequence_mean": "seq-mean-token-mean", "constant": "seq-mean-token-sum-norm"}
CONSTANT = 50.0
CLIPS = {
    "symmetric": loss.Clip(0.2, 0.2),
    "higher": loss.Clip(0.2, 0.28),
    "dual": loss.Clip(0.2, 0.28, dual=3.0),
    "tight dual": loss.Clip(0.1, 0.5, dual=1.2),
}


def verl_loss(
    rows: Ragged, old: torch.Tensor, logprob: torch.Tensor, mask: torch.Tensor, clip: loss.Clip, aggregate: str
) -> tuple[torch.Tensor, dict[str, float]]:
    config = verl_config.ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio=clip.low,
        clip_ratio_low=clip.low,
        clip_ratio_high=clip.high,
        clip_ratio_c=1e9 if clip.dual is None else clip.dual,
    )
    config.global_batch_info["loss_scale_factor"] = CONSTANT
    advantage = torch.from_numpy(rows.advantage)[:, None].expand_as(old)
    return core_algos.get_policy_loss_fn("vanilla")(
        old, logprob, advantage, mask, loss_agg_mode=AGGREGATES[aggregate], config=config
    )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("clip", CLIPS.values(), ids=CLIPS)
@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_value_gradient_and_clip_fraction(aggregate: str, clip: loss.Clip, seed: int) -> None:
    rows, old, logprob, mask = random_case(seed)
    theirs = logprob.clone().requires_grad_()
    expected, metrics = verl_loss(rows, old, theirs, mask, clip, aggregate)
    expected.backward()

    policy = loss.Policy(clip=clip, aggregate=aggregate, constant=CONSTANT if aggregate == "constant" else None)
    streams = rows.streams(rows.weights(aggregate, CONSTANT))
    pack = loose_pack({name: torch.from_numpy(values) for name, values in streams.items()})
    ours = logprob[mask > 0].requires_grad_()
    value, sums = policy(PackOutput(ours, torch.zeros_like(ours)), pack)
    value.backward()

    assert value.item() == pytest.approx(expected.item(), abs=1e-7)
    torch.testing.assert_close(ours.grad, theirs.grad[mask > 0], rtol=0, atol=1e-7)
    assert int(sums["tokens"]) == int(mask.sum())
    clipped = metrics["actor/pg_clipfrac"] + metrics["actor/pg_clipfrac_lower"]
    assert clipped > 0
    assert sums["clip_fraction"].item() / mask.sum().item() == pytest.approx(clipped, abs=1e-6)


@pytest.mark.parametrize("aggregate", ["token_mean", "sequence_mean"])
def test_kl_and_entropy(aggregate: str) -> None:
    rows, old, logprob, mask = random_case(5)
    reference = logprob + torch.from_numpy(np.random.default_rng(6).normal(scale=0.5, size=logprob.shape))
    entropy = torch.rand(logprob.shape, dtype=torch.float64)
    theirs, their_entropy = logprob.clone().requires_grad_(), entropy.clone().requires_grad_()
    base, _ = verl_loss(rows, old, theirs, mask, loss.Clip(), aggregate)
    divergence = core_algos.kl_penalty(theirs, reference, "low_var_kl")
    assert divergence[mask > 0].max() < 10  # verl cuts the estimator off at 10, we do not
    expected = (
        base
        + 0.3 * core_algos.agg_loss(divergence, mask, AGGREGATES[aggregate])
        - 0.05 * core_algos.agg_loss(their_entropy, mask, AGGREGATES[aggregate])
    )
    expected.backward()

    policy = loss.Policy(kl=loss.KL(0.3), entropy=0.05, aggregate=aggregate)
    streams = rows.streams(rows.weights(aggregate)) | {"reference_logprob": reference[mask > 0].numpy()}
    pack = loose_pack({name: torch.from_numpy(values) for name, values in streams.items()})
    ours, our_entropy = logprob[mask > 0].requires_grad_(), entropy[mask > 0].requires_grad_()
    value, sums = policy(PackOutput(ours, our_entropy), pack)
    value.backward()

    assert value.item() == pytest.approx(expected.item(), abs=1e-7)
    torch.testing.assert_close(ours.grad, theirs.grad[mask > 0], rtol=0, atol=1e-7)
    torch.testing.assert_close(our_entropy.grad, their_entropy.grad[mask > 0], rtol=0, atol=1e-7)
    assert sums["reference_kl"].item() == pytest.approx(divergence[mask > 0].sum().item(), abs=1e-6)
