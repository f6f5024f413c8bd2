"""One sample: its reported distribution is the one sampled from."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core.engine import EntropyTemperature, Sampling
from agentrl_core.engine.decoding import sample_tokens
from agentrl_core.exceptions import InvalidInputError


def softmax(x):
    p = np.exp(x - x.max())
    return p / p.sum()


def entropy(p):
    return -sum(q * np.log(q) for q in p if q > 0)


def naive(logits, sampling):
    """Return the distribution by definition, in float64."""
    x = np.asarray(logits, np.float64) / sampling.temperature
    if sampling.by_entropy is not None:
        x /= 1 + sampling.by_entropy.change * sampling.by_entropy.height(np.log(max(entropy(softmax(x)), 1e-8)))
    mask = np.ones(len(x), bool)
    if 0 < sampling.top_k < len(x):
        mask &= x >= np.sort(x)[-sampling.top_k]
    p = np.where(mask, np.exp(x - x[mask].max()), 0)
    p /= p.sum()
    if sampling.top_p < 1:
        order = np.argsort(-p, kind="stable")
        count = int((np.cumsum(p[order]) < sampling.top_p - 1e-7).sum()) + 1
        p[order[count:]] = 0
        p /= p.sum()
    return p


rules = st.builds(
    EntropyTemperature,
    # Widths of 0 would let rounding decide between the highest and the lowest temperature.
    zero=st.floats(-3, 1),
    above=st.floats(0.5, 3),
    below=st.floats(0.5, 3),
    change=st.floats(0, 0.9),
)
samplings = st.builds(
    Sampling,
    by_entropy=st.none() | rules,
    temperature=st.floats(0.1, 3),
    top_k=st.integers(0, 12),
    # Between sums of probabilities: if a sum equals top_p, rounding decides.
    top_p=st.sampled_from([1.0, 0.9137, 0.5123, 0.0101]),
)


@given(
    logits=st.lists(st.integers(-40, 40).map(lambda i: i / 8), min_size=1, max_size=10),
    sampling=samplings,
    uniform=st.floats(0, 1, exclude_max=True),
)
def test_a_draw_is_the_inverse_of_the_cumulative_distribution(logits, sampling, uniform):
    drawn = sample_tokens(torch.tensor([logits]), torch.tensor([uniform], dtype=torch.float64), sampling)
    p = naive(logits, sampling)
    token = int(drawn.token)
    assert p[token] > 0
    below = p[:token].sum()
    assert below - 1e-5 <= uniform <= below + p[token] + 1e-5
    assert float(drawn.logprob) == pytest.approx(np.log(p[token]), abs=1e-5)
    chosen_by = p if sampling.by_entropy is None else softmax(np.array(logits) / sampling.temperature)
    assert float(drawn.entropy) == pytest.approx(entropy(chosen_by), abs=1e-5)


def test_the_temperature_of_a_row_follows_its_entropy():
    # Logits 0 and 0: H = ln 2, e = ln ln 2 = -0.366513, half way from zero to the highest: T = 2 (1 + 0.1 / 2) = 2.1.
    # Logits 0 and 50 at T0 = 2: H = 25 e^-25 + ... < 1e-8, so e = ln 1e-8, at the lowest: T = 2 (1 - 0.1) = 1.8.
    # Logits 0 and 2 at T0 = 2: p = 1 / (1 + e) = 0.268941, H = 0.582203, e = -0.540936 = zero + 0.825577: h = 0.412789.
    rule = EntropyTemperature(zero=-1.366513, above=2.0, below=4.0, change=0.1)
    logits = torch.tensor([[0.0, 0.0], [0.0, 50.0], [0.0, 2.0]], dtype=torch.float64)
    sampling = Sampling(temperature=2.0, by_entropy=rule, top=2)
    drawn = sample_tokens(logits, torch.zeros(3, dtype=torch.float64), sampling)
    assert drawn.token.tolist() == [0, 0, 0]
    expected = [-np.log(2), -50 / 1.8, -np.log1p(np.exp(2 / 2.0825577))]
    np.testing.assert_allclose(drawn.logprob, expected, atol=1e-6)
    np.testing.assert_allclose(drawn.entropy, [np.log(2), 0.0, 0.582203], atol=1e-6)
    np.testing.assert_allclose(drawn.top[1][2].exp().sum(), 1.0)
    plain = sample_tokens(logits, torch.zeros(3, dtype=torch.float64), Sampling(temperature=2.0))
    np.testing.assert_allclose(plain.logprob, [-np.log(2), -25.0, -np.log1p(np.e)], atol=1e-6)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"zero": float("nan")}, "option zero is nan; give a finite log-entropy"),
        ({"above": -1.0}, "option above is -1.0; give 0 or a finite positive number"),
        ({"below": float("inf")}, "option below is inf; give 0 or a finite positive number"),
        ({"change": 1.0}, "change is 1.0; give a number from 0 to below 1"),
    ],
)
def test_rules_that_are_none(numbers, message):
    with pytest.raises(InvalidInputError, match=message):
        EntropyTemperature(**({"zero": 0.0, "above": 1.0, "below": 1.0} | numbers))
    with pytest.raises(InvalidInputError, match=r"by_entropy is 0\.05; give an engine.EntropyTemperature"):
        Sampling(by_entropy=0.05)


def test_a_side_of_no_width_is_a_step():
    rule = EntropyTemperature(zero=0.0, above=0.0, below=0.0)
    assert [rule.height(value) for value in (-1.0, 0.0, 1.0)] == [-1.0, 0.0, 1.0]


def test_frequencies_are_probabilities():
    logits = torch.tensor([0.0, 1.0, -1.0, 3.0, -torch.inf])
    count = 40_000
    uniform = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    sampling = Sampling(temperature=1.5, top_k=3)
    drawn = sample_tokens(logits.expand(count, -1), uniform, sampling)
    frequencies = torch.bincount(drawn.token, minlength=5) / count
    np.testing.assert_allclose(frequencies, naive(logits.numpy(), sampling), atol=1e-4)


@pytest.mark.parametrize("uniform", [0.0, float(np.nextafter(1, 0))])
def test_tokens_without_probability_are_never_drawn(uniform):
    logits = torch.tensor([[-torch.inf, 0.0, 1.0, -torch.inf], [-200.0, -torch.inf, 0.0, -200.0]])
    drawn = sample_tokens(logits, torch.full((2,), uniform, dtype=torch.float64), Sampling())
    assert torch.isfinite(drawn.logprob).all()
    assert torch.isfinite(drawn.entropy).all()
    assert drawn.token.tolist() == ([1, 2] if uniform == 0 else [2, 2])


def test_float64_stays_float64_and_bfloat16_becomes_float32():
    uniform = torch.tensor([0.5], dtype=torch.float64)
    assert sample_tokens(torch.zeros(1, 3, dtype=torch.float64), uniform, Sampling()).logprob.dtype == torch.float64
    assert sample_tokens(torch.zeros(1, 3, dtype=torch.bfloat16), uniform, Sampling()).logprob.dtype == torch.float32


def test_the_likeliest_tokens_are_those_of_the_distribution_sampled_from():
    logits = torch.tensor([[0.0, 1.0, -1.0, 3.0], [2.0, 0.5, 2.5, -3.0]])
    uniform = torch.full((2,), 0.5, dtype=torch.float64)
    sampling = Sampling(temperature=0.5, top_k=2, top=3)
    tokens, logprobs = sample_tokens(logits, uniform, sampling).top
    for row in range(2):
        p = naive(logits[row].numpy(), sampling)
        order = np.argsort(-p, kind="stable")[:2]
        assert tokens[row, :2].tolist() == order.tolist()
        np.testing.assert_allclose(logprobs[row, :2], np.log(p[order]), atol=1e-6)
        assert logprobs[row, 2] == -torch.inf
    greedy = sample_tokens(logits, uniform, Sampling(temperature=0.0, top=2))
    assert (greedy.token.tolist(), greedy.logprob.tolist()) == ([3, 2], [0.0, 0.0])
    torch.testing.assert_close(greedy.top[1], torch.log_softmax(logits, -1).topk(2).values)
    assert sample_tokens(logits, uniform, Sampling()).top is None
