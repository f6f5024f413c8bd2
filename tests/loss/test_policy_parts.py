"""Parts of loss.Policy that look at more than one token, against plain transcriptions: values and gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from cases import Case, agree, ppo, transcribed
from torch import Tensor

from agentrl_core import loss
from agentrl_core.loss import gate

R = loss.Reinforce


def segment_ratio(case: Case, logprob: Tensor, level: str, *, mean: bool = True) -> Tensor:
    away = logprob - case.old_logprob
    ratio = torch.zeros_like(logprob)
    for rows in case.rows(level):
        ratio = ratio.index_fill(0, rows, 0.0) + torch.zeros_like(ratio).index_add(
            0, rows, (away[rows].mean() if mean else away[rows].sum()).exp().expand(len(rows))
        )
    return ratio


@pytest.mark.parametrize(("level", "reduce"), [("sequence", "mean"), ("step", "mean"), ("step", "sum")])
def test_segment_ratios(level: str, reduce: str) -> None:
    case = Case.random(2, per="sequence", spread=0.3)

    def whole(logprob: Tensor, *_: object) -> Tensor:
        ratio = segment_ratio(case, logprob, level, mean=reduce == "mean")
        each = [case.weight[t] * ppo(ratio[t], case.advantage[t], 0.9, 1.1) for t in range(len(ratio))]
        return -torch.stack(each).sum()

    clip = loss.Clip(0.1, 0.1)
    gradient = agree(loss.Policy(clip=clip, ratio=loss.Ratio(level, reduce, "segment")), case, whole)
    if reduce == "mean":  # advantage and weight are one per sequence: GSPO-token has the same gradient
        tokens = case.tokens(case.logprob.clone().requires_grad_())
        value, _ = loss.Policy(clip=clip, ratio=loss.Ratio(level)).evaluate(tokens)
        (found,) = torch.autograd.grad(value, tokens.logprob)
        torch.testing.assert_close(found, gradient, rtol=1e-11, atol=1e-11)


def test_geometric_mean_fixture() -> None:
    """d = (0.1, 0.8, -0.9), epsilon 0.4: A > 0 gives R = 0.875173, A < 0 gives 1.181360."""
    for advantage, expected in ((1.0, 0.875173), (-1.0, 1.181360)):
        streams = {
            "old_logprob": torch.full((3,), -2.0, dtype=torch.float64),
            "weight_kl": torch.full((3,), 1 / 3, dtype=torch.float64),
            "advantage_positive": torch.full((3,), max(advantage, 0.0) / 3, dtype=torch.float64),
            "advantage_negative": torch.full((3,), min(advantage, 0.0) / 3, dtype=torch.float64),
            "sequence": torch.zeros(3, dtype=torch.int64),
        }
        policy = loss.Policy(clip=loss.Clip(0.4, 0.4, scale="log"), surrogate=loss.GeometricMean())
        logprob = torch.tensor([-1.9, -1.2, -2.9], dtype=torch.float64)
        value, _ = policy.evaluate(loss.Tokens(logprob, None, streams))
        assert value.item() == pytest.approx(-advantage * expected, abs=1e-6)


@pytest.mark.parametrize("inside", [False, True])
def test_prefix_minimum(inside: bool) -> None:
    case = Case.random(3)

    def expected(logprob: Tensor, *_: object) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for rows in case.rows("sequence"):
            smallest = 1.0
            for place, t in enumerate(rows):
                r, a = (logprob[t] - case.old_logprob[t]).exp(), case.advantage[t]
                m = max(smallest, 0.9)
                objective = ppo(m * r, a, 0.8, 1.2) if inside else m * ppo(r, a, 0.8, 1.2)
                total = total - case.weight[t] * objective
                smallest = r.item() if place == 0 else min(smallest, r.item())
        return total

    agree(loss.Policy(ratio=loss.PrefixMinimum(floor=0.9, inside=inside)), case, expected)


def test_stratified_ratio() -> None:
    case = Case.random(4)

    def expected(logprob: Tensor, *_: object) -> Tensor:
        away = logprob - case.old_logprob
        fixed = away.detach()
        ratio = torch.zeros_like(away)
        for stratum in range(3):
            inside = case.stratum == stratum
            large = inside.sum() >= 9
            mean = fixed[inside].mean() if large else fixed.mean()
            scale = fixed.std(correction=0) / (fixed[inside].std(correction=0) + 1e-6) if large else 1.0
            ratio = ratio + inside * ((away - mean) * scale).exp()
        each = [case.weight[t] * ppo(ratio[t], case.advantage[t], 0.8, 1.2) for t in range(len(ratio))]
        return -torch.stack(each).sum()

    assert {int((case.stratum == stratum).sum()) for stratum in range(3)} == {9}
    agree(loss.Policy(ratio=loss.StratifiedRatio(9)), case, expected)
    with pytest.raises(AssertionError):
        agree(loss.Policy(ratio=loss.StratifiedRatio(10)), case, expected)


@pytest.mark.parametrize("measure", ["odds", "share"])
@pytest.mark.parametrize("target", [0.2, 0.55, 1.0, 1.6, 9.0])
def test_balanced_clip(target: float, measure: str) -> None:
    case = Case.random(5, spread=0.8)
    ratio = (case.logprob - case.old_logprob).exp()

    def share(lower: float, upper: float) -> float:
        used = torch.where(case.advantage >= 0, ratio.clamp(max=upper), ratio.clamp(min=lower))
        gain = (case.weight * (used * case.advantage).clamp(min=0)).sum()
        pull = (case.weight * (-used * case.advantage).clamp(min=0)).sum()
        return (gain / pull if measure == "odds" else gain / (gain + pull)).item()

    lower, upper = 0.6, 1.2
    while share(lower, upper) < target and lower < 0.8:
        lower = min(lower + 0.05, 0.8)
    while share(lower, upper) < target and upper < 2.0:
        upper = min(upper + 0.05, 2.0)
    clip = loss.BalancedClip(target=target, measure=measure)
    bounds = clip(case.tokens(), case.logprob - case.old_logprob)
    assert (bounds.lower.item(), bounds.upper.item()) == pytest.approx((lower, upper), abs=1e-9)

    def objective(case: Case, ratio: Tensor, _: Tensor, t: int) -> Tensor:
        return ppo(ratio[t], case.advantage[t], lower, upper, 3.0)

    agree(loss.Policy(clip=clip), case, transcribed(case, objective))


def test_balanced_clip_without_one_side() -> None:
    case = Case.random(5)
    for sign, wanted in ((1.0, (0.6, 1.2)), (-1.0, (0.8, 2.0))):
        part = case.weight * case.advantage.abs() * sign
        case.streams["advantage_positive"], case.streams["advantage_negative"] = part.clamp(min=0), part.clamp(max=0)
        bounds = loss.BalancedClip()(case.tokens(), case.logprob - case.old_logprob)
        assert (bounds.lower.item(), bounds.upper.item()) == pytest.approx(wanted)


@pytest.mark.parametrize("budget", [1e-6, 0.01, 0.05, 0.2, 10.0])
def test_second_moment_clip(budget: float) -> None:
    case = Case.random(6, spread=0.5)
    away = case.logprob - case.old_logprob
    harmful = sorted(
        float(d) ** 2 for d, a in zip(away, case.advantage, strict=True) if (a > 0 and d > 0) or (a < 0 and d < 0)
    )
    if sum(harmful) / len(harmful) <= budget:
        lower, upper = 0.0, math.inf
    else:
        fitting = [k for k in harmful if sum(min(d, k) for d in harmful) <= budget * len(harmful)]
        width = math.sqrt(max(fitting, default=0.0))
        lower, upper = math.exp(-width), math.exp(width)
    bounds = loss.SecondMomentClip(budget)(case.tokens(), away)
    assert (bounds.lower.item(), bounds.upper.item()) == pytest.approx((lower, upper))
    wide = loss.SecondMomentClip(budget, least=loss.Clip(0.3, 0.5))(case.tokens(), away)
    assert (wide.lower.item(), wide.upper.item()) == pytest.approx((min(lower, 0.7), max(upper, 1.5)))


@pytest.mark.parametrize("scope", ["sequence", "all"])
def test_entropy_banded_clip(scope: str) -> None:
    case = Case.random(7)
    uncertain = torch.zeros(len(case.entropy), dtype=torch.bool)
    for rows in case.rows("sequence") if scope == "sequence" else [torch.arange(len(case.entropy))]:
        uncertain[rows] = case.entropy[rows] > torch.quantile(case.entropy[rows], 0.6)

    def objective(case: Case, ratio: Tensor, _: Tensor, t: int) -> Tensor:
        width = 0.4 if uncertain[t] else 0.2
        return ppo(ratio[t], case.advantage[t], 1 - width, 1 + width)

    agree(loss.Policy(clip=loss.EntropyClip(quantile=0.6, scope=scope)), case, transcribed(case, objective))


def test_hapo() -> None:
    case = Case.random(8)
    e = case.entropy.clamp(min=1e-8).log()
    h = e - torch.quantile(e, 0.8, interpolation="nearest")
    h = h / h.square().mean().sqrt()
    h = torch.where(h > 0, h / h.max(), h / h.min().abs())
    torch.testing.assert_close(loss.normalised_entropy(case.tokens(), 0.8, "all"), h)
    assert h.min() == -1
    assert h.max() == 1

    def objective(case: Case, ratio: Tensor, _: Tensor, t: int) -> Tensor:
        r, a = ratio[t], case.advantage[t]
        outside = not 0.9 < r < 1.1
        if (h[t] > 0) == outside:
            a = a * (1 + 0.5 * h[t])
        low = 0.2 * (1 - h[t]) if h[t] <= 0 else 0.2
        high = 0.2 * (1 + h[t]) if h[t] > 0 else 0.2
        return ppo(r, a, 1 - low, 1 + high)

    policy = loss.Policy(
        clip=loss.EntropyClip(kind="scaled", scope="all"), gate=loss.EntropyAdvantage(0.5, scope="all")
    )
    agree(policy, case, transcribed(case, objective))


def gated(case: Case, kept: Tensor) -> Callable[..., Tensor]:
    def objective(case: Case, ratio: Tensor, _: Tensor, t: int) -> Tensor:
        return kept[t] * ppo(ratio[t], case.advantage[t], 0.8, 1.2)

    return transcribed(case, objective)


def test_high_entropy_minority() -> None:
    case = Case.random(9)
    kept = (case.entropy >= torch.quantile(case.entropy, 0.8)).double()
    agree(loss.Policy(gate=loss.TopShare()), case, gated(case, kept))
    scaled = torch.zeros_like(kept)
    for rows in case.rows("sequence"):  # OmniQuality-R: the top ceil(rho n) of each sequence, a mean over what is kept
        top = case.entropy[rows].topk(math.ceil(0.3 * len(rows))).indices
        scaled[rows[top]] = len(rows) / len(top)
    gate = loss.TopShare(share=0.3, scope="sequence", count="ceil", denominator="kept")
    agree(loss.Policy(gate=gate), case, gated(case, scaled))


@pytest.mark.parametrize("score", ["dependency", "advantage_entropy"])
def test_other_scores(score: str) -> None:
    case = Case.random(10)
    values = case.dependency if score == "dependency" else case.advantage.abs() * case.entropy
    kept = torch.zeros_like(values)
    kept[values.topk(math.floor(0.4 * len(values))).indices] = 1.0
    agree(loss.Policy(gate=loss.TopShare(score, 0.4, count="floor")), case, gated(case, kept))


@pytest.mark.parametrize("kind", ["linear", "exponential"])
def test_steer(kind: str) -> None:
    case = Case.random(11)
    p, old = case.logprob.exp(), case.old_logprob.exp()
    change = (case.advantage / old * p * (1 - p) * (p.log() + case.entropy)).abs()
    if kind == "linear":
        weight = 1.2 - (change - change.min()) * 0.4 / (change.max() - change.min())
    else:
        weight = torch.exp(math.log(0.8) / max(change.max().item(), 0.02) * change).clamp(0.8, 1.0)
    agree(loss.Policy(gate=loss.EntropyChange(kind)), case, gated(case, weight))


def test_steer_fixture() -> None:
    """p = p_old = 0.9, H = 0.5, A = 1: the change is 0.0394639; against p = 0.5, H = log 2, whose change is 0."""
    streams = {
        "old_logprob": torch.tensor([0.9, 0.5], dtype=torch.float64).log(),
        "weight_kl": torch.ones(2, dtype=torch.float64),
        "advantage_positive": torch.ones(2, dtype=torch.float64),
        "advantage_negative": torch.zeros(2, dtype=torch.float64),
    }
    entropy = torch.tensor([0.5, math.log(2.0)], dtype=torch.float64)
    tokens = loss.Tokens(streams["old_logprob"], entropy, streams)
    weight, _ = loss.EntropyChange("exponential", 0.8)(tokens, torch.zeros(2), loss.Bounds())
    assert weight.tolist() == pytest.approx([0.8, 1.0])
    assert -math.log(weight[0].item()) / (-math.log(0.8) / 0.0394639) == pytest.approx(0.0394639, abs=1e-7)


def test_covariance_clip() -> None:
    case = Case.random(12, spread=0.6)
    centred = (case.advantage - case.advantage.mean()) * (case.logprob - case.logprob.mean())
    ratio = (case.logprob - case.old_logprob).exp()
    cut = ((ratio > 1.2) & (case.advantage > 0)) | ((ratio < 0.8) & (case.advantage < 0))
    candidates = (centred > 0.1) & (centred < 2.0) & ~cut
    assert candidates.sum() > 3
    everything = loss.CovarianceClip(0.9, 0.1, 2.0)
    agree(loss.Policy(gate=everything), case, gated(case, (~candidates).double()))

    few = loss.CovarianceClip(2.5 / len(ratio), 0.1, 2.0)
    chosen = [
        loss.CovarianceClip(few.share, 0.1, 2.0, seed)(case.tokens(), ratio.log(), loss.Clip()(case.tokens(), ratio))
        for seed in (0, 0, 1, 2, 3)
    ]
    for kept, _ in chosen:
        assert int((kept == 0).sum()) == 2
        assert bool(candidates[kept == 0].all())
    assert torch.equal(chosen[0][0], chosen[1][0])
    assert any(not torch.equal(chosen[0][0], kept) for kept, _ in chosen[2:])


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
    gate = loss.TopShare("covariance", 0.25, count="floor")
    assert gate(loss.Tokens(logprob, None, streams), logprob, loss.Bounds())[0].tolist() == [1, 0, 0, 0]
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


@pytest.mark.parametrize("kind", ["hinge", "indicator"])
def test_epo(kind: str) -> None:
    case = Case.random(15)

    def expected(logprob: Tensor, entropy: Tensor, _: SimpleNamespace) -> Tensor:
        total = -(case.weight * case.advantage * logprob).sum()
        for t, h in enumerate(case.entropy_history):
            low, high = 0.5 * h, 1.5 * h
            if h == 0:
                penalty = 0.0
            elif kind == "hinge":
                penalty = torch.relu(low - entropy[t]) + torch.relu(entropy[t] - high)
            else:
                penalty = 0.0 if low < entropy[t] < high else 0.1
            total = total - 0.01 * case.weight_entropy[t] * (entropy[t] - 0.7 * penalty)
        return total

    term = loss.EntropyBand(0.01, 0.7, 0.5, 1.5, kind)
    agree(loss.Policy(clip=None, surrogate=R(), entropy=term), case, expected)


def test_light_if() -> None:
    case = Case.random(16)
    cov = (case.advantage - case.advantage.mean()) * (case.logprob - case.logprob.mean())
    share = torch.zeros_like(cov)
    for rows in case.rows("sequence"):
        share[rows] = (10 * cov[rows].softmax(0)).clamp(0, 5)

    def expected(logprob: Tensor, entropy: Tensor, _: SimpleNamespace) -> Tensor:
        return -(case.weight * case.advantage * logprob).sum() - 0.02 * (case.weight_entropy * share * entropy).sum()

    agree(loss.Policy(clip=None, surrogate=R(), entropy=loss.CovarianceEntropy(0.02)), case, expected)


def test_siren() -> None:
    case = Case.random(17)

    def expected(logprob: Tensor, _: Tensor, answers: SimpleNamespace) -> Tensor:
        means = []
        for rows in case.rows("sequence"):
            inside = answers.top_p_entropy[rows]
            peak = inside[inside > torch.quantile(inside.detach(), 0.8)]
            if len(peak):
                means.append(peak.mean())
        assert len(means) == len(case.rows("sequence")) - 1  # a response of one token has no peak
        return -(case.weight * case.advantage * logprob).sum() + 0.3 * (torch.stack(means).mean() - 0.4) ** 2

    agree(loss.Policy(clip=None, surrogate=R(), entropy=loss.EntropyAnchor(0.3, 0.4)), case, expected)


def test_draws_are_those_of_splitmix() -> None:
    """Against the published algorithm in unbounded integers, and evenly spread."""

    def splitmix(state: int) -> int:
        z = state * 0x9E3779B97F4A7C15 % 2**64
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return (z ^ (z >> 31)) % 2**63

    numbers = torch.arange(2000)
    found = gate._hash(numbers, 3)
    assert found.tolist() == [splitmix(int(number) + 1 + (3 << 32)) for number in numbers]
    assert abs(found.double().mean().item() / 2**62 - 1) < 0.05
