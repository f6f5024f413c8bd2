"""Credit and weights of a batch against verl on the same padded rollouts; functions on every kind of column."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import torch
from forests import grow
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_core import Batch, advantage, recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.advantage.relative_to_group import leave_one_out

core_algos = pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is installed by `make test`")

groups = st.lists(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=9), min_size=1, max_size=12)


def padded(batch: Batch, name: str) -> torch.Tensor:
    """Return a token column as a matrix: a row for each draw, padded with zeros."""
    bounds = batch.offsets("token")[batch.offsets("step")]
    rows = [torch.from_numpy(batch.column(name, "token")[a:b].astype(np.float64)) for a, b in pairwise(bounds)]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def verl(estimator: str, rewards: np.ndarray, ids: np.ndarray, **options: object) -> np.ndarray:
    scores = torch.from_numpy(rewards.astype(np.float64))[:, None]
    function = core_algos.get_adv_estimator_fn(estimator)
    return function(scores, torch.ones_like(scores), index=ids, **options)[0][:, 0].numpy()


@settings(max_examples=40, deadline=None)
@given(groups, st.integers(0, 2**32 - 1), st.sampled_from(["numpy", "torch", "polars", "arrow"]), st.booleans())
def test_functions_equal_verl_on_every_kind_of_column(
    rows: list[list[float]], seed: int, kind: str, named: bool
) -> None:
    rng = np.random.default_rng(seed)
    ids = np.repeat(rng.permutation(1000)[: len(rows)], [len(row) for row in rows])
    order = rng.permutation(len(ids))
    ids, rewards = ids[order], np.concatenate(rows)[order]
    names = [f"task {number}" for number in ids] if named else ids
    column = {"numpy": np.asarray, "torch": torch.tensor, "polars": pl.Series, "arrow": pa.array}[kind]
    uids = names if kind == "torch" and named else column(names)
    for scale in ("std", "none"):
        result = advantage.group_relative(column(rewards), uids, scale=scale, singleton="raw")
        expected = verl("grpo", rewards, ids, norm_adv_by_std_in_grpo=scale == "std")
        np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-6)
    result = leave_one_out(column(rewards), uids, singleton="raw")
    np.testing.assert_allclose(result, verl("rloo", rewards, ids), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("component", "estimator", "options"),
    [
        (GroupRelative(singleton="raw"), "grpo", {}),
        (GroupRelative(scale="none", singleton="raw"), "grpo", {"norm_adv_by_std_in_grpo": False}),
        (GroupRelative(center="leave_one_out", scale="none", singleton="raw"), "rloo", {}),
    ],
)
def test_credit_of_a_batch_equals_verl(component: object, estimator: str, options: dict, seed: int) -> None:
    batch = recipes.GRPO.reward(grow(seed, masked=0.0)[0])
    known = np.flatnonzero(np.isfinite(batch.column("score", "draw")))
    batch = batch.select_draws(known)
    credited = recipes.GRPO.replace(advantage=component).credit(batch)
    mask = padded(batch, "trainable")
    rewards = torch.zeros_like(mask)
    rewards[:, 0] = torch.from_numpy(batch.column("score", "draw"))
    function = core_algos.get_adv_estimator_fn(estimator)
    uids = pl.DataFrame(batch.draws)["group_id"].cast(str).to_numpy().astype(object)
    expected, _ = function(rewards, mask, index=uids, **options)
    actual = padded(credited, "advantage") * mask
    np.testing.assert_allclose(actual.numpy(), expected.numpy(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("denominator", "mode"),
    [("token_mean", "token-mean"), ("sequence_mean", "seq-mean-token-mean"), ("constant", "seq-mean-token-sum-norm")],
)
def test_weights_of_a_batch_equal_verls_aggregation(denominator: str, mode: str, seed: int) -> None:
    batch = grow(seed)[0]
    bounds = batch.offsets("token")[batch.offsets("step")]
    trainable = batch.column("trainable", "token")
    trains = [bool(trainable[a:b].any()) for a, b in pairwise(bounds)]
    batch = batch.select_draws(np.flatnonzero(trains))
    loss = np.random.default_rng(seed).normal(size=batch.offsets("token")[-1])
    options = {"constant": 13.0} if denominator == "constant" else {}
    weights = batch.token_weights(np.arange(batch.num_draws), denominator=denominator, **options)
    matrix = padded(batch.with_columns("token", loss=loss), "loss")
    scale = {"loss_scale_factor": 13.0} if denominator == "constant" else {}
    expected = core_algos.agg_loss(matrix, padded(batch, "trainable"), mode, **scale)
    # verl adds 1e-8 to the length of a sequence.
    assert (weights * loss).sum() == pytest.approx(float(expected), rel=1e-7)
