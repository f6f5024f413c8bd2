"""Arrays and packs for other ranks: few bytes, and equal bit for bit on arrival."""

from __future__ import annotations

import pickle
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import agentrl_core as arl
from agentrl_core import recipes
from agentrl_core.model.buffers import PackBuffers
from agentrl_core.model.compressed_arrays import ShortArray
from agentrl_core.model.pack import Pack
from agentrl_core.update.packs import received

KINDS = [np.int64, np.int32, np.int16, np.float32, np.float64, np.uint8]


@given(
    st.sampled_from(KINDS),
    st.lists(st.tuples(st.integers(-(2**40), 2**40), st.integers(1, 30), st.sampled_from([0, 1])), max_size=12),
)
def test_arrays_arrive_as_they_were(kind: Any, runs: list[tuple[int, int, int]]) -> None:
    """Runs of equal and of consecutive values, which may wrap around."""
    parts = [first + step * np.arange(length) for first, length, step in runs]
    with np.errstate(all="ignore"):
        array = np.concatenate([np.zeros(0, np.int64), *parts]).astype(kind)
    restored = ShortArray.of(array).whole()
    assert restored.dtype == array.dtype
    assert restored.tobytes() == array.tobytes()


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_bits_of_numbers_stay(kind: Any) -> None:
    odd = np.array([np.nan, -0.0, 0.0, np.inf, -np.nan], kind)
    for array in (np.repeat(odd, 9), odd, odd[:0]):
        assert ShortArray.of(array).whole().tobytes() == array.tobytes()


def test_wide_rows_and_large_integers_stay() -> None:
    for array in (np.arange(12, dtype=np.int16).reshape(4, 3), np.array([2**31, -(2**31) - 1]), np.array(7)):
        restored = ShortArray.of(array).whole()
        assert restored.dtype == array.dtype
        assert np.array_equal(restored, array)


def test_runs_take_little() -> None:
    """Hand-computed: three runs of int64 are three values and three begins in four bytes each."""
    short = ShortArray.of(np.concatenate([np.arange(5, 105), np.arange(100), np.arange(9, 109)]))
    assert (short.values.tolist(), short.begins is not None and short.begins.tolist()) == ([5, 0, 9], [0, 100, 200])
    assert (short.values.itemsize, short.step, short.length) == (4, 1, 300)
    assert ShortArray.of(np.full(300, 0.25)).values.tolist() == [0.25]


def pairs(batch: arl.Batch, layout: Any) -> list[tuple[Pack, Pack]]:
    (update,) = recipes.GRPO.updates(recipes.GRPO.credit(batch))
    packs = list(update.pack(max_tokens=64, layout=layout))
    return [(pack, pickle.loads(pickle.dumps(pack, protocol=5))) for pack in packs]


@pytest.mark.parametrize("layout", ["tree", "sequence", "padded"])
def test_packs_arrive_as_they_were(make_batch: Any, layout: Any) -> None:
    packs_and_copies = pairs(make_batch(), layout)
    assert packs_and_copies
    for pack, other in packs_and_copies:
        assert pack.streams.keys() == other.streams.keys()
        assert all(torch.equal(pack.streams[name], other.streams[name]) for name in pack.streams)
        for each in fields(Pack):
            mine, theirs = getattr(pack, each.name), getattr(other, each.name)
            if isinstance(mine, torch.Tensor):
                assert mine.dtype == theirs.dtype
                assert torch.equal(mine, theirs)
            elif each.name not in ("streams", "_copies"):
                assert mine == theirs


def test_a_sent_pack_may_be_changed_alone(make_batch: Any) -> None:
    pack, other = pairs(make_batch(), "sequence")[0]
    before = pack.input_ids.clone()
    other.input_ids.fill_(0)
    assert torch.equal(pack.input_ids, before)


def test_a_received_pack_is_written_into_buffers(make_batch: Any) -> None:
    """The pack after the next one is written into the same memory."""
    buffers, packs_and_copies = PackBuffers(64), pairs(make_batch(), "sequence")
    assert len(packs_and_copies) > 2
    packs = [received(other, buffers, None) for _, other in packs_and_copies[:3]]
    for (pack, _), mine in zip(packs_and_copies[1:3], packs[1:], strict=True):
        assert torch.equal(mine.input_ids, pack.input_ids)
        assert torch.equal(mine.streams.weight_kl, pack.streams.weight_kl)
    assert packs[0].input_ids.data_ptr() == packs[2].input_ids.data_ptr() != packs[1].input_ids.data_ptr()
