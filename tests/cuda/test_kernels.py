"""The CUDA kernels without a GPU: NVRTC compiles them for each architecture, g++ the same text for the host."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest
import torch
from host_kernels import HostKernels
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from agentrl_core.model import cuda_kernels

SOURCES = sorted(path.name.removesuffix(".cu") for path in files("agentrl_core").joinpath("cuda").iterdir())
HERE = Path(__file__).parent


def test_the_package_has_the_kernels_of_the_project() -> None:
    folder = HERE.parents[1] / "cuda"
    assert SOURCES
    assert [path.stem for path in sorted(folder.glob("*.cu"))] == SOURCES
    assert all((folder / f"{name}.cu").read_text(encoding="utf-8") == cuda_kernels.source(name) for name in SOURCES)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("name", SOURCES)
def test_nvrtc_compiles_it(name: str, architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cuda.core", reason="cuda-core is not installed", exc_type=ImportError)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code = cuda_kernels.cubin(name, architecture)
    assert code.startswith(b"\x7fELF")
    for kernel in ("row_statistics", "row_gradient_float", "row_gradient_bfloat16"):
        assert kernel.encode() in code
        assert f"{kernel}_capped".encode() in code


class Case:
    """Rows of logits, optionally with a gap after each or a soft cap, and their fp64 reference."""

    def __init__(
        self,
        rows: int,
        columns: int,
        gap: int = 0,
        std: float = 4.0,
        seed: int = 0,
        softcap: float | None = None,
    ) -> None:
        make = torch.Generator().manual_seed(seed)
        self.softcap = softcap
        self.stride = columns + gap
        self.memory = torch.full((rows, self.stride), 7e7)
        self.logits = self.memory[:, :columns]
        self.logits.copy_(std * torch.randn(rows, columns, generator=make))
        self.target = torch.randint(0, columns, (rows,), generator=make)
        self.scale = torch.rand(rows, generator=make) + 0.5
        self.by_logprob, self.by_entropy = torch.randn(2, rows, generator=make)

    def exact(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return log-prob, entropy, lse, and the derivative by the logits, by autograd in fp64."""
        logits = self.logits.double().requires_grad_()
        capped = logits if self.softcap is None else self.softcap * (logits / self.softcap).tanh()
        x = capped * self.scale.double()[:, None]
        log_p = x.log_softmax(1)
        chosen = log_p.gather(1, self.target[:, None]).squeeze(1)
        entropy = -(log_p.exp() * log_p.clamp(min=-1e9)).sum(1)
        (self.by_logprob * chosen + self.by_entropy * entropy).sum().backward()
        return chosen.detach(), entropy.detach(), x.logsumexp(1).detach(), logits.grad

    def statistics(self, host: HostKernels, threads: int) -> Tensor:
        """Return log-prob, entropy and lse from the kernel."""
        statistics = torch.full((3, len(self.logits)), torch.nan)
        self._launch(host, "row_statistics", threads, self.target, self.scale, *statistics)
        return statistics

    def _launch(self, host: HostKernels, kernel: str, threads: int, *vectors: Tensor | None) -> None:
        arguments = (self.memory, *vectors, self.logits.shape[1], self.stride)
        if self.softcap is not None:
            kernel, arguments = f"{kernel}_capped", (*arguments, self.softcap)
        host.launch(kernel, len(self.logits), threads, *arguments)

    def gradient(self, host: HostKernels, threads: int, *, narrow: bool, entropy: bool = True) -> Tensor:
        """Return the derivative by the logits, from the kernel in place, from exact statistics."""
        _, exact_entropy, lse, _ = (one.float() for one in self.exact())
        before = self.memory.clone()
        arguments = (self.target, self.scale, lse, exact_entropy, self.by_logprob, self.by_entropy if entropy else None)
        kernel = "row_gradient_bfloat16" if narrow else "row_gradient_float"
        self._launch(host, kernel, threads, *arguments)
        columns = self.logits.shape[1]
        assert torch.equal(self.memory[:, columns:], before[:, columns:]), "it wrote behind a row"
        gradient = self.memory.view(torch.bfloat16 if narrow else torch.float32)[:, :columns].clone()
        self.memory.copy_(before)
        return gradient


SOFTCAPS = pytest.mark.parametrize("softcap", [None, 5.0])
SHAPES = [(3, 5000, 0), (2, 32_768, 0), (4, 37, 0), (3, 37, 3), (5, 1, 0), (2, 4099, 1)]


@pytest.mark.parametrize("threads", [1, 7, 32])
@pytest.mark.parametrize(("rows", "columns", "gap"), SHAPES)
@SOFTCAPS
def test_statistics_are_exact(
    host: HostKernels, rows: int, columns: int, gap: int, threads: int, softcap: float | None
) -> None:
    case = Case(rows, columns, gap, softcap=softcap)
    actual, exact = case.statistics(host, threads), torch.stack(case.exact()[:3])
    assert (actual - exact).abs().max() <= 1e-5


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("threads", [1, 7, 32])
@pytest.mark.parametrize(("rows", "columns", "gap"), SHAPES)
@SOFTCAPS
def test_gradients_are_those_of_autograd(
    host: HostKernels, rows: int, columns: int, gap: int, threads: int, narrow: bool, softcap: float | None
) -> None:
    case = Case(rows, columns, gap, softcap=softcap)
    actual, exact = case.gradient(host, threads, narrow=narrow).double(), case.exact()[3]
    if narrow:  # half a unit in the last of 8 places, plus the error of fp32
        assert ((actual - exact).abs() <= 2.0**-8 * exact.abs() + 1e-6).all()
        assert (actual - exact).norm() <= 4e-3 * exact.norm() + 1e-6
    else:
        torch.testing.assert_close(actual, exact, rtol=1e-4, atol=2e-6)


def test_bfloat16_rounds_as_torch_does(host: HostKernels) -> None:
    case = Case(4, 3001)
    wide, narrow = (case.gradient(host, 8, narrow=narrow) for narrow in (False, True))
    assert torch.equal(narrow, wide.bfloat16())


def test_without_entropy_it_reads_none(host: HostKernels) -> None:
    case = Case(3, 500)
    without = case.gradient(host, 4, narrow=False, entropy=False)
    case.by_entropy = torch.zeros(3)
    assert torch.equal(without, case.gradient(host, 4, narrow=False))


@settings(deadline=None, max_examples=40)
@given(
    rows=st.integers(1, 3),
    columns=st.integers(1, 90),
    gap=st.integers(0, 5),
    threads=st.integers(1, 9),
    std=st.sampled_from([0.0, 1e-3, 4.0, 300.0]),
    seed=st.integers(0, 2**20),
    softcap=st.sampled_from([None, 0.1, 30.0]),
)
def test_any_shape_and_number_of_threads(
    host: HostKernels,
    rows: int,
    columns: int,
    gap: int,
    threads: int,
    std: float,
    seed: int,
    softcap: float | None,
) -> None:
    case = Case(rows, columns, gap, std, seed, softcap)
    *exact, derivative = case.exact()
    statistics = case.statistics(host, threads)
    slack = 1e-5 + 4e-7 * std  # logits of hundreds have no more digits in fp32
    assert (statistics[:2] - torch.stack(exact[:2])).abs().max() <= 20 * slack
    near = 20 * slack * case.by_entropy.abs().max().clamp(min=1) * (1 + derivative.abs().max())
    assert (case.gradient(host, threads, narrow=False) - derivative).abs().max() <= near


@SOFTCAPS
def test_a_row_has_the_same_bits_beside_any_other(host: HostKernels, softcap: float | None) -> None:
    case, alone = Case(6, 999, softcap=softcap), Case(6, 999, softcap=softcap)
    statistics = case.statistics(host, 16)
    assert torch.equal(statistics, case.statistics(host, 16))
    alone.memory.copy_(case.memory.flip(0))
    alone.target, alone.scale = case.target.flip(0), case.scale.flip(0)
    assert torch.equal(alone.statistics(host, 16).flip(1), statistics)


@pytest.mark.parametrize("threads", [1, 5])
def test_logits_of_minus_infinity_have_probability_zero(host: HostKernels, threads: int) -> None:
    case = Case(2, 41)
    case.logits[:, 5:20] = -torch.inf
    case.target.fill_(30)
    statistics = case.statistics(host, threads)
    few = torch.cat([case.logits[:, :5], case.logits[:, 20:]], 1).double() * case.scale.double()[:, None]
    log_p = few.log_softmax(1)
    assert (statistics[0] - log_p[:, 15]).abs().max() <= 1e-5
    assert (statistics[1] + (log_p.exp() * log_p).sum(1)).abs().max() <= 1e-5
    gradient = case.gradient(host, threads, narrow=False)
    assert (gradient[:, 5:20] == 0).all()
    assert gradient.isfinite().all()


@SOFTCAPS
def test_not_a_number_stays_seen(host: HostKernels, softcap: float | None) -> None:
    case = Case(2, 64, softcap=softcap)
    case.logits[0, 9] = torch.nan
    statistics = case.statistics(host, 4)
    assert statistics[:, 0].isnan().all()
    assert statistics[:, 1].isfinite().all()
