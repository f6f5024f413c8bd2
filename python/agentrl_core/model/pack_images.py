"""The images of a pack, and their features during a run of a model."""

from __future__ import annotations

import io
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from agentrl_core.exceptions import InvalidInputError, NotFoundError, UnsupportedError
from agentrl_core.model.architecture import decoder_of, device_of, head_of
from agentrl_core.model.collectives import counts_of_rows
from agentrl_core.model.images import (
    ImageFeatures,
    ImageInputs,
    arguments,
    features,
    image_token,
    placeholder_ids,
    takes_images,
    tower_calls,
)
from agentrl_core.model.ranks import sharding_groups

if TYPE_CHECKING:
    from transformers import ProcessorMixin

    from agentrl_core._core import Plan
    from agentrl_core.data.batch import Batch

_INPUTS: weakref.WeakKeyDictionary[Any, ImageInputs] = weakref.WeakKeyDictionary()
"""Image inputs by processor, so that the pixels of an image are computed once for all packs that show it."""
_PROCESSORS: weakref.WeakKeyDictionary[nn.Module, Any] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class PackImages:
    """The images that the sequences of a pack show, in the order of their placeholders.

    Attributes:
        hashes: SHA-256 of each image, once.
        sequence: `int64[I]`, the sequence of each use of an image, ascending.
        image: `int64[I]`, the index of the image of each use in `hashes`.
        blob: reads the content of an image by its hash.
        processor: converts an image to inputs of the model; None: the one saved at `model.name_or_path`.
    """

    hashes: tuple[bytes, ...]
    sequence: NDArray[np.int64]
    image: NDArray[np.int64]
    blob: Callable[[bytes], bytes]
    processor: ProcessorMixin | None = None

    @classmethod
    def of(cls, plan: Plan, index: int, batch: Batch, processor: ProcessorMixin | None) -> PackImages:
        """Return the images of one pack of a plan, by the pack's index."""
        hashes, sequence, image = plan.images(index)
        return cls(tuple(hashes), sequence, image, batch.blob, processor)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle: images with their contents, without the processor, which each process has."""
        contents = {each: self._content(each) for each in self.hashes}
        numbers = {"sequence": self.sequence, "image": self.image}
        return {"hashes": self.hashes, **numbers, "blob": contents.__getitem__, "processor": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    @cached_property
    def of_sequences(self) -> list[list[int]]:
        """Return, for each sequence, the indices of its images, up to the last sequence with images."""
        ends = np.cumsum(np.bincount(self.sequence))
        return [part.tolist() for part in np.split(self.image, ends[:-1])] if len(ends) else []

    def of_sequence(self, sequence: int) -> list[int]:
        """Return the indices of a sequence's images."""
        return self.of_sequences[sequence] if sequence < len(self.of_sequences) else []

    def inputs(self, inner: nn.Module) -> list[Mapping[str, Tensor]]:
        """Return the inputs of a model for each image.

        Raises:
            InvalidInputError: the content of an image is missing, or it is not a picture.
            UnsupportedError: there is no processor.
        """
        maker = inputs_of(self.processor, inner)
        return [maker.of(self._content(each)) for each in self.hashes]

    def _content(self, sha256: bytes) -> bytes:
        try:
            return self.blob(sha256)
        except NotFoundError as error:
            raise InvalidInputError(
                f"the pack shows image {sha256.hex()[:16]}, whose content is missing ({error}); take the batch from "
                "the collector or from store.batch of the store that has it"
            ) from error


def inputs_of(processor: ProcessorMixin | None, inner: nn.Module) -> ImageInputs:
    """Return the converter of images to model inputs for a processor, by default the processor saved with the model.

    Raises:
        UnsupportedError: no processor is given, and none is saved with the model.
        InvalidInputError: the processor takes no images.
    """
    chosen: Any = processor if processor is not None else _saved_processor(inner)
    if chosen not in _INPUTS:
        _INPUTS[chosen] = ImageInputs(chosen)
    return _INPUTS[chosen]


def _saved_processor(inner: nn.Module) -> Any:
    if inner not in _PROCESSORS:
        from transformers import AutoProcessor

        name = str(getattr(inner, "name_or_path", ""))
        try:
            _PROCESSORS[inner] = cast("Any", AutoProcessor).from_pretrained(name or "(no name)")
        except (OSError, ValueError) as error:
            raise UnsupportedError(
                f"processor: rollouts show images, and no processor of {type(inner).__name__} was given or found "
                f"({error}); give it: update.pack(..., processor=processor)"
            ) from error
    return _PROCESSORS[inner]


def with_processor(pack: Any, processor: ProcessorMixin | None) -> Any:
    """Return a pack received from another process, with this process's processor for its images."""
    return pack if pack.images is None else replace(pack, images=replace(pack.images, processor=processor))


class ShownImages:
    """The images of a pack during one call of a model, whose features are computed once.

    Args:
        images: images of the pack; None: it has none.
        inner: the causal model inside its wrappers.
        ranks: number of ranks over which gradients are averaged.
        sharded: whether each rank keeps a part of the parameters.
    """

    def __init__(self, images: PackImages | None, inner: nn.Module, *, ranks: int, sharded: bool) -> None:
        self._images, self._inner = images, inner
        self._found: ImageFeatures | None = None
        self._unused: Tensor | None = None
        inputs = images.inputs(inner) if images is not None and images.hashes else []
        blank_calls = 0
        if ranks > 1 and takes_images(inner) and (sharded or _trains_tower(inner)):
            # All ranks run all parts of the model, because wrappers wait for the gradients and parameters of each part.
            calls = tower_calls(inner, inputs)
            blank_calls = _most_calls(inner, max(calls, 1)) - calls
        if inputs:
            self._found = features(inner, inputs)
        if blank_calls:
            processor = None if images is None else images.processor
            blank = inputs_of(processor, inner).of(_blank())
            blank_features = [features(inner, [blank]) for _ in range(blank_calls)]
            sums = [
                each.sum()
                for output in blank_features
                for layer in (output.pooled, *output.deepstack)
                for each in layer
            ]
            self._unused = torch.stack(sums).sum() * 0.0

    def arguments(self, ids: Tensor, real: Tensor, sequences: Tensor) -> dict[str, Any]:
        """Return the arguments of the model's forward for the images of some sequences; see `images.arguments`."""
        if self._found is None or self._images is None:
            return {}
        of_row = [self._images.of_sequence(each) for each in sequences.tolist()]
        return arguments(self._inner, self._found, ids, real, of_row)

    def joined(self, results: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return a model's results, with gradients of 0 for the vision tower if no image used it."""
        if self._unused is None:
            return results
        return (results[0] + self._unused.to(results[0].dtype), *results[1:])


def check_images(pack: Any, inner: nn.Module) -> None:
    """Require that a model can take a pack's images and, if the pack is on the CPU, that it trains no placeholder.

    Raises:
        UnsupportedError: the model takes no images.
        InvalidInputError: the pack has image tokens without images, or trained image tokens.
    """
    shows = pack.images is not None and bool(pack.images.hashes)
    if not takes_images(inner):
        if shows:
            raise UnsupportedError(
                f"the pack has rollouts that show images, and {type(inner).__name__} takes none; give the vision-"
                "language model, or leave these draws out (batch.select_draws)"
            )
        return
    if pack.input_ids.device.type != "cpu":  # reading the tokens would wait for the device
        return
    never = torch.tensor(placeholder_ids(inner))
    trained = torch.isin(pack.target, never)
    if bool(trained.any()):
        place = int(trained.nonzero()[0])
        raise InvalidInputError(
            f"the pack trains action token {int(pack.token[place])} of the batch, whose id {int(pack.target[place])} "
            "is an image placeholder, which has probability 0; sample with an engine that excludes it, or mark it as "
            "not trainable"
        )
    if not shows and bool((pack.input_ids == image_token(inner)).any()):
        raise InvalidInputError(
            f"the pack has image tokens ({image_token(inner)}), but its nodes name no images; append observations "
            "with their images (Forest.append(..., blobs=[forest.add_blob(content)]))"
        )


def _trains_tower(inner: nn.Module) -> bool:
    """Return whether a part of the model other than its decoder and output layer is trained."""
    if not torch.is_grad_enabled():
        return False
    others = {id(each) for part in (decoder_of(inner), head_of(inner)) for each in part.parameters()}
    return any(each.requires_grad and id(each) not in others for each in inner.parameters())


def _most_calls(inner: nn.Module, calls: int) -> int:
    """Return the largest number of vision tower calls of any rank, if its layers are sharded separately.

    Each call gathers the parameters of such layers from all ranks, so all ranks need equally many calls.
    """
    others = {id(part) for module in (decoder_of(inner), head_of(inner)) for part in module.modules()} | {id(inner)}
    for group in sharding_groups(part for part in inner.modules() if id(part) not in others):
        calls = max(counts_of_rows(calls, device_of(inner), group))
    return calls


def _blank() -> bytes:
    from PIL import Image as Picture

    buffer = io.BytesIO()
    Picture.new("RGB", (64, 64), (255, 255, 255)).save(buffer, "PNG")
    return buffer.getvalue()
