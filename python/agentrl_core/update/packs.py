"""The packs of an optimizer step, created one by one on request, also for other ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from agentrl_core.model.pack import Pack, Streams
from agentrl_core.model.pack_images import PackImages, with_processor
from agentrl_core.model.ranks import without_sync
from agentrl_core.update.prepared_batch import OF_BATCH, STORED

if TYPE_CHECKING:
    from torch import nn
    from transformers import ProcessorMixin

    from agentrl_core._core import Plan
    from agentrl_core.model.buffers import PackBuffers
    from agentrl_core.model.layouts import PackLayout
    from agentrl_core.model.ranks import GradientSync
    from agentrl_core.model.recorded_routes import RecordedRoutes
    from agentrl_core.update.prepared_batch import PreparedBatch


class Packs(Iterator["Pack"]):
    """Iterator over the packs that a rank runs in one optimizer step, with a known length.

    Each pack is created on request. Depending on `sync`, wrappers of `model` synchronise gradients only for the last
    pack. So call `backward` on the loss of a pack before you request the next one.

    Args:
        make: creates the pack with an index.
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
        """Number of packs, including those already returned."""
        return len(self._indices)

    def __next__(self) -> Pack:
        return next(self._run)

    def _in_turn(self) -> Iterator[Pack]:
        for number, index in enumerate(self._indices, 1):
            is_last = number == len(self._indices)
            with nullcontext() if is_last else without_sync(self._model, self._sync):
                yield self._make(index)


@dataclass(frozen=True, eq=False)
class PackMaker:
    """Creates the packs of an optimizer step for all ranks, one at a time.

    Attributes:
        plan: the sequences of each pack.
        prepared: the batch and the loss.
        weights: `float64[tokens]`, loss weights of the step.
        same: streams that are columns, `float32[tokens]` each.
        layout: how a model computes the packs.
        processor: as of `Update.pack`.
        shows_images: whether the rollouts contain images.
        routes: the recorded experts; None: the model's routers choose.
        numbered_twice: whether packs also have the batch's segment numbers, for a loss over several packs.
    """

    plan: Plan
    prepared: PreparedBatch
    weights: NDArray[np.float64]
    same: dict[str, NDArray[np.float32]]
    layout: PackLayout
    processor: ProcessorMixin | None
    shows_images: bool
    routes: RecordedRoutes | None
    numbered_twice: bool

    def __len__(self) -> int:
        """Number of packs, over all ranks."""
        return len(self.plan)

    def make(self, index: int, buffers: PackBuffers | None = None) -> Pack:
        """Create the pack with an index, in new memory or in buffers."""
        if buffers is not None:
            buffers.next()
        prepared, take = self.prepared, _new if buffers is None else buffers.take
        planned = self.plan.pack(
            index, take, same=self.same, summed=prepared.summed, weights=self.weights, credit=prepared.credit
        )
        streams: dict[str, NDArray[Any]] = {name: values for name, values in planned.streams.items() if name != STORED}
        for name, rows in prepared.wide.items():
            kind = np.int64 if rows.dtype.kind in "iu" else np.float32
            memory = take(f"stream {name}", len(planned.token) * rows.shape[1], kind)
            streams[name] = memory.reshape(len(planned.token), rows.shape[1])
            streams[name][:] = np.take(rows, planned.node_token, axis=0)
        for name, numbers in prepared.ids.items():
            numbers_of_pack = numbers[planned.token]
            streams[name] = take(f"stream {name}", len(numbers_of_pack), np.int64)
            streams[name][:] = np.unique(numbers_of_pack, return_inverse=True)[1]
            if self.numbered_twice:
                streams[name + OF_BATCH] = take(f"stream {name}{OF_BATCH}", len(numbers_of_pack), np.int64)
                streams[name + OF_BATCH][:] = numbers_of_pack
        return Pack.from_plan(
            planned,
            streams,
            entropy_gradient=prepared.loss.needs_entropy_gradient,
            outputs=prepared.loss.outputs,
            images=PackImages.of(self.plan, index, prepared.batch, self.processor) if self.shows_images else None,
            routed_experts=None if self.routes is None else self.routes.of_pack(self.plan, index),
            layout=self.layout,
        )


def received(pack: Pack, buffers: PackBuffers | None, processor: ProcessorMixin | None) -> Pack:
    """Prepare a pack received from another rank: set this rank's processor, and copy it to buffers if given."""
    pack = with_processor(pack, processor)
    if buffers is None:
        return pack
    buffers.next()

    def copied(name: str, values: torch.Tensor) -> torch.Tensor:
        memory = buffers.take(name, values.numel(), values.numpy().dtype).reshape(values.shape)
        memory[:] = values.numpy()
        return torch.from_numpy(memory)

    tensors = {name: copied(name, each) for name, each in vars(pack).items() if isinstance(each, torch.Tensor)}
    streams = {name: copied(f"stream {name}", each) for name, each in pack.streams.items()}
    return replace(pack, **tensors, streams=Streams(streams))  # type: ignore[arg-type]


def _new(_name: str, length: int, dtype: Any) -> NDArray[Any]:
    return np.empty(length, dtype)
