"""Models and updates in a process group of several ranks: refuse or warn of what would not be synchronised."""

from __future__ import annotations

import gc
import warnings
import weakref
from typing import Any

import torch
from torch import Tensor, nn

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


def refuse_unwrapped(model: nn.Module) -> None:
    """Refuse to train a model that was taken out of the wrapper that synchronises its gradients.

    Raises:
        UnsupportedError: it is inside a `DistributedDataParallel` or `FullyShardedDataParallel`.
    """
    if not torch.is_grad_enabled() or num_ranks() == 1 or model in _ALONE:
        return
    for wrapper in _wrappers():
        if any(part is model for part in wrapper.modules()):
            raise UnsupportedError(
                f"model: this {type(model).__name__} is inside a {type(wrapper).__name__}, which synchronises "
                f"gradients in its own forward; give pack.run the {type(wrapper).__name__}"
            )
    _ALONE.add(model)


def warn_of_ranks(shards: int | None) -> None:
    """Warn that nothing adds up the gradients of several ranks, which no wrapper does for packs either."""
    if num_ranks() > 1:
        packed = "one: each trains on all of its own draws" if shards is None else f"{shards}"
        warnings.warn(
            f"torch.distributed has {num_ranks()} ranks, and this update is packed for {packed}; nothing here adds up "
            f"their gradients unless the model is wrapped; {_ADD_UP} (filter this AgentRLWarning where you do)",
            AgentRLWarning,
            stacklevel=4,
        )


def is_sharded(model: nn.Module) -> bool:
    """Whether FSDP or tensor parallelism keeps only a part of the parameters on each rank."""
    return num_ranks() > 1 and any(
        type(part).__name__ == "FullyShardedDataParallel" or any(map(is_distributed, part.parameters(recurse=False)))
        for part in model.modules()
    )


def is_distributed(parameter: Tensor) -> bool:
    """Whether a tensor is a part of one that lies on several ranks."""
    return type(parameter).__name__ == "DTensor" or type(parameter.data).__name__ == "DTensor"


def _wrappers() -> list[nn.Module]:
    """All wrappers of this process that synchronise gradients: the module in one does not lead to it."""
    names = ("DistributedDataParallel", "FullyShardedDataParallel")
    kinds = [kind for kind in nn.Module.__subclasses__() if kind.__name__ in names]
    return [each for each in gc.get_objects() if issubclass(type(each), tuple(kinds))]
