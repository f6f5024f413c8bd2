"""Matrix products for the head: into existing memory, in blocks, by any implementation."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from agentrl_core.model import matmul as products


def test_by_hand() -> None:
    left, right, out = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0], [10.0]]), torch.empty(2, 1)
    products.multiply(left, right, out)
    assert out.tolist() == [[21.0], [43.0]]  # 1 + 2 * 10, 3 + 4 * 10
    products.multiply(left, right, out, add=True)
    assert out.tolist() == [[42.0], [86.0]]


@pytest.mark.parametrize("enabled", [True, False], ids=["oneDNN", "torch"])
@given(
    rows=st.integers(0, 40),
    inner=st.integers(0, 30),
    columns=st.integers(0, 40),
    turned=st.tuples(st.booleans(), st.booleans()),
    add=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    block=st.sampled_from([1, 200, 2**22]),
    seed=st.integers(0, 2**31),
)
def test_is_the_product(
    enabled: bool,
    rows: int,
    inner: int,
    columns: int,
    turned: tuple[bool, bool],
    add: bool,
    dtype: torch.dtype,
    block: int,
    seed: int,
) -> None:
    make = torch.Generator().manual_seed(seed)

    def matrix(height: int, width: int, *, transposed: bool = False) -> Tensor:
        shape = (width, height) if transposed else (height, width)
        values = torch.randn(*shape, generator=make, dtype=torch.float64).to(dtype)
        return values.t() if transposed else values

    left, right = matrix(rows, inner, transposed=turned[0]), matrix(inner, columns, transposed=turned[1])
    # A part of a wider matrix, like the logits of some rows.
    wide = matrix(rows, columns + 3)
    out, beside = wide[:, :columns], wide[:, columns:].clone()
    before = out.double() if add else torch.zeros(rows, columns, dtype=torch.float64)
    expected = before + left.double() @ right.double()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products, "_BLOCK", block)
        patch.setattr(products, "_by_onednn", lambda left, _: enabled and left.dtype == torch.float32)
        products.multiply(left, right, out, add=add)
    # Each of the `inner` additions and multiplications, and the last addition, rounds by half a unit in the last place.
    error = torch.finfo(dtype).eps * (inner + 2) * (before.abs() + left.double().abs() @ right.double().abs())
    assert ((out.double() - expected).abs() <= error).all()
    assert torch.equal(wide[:, columns:], beside)


@pytest.mark.parametrize("registers", ["AVX512", "AVX2", "DEFAULT"])
def test_who_makes_them(registers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: registers)
    chosen: list[str] = []
    by_blocks = products._multiply_by_blocks

    def noted(left: Tensor, right: Tensor, out: Tensor) -> None:
        chosen.append(f"{len(left)} x {right.shape[1]}")
        by_blocks(left, right, out)

    monkeypatch.setattr(products, "_multiply_by_blocks", noted)
    hidden, weight, derivative = torch.randn(3, 2), torch.randn(5, 2), torch.randn(3, 5)
    products.multiply(hidden, weight.t(), torch.empty(3, 5))
    products.multiply(derivative, weight, torch.empty(3, 2))
    products.multiply(derivative.t(), hidden, torch.empty(5, 2))
    products.multiply(derivative, weight, torch.zeros(3, 2), add=True)
    products.multiply(hidden.double(), weight.double().t(), torch.empty(3, 5, dtype=torch.float64))
    assert chosen == (["3 x 5", "3 x 2"] if registers == "AVX512" else ["3 x 5"])


def test_a_row_has_the_same_bits_in_every_place() -> None:
    row, weight = torch.randn(1, 300), torch.randn(700, 300)
    product = torch.empty(64, 700)
    products.multiply(row.expand(64, 300).contiguous(), weight.t(), product)
    assert torch.equal(product, product[:1].expand(64, 700))
    others = torch.randn(64, 300)
    others[17] = row
    beside = torch.empty(64, 700)
    products.multiply(others, weight.t(), beside)
    assert torch.equal(beside[17], product[0])
