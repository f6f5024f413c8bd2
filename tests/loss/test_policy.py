"""loss.Policy: worked examples, bounds, metrics, and options out of range."""

from __future__ import annotations

import math

import pytest
import torch
from hand_made import loose_pack

from agentrl_core import loss
from agentrl_core.component import token
from agentrl_core.exceptions import RecipeError
from agentrl_core.model.pack import PackOutput


def one_token(ratio: float, advantage: float, policy: loss.Policy) -> tuple[float, float]:
    """Return the loss of one token of weight 1, and its derivative by the log-prob."""
    logprob = torch.tensor([math.log(ratio)], dtype=torch.float64, requires_grad=True)
    pack = loose_pack(
        {
            "advantage_positive": torch.tensor([max(advantage, 0.0)]),
            "advantage_negative": torch.tensor([min(advantage, 0.0)]),
            "old_logprob": torch.zeros(1),
            "weight_kl": torch.ones(1),
            "weight_entropy": torch.ones(1),
        }
    )
    value, _ = policy(PackOutput(logprob, torch.zeros(1)), pack)
    value.backward()
    return value.item(), logprob.grad.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "value", "slope"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.1, 2.0, -2.2, -2.2),
        (1.5, 2.0, -2.6, 0.0),  # above 1 + high: no more reward for moving up
        (0.5, 2.0, -1.0, -1.0),  # a good token that became unlikely is still pulled back
        (0.5, -2.0, 1.6, 0.0),  # below 1 - low: no more reward for moving down
        (1.5, -2.0, 3.0, 3.0),
        (5.0, -2.0, 6.0, 0.0),  # the dual bound
    ],
)
def test_worked_examples(ratio: float, advantage: float, value: float, slope: float) -> None:
    policy = loss.Policy(clip=loss.Clip(0.2, 0.3, dual=3.0))
    assert one_token(ratio, advantage, policy) == pytest.approx((value, slope), abs=1e-6)


def test_without_clip_the_ratio_is_free() -> None:
    assert one_token(5.0, 2.0, loss.Policy(clip=None)) == pytest.approx((-10.0, -10.0), abs=1e-5)


def test_log_ratio_is_clamped() -> None:
    value, slope = one_token(math.exp(30.0), -1.0, loss.Policy(clip=None))
    assert value == pytest.approx(math.exp(20.0), rel=1e-6)
    assert slope == 0.0


def test_tokens_without_weight_count_nowhere() -> None:
    names = ("advantage_positive", "advantage_negative", "old_logprob", "weight_kl", "weight_entropy")
    pack = loose_pack({name: torch.zeros(3) for name in names})
    pack.streams["weight_kl"][0] = 0.5
    outputs = PackOutput(torch.tensor([-0.1, -9.0, -9.0]), torch.tensor([2.0, 50.0, 50.0]))
    value, sums = loss.Policy()(outputs, pack)
    assert value.item() == 0.0
    assert int(sums["tokens"]) == 1
    assert sums["entropy"].item() == 2.0
    assert sums["ratio"].item() == pytest.approx(math.exp(-0.1))
    assert sums["approximate_kl"].item() == pytest.approx(math.exp(0.1) - 0.1 - 1.0)


def test_packs_add_up() -> None:
    torch.manual_seed(0)
    streams = {
        "advantage_positive": torch.rand(10),
        "advantage_negative": -torch.rand(10),
        "old_logprob": -torch.rand(10),
        "reference_logprob": -torch.rand(10),
        "weight_kl": torch.rand(10),
        "weight_entropy": torch.rand(10),
    }
    outputs = PackOutput(-torch.rand(10), torch.rand(10))
    policy = loss.Policy(kl=loss.KL(0.1), entropy=0.1)
    complete, sums = policy(outputs, loose_pack(streams))
    parts = [
        policy(
            PackOutput(outputs.logprob[half], outputs.entropy[half]),
            loose_pack({name: values[half] for name, values in streams.items()}),
        )
        for half in (slice(0, 4), slice(4, 10))
    ]
    assert sum(value.item() for value, _ in parts) == pytest.approx(complete.item(), rel=1e-5)
    for name, total in sums.items():
        assert sum(metrics[name].item() for _, metrics in parts) == pytest.approx(total.item(), rel=1e-5)


def test_needs_follow_the_options() -> None:
    assert token("reference_logprob") not in loss.Policy().needs
    assert token("reference_logprob") in loss.Policy(kl=loss.KL(0.1)).needs
    assert not loss.Policy().needs_entropy_gradient
    assert loss.Policy(entropy=0.01).needs_entropy_gradient


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: loss.Clip(low=0.0), r"loss\.Clip: option low=0\.0 is not possible; give a number above 0"),
        (lambda: loss.Clip(low=1.1), "low=1.1"),
        (lambda: loss.Clip(high=-0.1), "high=-0.1"),
        (lambda: loss.Clip(dual=1.0), "dual=1.0"),
        (lambda: loss.KL(0.0), "coefficient=0.0"),
        (lambda: loss.KL(0.1, kind="k4"), "kind='k4'"),
        (lambda: loss.Policy(entropy=-1.0), "entropy=-1.0"),
        (lambda: loss.Policy(entropy=float("nan")), "entropy=nan"),
        (lambda: loss.Policy(clip=0.2), r"clip=0\.2 is not possible; give a loss\.ClipRange or None"),
        (lambda: loss.Policy(aggregate="mean"), "aggregate='mean' is not possible; give one of 'token_mean'"),
        (lambda: loss.Policy(aggregate="constant"), "constant=None"),
        (lambda: loss.Policy(constant=3.0), "constant=3.0"),
    ],
)
def test_options_out_of_range(make: object, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        make()
