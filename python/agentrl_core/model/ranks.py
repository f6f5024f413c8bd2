"""Models and updates in a process group of several ranks: what would not be synchronised is refused or warned of."""

from __future__ import annotations

import gc
import warnings
import weakref
from typing import Any

import torch
from torch import nn

from agentrl_core.exceptions import AgentRLWarning, UnsupportedError

_ADD_UP = (
    "give each rank the plain model and its own packs, update.pack(shards=ranks)[rank], and add up the gradients "
    "before the step: torch.distributed.all_reduce(parameter.grad) for each parameter, a sum that is not divided, "
    "since the denominators are those of the whole step"
)
_ALONE: weakref.WeakSet[nn.Module] = weakref.WeakSet()
"""Models that are known to be in no wrapper."""


def num_ranks() -> int:
    """Return the size of torch's default process group, or 1."""
    distributed: Any = torch.distributed
    return int(distributed.get_world_size()) if distributed.is_available() and distributed.is_initialized() else 1


def refuse_wrapped(model: nn.Module) -> None:
    """Refuse a model whose gradients its wrapper adds up in a forward that packs do not call.

    Raises:
        UnsupportedError: it is a `DistributedDataParallel` or in one, a `DataParallel`, or sharded.
    """
    if type(model).__name__ in ("DistributedDataParallel", "DataParallel", "DeepSpeedEngine"):
        raise UnsupportedError(
            f"model is a {type(model).__name__}, which adds up gradients in its own forward, and packs do not call it; "
            f"{_ADD_UP}"
        )
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    if type(model).__name__ == "FullyShardedDataParallel" or any(map(_is_sharded, model.parameters())):
        raise UnsupportedError(
            f"{type(model).__name__} is sharded over ranks (FSDP, fully_shard or tensor parallel), and packs run whole "
            f"parameters; {_ADD_UP}"
        )
    if num_ranks() > 1 and model not in _ALONE:
        if any(part is model for wrapper in _replicas() for part in wrapper.modules()):
            raise UnsupportedError(
                f"{type(model).__name__} is inside a DistributedDataParallel, which adds up no gradients of packs: "
                f"each rank would keep its own; {_ADD_UP}"
            )
        _ALONE.add(model)


def warn_of_ranks(shards: int | None) -> None:
    """Warn that nothing adds up the gradients of several ranks, which no wrapper does for packs either."""
    if num_ranks() > 1:
        packed = "one: each trains on all of its own draws" if shards is None else f"{shards}"
        warnings.warn(
            f"torch.distributed has {num_ranks()} ranks, and this update is packed for {packed}; nothing here adds up "
            f"their gradients, nor does DistributedDataParallel; {_ADD_UP} (filter this AgentRLWarning where you do)",
            AgentRLWarning,
            stacklevel=4,
        )


def _is_sharded(parameter: nn.Parameter) -> bool:
    return type(parameter).__name__ == "DTensor" or type(parameter.data).__name__ == "DTensor"


def _replicas() -> list[nn.Module]:
    """All `DistributedDataParallel` of this process: the module in one does not lead to it."""
    kind = nn.parallel.DistributedDataParallel
    return [each for each in gc.get_objects() if issubclass(type(each), kind)]
