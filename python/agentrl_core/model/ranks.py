"""Models on several ranks: the wrappers that average gradients, and when they synchronise."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Literal, NamedTuple, TypeAlias, cast, get_args

import torch
from torch import distributed, nn

from agentrl_core.exceptions import InvalidInputError, UnsupportedError

Group: TypeAlias = Any  # torch.distributed.ProcessGroup, which a build of torch may lack
GradientSync = Literal["auto", "last", "each"]
"""In which backward passes of an update gradients are synchronised over ranks.

`last`: in the backward pass of the last pack. `each`: in that of each pack. `auto`: `each` for models whose parameters
are sharded, which would otherwise hold the gradients of all parameters; otherwise `last`.
"""
_ALONE: weakref.WeakSet[nn.Module] = weakref.WeakSet()
"""Models that were found to have no wrapper around them."""


class Wrapping(NamedTuple):
    """How the wrappers of a model average gradients: over how many ranks, and whether parameters are sharded.

    Attributes:
        ranks: number of ranks over which gradients are averaged; 1 without a wrapper.
        sharded: whether each rank keeps a part of the parameters.
    """

    ranks: int
    sharded: bool


def num_ranks() -> int:
    """Return the size of torch's default process group; 1 without one."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def group_of_ranks(group: Group | None = None) -> Group | None:
    """Return a process group, by default torch's, if it has several ranks; otherwise None."""
    if group is None:
        return cast("Group", distributed.group.WORLD) if num_ranks() > 1 else None
    if not hasattr(group, "size"):
        raise InvalidInputError(
            f"group is {group!r}; give a process group that this rank is in, such as torch.distributed.new_group() "
            "returns"
        )
    return group if group.size() > 1 else None


def wrapping_of(model: nn.Module) -> Wrapping:
    """Return how the wrappers of a model average gradients.

    Raises:
        UnsupportedError: the model is tensor parallel, or some gradients would not be averaged, or over other ranks.
    """
    if num_ranks() == 1:
        return Wrapping(1, sharded=False)
    wrappers = list(_wrappers_in(model))
    if not wrappers:
        if any(map(is_distributed, model.parameters())):
            raise UnsupportedError(
                f"model: the parameters of {type(model).__name__} are split over ranks without fully_shard; tensor "
                "parallel models cannot run packs: use fully_shard, FSDP or DistributedDataParallel"
            )
        return Wrapping(1, sharded=False)
    sizes = dict.fromkeys(size for wrapper in wrappers for size in _sizes(wrapper))
    if len(sizes) > 1:
        raise UnsupportedError(
            f"model: parts of it average gradients over different numbers of ranks ({', '.join(map(str, sizes))}); "
            "wrap all parts over the same ranks"
        )
    if torch.is_grad_enabled():
        _refuse_uncovered(model, wrappers)
    return Wrapping(next(iter(sizes), num_ranks()), sharded=not _is_ddp(wrappers[0]))


def _refuse_uncovered(model: nn.Module, wrappers: list[nn.Module]) -> None:
    """Require that all trained parameters are inside wrappers that synchronise their gradients."""
    inside = {id(each) for wrapper in wrappers for each in wrapper.parameters()}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and id(parameter) not in inside:
            raise UnsupportedError(
                f"model: parameter {name!r} is outside the parts that {type(wrappers[0]).__name__} synchronises, so "
                "each rank would train its own; wrap the whole model (fully_shard: the root last), or freeze it"
            )


def _wrappers_in(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost modules that synchronise gradients: DDP or FSDP."""
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

    if type(module).__name__ == "DeepSpeedEngine":
        raise UnsupportedError(
            "model: a DeepSpeedEngine scales gradients in its own backward(), which packs do not support; use "
            "fully_shard, FSDP or DistributedDataParallel"
        )
    if _is_ddp(module) or isinstance(module, (FSDPModule, FullyShardedDataParallel)):
        yield module
        return
    for child in module.children():
        yield from _wrappers_in(child)


def _is_ddp(module: nn.Module) -> bool:
    return isinstance(module, nn.parallel.DistributedDataParallel)


def _sizes(wrapper: Any) -> Iterator[int]:
    """Yield, for each part of a wrapper, the number of ranks over which it averages gradients."""
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

    if _is_ddp(wrapper):
        yield wrapper.process_group.size()
        return
    for part in wrapper.modules():
        if isinstance(part, FullyShardedDataParallel):
            replicas: Any = getattr(part, "_inter_node_pg", None)  # of HYBRID_SHARD, which averages over both groups
            yield cast("Any", part).process_group.size() * (1 if replicas is None else replicas.size())
        elif isinstance(part, FSDPModule):
            # Parameters may be gathered now, so their own mesh does not show it; torch has no public function for it.
            for sharded in part._get_fsdp_state()._fsdp_param_groups:  # noqa: SLF001
                if sharded.gradient_divide_factor is not None:
                    raise UnsupportedError(
                        "model: set_gradient_divide_factor was called, but losses of packs expect gradients that are "
                        "averaged over the ranks; leave the factor as fully_shard set it"
                    )
                if any(each.is_dtensor for each in sharded.fsdp_params):
                    raise UnsupportedError(
                        "model: tensor parallel models cannot run packs; use fully_shard alone, over all ranks"
                    )
                yield sharded.mesh_info.mesh.size()


def sharding_groups(parts: Iterable[nn.Module]) -> list[Group]:
    """Return the process groups over which `fully_shard` or FSDP split parts of a model, each once."""
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

    groups: list[Group] = []
    for part in parts:
        if isinstance(part, FullyShardedDataParallel):
            groups += [cast("Any", part).process_group, getattr(part, "_inter_node_pg", None)]
        elif isinstance(part, FSDPModule):
            for sharded in part._get_fsdp_state()._fsdp_param_groups:  # noqa: SLF001 - torch has no public way
                groups += sharded.mesh_info.mesh.get_all_groups()
    return list({id(each): each for each in groups if each is not None}.values())


def is_sharded(model: nn.Module) -> bool:
    """Return whether FSDP or tensor parallelism keeps only a part of the parameters on each rank."""
    return num_ranks() > 1 and any(
        type(part).__name__ == "FullyShardedDataParallel" or any(map(is_distributed, part.parameters(recurse=False)))
        for part in model.modules()
    )


def is_distributed(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a DTensor, whose parts lie on several ranks."""
    return type(tensor).__name__ == "DTensor" or type(tensor.data).__name__ == "DTensor"


def refuse_unwrapped(model: nn.Module) -> None:
    """Require that a model to train is not the inner module of a wrapper that synchronises gradients.

    Raises:
        UnsupportedError: it is inside a `DistributedDataParallel` or `FullyShardedDataParallel`; train the wrapper.
    """
    if not torch.is_grad_enabled() or num_ranks() == 1 or model in _ALONE:
        return
    for wrapper in _all_wrappers():
        if any(part is model for part in wrapper.modules()):
            raise UnsupportedError(
                f"model: this {type(model).__name__} is inside a {type(wrapper).__name__}, which synchronises "
                f"gradients in its own forward; give pack.run the {type(wrapper).__name__}"
            )
    _ALONE.add(model)


def _all_wrappers() -> list[nn.Module]:
    """Return all wrappers in this process that synchronise gradients; a module has no reference to its wrapper."""
    names = ("DistributedDataParallel", "FullyShardedDataParallel")
    kinds = [kind for kind in nn.Module.__subclasses__() if kind.__name__ in names]
    return [each for each in gc.get_objects() if issubclass(type(each), tuple(kinds))]


def reshard(model: object) -> None:
    """Free the parameters that fully_shard gathered for a forward pass; each rank keeps its own part."""
    if isinstance(model, nn.Module) and num_ranks() > 1:
        from torch.distributed.fsdp import FSDPModule

        for part in model.modules():
            if isinstance(part, FSDPModule):
                part.reshard()


def check_sync(sync: GradientSync, model: nn.Module | None) -> None:
    """Raise InvalidInputError if `sync` is not a `GradientSync`, or has no model to apply to."""
    if sync not in get_args(GradientSync):
        raise InvalidInputError(f"sync: {sync!r} is not a way to synchronise; use {', '.join(get_args(GradientSync))}")
    if sync != "auto" and model is None:
        raise InvalidInputError(f"sync: {sync!r} needs the model whose gradients are synchronised; give model as well")


def without_sync(model: nn.Module | None, sync: GradientSync) -> AbstractContextManager[object]:
    """Return a context for all packs but the last one, in which wrappers synchronise only if `sync` requires it.

    Run both the forward and the backward pass of a pack inside it.
    """
    if model is None or sync == "each" or num_ranks() == 1:
        return nullcontext()
    wrappers = list(_wrappers_in(model))
    if not wrappers or (sync == "auto" and not _is_ddp(wrappers[0])):
        return nullcontext()
    return _unsynchronised(wrappers)


@contextmanager
def _unsynchronised(wrappers: list[Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for wrapper in wrappers:
            if hasattr(wrapper, "no_sync"):
                stack.enter_context(wrapper.no_sync())
            else:
                wrapper.set_requires_gradient_sync(requires_gradient_sync=False)
                stack.callback(wrapper.set_requires_gradient_sync, requires_gradient_sync=True)
        yield
