"""Gradient norms of draws: the norm of the gradient of each draw's log-prob by a model's parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from agentrl_core.data.sampling_record import tokens_with_images
from agentrl_core.exceptions import InvalidInputError, UnsupportedError
from agentrl_core.model.layouts import layout_of, refuse_images_in
from agentrl_core.model.pack import Pack
from agentrl_core.model.pack_images import PackImages
from agentrl_core.model.ranks import wrapping_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from transformers import ProcessorMixin

    from agentrl_core.data.batch import Batch
    from agentrl_core.model.layouts import PackLayout


def trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of a model that require a gradient.

    Raises:
        UnsupportedError: the model is in a wrapper of ranks, which averages gradients.
        InvalidInputError: no parameter is trained.
    """
    parameters = [each for each in model.parameters() if each.requires_grad]
    if not parameters:
        raise InvalidInputError("model has no parameter that requires a gradient; unfreeze those that are trained")
    with torch.no_grad():
        if wrapping_of(model).ranks > 1:
            raise UnsupportedError(
                f"model is a {type(model).__name__} over several ranks, which averages gradients; give the bare model "
                "(`.module` of DistributedDataParallel), and the process group as group= to divide the draws"
            )
    return parameters


def gradient_norm(packs: Iterable[Pack], *, model: nn.Module, parameters: list[nn.Parameter]) -> float:
    """Return the norm of the gradient of sum log p over the trained tokens of a draw.

    The gradients that the model already has stay unchanged.

    Args:
        packs: the tokens of the draw.
        model: the model.
        parameters: the parameters whose gradients count.
    """
    total: list[Tensor | None] = [None] * len(parameters)
    with torch.enable_grad():
        for pack in packs:
            value = pack.run(model, outputs=()).logprob.sum()
            for number, gradient in enumerate(torch.autograd.grad(value, parameters, allow_unused=True)):
                if gradient is not None:
                    before = total[number]
                    total[number] = gradient if before is None else before + gradient
    norms = [torch.linalg.vector_norm(gradient.double()) for gradient in total if gradient is not None]
    return float(torch.linalg.vector_norm(torch.stack(norms))) if norms else 0.0


def packs_of_draw(
    batch: Batch,
    draw: int,
    max_tokens: int,
    layout: PackLayout,
    model: nn.Module,
    processor: ProcessorMixin | None,
) -> Iterator[Pack]:
    """Make the packs of the trained tokens of one draw."""
    same = {"inverse_temperature": np.asarray(batch.column("inverse_temperature", "token"), dtype=np.float32)}
    shows = tokens_with_images(batch) is not None
    if shows:
        refuse_images_in(layout)
    planned_as = "tree" if not shows and layout_of(model, layout) == "tree" else "sequence"
    plan = batch.plan(np.array([draw]), max_tokens, layout=planned_as)  # type: ignore[arg-type]
    for index in range(len(plan)):
        planned = plan.pack(index, same=same)
        images = PackImages.of(plan, index, batch, processor) if shows else None
        yield Pack.from_plan(planned, planned.streams, entropy_gradient=False, images=images, layout=layout)
