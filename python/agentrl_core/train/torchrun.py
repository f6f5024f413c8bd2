"""Ranks that torchrun started: the first collects and keeps the run, all train."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import torch
from torch import distributed

from agentrl_core.model.ranks import num_ranks

T = TypeVar("T")

_LONGEST_ITERATION = timedelta(days=7)
"""Other ranks wait for so long while the first one collects."""


@contextmanager
def joined_ranks(device: str) -> Iterator[str]:
    """Join the ranks that torchrun started, and give the device of this one; alone without torchrun."""
    if not distributed.is_torchelastic_launched() or distributed.is_initialized():
        yield device
        return
    if device == "cuda":
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    # gloo sends batches, which are no tensors, from memory of the CPU.
    backend = "cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo"
    distributed.init_process_group(backend, timeout=_LONGEST_ITERATION)
    try:
        yield device
        # Where Python ends while a thread of gloo still holds the tensors of the last message, the process aborts.
        distributed.barrier()
    finally:
        distributed.destroy_process_group()


def is_first_rank() -> bool:
    """Whether this process collects and keeps the run."""
    return num_ranks() == 1 or distributed.get_rank() == 0


def from_first_rank(value: T | None) -> T | None:
    """Return the value that the first rank gives; the others give None."""
    if num_ranks() == 1:
        return value
    parcel = [value]
    distributed.broadcast_object_list(parcel, src=0, device=torch.device("cpu"))
    return parcel[0]
