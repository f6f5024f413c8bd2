"""Ranks started by torchrun: the first one collects and writes the run, all of them train."""

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
"""Longest time that other ranks wait while the first one collects."""


@contextmanager
def joined_ranks(device: str) -> Iterator[str]:
    """Join torchrun's ranks inside a `with` block, and yield the device of this one; without torchrun, run alone."""
    if not distributed.is_torchelastic_launched() or distributed.is_initialized():
        yield device
        return
    if device == "cuda":
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    # gloo sends batches, which are not tensors, from CPU memory.
    backend = "cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo"
    distributed.init_process_group(backend, timeout=_LONGEST_ITERATION)
    try:
        yield device
        # If Python ends while a thread of gloo still holds tensors of the last message, the process aborts.
        distributed.barrier()
    finally:
        distributed.destroy_process_group()


def is_first_rank() -> bool:
    """Return whether this process is the first rank, which collects and writes the run."""
    return num_ranks() == 1 or distributed.get_rank() == 0


def from_first_rank(value: T | None) -> T | None:
    """Broadcast a value from the first rank, and return it on all ranks; other ranks pass None."""
    if num_ranks() == 1:
        return value
    payload = [value]
    distributed.broadcast_object_list(payload, src=0, device=torch.device("cpu"))
    return payload[0]
