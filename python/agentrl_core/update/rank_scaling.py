"""Scale the loss of a pack on several ranks, so that gradients equal those of one process with any wrapper."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from agentrl_core.exceptions import AgentRLWarning, InvalidInputError
from agentrl_core.model.ranks import Group, wrapping_of

if TYPE_CHECKING:
    from torch import nn


def scaled_to_ranks(
    value: Tensor, group: Group, ranks: int | None, model: nn.Module | None, outputs: Iterable[object]
) -> Tensor:
    """Multiply the loss of this rank's pack by the number of ranks over which the model's wrapper averages gradients.

    Losses of packs add up over ranks, but wrappers average. The loss also depends on all outputs of the model, with a
    gradient of zero, so that every rank has gradients for the same parameters: wrappers wait for all of them.

    Args:
        value: the loss of the pack.
        group: the ranks that have packs of the update.
        ranks: number of ranks over which gradients are averaged; None: unknown.
        model: the model for which the packs were made, if known.
        outputs: the model's outputs for the pack.

    Raises:
        InvalidInputError: the number of ranks over which gradients are averaged is unknown, or not that of `group`.
    """
    differentiable = [each for each in outputs if isinstance(each, Tensor) and each.requires_grad]
    if not (value.requires_grad or differentiable):
        return value
    if ranks is None and model is not None:
        ranks = wrapping_of(model).ranks
    if ranks is None:
        raise InvalidInputError(
            f"outputs: {group.size()} ranks have packs of this update, and this PackOutput is not of pack.run; give "
            "update.pack the wrapped model (model=), or PackOutput the number of ranks over which its gradients are "
            "averaged (ranks=)"
        )
    if ranks == 1:
        warnings.warn(
            f"{group.size()} ranks have packs of this update, but no wrapper of the model averages gradients over "
            "the ranks; give pack.run a DistributedDataParallel or a model of fully_shard, or add the gradients up "
            "before the step with torch.distributed.all_reduce(parameter.grad), a sum that is not divided (then filter "
            "this AgentRLWarning)",
            AgentRLWarning,
            stacklevel=4,
        )
        return value
    if ranks != group.size():
        raise InvalidInputError(
            f"group: the packs of this update are for {group.size()} ranks, but the model's wrapper averages gradients "
            f"over {ranks}; give update.pack the group of the wrapper"
        )
    reached: Tensor = _Reaching.apply(value, *differentiable)  # type: ignore[no-untyped-call]
    return reached * ranks


class _Reaching(torch.autograd.Function):
    """Autograd function: a scalar that also depends on further tensors, with zero gradients."""

    @staticmethod
    def forward(context: Any, value: Tensor, *others: Tensor) -> Tensor:
        context.of_others = [(each.shape, each.dtype, each.device) for each in others]
        return value.clone()

    @staticmethod
    def backward(context: Any, by: Tensor) -> tuple[Tensor, ...]:
        zeros = (torch.zeros(shape, dtype=dtype, device=device) for shape, dtype, device in context.of_others)
        return by, *zeros
