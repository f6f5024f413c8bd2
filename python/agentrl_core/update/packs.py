"""The packs of an optimizer step, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from agentrl_core.model.pack import Pack
    from agentrl_core.model.ranks import GradientSync


class Packs(Iterator["Pack"]):
    """The packs that a rank runs in one optimizer step, each made on request: an iterator with a known length.

    While all but the last pack are run, the wrappers of `model` keep gradients on their rank, if `sync` asks for it.
    So call `backward` on the loss of a pack before you request the next one.

    Args:
        make: makes the pack of an index.
        indices: the packs of this rank.
        model: the model whose gradients are synchronised, or None.
        sync: as of `Update.pack`.
    """

    def __init__(
        self,
        make: Callable[[int], Pack],
        indices: Sequence[int],
        model: nn.Module | None = None,
        sync: GradientSync = "each",
    ) -> None:
        self._make = make
        self._indices = indices
        self._model = model
        self._sync = sync
        self._run = self._in_turn()

    def __len__(self) -> int:
        """Number of packs, those already returned included."""
        return len(self._indices)

    def __next__(self) -> Pack:
        return next(self._run)

    def _in_turn(self) -> Iterator[Pack]:
        from agentrl_core.model.ranks import without_sync

        for number, index in enumerate(self._indices, 1):
            is_last = number == len(self._indices)
            with nullcontext() if is_last else without_sync(self._model, self._sync):
                yield self._make(index)
