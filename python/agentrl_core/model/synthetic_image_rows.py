"""Token rows with synthetic pictures, to compare packs with a model's own forward."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from agentrl_core.model.images import image_token
from agentrl_core.model.pack_images import PackImages, inputs_of

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import ProcessorMixin

SIZES = ((56, 56), (112, 56))
"""Widths and heights of the pictures."""
SHOWN = ((0,), (1,), (0,), (1, 0))
"""The pictures of each row, in order; later rows show none."""
_BEGIN = 4


class ShownRows(NamedTuple):
    """Token rows with pictures.

    Attributes:
        rows: `int64[L]` each.
        arguments: arguments of the model's own forward for each row alone, besides its tokens.
        images: the pictures in the form that a pack of all rows needs.
    """

    rows: list[Tensor]
    arguments: list[dict[str, Tensor]]
    images: PackImages


def shown_rows(inner: nn.Module, rows: Sequence[Tensor], processor: ProcessorMixin | None) -> ShownRows:
    """Insert the pictures of `SHOWN` into as many token rows, after their first tokens; later rows stay unchanged.

    Args:
        inner: a causal model that takes images.
        rows: `int64[L]` each, without placeholders.
        processor: processor of the model; None: the one saved at `inner.name_or_path`.

    Raises:
        UnsupportedError: no processor is given or found.
        InvalidInputError: the processor takes no images.
    """
    maker = inputs_of(processor, inner)
    pictures = [_picture(seed, size) for seed, size in enumerate(SIZES)]
    contents = [_content(each) for each in pictures]
    hashes = [hashlib.sha256(each).digest() for each in contents]
    rows_with_images, arguments = [], []
    for row, images in zip(rows, SHOWN, strict=False):
        inputs = maker.processor(
            text=[maker.placeholder] * len(images),
            images=[[pictures[each]] for each in images],
            return_tensors="pt",
            padding=True,
            add_special_tokens=False,
        )
        parts = [row[:_BEGIN]]
        for place, (ids, real) in enumerate(zip(inputs["input_ids"], inputs["attention_mask"], strict=True), _BEGIN):
            parts += [ids[real.bool()].to(row), row[place : place + 1]]  # a token between two pictures
        rows_with_images.append(torch.cat([*parts, row[_BEGIN + len(images) :]]))
        arguments.append(_arguments(inner, inputs, rows_with_images[-1][None]))
    uses = [(row, image) for row, images in enumerate(SHOWN) for image in images]
    sequence, image = np.array(uses, dtype=np.int64).T
    blobs = dict(zip(hashes, contents, strict=True))
    images_of_pack = PackImages(tuple(hashes), sequence, image, blobs.__getitem__, processor)
    others = list(rows[len(SHOWN) :])
    return ShownRows([*rows_with_images, *others], [*arguments, *({} for _ in others)], images_of_pack)


def _arguments(inner: nn.Module, inputs: Any, ids: Tensor) -> dict[str, Tensor]:
    """Return all outputs of the processor for pictures, and the token types of the row, as forward arguments."""
    arguments = {}
    for name, value in inputs.items():
        if name.endswith("token_type_ids"):
            arguments[name] = (ids == image_token(inner)).to(torch.int64)
        elif name not in ("input_ids", "attention_mask") and isinstance(value, Tensor):
            arguments[name] = value.to(ids.device)
    dtype = cast("Any", inner).dtype
    return {name: value.to(dtype) if value.is_floating_point() else value for name, value in arguments.items()}


def _picture(seed: int, size: tuple[int, int]) -> Image:
    from PIL import Image as Picture

    width, height = size
    return Picture.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


def _content(picture: Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()
