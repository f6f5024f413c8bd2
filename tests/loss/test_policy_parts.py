"""Compare parts of loss.Policy that read several tokens with plain transcriptions: values and gradients."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from cases import Case, agree, gated, ppo
from torch import Tensor

from agentrl_core import loss
from agentrl_core.loss import mask as masks

R = loss.Reinforce


def segment_ratio(case: Case, logprob: Tensor, level: str, *, mean: bool = True) -> Tensor:
    log_ratio = logprob - case.old_logprob
    ratio = torch.zeros_like(logprob)
    for rows in case.rows(level):
        ratio = ratio.index_fill(0, rows, 0.0) + torch.zeros_like(ratio).index_add(
            0, rows, (log_ratio[rows].mean() if mean else log_ratio[rows].sum()).exp().expand(len(rows))
        )
    return ratio


@pytest.mark.parametrize(("level", "reduce"), [("sequence", "mean"), ("step", "mean"), ("step", "sum")])
def test_segment_ratios(level: str, reduce: str) -> None:
    case = Case.random(2, per="sequence", spread=0.3)

    def expected(logprob: Tensor, *_: object) -> Tensor:
        ratio = segment_ratio(case, logprob, level, mean=reduce == "mean")
        each = [case.weight[t] * ppo(ratio[t], case.advantage[t], 0.9, 1.1) for t in range(len(ratio))]
        return -torch.stack(each).sum()

    clip = loss.Clip(0.1, 0.1)
    gradient = agree(loss.Policy(clip=clip, ratio=loss.Ratio(level, reduce, "segment")), case, expected)
    if reduce == "mean":  # advantage and weight are one per sequence: GSPO-token has the same gradient
        tokens = case.tokens(case.logprob.clone().requires_grad_())
        value, _ = loss.Policy(clip=clip, ratio=loss.Ratio(level)).evaluate(tokens)
        (other,) = torch.autograd.grad(value, tokens.logprob)
        torch.testing.assert_close(other, gradient, rtol=1e-11, atol=1e-11)


def test_ratios_of_the_items_of_a_list() -> None:
    """Rank-GRPO's example: two items of one action, d = (.5, .5) and (-.5, -.5), each with a ratio of its own."""
    moved = torch.tensor([0.5, 0.5, -0.5, -0.5, 0.2, -0.3], dtype=torch.float64)
    streams = {
        "weight_kl": torch.ones(6, dtype=torch.float64),
        "old_logprob": torch.full((6,), -2.0, dtype=torch.float64),
        "sequence": torch.tensor([1, 1, 1, 1, 0, 0]),
        "item": torch.tensor([1.0, 1.0, 2.0, 2.0, 0.0, 0.0], dtype=torch.float64),
    }
    log_ratio, _ = loss.Ratio("item")(loss.Tokens(moved - 2.0, None, streams))
    assert log_ratio.exp().tolist() == pytest.approx([1.6487, 1.6487, 0.6065, 0.6065, 1.2214, 0.7408], abs=1e-4)


@pytest.mark.parametrize("reduce", ["mean", "sum"])
def test_segment_ratios_by_a_column(reduce: str) -> None:
    case = Case.random(2, per="sequence", spread=0.3)

    def expected(logprob: Tensor, *_: object) -> Tensor:
        log_ratio, costs = logprob - case.old_logprob, []
        for rows in case.rows("sequence"):
            for t in rows:
                inside = rows[case.item[rows] == case.item[t]] if case.item[t] > 0 else t[None]
                ratio = getattr(log_ratio[inside], reduce)().exp()
                costs.append(case.weight[t] * ppo(ratio, case.advantage[t], 0.9, 1.1))
        return -torch.stack(costs).sum()

    agree(loss.Policy(clip=loss.Clip(0.1, 0.1), ratio=loss.Ratio("item", reduce, "segment")), case, expected)


def test_high_entropy_minority() -> None:
    case = Case.random(9)
    mask = (case.entropy >= torch.quantile(case.entropy, 0.8)).double()
    agree(loss.Policy(mask=loss.TopTokens()), case, gated(case, mask))
    scaled = torch.zeros_like(mask)
    for rows in case.rows("sequence"):  # OmniQuality-R: the top ceil(rho n) of each sequence, a mean over kept ones
        top = case.entropy[rows].topk(math.ceil(0.3 * len(rows))).indices
        scaled[rows[top]] = len(rows) / len(top)
    gate = loss.TopTokens(fraction=0.3, scope="sequence", kind="ceil", denominator="kept")
    agree(loss.Policy(mask=gate), case, gated(case, scaled))


@pytest.mark.parametrize("score", ["dependency", "advantage_entropy"])
def test_other_scores(score: str) -> None:
    case = Case.random(10)
    values = case.dependency if score == "dependency" else case.advantage.abs() * case.entropy
    mask = torch.zeros_like(values)
    mask[values.topk(math.floor(0.4 * len(values))).indices] = 1.0
    agree(loss.Policy(mask=loss.TopTokens(score, 0.4, kind="floor")), case, gated(case, mask))


def test_covariance_clip() -> None:
    case = Case.random(12, spread=0.6)
    centred = (case.advantage - case.advantage.mean()) * (case.logprob - case.logprob.mean())
    ratio = (case.logprob - case.old_logprob).exp()
    cut = ((ratio > 1.2) & (case.advantage > 0)) | ((ratio < 0.8) & (case.advantage < 0))
    candidates = (centred > 0.1) & (centred < 2.0) & ~cut
    assert candidates.sum() > 3
    everything = loss.CovarianceMask(0.9, 0.1, 2.0)
    agree(loss.Policy(mask=everything), case, gated(case, (~candidates).double()))

    few = loss.CovarianceMask(2.5 / len(ratio), 0.1, 2.0)
    chosen = [
        loss.CovarianceMask(few.fraction, 0.1, 2.0, seed)(case.tokens(), ratio.log(), loss.Clip()(case.tokens(), ratio))
        for seed in (0, 0, 1, 2, 3)
    ]
    for mask, _ in chosen:
        assert int((mask == 0).sum()) == 2
        assert bool(candidates[mask == 0].all())
    assert torch.equal(chosen[0][0], chosen[1][0])
    assert any(not torch.equal(chosen[0][0], mask) for mask, _ in chosen[2:])


def test_covariance_fixture() -> None:
    """A = (1, 1, -1, -1), log p = (-.1, -2, -.1, -2): cov = (.95, -.95, -.95, .95); KL-Cov takes the first."""
    logprob = torch.tensor([-0.1, -2.0, -0.1, -2.0], dtype=torch.float64)
    advantage = torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64)
    streams = {
        "weight_kl": torch.ones(4, dtype=torch.float64),
        "advantage_positive": advantage.clamp(min=0),
        "advantage_negative": advantage.clamp(max=0),
        "old_logprob": logprob - 0.3,
    }
    gate = loss.TopTokens("covariance", 0.25, kind="floor")
    assert gate(loss.Tokens(logprob, None, streams), logprob, loss.ClipBounds())[0].tolist() == [1, 0, 0, 0]
    penalty = loss.KL(1.0, "abs", only=gate).divergence(loss.Tokens(logprob, None, streams), "old_logprob")
    assert penalty.tolist() == pytest.approx([0.3, 0, 0, 0])


@pytest.mark.parametrize("direction", ["reverse", "forward"])
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "abs"])
def test_divergences(estimator: str, direction: str) -> None:
    case = Case.random(13)

    def expected(logprob: Tensor, *_: object) -> Tensor:
        x = case.reference_logprob - logprob if direction == "reverse" else logprob - case.reference_logprob
        value = {"k1": -x, "k2": x**2 / 2, "k3": x.exp() - x - 1, "abs": x.abs()}[estimator]
        return -(case.weight * case.advantage * logprob).sum() + 0.3 * (case.weight * value).sum()

    penalty = loss.KL(0.3, estimator, direction=direction)
    agree(loss.Policy(clip=None, surrogate=R(), kl=penalty), case, expected)


def test_straight_through_and_full() -> None:
    case = Case.random(14)

    def slope(policy: loss.Policy) -> tuple[float, Tensor]:
        logprob = case.logprob.clone().requires_grad_()
        value, _ = policy.evaluate(case.tokens(logprob))
        return value.item(), torch.autograd.grad(value, logprob)[0]

    through, third, second = (
        slope(loss.Policy(clip=None, surrogate=R(), kl=penalty))
        for penalty in (loss.KL(0.3, "k3", straight_through=True), loss.KL(0.3, "k3"), loss.KL(0.3, "k2"))
    )
    assert through[0] == pytest.approx(third[0], abs=1e-12)
    torch.testing.assert_close(through[1], second[1])

    def expected(logprob: Tensor, _: Tensor, answers: SimpleNamespace) -> Tensor:
        return -(case.weight * case.advantage * logprob).sum() + 0.3 * (case.weight * answers.full_kl).sum()

    agree(loss.Policy(clip=None, surrogate=R(), kl=loss.KL(0.3, "full")), case, expected)


def test_draws_are_those_of_splitmix() -> None:
    """Compare with the published algorithm in unbounded integers, and with an even spread."""

    def splitmix(state: int) -> int:
        z = state * 0x9E3779B97F4A7C15 % 2**64
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return (z ^ (z >> 31)) % 2**63

    numbers = torch.arange(2000)
    hashes = masks._hash(numbers, 3)
    assert hashes.tolist() == [splitmix(int(number) + 1 + (3 << 32)) for number in numbers]
    assert abs(hashes.double().mean().item() / 2**62 - 1) < 0.05


@pytest.mark.parametrize("center", ["proximal", "proximal_shift", "interpolated"])
@pytest.mark.parametrize("surrogate", [loss.Clipped(), loss.Clipped("both"), loss.Reinforce("clamped", "clamped")])
def test_a_bound_of_the_centre_is_a_filter_of_tokens(center: str, surrogate: loss.Surrogate) -> None:
    """Tokens beyond it have no term and still count: like no advantage there, as in AReaL's cap that masks."""
    case = Case.random(4)
    unbounded, bounded = (
        loss.Policy(clip=loss.Clip(center=center, center_at_most=most), surrogate=surrogate) for most in (None, 1.02)
    )
    between = case.proximal_logprob
    if center == "interpolated":
        behind = torch.where(case.policy_version < 0, 1.0, (3.0 - case.policy_version).clamp(min=1.0))
        between = case.old_logprob + (1.0 - 1.0 / behind) * (case.logprob - case.old_logprob)
    mask = ((between - case.old_logprob).exp() <= 1.02).double()
    assert 0 < mask.sum() < len(mask)
    value = bounded.evaluate(case.tokens())[0]
    for name in ("advantage_positive", "advantage_negative"):
        case.streams[name] = case.streams[name] * mask
    torch.testing.assert_close(value, unbounded.evaluate(case.tokens())[0])
