"""Contenders of bench/gpu.py: each computes head outputs or the loss of a problem with its own code."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from head_loss import POLICY, Problem, plain_head
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from agentrl_core import loss
from agentrl_core.model import cuda_kernels

CHUNK = 512  # rows per chunk of verl's fallback, which rounds logits to the model's dtype
LIKELIHOOD = loss.Imitation("token_mean")  # a plain cross-entropy
WITHOUT_ENTROPY = loss.Policy(clip=loss.Clip(0.2, 0.28), kl=loss.KL(0.01))  # Liger's loss
Skip = Callable[[str, str], None]


@dataclass
class Outcome:
    """The outputs of a contender; None for each one that it does not compute."""

    logprob: Tensor | None = None
    entropy: Tensor | None = None
    by_hidden: Tensor | None = None
    by_weight: Tensor | None = None

    def errors(self, truth: Outcome) -> dict[str, float]:
        """Return absolute errors of log-probs and entropies, and relative errors of gradients.

        Raises:
            SystemExit: the errors are too large.
        """
        errors = {}
        for name in ("logprob", "entropy"):
            mine, right = getattr(self, name), getattr(truth, name)
            if mine is not None:
                away = (mine.double() - right).abs()
                errors |= {f"{name}_mean": float(away.mean()), f"{name}_max": float(away.max())}
        for name in ("by_hidden", "by_weight"):
            mine, right = getattr(self, name), getattr(truth, name)
            if mine is not None:
                errors[name] = float((mine.double() - right).norm() / right.norm())
        if not errors or not max(errors.values()) < 0.2:
            raise SystemExit(f"a contender computed something else: {errors}")
        return errors


@dataclass
class Contender:
    """A name, a function to time, and the loss that it can compute."""

    name: str
    run: Callable[[], Outcome]
    policy: loss.Loss = POLICY


@contextmanager
def in_pytorch() -> Iterator[None]:
    """Return our operation without its kernels."""
    before = os.environ.get(cuda_kernels.SWITCH)
    os.environ[cuda_kernels.SWITCH] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[cuda_kernels.SWITCH]
        else:
            os.environ[cuda_kernels.SWITCH] = before


def head_contenders(problem: Problem, skip: Skip, *, compiled: bool) -> Iterator[Contender]:
    """Return a function for log-probs and entropies, without gradients."""
    arguments = (problem.pack.target, problem.pack.streams.inverse_temperature)

    def ours() -> Outcome:
        with torch.no_grad():
            return Outcome(*loss.linear_logprob(problem.hidden, problem.weight, *arguments))

    def ours_in_pytorch() -> Outcome:
        with in_pytorch():
            return ours()

    def by(head: Callable[..., tuple[Tensor, Tensor]], rows: int | None = None) -> Callable[[], Outcome]:
        def run() -> Outcome:
            with torch.no_grad():
                parts = [head(hidden, problem.weight, *more) for hidden, *more in split(problem, rows)]
            return Outcome(*(torch.cat(part) for part in zip(*parts, strict=True)))

        return run

    yield Contender("ours", ours)
    if problem.hidden.is_cuda:
        yield Contender("ours in PyTorch", ours_in_pytorch)
    yield Contender("torch", by(plain_head))
    yield Contender("torch, chunks of 512", by(plain_head, CHUNK))
    if compiled:
        yield Contender("torch.compile", by(torch.compile(plain_head)))
    entropy_of = cross_entropy(problem, skip)
    if entropy_of is not None:

        def likelihood() -> Outcome:
            with torch.no_grad():
                return Outcome(logprob=-entropy_of("none"))

        yield Contender("cut_cross_entropy (log p only)", likelihood)


def loss_contenders(problem: Problem, skip: Skip, *, compiled: bool) -> Iterator[Contender]:
    """Return a function for the loss and its gradients."""

    def by(head: Callable[..., tuple[Tensor, Tensor]], rows: int | None = None) -> Callable[[], Outcome]:
        def run() -> Outcome:
            problem.clear()
            parts = [
                checkpoint(head, hidden, problem.weight, *more, use_reentrant=False)
                if rows
                else head(hidden, problem.weight, *more)
                for hidden, *more in split(problem, rows)
            ]
            problem.evaluated(*(torch.cat(part) for part in zip(*parts, strict=True))).backward()
            return gradients_of(problem)

        return run

    def ours() -> Outcome:
        problem.fused()
        return gradients_of(problem)

    def ours_in_pytorch() -> Outcome:
        with in_pytorch():
            return ours()

    def ours_without_entropy() -> Outcome:
        replace(problem, policy=WITHOUT_ENTROPY).fused()
        return gradients_of(problem)

    yield Contender("ours", ours)
    yield Contender("ours, without entropy", ours_without_entropy, WITHOUT_ENTROPY)
    if problem.hidden.is_cuda:
        yield Contender("ours in PyTorch", ours_in_pytorch)
    yield Contender("torch", by(plain_head))
    yield Contender("torch, chunks of 512", by(plain_head, CHUNK))
    if compiled:
        yield Contender("torch.compile", by(torch.compile(plain_head)))
    entropy_of = cross_entropy(problem, skip)
    if entropy_of is not None:

        def likelihood() -> Outcome:
            problem.clear()
            entropy_of("mean").backward()
            return gradients_of(problem)

        yield Contender("cut_cross_entropy (no policy loss)", likelihood, LIKELIHOOD)
    liger = liger_loss(problem, skip)
    if liger is not None:

        def group_relative() -> Outcome:
            problem.clear()
            liger().backward()
            return gradients_of(problem)

        yield Contender("Liger GRPO (no entropy)", group_relative, WITHOUT_ENTROPY)


def gradients_of(problem: Problem) -> Outcome:
    """Return the gradients of the last backward pass."""
    by_hidden, by_weight = problem.gradients()
    return Outcome(by_hidden=by_hidden, by_weight=by_weight)


def split(problem: Problem, rows: int | None) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield hidden states, targets and inverse temperatures in chunks of rows."""
    scale = problem.pack.streams.inverse_temperature
    step = rows or len(problem.hidden)
    for begin in range(0, len(problem.hidden), step):
        part = slice(begin, begin + step)
        yield problem.hidden[part], problem.pack.target[part], scale[part]


def cross_entropy(problem: Problem, skip: Skip) -> Callable[[str], Tensor] | None:
    """Return Apple's cut_cross_entropy without the filter that drops small gradients."""
    try:
        package = importlib.import_module("cut_cross_entropy")
    except ImportError:
        skip("cut_cross_entropy", "not installed: pip install cut-cross-entropy==25.1.1")
        return None
    kind = "cce" if problem.hidden.is_cuda else "torch_compile"

    def run(reduction: str) -> Tensor:
        return package.linear_cross_entropy(
            problem.hidden, problem.weight, problem.pack.target, reduction=reduction, filter_eps=None, impl=kind
        )

    return run


def liger_loss(problem: Problem, skip: Skip) -> Callable[[], Tensor] | None:
    """Return Liger's fused linear GRPO loss over eight sequences, a mean over tokens."""
    try:
        chunked = importlib.import_module("liger_kernel.chunked_loss")
    except ImportError:
        skip("Liger", "not installed: pip install liger-kernel==0.8.5")
        return None
    layer = chunked.LigerFusedLinearGRPOLoss(
        beta=0.01,
        epsilon_low=0.2,
        epsilon_high=0.28,
        loss_type="bnpo",
        use_ref_model=True,
        compiled=problem.hidden.is_cuda,
    )
    streams, rows = problem.pack.streams, len(problem.pack.target)
    shape = (8, rows // 8)
    advantage = (rows * (streams.advantage_positive + streams.advantage_negative)).view(shape)[:, 0]

    def run() -> Tensor:
        return layer(
            problem.hidden.view(*shape, -1),
            problem.weight,
            problem.pack.target.view(shape),
            torch.ones(shape, device=problem.hidden.device),
            advantage,
            ref_per_token_logps=streams.reference_logprob.view(shape),
            old_per_token_logps=streams.old_logprob.view(shape),
        )[0]

    return run
