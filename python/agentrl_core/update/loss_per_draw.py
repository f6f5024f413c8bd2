"""The contribution of each draw to the loss of its optimizer steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentrl_core.component.rows import Rows, sum_rows
from agentrl_core.exceptions import InvalidInputError, UnsupportedError
from agentrl_core.model.collectives import gathered_objects
from agentrl_core.update.optimizer_step import Update
from agentrl_core.update.prepared_batch import PRODUCTS

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch
    from agentrl_core.loss import Loss
    from agentrl_core.model.pack import Pack, PackOutput
    from agentrl_core.model.ranks import Group


class DrawLosses:
    """Records the loss of each draw of a batch, as the mean over the optimizer steps that train the draw.

    If every term of a loss is linear in the weights of its rows, the contribution of a row is the derivative of the
    loss by a factor on the row's weights. The loss of a draw is the sum of its contributions, times the number of draws
    of the step, so that the mean over the draws of a step is the loss of the step.

    Args:
        batch: the batch; None on other ranks than the first.
        group: the ranks that run the steps together, or None.
    """

    def __init__(self, batch: Batch | None, group: Group | None) -> None:
        self._batch, self._group = batch, group
        self._shared = False
        self._draws: list[NDArray[np.int64]] = []
        self._tokens, self._parts = [np.zeros(0, np.int64)], [np.zeros(0)]

    def begin(self, draws: NDArray[np.int64]) -> None:
        """Begin an optimizer step on some draws."""
        self._draws.append(draws)

    def add(self, loss: Loss, outputs: PackOutput, pack: Pack) -> None:
        """Add the contributions of the rows of a pack of the latest step."""
        parts = parts_of_rows(loss, outputs, pack).to("cpu", torch.float64).numpy()
        self._tokens.append(pack.token.cpu().numpy().copy())  # the memory of a pack may be reused
        self._parts.append(len(self._draws[-1]) * parts)

    def share(self) -> None:
        """Exchange the contributions of all ranks, after the last step."""
        rows = np.concatenate(self._tokens), np.concatenate(self._parts)
        rows_of_ranks = [rows] if self._group is None else gathered_objects(rows, self._group)
        self._tokens, self._parts = [each for each, _ in rows_of_ranks], [each for _, each in rows_of_ranks]
        self._shared = True

    def means(self) -> NDArray[np.float64]:
        """Return the loss of each draw, of all ranks; NaN for a draw that no step trained.

        Raises:
            InvalidInputError: this is not the first rank, or not all steps were run.
        """
        if self._batch is None:
            raise InvalidInputError("with_losses: this rank has no batch; call it on the first rank only")
        if not (self._shared or self._group is None):
            raise InvalidInputError("with_losses: not all updates were run; call it after the last update")
        count = self._batch.num_draws
        draws = Rows(self._batch, "token").draws[np.concatenate(self._tokens)]
        sums = sum_rows(np.concatenate(self._parts), draws, count)
        steps = np.bincount(np.concatenate([np.zeros(0, np.int64), *self._draws]), minlength=count)
        return np.where(steps > 0, sums / np.maximum(steps, 1), np.nan)


class RecordedUpdate(Update):
    """An optimizer step that also records the loss of each of its draws."""

    def __init__(self, *arguments: Any, draw_losses: DrawLosses) -> None:
        super().__init__(*arguments)
        self.draw_losses = draw_losses

    def loss(self, outputs: PackOutput, pack: Pack) -> Tensor:
        """Return the loss of a pack, as `Update.loss` does, and record the contributions of its draws."""
        begins = not self._begun
        total = super().loss(outputs, pack)
        if begins:
            self.draw_losses.begin(self.draws)
        self.draw_losses.add(self.prepared.loss, outputs, pack)
        return total

    def gradient_cached(self, *_: Any, **__: Any) -> Iterator[Tensor]:
        """Raise InvalidInputError, because only `loss` records the losses of draws."""
        raise InvalidInputError(
            "gradient_cached records no losses of draws; call update.pack and update.loss instead, or create the "
            "updates without draw_losses=True: recipe.updates(batch)"
        )


def parts_of_rows(loss: Loss, outputs: PackOutput, pack: Pack) -> Tensor:
    """Return the contribution of each row to the loss of a pack, `[N]`.

    Raises:
        UnsupportedError: the loss is not a sum over rows.
    """
    with torch.enable_grad():
        streams = pack.to(outputs.logprob.device).streams
        factor = torch.ones(len(outputs.logprob), device=outputs.logprob.device, requires_grad=True)
        weighted = {name: rows * factor if name in PRODUCTS else rows for name, rows in streams.items()}
        fixed: dict[str, Any] = {
            name: rows.detach() for name, rows in vars(outputs).items() if isinstance(rows, Tensor)
        }
        answers = replace(outputs, **fixed)
        value, _ = loss.of_rows(answers.logprob, answers.entropy, weighted, answers)
        (parts,) = torch.autograd.grad(value, factor, allow_unused=True) if value.requires_grad else (None,)
    if parts is None:
        return torch.zeros_like(factor)
    total = value.detach()
    if abs(float(parts.sum() - total)) > 1e-3 * float(parts.abs().sum() + total.abs()):
        raise UnsupportedError(
            f"{loss!r} is not a sum of the losses of draws: its terms are not linear in the weights of tokens; call "
            "recipe.updates without draw_losses=True"
        )
    return parts
