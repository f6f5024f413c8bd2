"""Images for vision-language models: processor inputs, features computed once per image, and forward arguments."""

from __future__ import annotations

import hashlib
import inspect
import io
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from torch import Tensor, nn

from agentrl_core.exceptions import InvalidInputError, MissingDependencyError, UnsupportedError
from agentrl_core.model.architecture import causal_model_of, device_of, head_of

if TYPE_CHECKING:
    from transformers import ProcessorMixin

_OF_TEXT = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")
_PLACEHOLDERS = ("image_token_id", "image_token_index", "video_token_id", "video_token_index", "audio_token_id")

IMPOSSIBLE = -1e9
"""The logit of a token that has probability 0: finite, so that 0 times it is 0."""


class Picture(Protocol):
    """Interface of images with a hash: the part of `env.Image` that models use, which do not import environments."""

    content: bytes

    @property
    def sha256(self) -> bytes:
        """Return the SHA-256 of the content."""
        ...


class ImageInputs:
    """Inputs of a vision model for single images, made by its processor and cached by SHA-256.

    Args:
        processor: the processor of the model, such as the result of `AutoProcessor.from_pretrained`.
        most_bytes: size of the cache in bytes; the least recently used inputs are dropped.

    Raises:
        InvalidInputError: `processor` takes no images, or `most_bytes` is negative.
    """

    def __init__(self, processor: ProcessorMixin, *, most_bytes: int = 2**28) -> None:
        untyped_processor: Any = processor
        if not hasattr(untyped_processor, "image_processor") or not hasattr(untyped_processor, "tokenizer"):
            raise InvalidInputError(
                f"processor is {type(processor).__name__}, which takes no images; give the model's processor, such as "
                "AutoProcessor.from_pretrained(name)"
            )
        if most_bytes < 0:
            raise InvalidInputError(f"most_bytes is {most_bytes}; give a number of bytes of at least 0")
        self.processor = untyped_processor
        # Gemma 3's chat template writes one token per image, which its processor replaces by several.
        self.placeholder = str(
            getattr(untyped_processor, "boi_token", None) or getattr(untyped_processor, "image_token", "<image>")
        )
        """The text that the processor replaces by the tokens of an image."""
        self._most, self._bytes = most_bytes, 0
        self._known: OrderedDict[bytes, dict[str, Tensor]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, image: bytes | Picture) -> Mapping[str, Tensor]:
        """Return the model's inputs for one image by name, such as `pixel_values` and `image_grid_thw`, on the CPU.

        Raises:
            InvalidInputError: the bytes are not a picture.
        """
        content = image if isinstance(image, bytes) else image.content
        sha256 = hashlib.sha256(content).digest() if isinstance(image, bytes) else image.sha256
        with self._lock:
            found = self._known.get(sha256)
            if found is not None:
                self._known.move_to_end(sha256)
                return found
        processed = self._made(content, sha256)
        size = sum(each.nbytes for each in processed.values())
        with self._lock:
            if sha256 not in self._known:
                self._known[sha256] = processed
                self._bytes += size
            while self._bytes > self._most:
                self._bytes -= sum(each.nbytes for each in self._known.popitem(last=False)[1].values())
        return processed

    def _made(self, content: bytes, sha256: bytes) -> dict[str, Tensor]:
        try:
            from PIL import Image
        except ImportError as error:
            raise MissingDependencyError("images for a processor need Pillow: pip install pillow") from error
        try:
            picture = Image.open(io.BytesIO(content)).convert("RGB")
        except OSError as error:
            raise InvalidInputError(
                f"image {sha256.hex()[:16]} cannot be read ({error}); give a PNG or JPEG"
            ) from error
        processed = self.processor(
            text=[self.placeholder], images=[[picture]], return_tensors="pt", add_special_tokens=False
        )
        return {name: value for name, value in processed.items() if isinstance(value, Tensor) and name not in _OF_TEXT}


def takes_images(model: nn.Module) -> bool:
    """Return whether a model, bare or wrapped, takes features of images in its forward."""
    return _takes(causal_model_of(model))


def _takes(inner: nn.Module) -> bool:
    return hasattr(inner, "get_image_features") and "mm_encoder_outputs" in _parameters(type(inner).forward)


def placeholder_ids(model: nn.Module) -> tuple[int, ...]:
    """Return the ids of placeholder tokens, replaced by features of images, videos and sounds; their probability is 0.

    A model that takes no images has none.
    """
    inner = causal_model_of(model)
    if not _takes(inner):
        return ()
    config, count = cast("Any", inner).config, len(cast("Any", head_of(inner)).weight)
    ids = {getattr(config, name, None) for name in _PLACEHOLDERS}
    return tuple(sorted(each for each in ids if isinstance(each, int) and 0 <= each < count))


def never_sampled(model: nn.Module) -> Tensor | None:
    """Return the tokens of `placeholder_ids` as `int64[k]` on the model's device; None if there are none."""
    ids = placeholder_ids(model)
    return torch.tensor(ids, device=device_of(causal_model_of(model))) if ids else None


@dataclass(frozen=True, eq=False)
class ImageFeatures:
    """Features of distinct images, as the vision tower computed them; gradients flow through them.

    Attributes:
        pooled: for each image `[n, hidden]` or `[tiles, n, hidden]`: one row for each of its placeholder tokens.
        deepstack: features of the same shape for each decoder layer to which the model adds features.
        grids: for each image `int64[1, 3]`; None: the model has no positions on a grid.
        kind: the class of the vision tower's output.
        in_parts: whether the model takes the images' features one by one.
    """

    pooled: tuple[Tensor, ...]
    deepstack: tuple[tuple[Tensor, ...], ...]
    grids: tuple[Tensor, ...] | None
    kind: type[Any]
    in_parts: bool

    def tokens(self, image: int) -> int:
        """Return the number of placeholder tokens of an image."""
        return self.pooled[image].shape[:-1].numel()


def features(model: nn.Module, inputs: Sequence[Mapping[str, Tensor]]) -> ImageFeatures:
    """Return the features of distinct images; images of equal shape go through the vision tower in one call.

    Args:
        model: a model that `takes_images`. Call it inside the call of its wrappers.
        inputs: the inputs of each image, from `ImageInputs.of`; at least one.

    Raises:
        UnsupportedError: the features cannot be assigned to the images.
    """
    inner: Any = causal_model_of(model)
    device, (tower_inputs, groups) = device_of(inner), _by_shape(inner, inputs)
    pooled: list[Tensor] = [torch.empty(0)] * len(inputs)
    layers: list[list[Tensor]] = []
    for members in groups:
        joined = {
            name: torch.cat([tower_inputs[each][name] for each in members]).to(device)
            for name in tower_inputs[members[0]]
        }
        output = inner.get_image_features(**joined, return_dict=True)
        in_parts = not isinstance(output.pooler_output, Tensor)
        sizes = [len(tower_inputs[each]["pixel_values"]) for each in members]
        deepstack = getattr(output, "deepstack_features", None) or ()
        layers = layers or [[torch.empty(0)] * len(inputs) for _ in deepstack]
        for target, output_part in zip([pooled, *layers], [output.pooler_output, *deepstack], strict=True):
            for place, rows in zip(members, _by_image(inner, output_part, sizes), strict=True):
                target[place] = rows
    grids = None
    if "image_grid_thw" in _parameters(type(inner).forward):
        grids = tuple(each["image_grid_thw"].to(device) for each in tower_inputs)
    return ImageFeatures(tuple(pooled), tuple(map(tuple, layers)), grids, type(output), in_parts)


def tower_calls(model: nn.Module, inputs: Sequence[Mapping[str, Tensor]]) -> int:
    """Return the number of calls of the vision tower in `features`: one for each shape of images."""
    return len(_by_shape(causal_model_of(model), inputs)[1])


def arguments(
    model: nn.Module, found: ImageFeatures | None, ids: Tensor, real: Tensor, images_of_row: Sequence[Sequence[int]]
) -> dict[str, Any]:
    """Return the arguments of the model's forward for rows with images, besides `input_ids` and `attention_mask`.

    Args:
        model: a model that `takes_images`.
        found: features of the images; None: no row has any.
        ids: `int64[B, L]`.
        real: `bool[B, L]`, False for padding.
        images_of_row: indices of each row's images in `found`, in the order of their placeholders.

    Raises:
        InvalidInputError: a row has another number of placeholder tokens than features.
    """
    inner: Any = causal_model_of(model)
    shows = (ids == image_token(inner)) & real
    counts = [sum(found.tokens(each) for each in row) if found else 0 for row in images_of_row]
    for row, (tokens, rows) in enumerate(zip(shows.sum(dim=1).tolist(), counts, strict=True)):
        if tokens != rows:
            raise InvalidInputError(
                f"row {row} has {tokens} image tokens, but {type(inner).__name__} makes {rows} features of the "
                f"{len(images_of_row[row])} images of the row; sample and train with the same processor and image "
                "sizes"
            )
    order = [each for row in images_of_row for each in row]
    if found is None or not order:
        return {}
    names, forward_arguments = _parameters(type(inner).forward), {}
    for name in ("mm_token_type_ids", "token_type_ids"):
        if name in names:
            forward_arguments[name] = shows.to(torch.int64)
    if found.grids is not None:
        forward_arguments["image_grid_thw"] = torch.cat([found.grids[each] for each in order])
    pooled = tuple(found.pooled[each] for each in order)
    output: dict[str, Any] = {"pooler_output": pooled if found.in_parts else torch.cat(pooled)}
    if found.deepstack:
        output["deepstack_features"] = [tuple(layer[each] for each in order) for layer in found.deepstack]
    return {**forward_arguments, "mm_encoder_outputs": {"image": found.kind(**output)}}


def image_token(inner: nn.Module) -> int:
    """Return the id of the placeholder token of images."""
    config = cast("Any", inner).config
    return int(config.image_token_id if hasattr(config, "image_token_id") else config.image_token_index)


def _by_shape(inner: Any, inputs: Sequence[Mapping[str, Tensor]]) -> tuple[list[dict[str, Tensor]], list[list[int]]]:
    """Return the vision tower's arguments for each image, and the images grouped by equal shapes."""
    names = _parameters(inner.get_image_features)
    tower_inputs = [_tiles({name: value for name, value in each.items() if name in names}) for each in inputs]
    groups: dict[object, list[int]] = {}
    for place, each in enumerate(tower_inputs):
        groups.setdefault(tuple((name, value.shape[1:]) for name, value in each.items()), []).append(place)
    return tower_inputs, list(groups.values())


def _tiles(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the inputs of one image, with tiles in the first dimension if the model takes tiles of several images."""
    if inputs["pixel_values"].dim() == 5 and "image_sizes" not in inputs:
        return {name: value.transpose(0, 1) if name.startswith("pixel_") else value for name, value in inputs.items()}
    return inputs


def _by_image(inner: nn.Module, output: Any, sizes: Sequence[int]) -> list[Tensor]:
    """Split the output of the vision tower into the features of each image."""
    if not isinstance(output, Tensor):
        parts = list(output)
    else:
        parts = list(output.split(list(sizes))) if len(output) == sum(sizes) else []
    if len(parts) != len(sizes):
        raise UnsupportedError(
            f"model: {type(inner).__name__} makes features of shape {_shape(output)} of {len(sizes)} images, but "
            "not one part for each image; use a vision model that docs/howto/vision.md lists"
        )
    return parts


def _shape(output: Any) -> object:
    return tuple(output.shape) if isinstance(output, Tensor) else [tuple(each.shape) for each in output]


def _parameters(function: Callable[..., Any]) -> Mapping[str, Any]:
    return inspect.signature(function).parameters
