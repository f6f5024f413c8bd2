"""Properties of the loss of every published system, and of more variants."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from cases import Case
from systems import LOSSES, SYSTEMS
from torch import Tensor

from agentrl_core import loss, recipes
from agentrl_core.component.component import find_component
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.recipes.bapo import BalancedClip
from agentrl_core.recipes.dcpo import ProbabilityClip
from agentrl_core.recipes.m2po import SecondMomentClip

EACH = pytest.mark.parametrize("name", LOSSES)

# Their terms depend on sums, means or quantiles over all rows that are given.
# Detached factors that depend on the log-probs: there the gradient differs from that of the value, on purpose.
DETACHED = re.compile(
    "Reinforce|InverseRatio|BoundedDrift|soft='(upper|both)'"
    "|Ratio.level='(step|sequence|item)'(, (reduce|log_at_most)=['\\w.]+)?\\)"
    "|PrefixMinimum|StratifiedRatio|straight_through=True|EntropyChange|CovarianceEntropy|GatedDistillation"
    "|PairwiseProximal|chi_squared|hellinger|LengthDecoupled|MixtureExpert..|SecondMoment|EntropyScaled|covariance"
    "|next_value=1|support='sampled'|EntropyAdvantage|interpolated|OffPolicyMaxAtK"
)


def named(policy: loss.Loss) -> list[str]:
    """Return names of a loss's outputs without their options, such as `divergence` of `divergence:0.5`."""
    return [output.partition(":")[0] for output in policy.outputs]


def labelled(name: str) -> bool:
    return "Preference" in repr(LOSSES[name])


def case_of(name: str, seed: int = 0) -> Case:
    case = Case.random(seed, per="sequence" if labelled(name) else "token", labels=labelled(name))
    if "PairwiseProximal" in repr(LOSSES[name]):
        case = Case.random(seed, per="sequence")
    if "soft_minimum" in repr(LOSSES[name]):
        case.answers.value = torch.stack([case.answers.value, case.answers.value.flip(0)], dim=1)
    return case


def measure(policy: loss.Loss, case: Case) -> tuple[Tensor, list[Tensor]]:
    """Return value, and gradients by log-prob, entropy and every other output."""
    logprob, entropy = case.logprob.clone().requires_grad_(), case.entropy.clone().requires_grad_()
    answers = {name: value.clone().requires_grad_() for name, value in vars(case.answers).items()}
    value, sums = policy.evaluate(case.tokens(logprob, entropy, **answers))
    assert value.shape == ()
    assert all(not metric.requires_grad and metric.isfinite() for metric in sums.values())
    assert int(sums["tokens"]) == int((case.weight_kl > 0).sum())
    leaves = (logprob, entropy, *answers.values())
    if not value.requires_grad:
        return value, [torch.zeros_like(leaf) for leaf in leaves]
    return value.detach(), list(torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True))


def change(case: Case, apply: Callable[[str, Tensor], Tensor]) -> Case:
    """Return the case with every vector replaced."""
    return Case(
        apply("logprob", case.logprob),
        apply("entropy", case.entropy),
        apply("advantage", case.advantage),
        apply("weight", case.weight),
        {name: apply(name, values) for name, values in case.streams.items()},
        SimpleNamespace(**{name: apply(name, values) for name, values in vars(case.answers).items()}),
    )


def take(case: Case, rows: Tensor) -> Case:
    """Return some rows, with renumbered segments."""
    ids = ("sequence", "step", "pair", "group", "stratum")
    return change(case, lambda name, v: v[rows].unique(return_inverse=True)[1] if name in ids else v[rows])


def test_every_system_is_there() -> None:
    assert len(SYSTEMS) >= len(recipes.names()) > 150
    assert all(isinstance(system, loss.Loss) for system in SYSTEMS.values())


@EACH
def test_it_has_a_gradient_and_repeats_itself(name: str) -> None:
    case = case_of(name)
    value, gradients = measure(LOSSES[name], case)
    again, others = measure(LOSSES[name], case)
    assert value.isfinite()
    assert torch.equal(value, again)
    assert all(torch.equal(one, other) for one, other in zip(gradients, others, strict=True))
    assert max(gradient.abs().max() for gradient in gradients) > 1e-5


@EACH
def test_table_and_pickle(name: str) -> None:
    policy = LOSSES[name]
    again = find_component("agentrl_core.loss", policy.to_dict())
    assert again == policy
    assert hash(again) == hash(policy)
    assert pickle.loads(pickle.dumps(policy)) == policy


@EACH
def test_a_loss_reads_exactly_the_streams_that_it_declares(name: str) -> None:
    policy, case = LOSSES[name], case_of(name)
    case.streams = {stream: case.streams[stream] for stream in policy.streams}
    case.answers = SimpleNamespace(**{answer: getattr(case.answers, answer) for answer in named(policy)})
    policy.evaluate(case.tokens())
    for stream in set(policy.streams) - {policy.normaliser}:  # the update reads that one
        fewer = Case(case.logprob, case.entropy, case.advantage, case.weight, dict(case.streams), case.answers)
        del fewer.streams[stream]
        with pytest.raises(InvalidInputError, match=f"has no stream '{stream}'"):
            policy.evaluate(fewer.tokens())


@EACH
def test_untrained_rows_count_nowhere(name: str) -> None:
    """Rows of weight 0 with -inf, NaN and infinities among the others: same value, same gradients, zero for them."""
    policy, case = LOSSES[name], case_of(name)
    count = len(case.logprob)
    origin = torch.arange(2 * count) // 2
    real = torch.arange(2 * count) % 2 == 0
    for junk in (torch.nan, -torch.inf, torch.inf):

        def spoil(stream: str, values: Tensor, junk: float = junk) -> Tensor:
            if not values.is_floating_point():
                return values[origin]
            bad = 0.0 if stream in ("weight", "weight_kl") else junk
            return torch.where(real if values.dim() == 1 else real[:, None], values[origin], bad)

        value, gradients = measure(policy, change(case, spoil))
        expected, expected_gradients = measure(policy, case)
        torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)
        for gradient, right in zip(gradients, expected_gradients, strict=True):
            torch.testing.assert_close(gradient[real], right, rtol=1e-10, atol=1e-12)
            assert bool((gradient[~real] == 0).all())


@EACH
def test_a_trained_token_of_probability_zero_is_finite(name: str) -> None:
    policy, case = LOSSES[name], case_of(name)
    case.logprob[3] = -torch.inf
    case.advantage[3] = case.streams["advantage_positive"][3] = case.streams["advantage_negative"][3] = 0.0
    value, gradients = measure(policy, case)
    assert value.isfinite()
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert gradients[0][3] == 0 or "log_softmax" in repr(policy)


@EACH
def test_no_rows_one_row_and_no_trained_row(name: str) -> None:
    policy, case = LOSSES[name], case_of(name)
    nothing, _ = measure(policy, take(case, torch.zeros(0, dtype=torch.int64)))
    one, gradients = measure(policy, take(case, torch.tensor([4])))
    assert one.isfinite()
    assert all(gradient.isfinite().all() for gradient in gradients)
    untrained = change(case, lambda stream, v: torch.zeros_like(v) if stream == "weight_kl" else v)
    value, gradients = measure(policy, untrained)
    assert nothing == value == 0
    assert all((gradient == 0).all() for gradient in gradients)


@pytest.mark.parametrize("name", [name for name, policy in LOSSES.items() if policy.separable])
def test_separable_losses_add_up_over_any_rows(name: str) -> None:
    policy, case = LOSSES[name], case_of(name)
    assert policy.unit == "token"
    chosen = torch.arange(len(case.logprob)) % 3 == 1
    check_split(policy, case, chosen)


@pytest.mark.parametrize(
    "name", [name for name, policy in LOSSES.items() if not policy.separable and policy.unit != "update"]
)
def test_losses_of_units_add_up_over_units(name: str) -> None:
    policy, case = LOSSES[name], case_of(name)
    level = {"step": "step", "trajectory": "sequence", "pair": "pair", "group": "group"}[policy.unit]
    check_split(policy, case, case.streams[level] % 2 == 0)


def check_split(policy: loss.Loss, case: Case, chosen: Tensor) -> None:
    total, gradients = measure(policy, case)
    parts = [measure(policy, take(case, torch.nonzero(rows).squeeze(1))) for rows in (chosen, ~chosen)]
    torch.testing.assert_close(parts[0][0] + parts[1][0], total, rtol=1e-11, atol=1e-12)
    for place, gradient in enumerate(gradients):
        torch.testing.assert_close(parts[0][1][place], gradient[chosen], rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(parts[1][1][place], gradient[~chosen], rtol=1e-11, atol=1e-12)


SEGMENTS = {"step", "sequence", "pair", "group"}


def folding_error(policy: loss.Loss, seed: int) -> float:
    """Return the difference between the loss of shared tokens (summed advantages, weights) and that over branches."""
    case = Case.random(seed, spread=0.5)
    make = torch.Generator().manual_seed(seed + 100)
    count = len(case.logprob)
    branches = torch.randint(1, 4, (count,), generator=make)
    owner = torch.repeat_interleave(torch.arange(count), branches)
    advantage = torch.randn(len(owner), generator=make, dtype=torch.float64)
    weight = torch.rand(len(owner), generator=make, dtype=torch.float64) + 0.1
    unfolded = change(case, lambda _, v: v[owner])
    unfolded.streams |= {
        "weight_kl": weight,
        "weight_entropy": weight / 2,
        "advantage_positive": weight * advantage.clamp(min=0),
        "advantage_negative": weight * advantage.clamp(max=0),
    }
    folded = change(case, lambda _, v: v)
    for name in ("weight_kl", "weight_entropy", "advantage_positive", "advantage_negative"):
        folded.streams[name] = torch.zeros(count, dtype=torch.float64).index_add(0, owner, unfolded.streams[name])
    (value, gradients), (expected, each) = (measure(policy, one) for one in (folded, unfolded))
    errors = [(value - expected).abs()]
    for gradient, right in zip(gradients, each, strict=True):
        errors.append((gradient - torch.zeros_like(gradient).index_add(0, owner, right)).abs().max())
    return max(error.item() for error in errors)


@pytest.mark.parametrize("name", [name for name, policy in LOSSES.items() if policy.foldable])
def test_folding_is_exact(name: str) -> None:
    assert not SEGMENTS & set(LOSSES[name].streams)
    assert max(folding_error(LOSSES[name], seed) for seed in range(3)) < 1e-12


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, policy in LOSSES.items()
        # Values fold only if their returns agree, which folding_error takes for granted.
        if not policy.foldable and not SEGMENTS & set(policy.streams) and "Value" not in repr(policy)
    ],
)
def test_folding_changes_a_loss_that_is_not_foldable(name: str) -> None:
    assert max(folding_error(LOSSES[name], seed) for seed in range(3)) > 1e-6


@pytest.mark.parametrize("name", [name for name, policy in LOSSES.items() if not DETACHED.search(repr(policy))])
def test_gradients_are_those_of_the_value(name: str) -> None:
    policy, case = LOSSES[name], case_of(name)
    answers = {answer: getattr(case.answers, answer).requires_grad_() for answer in named(policy)}

    def value(logprob: Tensor, entropy: Tensor, *values: Tensor) -> Tensor:
        return policy.evaluate(case.tokens(logprob, entropy, **dict(zip(answers, values, strict=True))))[0]

    leaves = (case.logprob.requires_grad_(), case.entropy.requires_grad_(), *answers.values())
    assert torch.autograd.gradcheck(value, leaves, eps=1e-7, atol=1e-5)


def test_all_clipped_has_no_gradient() -> None:
    case = Case.random(0)
    case.logprob = case.old_logprob + torch.where(case.advantage > 0, 3.0, -3.0)
    for clip in (loss.Clip(), ProbabilityClip(at_most=2.0), BalancedClip(), SecondMomentClip()):
        _, gradients = measure(loss.Policy(clip=clip), case)
        assert all((gradient == 0).all() for gradient in gradients)
        _, sums = loss.Policy(clip=clip).evaluate(case.tokens())
        assert sums["clip_fraction"] == len(case.logprob)


@pytest.mark.parametrize("name", ["covariance", "bapo", "rl_plus", "pacs", "minpro", "rank_grpo", "everything"])
def test_it_compiles_without_a_break(name: str) -> None:
    policy, case = LOSSES[name], case_of(name)

    def evaluate(logprob: Tensor, streams: dict[str, Tensor]) -> Tensor:
        return policy.evaluate(loss.Tokens(logprob, case.entropy, streams))[0]

    torch._dynamo.reset()
    compiled = torch.compile(evaluate, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(case.logprob, case.streams), evaluate(case.logprob, case.streams))
