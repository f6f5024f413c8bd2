"""Blend, swap and copy parameters and buffers of PyTorch modules, in place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from agentrl_core._util.lazy_torch import require_torch
from agentrl_core.exceptions import InvalidInputError

if TYPE_CHECKING:
    from torch import Tensor, nn

Snapshot = dict[str, "Tensor"]


def model_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters and buffers of a model by name, each once."""
    yield from model.named_parameters()
    yield from model.named_buffers()


def snapshot(model: nn.Module) -> Snapshot:
    """Copy the current parameters and buffers of a model."""
    return {name: tensor.detach().clone() for name, tensor in model_tensors(model)}


def model_named(models: Mapping[str, Any], name: str, title: str) -> nn.Module:
    """Return the model with a name, as a module.

    Raises:
        InvalidInputError: no model of that name was given, or it is not a module.
    """
    require_torch("a model")
    from torch import nn

    if name not in models:
        only = f" (only {', '.join(models)})" if models else ""
        raise InvalidInputError(
            f"{title}: model {name!r} was not given{only}; pass it: recipe.updates(batch, models={{{name!r}: ...}}) "
            f"and recipe.run_hooks(updates, {name}=...)"
        )
    if not isinstance(models[name], nn.Module):
        raise InvalidInputError(f"{title}: model {name!r} is a {type(models[name]).__name__}; give a torch.nn.Module")
    model: nn.Module = models[name]
    return model


def blend_models(target: nn.Module, source: nn.Module | Snapshot, share: float, title: str) -> None:
    """Set target to (1 - share) target + share source, in place; in float32, or in float64 if one of them is.

    Non-float tensors (counters) are copied.

    Raises:
        InvalidInputError: their tensors differ in names or shapes; then nothing changes.
    """
    import torch

    source_tensors = dict(model_tensors(source)) if isinstance(source, torch.nn.Module) else source
    target_tensors = dict(model_tensors(target))
    for name in dict.fromkeys([*source_tensors, *target_tensors]):
        if (
            name not in source_tensors
            or name not in target_tensors
            or source_tensors[name].shape != target_tensors[name].shape
        ):
            shapes = [
                f"{name} of {list(side[name].shape)}" if name in side else f"no {name}"
                for side in (source_tensors, target_tensors)
            ]
            raise InvalidInputError(
                f"{title}: the source model has {shapes[0]}, the target {shapes[1]}; give models of one architecture"
            )
    with torch.no_grad():
        for name, tensor in target_tensors.items():
            other = source_tensors[name].to(tensor.device)
            if share == 1.0 or not tensor.is_floating_point():
                tensor.copy_(other)
            else:
                exact = torch.promote_types(torch.promote_types(tensor.dtype, other.dtype), torch.float32)
                tensor.copy_(torch.lerp(tensor.to(exact), other.to(exact), share))


def swap_models(one: nn.Module, other: nn.Module, title: str) -> None:
    """Exchange two models, in place."""
    saved = snapshot(one)
    blend_models(one, other, 1.0, title)
    blend_models(other, saved, 1.0, title)
