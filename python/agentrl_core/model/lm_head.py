"""The language-model head, computed chunk by chunk: statistics of logits and gradients, without storing all logits.

Logits are fp32 (fp64 for fp64 inputs), for any dtype of inputs. The GEMMs are torch's and oneDNN's. Operations on
rows of logits run in the kernels of cuda/linear_logprob.cu on CUDA, in PyTorch elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from agentrl_core.model import cuda_kernels
from agentrl_core.model.matmul import multiply

# Logits are computed by GEMMs of this many rows, the last one padded, so the log-prob of a row is bit-identical for any
# other rows of the batch. Large enough to keep the device busy: a CPU without AVX-512 is faster with 128 than with 64.
_CPU_TILE = 64 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 128
_TILE = {"cpu": _CPU_TILE, "cuda": 512}
# Bytes of logits per chunk. Every chunk reads and writes the sum of the weight's gradients once, so few large chunks
# are better. On a CPU this costs little compared with the GEMMs: there a chunk is one tile at 65 536 tokens.
WORKSPACE = {"cpu": 4 * 65_536 * _CPU_TILE, "cuda": 2**30}
# Bytes of rows that a CPU processes together, so that they stay in its cache between operations.
_BLOCK = 2**20
_THREADS = 1024
_GRADIENT_KERNELS = {torch.float32: "row_gradient_float", torch.bfloat16: "row_gradient_bfloat16"}


def folded(scale: Tensor, factor: float, softcap: float | None) -> tuple[Tensor, float | None]:
    """Return the scale and soft cap that include a constant factor of the logits.

    softcap tanh(factor z / softcap) = factor c tanh(z / c) with c = softcap / factor.
    """
    if factor != 1.0:
        return scale * factor, None if softcap is None else softcap / factor
    return scale, softcap


class LogitOps:
    """Statistics and gradients of a chunk of logits in PyTorch: on a CPU block by block, on a GPU all rows at once.

    Args:
        softcap: logits z become softcap tanh(z / softcap); None: unchanged.
        device: type of the device of the logits.

    Attributes:
        buffers: largest number of buffers of the size of a chunk that exist at once.
    """

    def __init__(self, softcap: float | None = None, device: str = "cpu") -> None:
        self.softcap = softcap
        self.buffers = 1 if device == "cpu" else 2 if softcap is None else 3
        self._exponential: Tensor | None = None

    def statistics(self, logits: Tensor, target: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-prob of the target, entropy and log-sum-exp of each row; logits become log-probs in place."""
        logprob, entropy, lse = (scale.new_empty(len(logits)) for _ in range(3))
        for rows in self._blocks(logits):
            x = self._scaled(logits[rows], scale[rows])
            largest = x.amax(dim=1)
            x.sub_(largest[:, None])
            exponential = self._exp(x)
            total = exponential.sum(dim=1)
            log_total = total.log()
            entropy[rows] = log_total - exponential.mul_(x).sum(dim=1) / total
            x.sub_(log_total[:, None])
            logprob[rows] = x.gather(1, target[rows, None]).squeeze(1)
            lse[rows] = largest + log_total
        return logprob, entropy, lse

    def again(self, logits: Tensor, scale: Tensor, lse: Tensor) -> None:
        """Turn recomputed logits into what `statistics` left of them: log-probs, in place."""
        for rows in self._blocks(logits):
            self._scaled(logits[rows], scale[rows]).sub_(lse[rows, None])

    def _scaled(self, logits: Tensor, scale: Tensor) -> Tensor:
        if self.softcap is not None:
            logits.div_(self.softcap).tanh_().mul_(self.softcap)
        return logits.mul_(scale[:, None])

    def gradient(
        self,
        logits: Tensor,
        target: Tensor,
        scale: Tensor,
        lse: Tensor,
        entropy: Tensor,
        by_logprob: Tensor,
        by_entropy: Tensor | None,
        dtype: torch.dtype,
    ) -> Tensor:
        """Return the gradient by the logits, in the memory of the log-probs that `statistics` or `again` left."""
        for rows in self._blocks(logits):
            log_p, place, g = logits[rows], target[rows, None], (by_logprob[rows] * scale[rows])[:, None]
            slope = None
            if self.softcap is not None:
                slope = log_p.add(lse[rows, None]).div_(self.softcap * scale[rows, None])
                slope.square_().neg_().add_(1.0)
            p = self._exp(log_p)
            if by_entropy is None:
                torch.mul(p, -g, out=log_p)
            else:
                h = (by_entropy[rows] * scale[rows])[:, None]
                log_p.add_(entropy[rows, None]).mul_(-h).sub_(g).mul_(p)
            log_p.scatter_add_(1, place, g)
            if slope is not None:
                log_p.mul_(slope)
        return logits.to(dtype)

    def _blocks(self, logits: Tensor) -> Iterator[slice]:
        """Split the rows into blocks: of `_BLOCK` bytes on a CPU, all rows on a GPU."""
        count = len(logits)
        if not logits.is_cuda:
            count = max(1, _BLOCK // (logits.shape[1] * logits.itemsize))
        return (slice(begin, begin + count) for begin in range(0, len(logits), max(count, 1)))

    def _exp(self, x: Tensor) -> Tensor:
        """Return the exponentials of a block in reused memory, since allocation takes longer than the computation."""
        if self._exponential is None or len(self._exponential) < len(x):
            self._exponential = torch.empty_like(x)
        return torch.exp(x, out=self._exponential[: len(x)])


class KernelLogitOps(LogitOps):
    """Statistics and gradients of a chunk of logits by CUDA kernels, in one buffer; `statistics` keeps the logits."""

    def __init__(self, kernels: cuda_kernels.Kernels, softcap: float | None = None) -> None:
        super().__init__(softcap)
        self._kernels = kernels

    def statistics(self, logits: Tensor, target: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-prob of the target, entropy and log-sum-exp of each row; the logits stay unchanged."""
        logprob, entropy, lse = (torch.empty_like(scale) for _ in range(3))
        self._launch("row_statistics", logits, target, scale, logprob, entropy, lse)
        return logprob, entropy, lse

    def again(self, logits: Tensor, scale: Tensor, lse: Tensor) -> None:
        """Do nothing, because `statistics` leaves the logits unchanged."""

    def gradient(
        self,
        logits: Tensor,
        target: Tensor,
        scale: Tensor,
        lse: Tensor,
        entropy: Tensor,
        by_logprob: Tensor,
        by_entropy: Tensor | None,
        dtype: torch.dtype,
    ) -> Tensor:
        """Return the gradient by the logits, in their memory; bfloat16 values fill the first half of each row."""
        self._launch(_GRADIENT_KERNELS[dtype], logits, target, scale, lse, entropy, by_logprob, by_entropy)
        return logits.view(dtype)[:, : logits.shape[1]]

    def _launch(self, kernel: str, logits: Tensor, *vectors: Tensor | None) -> None:
        if len(logits):
            vectors = tuple(None if vector is None else vector.contiguous() for vector in vectors)
            arguments: list[Tensor | float | None] = [logits, *vectors, logits.shape[1], logits.stride(0)]
            if self.softcap is not None:
                kernel = f"{kernel}_capped"
                arguments.append(self.softcap)
            self._kernels.launch(kernel, len(logits), _THREADS, *arguments)


class LMHead:
    """A language-model head: computes logits of prediction pairs chunk by chunk, in one reused buffer.

    Args:
        hidden: `[T, H]`.
        weight: `[V, H]`, of the same dtype on the same device.
        bias: `[V]`, or None.
        softcap: soft cap of logits, as in `LogitOps`.
        workspace: largest size of the logits in bytes, at least one tile.

    Attributes:
        rows: the operations on rows of logits.
        dtype: dtype of logits and sums.
        narrow: dtype of the operands of GEMMs; see `dtypes`.
    """

    def __init__(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None, softcap: float | None, workspace: int
    ) -> None:
        self.dtype, self.narrow = self.dtypes(hidden)
        self.hidden, self.weight = hidden, weight.to(self.narrow)
        self.bias = None if bias is None else bias.to(self.dtype)
        kernels = cuda_kernels.kernels("linear_logprob", hidden.device) if self.dtype == torch.float32 else None
        self.rows = LogitOps(softcap, hidden.device.type) if kernels is None else KernelLogitOps(kernels, softcap)
        self._tile = _TILE.get(hidden.device.type, _TILE["cpu"])
        row_bytes = weight.shape[0] * self.dtype.itemsize * self.rows.buffers
        self._most = max(1, workspace // row_bytes // self._tile) * self._tile
        self._buffer = _empty(hidden, (0, weight.shape[0]), self.dtype)

    @staticmethod
    def dtypes(hidden: Tensor) -> tuple[torch.dtype, torch.dtype]:
        """Return two dtypes: that of logits and sums, and that of the operands of GEMMs and of stored gradients.

        bfloat16 has the range of fp32. In fp16 gradients of a loss whose denominators are in its weights vanish, and
        loss scaling comes too late for gradients formed in the forward pass, so fp16 is computed in fp32.
        """
        wide = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        return wide, torch.bfloat16 if hidden.is_cuda and hidden.dtype == torch.bfloat16 else wide

    def chunks(self, count: int) -> Iterator[slice]:
        """Split `count` prediction pairs into chunks of a fixed size; at least one chunk."""
        for begin in range(0, max(count, 1), self._most):
            yield slice(begin, min(begin + self._most, count))

    def states(self, source_row: Tensor) -> Tensor:
        """Return the hidden states of some prediction pairs, `[R, H]`."""
        return self.hidden.index_select(0, source_row).to(self.narrow)

    def logits(self, states: Tensor) -> Tensor:
        """Return the logits of a chunk, `[R, V]`, fp32 or fp64; they overwrite those of the previous chunk."""
        count, tile = len(states), self._tile
        padded = -(-count // tile) * tile
        if len(self._buffer) < padded:  # the first chunk is the largest
            self._buffer = _empty(self._buffer, (padded, len(self.weight)), self.dtype)
        for begin in range(0, padded, tile):
            part = states[begin : begin + tile]
            if len(part) < tile:
                part = pad(part, (0, 0, 0, tile - len(part)))
            block = self._buffer[begin : begin + tile]
            multiply(part, self.weight.t(), block)
            if self.bias is not None:
                block.add_(self.bias)
        return self._buffer[:count]


class Gradients:
    """Accumulate over chunks the gradients with respect to hidden states, weight and bias of a head.

    Args:
        head: the head.
        needed: which of the three gradients to compute; the others are empty.
    """

    def __init__(self, head: LMHead, needed: Sequence[bool]) -> None:
        self._head = head
        self._need_hidden, self._need_weight, self._need_bias = needed
        hidden, weight = head.hidden, head.weight
        self._hidden = hidden.new_zeros(hidden.shape if self._need_hidden else (0,), dtype=head.narrow)
        self._weight = _empty(weight, tuple(weight.shape) if self._need_weight else (0,), head.dtype)
        self._bias = weight.new_zeros(len(weight) if self._need_bias else 0, dtype=head.dtype)
        self._first = True

    def add(self, derivative: Tensor, states: Tensor, source_row: Tensor) -> None:
        """Add the gradients of a chunk, given the gradient by its logits, `[R, V]`."""
        if self._need_hidden:
            rows = derivative.new_empty(states.shape)
            multiply(derivative, self._head.weight, rows)
            if rows.is_cuda:  # deterministic, since it sorts; index_add_ would add in any order
                self._hidden.index_put_((source_row,), rows, accumulate=True)
            else:
                self._hidden.index_add_(0, source_row, rows)
        if self._need_weight:
            multiply(derivative.t(), states, self._weight, add=not self._first)
        if self._need_bias:
            self._bias += derivative.sum(dim=0, dtype=self._bias.dtype)
        self._first = False

    def result(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients by hidden states, weight and bias, in the dtypes of stored gradients."""
        if self._need_weight and self._first:
            self._weight.zero_()
        return self._hidden, self._weight.to(self._head.narrow), self._bias


def _empty(like: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return an uninitialised tensor on the device of another one; on a CPU in NumPy's memory, which has large pages.

    With small pages, the first access to a large tensor takes a quarter of the time of the GEMM that fills it.
    """
    if like.device.type == "cpu":
        return torch.from_numpy(np.empty(shape, np.float64 if dtype == torch.float64 else np.float32))
    return like.new_empty(shape, dtype=dtype)
