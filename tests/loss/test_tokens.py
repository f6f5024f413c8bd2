"""Compare loss.Tokens and Segments with naive loops, over random ids in any order."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from agentrl_core import loss
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.loss.inputs import Segments


@st.composite
def ragged(draw: st.DrawFn) -> tuple[Segments, Tensor]:
    count = draw(st.integers(0, 12))
    ids = draw(st.lists(st.integers(0, max(count - 1, 0)), min_size=count, max_size=count))
    counted = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    # Few different values, so that there are ties.
    values = draw(st.lists(st.integers(-3, 3), min_size=count, max_size=count))
    segments = Segments(torch.tensor(ids, dtype=torch.int64), torch.tensor(counted, dtype=torch.bool), "some")
    return segments, torch.tensor(values, dtype=torch.float64)


def inside(segments: Segments, values: Tensor) -> list[list[tuple[int, float]]]:
    """Return row and value of the counted rows of each segment."""
    rows = range(len(values))
    return [
        [(row, values[row].item()) for row in rows if segments.counted[row] and segments.ids[row] == number]
        for number in rows
    ]


@settings(max_examples=60, deadline=None)
@given(ragged())
def test_reductions(ragged_values: tuple[Segments, Tensor]) -> None:
    segments, values = ragged_values
    results = {
        "sum": segments.sum(values),
        "count": segments.count,
        "mean": segments.mean(values),
        "maximum": segments.maximum(values),
        "log_sum_exp": segments.log_sum_exp(values),
        "quantile": segments.quantile(values, 0.3),
        "nearest": segments.quantile(values, 0.3, nearest=True),
    }
    for number, rows in enumerate(inside(segments, values)):
        each = [value for _, value in rows]
        assert segments.exists[number].item() == bool(each)
        expected = dict.fromkeys(results, 0.0)
        if each:
            expected = {
                "sum": sum(each),
                "count": len(each),
                "mean": sum(each) / len(each),
                "maximum": max(each),
                "log_sum_exp": math.log(sum(math.exp(value) for value in each)),
                "quantile": np.quantile(each, 0.3),
                "nearest": np.quantile(each, 0.3, method="nearest"),
            }
        for name, vector in results.items():
            assert vector[number].item() == pytest.approx(expected[name], abs=1e-12), name


@settings(max_examples=60, deadline=None)
@given(ragged())
def test_rows(ragged_values: tuple[Segments, Tensor]) -> None:
    segments, values = ragged_values
    shares = segments.log_softmax(values)
    ranks, downwards = segments.rank(values), segments.rank(values, descending=True)
    before, after = segments.running_minimum(values), segments.following(values)
    mean = segments.spread(segments.mean(values))
    for rows in inside(segments, values):
        each = [value for _, value in rows]
        upwards_order = sorted(range(len(each)), key=lambda place: each[place])
        downwards_order = sorted(range(len(each)), key=lambda place: -each[place])
        for place, (row, value) in enumerate(rows):
            assert mean[row].item() == pytest.approx(sum(each) / len(each))
            assert shares[row].item() == pytest.approx(value - math.log(sum(map(math.exp, each))), abs=1e-12)
            assert upwards_order[int(ranks[row])] == place
            assert downwards_order[int(downwards[row])] == place
            assert before[row].item() == min(each[:place], default=math.inf)
            assert after[row].item() == (each[place + 1] if place + 1 < len(each) else 0.0)


def test_gradients_of_segments() -> None:
    ids, counted = torch.tensor([0, 1, 0, 2, 1]), torch.tensor([True, True, True, False, True])
    segments = Segments(ids, counted, "some")
    values = torch.randn(5, dtype=torch.float64, requires_grad=True)
    for function in (segments.sum, segments.mean, segments.log_sum_exp, segments.log_softmax, segments.following):
        assert torch.autograd.gradcheck(function, values)


def test_ids_out_of_range() -> None:
    with pytest.raises(
        InvalidInputError, match="pair ids range from -1 to 2 for 2 rows; number them from 0, without gaps"
    ):
        Segments(torch.tensor([-1, 2]), torch.ones(2, dtype=torch.bool), "pair")


def test_advantage_is_without_weight() -> None:
    streams = {
        "weight_kl": torch.tensor([0.5, 0.25, 0.0]),
        "advantage_positive": torch.tensor([1.0, 0.0, 3.0]),
        "advantage_negative": torch.tensor([0.0, -1.0, 0.0]),
    }
    tokens = loss.Tokens(torch.tensor([-1.0, -torch.inf, torch.nan]), None, streams)
    assert tokens.advantage.tolist() == [2.0, -4.0, 0.0]
    assert tokens.trained.tolist() == [True, True, False]
    assert tokens.logprob.tolist() == [-1.0, -1e4, 0.0]
    assert tokens.entropy.tolist() == [0.0, 0.0, 0.0]


def test_a_nan_of_the_model_stays_visible() -> None:
    streams = {
        "weight_kl": torch.ones(1),
        "advantage_positive": torch.ones(1),
        "advantage_negative": torch.zeros(1),
        "old_logprob": -torch.ones(1),
    }
    value, _ = loss.Policy().evaluate(loss.Tokens(torch.tensor([torch.nan]), None, streams))
    assert value.isnan()
