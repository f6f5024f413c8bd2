"""Compare regressions, pairs, groups, critics, imitation and sums with plain transcriptions: values and gradients."""

from __future__ import annotations

import math
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from cases import BINS, Case, agree, total
from torch import Tensor
from torch.nn import functional

from agentrl_core import loss
from agentrl_core.component import token
from agentrl_core.exceptions import InvalidInputError, RecipeError, UnsupportedError
from agentrl_core.loss.combine import Function
from agentrl_core.loss.value import soft_minimum

SEEDS = pytest.mark.parametrize("seed", [0, 1])


# One loss of several formulas: level, other policy, sum or mean, and the cost of x and A.
REGRESSIONS = {
    "a*-po": (
        loss.Regression(beta=0.3, reference="reference"),
        ("sequence", "reference_logprob", torch.sum, lambda x, a: (0.3 * x - a) ** 2),
    ),
    "dapo-direct": (
        loss.Regression(level="step", beta=0.4, residual="log_ratio", coefficient=0.5),
        ("step", "old_logprob", torch.sum, lambda x, a: 0.5 * (x - a / 0.4) ** 2),
    ),
    "opmd": (
        loss.Regression(beta=0.5, reduce="mean"),
        ("sequence", "old_logprob", torch.mean, lambda x, a: (a - 0.5 * x) ** 2),
    ),
    "sppo": (
        loss.Regression(beta=0.7, residual="log_ratio", coefficient=0.5),
        ("sequence", "old_logprob", torch.sum, lambda x, a: 0.5 * (x - a / 0.7) ** 2),
    ),
}


@SEEDS
@pytest.mark.parametrize("name", REGRESSIONS)
def test_regressions(name: str, seed: int) -> None:
    case = Case.random(seed, per="sequence")
    policy, (level, other, reduce, cost) = REGRESSIONS[name]

    def expected(logprob: Tensor, *_: object) -> Tensor:
        costs = []
        for rows in case.rows(level):
            away = reduce(logprob[rows] - case.streams[other][rows])
            costs.append(total(case, rows) * cost(away, case.advantage[rows[0]]))
        return torch.stack(costs).sum()

    agree(policy, case, expected)


@SEEDS
def test_rover(seed: int) -> None:
    """Q = log p - log p_old, target = A + (u - u_old) of the next token, 0 after the last."""
    case = Case.random(seed)

    def expected(logprob: Tensor, _: Tensor, answers: SimpleNamespace) -> Tensor:
        costs = []
        for rows in case.rows("sequence"):
            for place, t in enumerate(rows):
                target = case.advantage[t]
                if place + 1 < len(rows):
                    after = rows[place + 1]
                    target = target + (answers.mean_logprob[after] - case.old_mean_logprob[after]).detach()
                costs.append(case.weight[t] * (logprob[t] - case.old_logprob[t] - target) ** 2)
        return torch.stack(costs).sum()

    agree(loss.Regression(level="token", next_value=1.0), case, expected)


def test_optimal_values_fixture() -> None:
    """A*-PO: rewards (0, 0, 1, 1) and beta 0.5 give V* = 0.716890; at the reference the loss is (V* - r)^2."""
    optimal = 0.5 * math.log(sum(math.exp(r / 0.5) for r in (0, 0, 1, 1)) / 4)
    assert optimal == pytest.approx(0.716890, abs=1e-6)
    zeros, ones = torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    streams = {
        "weight_kl": ones / 2,
        "advantage_positive": ones * (1 - optimal) / 2,
        "advantage_negative": zeros,
        "reference_logprob": -ones,
        "sequence": torch.zeros(2, dtype=torch.int64),
    }
    value, _ = loss.Regression(beta=1e-3, reference="reference").evaluate(loss.Tokens(-ones, None, streams))
    assert value.item() == pytest.approx((1 - optimal) ** 2)


G = {
    "reverse_kl": lambda x: x,
    "forward_kl": lambda x: -torch.exp(-x),
    "js": lambda x: math.log(2) - torch.log(1 + torch.exp(-x)),
    "alpha": lambda x: -torch.exp(-0.3 * x) / 0.3,
}
COSTS = {
    "logistic": lambda m: -torch.log(torch.sigmoid(0.2 * m)),
    "square": lambda m: (m - 1 / (2 * 0.2)) ** 2,
    "hinge": lambda m: torch.relu(1 - 0.2 * m),
}


@SEEDS
@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize(
    ("kind", "divergence", "share"),
    [(kind, "reverse_kl", share) for kind in COSTS for share in (1.0, 0.3, 0.0)]
    + [("logistic", divergence, 1.0) for divergence in G],
)
def test_preferences(kind: str, divergence: str, share: float, reduce: str, seed: int) -> None:
    """DPO, IPO, SLiC, f-DPO; with 0 < share < 1 INPO's mixture of reference and previous policy."""
    case = Case.random(seed, per="sequence", labels=True)
    other = share * case.reference_logprob + (1 - share) * case.old_logprob

    def expected(logprob: Tensor, *_: object) -> Tensor:
        costs = []
        for rows, (chosen, rejected) in zip(case.rows("pair"), case.parts("pair"), strict=True):
            assert case.advantage[chosen[0]] > 0 > case.advantage[rejected[0]]
            ratio = logprob - other
            good, bad = (getattr(ratio[part], reduce)() for part in (chosen, rejected))
            costs.append(total(case, rows) * COSTS[kind](G[divergence](good) - G[divergence](bad)))
        return torch.stack(costs).sum()

    policy = loss.Preference(
        kind=kind, beta=0.2, divergence=divergence, alpha=0.3, reference_share=share, reduce=reduce
    )
    agree(policy, case, expected)


def test_label_smoothing_and_metrics() -> None:
    case = Case.random(3, per="sequence", labels=True)

    def expected(logprob: Tensor, *_: object) -> Tensor:
        costs = []
        for rows, (chosen, rejected) in zip(case.rows("pair"), case.parts("pair"), strict=True):
            ratio = logprob - case.reference_logprob
            margin = 0.1 * (ratio[chosen].sum() - ratio[rejected].sum())
            cost = -0.9 * functional.logsigmoid(margin) - 0.1 * functional.logsigmoid(-margin)
            costs.append(total(case, rows) * cost)
        return torch.stack(costs).sum()

    policy = loss.Preference(smoothing=0.1)
    agree(policy, case, expected)
    _, metrics = policy.evaluate(case.tokens())
    right = sum(
        len(rows)
        * float((case.logprob - case.reference_logprob)[a].sum() > (case.logprob - case.reference_logprob)[b].sum())
        for rows, (a, b) in zip(case.rows("pair"), case.parts("pair"), strict=True)
    )
    assert metrics["accuracy"].item() == right
    assert int(metrics["tokens"]) == len(case.logprob)


@SEEDS
@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("direction", ["reverse", "forward"])
def test_list_match(direction: str, reduce: str, seed: int) -> None:
    """EXO, and GDRO's logsumexp(s) - sum of Q s."""
    case = Case.random(seed, per="sequence")

    def expected(logprob: Tensor, *_: object) -> Tensor:
        costs = []
        for rows, parts in zip(case.rows("group"), case.parts("group"), strict=True):
            ratio = logprob - case.reference_logprob
            s = 0.6 * torch.stack([getattr(ratio[part], reduce)() for part in parts])
            target = torch.stack([case.advantage[part[0]] for part in parts]).div(0.4).softmax(0)
            p = s.softmax(0)
            cost = (p * (p / target).log()).sum() if direction == "reverse" else s.logsumexp(0) - (target * s).sum()
            costs.append(total(case, rows) * cost)
        return torch.stack(costs).sum()

    agree(loss.ListMatch(direction=direction, beta=0.6, temperature=0.4, reduce=reduce), case, expected)


@SEEDS
def test_all_ranks_of_a_group(seed: int) -> None:
    """GDRO's full form: sort by reward, then the top-1 cost of the rest, repeatedly."""
    case = Case.random(seed, per="sequence")

    def expected(logprob: Tensor, *_: object) -> Tensor:
        costs = []
        for parts in case.parts("group"):
            s = torch.stack([0.6 * (logprob - case.reference_logprob)[part].sum() for part in parts])
            r = torch.stack([case.advantage[part[0]] for part in parts]) / 0.4
            rest = r.argsort(descending=True)
            cost = torch.zeros((), dtype=torch.float64)
            while len(rest):
                cost = cost + s[rest].logsumexp(0) - (r[rest].softmax(0) * s[rest]).sum()
                rest = rest[1:]
            costs.append(total(case, torch.cat(parts)) * cost)
        return torch.stack(costs).sum()

    agree(loss.ListMatch(direction="ranked", beta=0.6, temperature=0.4), case, expected)


def test_all_ranks_by_hand() -> None:
    # x = 0, log 2, log 5; r = 2, 1, 0 with temperature 1, beta 1. First rank: log 8 - (q2 log 2 + q3 log 5),
    # q = (e^2, e, 1) / (e^2 + e + 1); second: log 7 - (e log 2 + log 5) / (e + 1); third: 0. Weight 1.
    third = torch.full((3,), 1.0 / 3.0, dtype=torch.float64)
    streams = {
        "weight_kl": third,
        "advantage_positive": third * torch.tensor([2.0, 1.0, 0.0], dtype=torch.float64),
        "advantage_negative": 0.0 * third,
        "reference_logprob": torch.full((3,), -9.0, dtype=torch.float64),
        "sequence": torch.tensor([2, 0, 1]),
        "group": torch.tensor([0, 0, 0]),
    }
    logprob = torch.tensor([-9.0, -9.0 + math.log(2.0), -9.0 + math.log(5.0)], dtype=torch.float64)
    value, _ = loss.ListMatch(direction="ranked", beta=1.0, temperature=1.0).evaluate(
        loss.Tokens(logprob, None, streams)
    )
    e, two, five = math.e, math.log(2.0), math.log(5.0)
    first = math.log(8.0) - (e * two + five) / (e * e + e + 1.0)
    assert value.item() == pytest.approx(first + math.log(7.0) - (e * two + five) / (e + 1.0))


def test_exo_fixture() -> None:
    """x = (0, log 2), r = (0, 1), both temperatures 0.5: 0.277000."""
    logprob = torch.tensor([-3.0, -3.0 + math.log(2.0)], dtype=torch.float64)
    half = torch.full((2,), 0.5, dtype=torch.float64)
    streams = {
        "weight_kl": half,
        "advantage_positive": half * torch.tensor([0.0, 1.0], dtype=torch.float64),
        "advantage_negative": 0.0 * half,
        "reference_logprob": -6.0 * half,
        "sequence": torch.tensor([0, 1]),
        "group": torch.tensor([0, 0]),
    }
    value, _ = loss.ListMatch().evaluate(loss.Tokens(logprob, None, streams))
    assert value.item() == pytest.approx(0.277000, abs=1e-6)


@SEEDS
@pytest.mark.parametrize("balanced", [True, False])
@pytest.mark.parametrize("baseline", ["leave_one_out", "standard", "none"])
def test_pacs(baseline: str, balanced: bool, seed: int) -> None:
    case = Case.random(seed, per="sequence")

    def expected(logprob: Tensor, *_: object) -> Tensor:
        costs = []
        for parts in case.parts("group"):
            q = torch.stack([2.0 * (logprob - case.old_logprob)[part].sum() for part in parts])
            y = torch.stack([(case.advantage[part[0]] > 0).double() for part in parts])
            size = len(parts)
            if baseline == "leave_one_out":
                psi = torch.stack([q[i] - (q.sum() - q[i]) / max(size - 1, 1) for i in range(size)])
            else:
                psi = (q - q.mean()) / ((q.std() if size > 1 else 0.0) + 1e-6) if baseline == "standard" else q
            for i, part in enumerate(parts):
                scale = 1.0
                if balanced and 0 < y.sum() < size:
                    scale = size / (2 * (y == y[i]).sum())
                cost = functional.binary_cross_entropy_with_logits(psi[i], y[i])
                costs.append(total(case, part) * scale * cost)
        return torch.stack(costs).sum()

    agree(loss.OutcomeClassifier(beta=2.0, baseline=baseline, balanced=balanced), case, expected)


@SEEDS
def test_the_implicit_reward_model_of_prime(seed: int) -> None:
    """Binary cross-entropy of sigmoid(beta * sum of log p - log p_reference) and the score."""
    case = Case.random(seed, per="sequence")

    def expected(logprob: Tensor, *_: object) -> Tensor:
        costs = []
        for part in case.rows("sequence"):
            q = 0.05 * (logprob - case.reward_reference_logprob)[part].sum()
            y = (case.score[part[0]] > 0).double()
            costs.append(total(case, part) * functional.binary_cross_entropy_with_logits(q, y))
        return torch.stack(costs).sum()

    model = loss.OutcomeClassifier(
        beta=0.05, baseline="none", balanced=False, label="score", other="reward_reference_logprob"
    )
    agree(model, case, expected)
    assert "old_logprob" not in model.streams
    case.streams["reward_reference_logprob"] = case.logprob  # a reward model equal to its reference is neutral
    value, _ = model.evaluate(case.tokens())
    assert value.item() == pytest.approx(case.weight.sum().item() * math.log(2.0))


@SEEDS
@pytest.mark.parametrize("combine", ["max", "mean"])
@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize("kind", ["squared", "huber"])
def test_values(kind: str, clip: float | None, combine: str, seed: int) -> None:
    case = Case.random(seed)
    target, old = case.streams["return"], case.old_value

    def cost(e: Tensor) -> Tensor:
        if kind == "squared":
            return 0.5 * e**2
        return torch.where(e.abs() <= 0.5, 0.5 * e**2, 0.5 * (e.abs() - 0.25))

    def expected(_: Tensor, __: Tensor, answers: SimpleNamespace) -> Tensor:
        v = answers.value
        each = cost(v - target)
        if clip is not None:
            bounded = cost(torch.clamp(v, old - clip, old + clip) - target)
            each = torch.maximum(each, bounded) if combine == "max" else (each + bounded) / 2
        return (case.weight * each).sum()

    agree(loss.Value(kind=kind, delta=0.5, clip=clip, combine=combine), case, expected)


@pytest.mark.parametrize(("clip", "kind"), [(None, "squared"), (0.3, "huber"), (None, "cross_entropy")])
def test_value_losses_on_the_q_value_of_the_sampled_token(kind: str, clip: float | None) -> None:
    """Q of the logits: the token's logit, or its distance from the largest one and a head (B-Coder)."""
    case = Case.random(3)
    target, old, temperature = case.streams["return"], case.streams["old_value"], 1.0 / case.inverse_temperature

    def cost(q: Tensor, r: Tensor) -> Tensor:
        if kind == "cross_entropy":
            p = torch.sigmoid(q)
            return -(r * p.log() + (1 - r) * (1 - p).log())
        e = (q - r).abs()
        return 0.5 * e**2 if kind == "squared" or e <= 1.0 else e - 0.5

    def expected(q: Tensor) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for t, r in enumerate(target):
            each = cost(q[t], r)
            if clip is not None:
                each = torch.maximum(each, cost(old[t] + (q[t] - old[t]).clamp(-clip, clip), r))
            total = total + case.weight[t] * each
        return total

    def logit(logprob: Tensor, _: Tensor, answers: SimpleNamespace) -> Tensor:
        return expected(temperature * logprob + answers.soft_value)

    def duelling(logprob: Tensor, _: Tensor, answers: SimpleNamespace) -> Tensor:
        return expected(0.7 * temperature * (logprob - answers.max_logprob) + answers.value)

    agree(loss.Value(kind=kind, clip=clip, of="logit"), case, logit)
    agree(loss.Value(kind=kind, clip=clip, of="duelling", scale=0.7), case, duelling)


def test_a_value_of_the_logits_by_hand() -> None:
    # Logits Q = 3, 1 and a = 2: p of the first is e / (1 + e), V = 2 log(e^1.5 + e^0.5); target 2.5: 1/2 (3 - 2.5)^2.
    q = torch.tensor([3.0, 1.0], dtype=torch.float64)
    streams = {"weight_kl": torch.ones(1), "return": torch.tensor([2.5]), "inverse_temperature": torch.tensor([0.5])}
    answers = SimpleNamespace(soft_value=2.0 * (q / 2.0).logsumexp(0, keepdim=True))
    value, sums = loss.Value(of="logit").of_rows((q / 2.0).log_softmax(0)[:1], torch.zeros(1), streams, answers)
    assert sums["value"].item() == pytest.approx(3.0)
    assert value.item() == pytest.approx(0.125)


def test_classified_and_twin_values() -> None:
    case = Case.random(2)
    target = case.streams["return"]

    def binary(_: Tensor, __: Tensor, answers: SimpleNamespace) -> Tensor:
        p = torch.sigmoid(answers.value)
        return -(case.weight * (target * p.log() + (1 - target) * (1 - p).log())).sum()

    agree(loss.Value(kind="cross_entropy"), case, binary)

    def histogram(_: Tensor, __: Tensor, answers: SimpleNamespace) -> Tensor:
        centers = torch.linspace(-0.5, 1.5, BINS, dtype=torch.float64)
        width = centers[1] - centers[0]
        cost = 0.0
        for t, r in enumerate(target):
            normal = torch.distributions.Normal(r, 0.75 * width)
            mass = normal.cdf(centers + width / 2) - normal.cdf(centers - width / 2)
            cost = cost - case.weight[t] * (mass / mass.sum() * answers.value_logits[t].log_softmax(0)).sum()
        return cost

    agree(loss.Value(kind="categorical", low=-0.5, high=1.5), case, histogram, tolerance=1e-6)

    case.answers.value = torch.randn(len(target), 2, dtype=torch.float64)

    def twins(_: Tensor, __: Tensor, answers: SimpleNamespace) -> Tensor:
        return 0.5 * (case.weight[:, None] * (answers.value - target[:, None]) ** 2).sum()

    def pessimist(_: Tensor, __: Tensor, answers: SimpleNamespace) -> Tensor:
        v = -0.3 * (torch.log((-answers.value / 0.3).exp().sum(1)) - math.log(2.0))
        return 0.5 * (case.weight * (v - target) ** 2).sum()

    agree(loss.Value(), case, twins)
    agree(loss.Value(heads="soft_minimum"), case, pessimist)
    assert soft_minimum(torch.tensor([[1.0, 2.0]]), 1e-3).item() == pytest.approx(1.0, abs=1e-3)
    assert soft_minimum(torch.tensor([[1.0, 2.0]]), 1e4).item() == pytest.approx(1.5, abs=1e-2)


IMITATIONS = {
    "all": lambda case: torch.ones_like(case.advantage),
    "expert": lambda case: case.expert,
    "positive": lambda case: (case.advantage > 0).double(),
    "advantage": lambda case: case.advantage.clamp(min=0),
    "imitation": lambda case: case.imitation,
}


@pytest.mark.parametrize("weight", ["likelihood", "chi_squared", "hellinger"])
@pytest.mark.parametrize("which", IMITATIONS)
def test_imitation(which: str, weight: str) -> None:
    case = Case.random(4)
    u = (case.logprob - case.reference_logprob).exp()
    factor = {"likelihood": torch.ones_like(u), "chi_squared": 2 * u, "hellinger": 0.5 * u**-0.5}[weight]

    def expected(logprob: Tensor, *_: object) -> Tensor:
        return -(case.weight * IMITATIONS[which](case) * factor.clamp(max=10) * logprob).sum()

    agree(loss.Imitation(tokens=which, kind=weight), case, expected)


def test_imitation_of_surprising_tokens() -> None:
    """Light-IF's entropy-SFT: only the tokens with the largest - log p - H."""
    case = Case.random(5)
    mask = torch.zeros_like(case.logprob)
    mask[(-case.logprob - case.entropy).topk(5).indices] = 1.0

    def expected(logprob: Tensor, *_: object) -> Tensor:
        return -(case.weight * mask * logprob).sum()

    gate = loss.TopTokens("surprise", 5 / len(mask), kind="floor")
    agree(loss.Imitation(mask=gate), case, expected)


def test_sum() -> None:
    case = Case.random(6)
    first, second = loss.Policy(), loss.Imitation("token_mean", tokens="expert")

    def expected(logprob: Tensor, *_: object) -> Tensor:
        return 0.75 * first.evaluate(case.tokens(logprob))[0] + 0.25 * second.evaluate(case.tokens(logprob))[0]

    both = loss.Sum(first, second, 0.75, 0.25)
    agree(both, case, expected)
    assert both.streams == ("advantage_positive", "advantage_negative", "weight_kl", "old_logprob", "expert")
    assert both.unit == "token"
    assert both.foldable
    assert not loss.Sum(first, loss.Regression("token_mean")).foldable
    assert set(both.evaluate(case.tokens())[1]) > {"ratio", "nll"}
    with pytest.raises(RecipeError, match="give it the denominator of the first"):
        loss.Sum(first, loss.Imitation())


@loss.function(needs=["advantage_positive", "advantage_negative", "old_logprob"], foldable=True)
def own(logprob: Tensor, entropy: Tensor, streams: dict[str, Tensor]) -> Tensor:
    ratio = (logprob - streams["old_logprob"]).exp()
    return -(streams["advantage_positive"] + streams["advantage_negative"]) * ratio - 0.1 * entropy


def test_a_function_is_a_loss() -> None:
    case = Case.random(7)

    def expected(logprob: Tensor, entropy: Tensor, _: SimpleNamespace) -> Tensor:
        return -(case.weight * case.advantage * (logprob - case.old_logprob).exp() + 0.1 * entropy).sum()

    agree(own, case, expected)
    assert own.needs == (token("advantage"), token("behaviour_logprob"))
    assert own.foldable
    assert own.separable
    assert own.denominator == "token_mean"
    assert own == Function.from_dict(own.to_dict())
    with pytest.raises(RecipeError, match="path='json:dumps' is not possible; give the module:name of a function"):
        Function(path="json:dumps")
    with pytest.raises(RecipeError, match="path='no_such_module:f' cannot be imported"):
        Function(path="no_such_module:f")
    with pytest.raises(RecipeError, match="unit='batch' is not possible"):
        loss.function(unit="batch")


def test_missing_or_invalid_inputs_of_a_loss_are_named() -> None:
    case = Case.random(8)
    with pytest.raises(UnsupportedError, match="the loss needs output 'value'"):
        loss.Value().evaluate(loss.Tokens(case.logprob, None, case.streams))
    del case.streams["reference_logprob"]
    with pytest.raises(
        InvalidInputError, match=r"no stream 'reference_logprob', which the loss reads .it has: old_logprob"
    ):
        loss.Preference().evaluate(case.tokens())
    case.streams["sequence"] = case.sequence + 1000
    with pytest.raises(InvalidInputError, match="sequence ids range from 1000 to 1007 for 27 rows; number them from 0"):
        loss.Regression().evaluate(case.tokens())


def test_torch_is_imported_on_first_use() -> None:
    code = """
import sys
from agentrl_core import loss
policy = loss.Sum(loss.Policy(), loss.Preference("token_mean", kind="hinge"))
assert policy.needs
assert "torch" not in sys.modules
from agentrl_core.loss.combine import Function
from agentrl_core.loss.value import soft_minimum
assert soft_minimum.__doc__
import torch
from agentrl_core.loss.combine import Function
assert loss.OutcomeClassifier().unit == "group"
assert soft_minimum(torch.zeros(1, 2), 1.0).item() == 0.0
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
