"""Images of an engine's requests: their cached features, and their places in prompts."""

from __future__ import annotations

import hashlib
import inspect
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from agentrl_core.engine.base import Request
from agentrl_core.env.image import Image
from agentrl_core.exceptions import AgentRLError, InvalidInputError, UnsupportedError
from agentrl_core.model.architecture import causal_model_of
from agentrl_core.model.images import ImageFeatures, ImageInputs, arguments, features, image_token, placeholder_ids

# The most bytes of cached features, and the most images in one call of the vision tower.
_MOST_BYTES = 1 << 30
_MOST_IMAGES = 16
# Codes of placeholders begin here: -1 is the padding of tables of tokens.
_FIRST_CODE = -2
_SEES_WHOLE_IMAGES = ("gemma3",)  # types whose image tokens attend to all tokens of their image


class _Shown(NamedTuple):
    """Adjacent images in a prompt, without a token between them.

    `tokens` is the number of their placeholders; `shift` is the offset that they add to the positions of later tokens.
    """

    images: tuple[bytes, ...]
    tokens: int
    shift: int


class EngineImages:
    """Features of images in requests, in an LRU cache that is cleared when the weights change.

    A prompt with images is *coded*: each placeholder becomes a negative number that identifies its images and their
    tokens. So prompts have a common prefix only if they show the same images there, and such a prefix never ends
    inside an image.

    Args:
        model: a model that supports images.
        inputs: computes pixels with the model's processor.
        alone: compute the features of each image in a separate call.

    Raises:
        UnsupportedError: tokens of an image attend to each other in a way that this engine does not compute.
    """

    def __init__(self, model: Any, inputs: ImageInputs, *, alone: bool = False) -> None:
        causal: Any = causal_model_of(model)
        self._model = model
        self._inputs = inputs
        self._most = 1 if alone else _MOST_IMAGES
        self._token = image_token(causal)
        self._others = [each for each in placeholder_ids(model) if each != self._token]
        self._rope = getattr(causal.base_model, "get_rope_index", None)
        self._whole = causal.config.model_type in _SEES_WHOLE_IMAGES
        within = getattr(causal.config.get_text_config(), "use_bidirectional_attention", None)
        if not self._whole and (within or "token_type_ids" in inspect.signature(type(causal).forward).parameters):
            raise UnsupportedError(
                f"Transformers: tokens of an image attend to each other in {type(causal).__name__}, which this engine "
                "computes for Gemma 3 alone; generate with another model, or give a tokenizer and no images"
            )
        self._features: OrderedDict[bytes, ImageFeatures] = OrderedDict()
        self._bytes = 0
        self._tokens: dict[bytes, int] = {}
        """Number of placeholders of each image."""
        self._grids: dict[bytes, torch.Tensor] = {}
        self._codes: dict[bytes, int] = {}
        """Code by the digest of adjacent images and their tokens."""
        self._shown: list[_Shown] = []

    def clear(self) -> None:
        """Clear all caches after a change of weights; the caller must also drop keys and values of coded prompts."""
        self._features.clear()
        self._bytes = 0
        self._tokens.clear()
        self._grids.clear()
        self._codes.clear()
        self._shown.clear()

    def refused(self, requests: Mapping[int, Request]) -> dict[int, AgentRLError]:
        """Compute features of new images; return an error for each request with a bad image or unsuitable tokens."""
        errors: dict[int, AgentRLError] = {}
        new: dict[bytes, Image] = {}
        for number, request in requests.items():
            try:
                for image in request.images:
                    if image.sha256 not in self._tokens:
                        self._inputs.of(image)
                        new[image.sha256] = image
            except AgentRLError as error:
                errors[number] = error
            except Exception as error:  # noqa: BLE001 -- processors raise many types for an invalid image
                errors[number] = InvalidInputError(
                    f"generate: the processor refuses {image!r} ({error}); give another image"
                )
        self._of(list(new), new)
        for number, request in requests.items():
            if number not in errors:
                try:
                    self._check(request)
                except InvalidInputError as error:
                    errors[number] = error
        return errors

    def coded(self, request: Request) -> NDArray[np.int32]:
        """Return a request's tokens with negative codes in place of image placeholders; call `refused` first."""
        if not request.images:
            return request.tokens
        tokens = request.tokens.astype(np.int32)
        places = np.flatnonzero(tokens == self._token)
        first = 0
        for images in self._touching(request.images, places):
            end = first + sum(self._tokens[image] for image in images)
            tokens[places[first:end]] = self._code(images, request.tokens[places[first] : places[end - 1] + 1])
            first = end
        return tokens

    def shifts(self, prompts: Iterable[NDArray[np.int32]]) -> NDArray[np.int64]:
        """Return for each coded prompt the offset that its images add to the positions of the tokens after them."""
        return np.array([sum(group.shift for group in self._in(prompt)) for prompt in prompts], np.int64)

    def arguments(
        self,
        parts: Sequence[NDArray[np.int32]],
        ids: torch.Tensor,
        starts: NDArray[np.int64],
        pictures: Mapping[bytes, Image],
    ) -> dict[str, Any]:
        """Return the model's arguments for the images in parts of coded prompts; replaces codes in `ids` in place.

        Args:
            parts: parts of coded prompts; each begins and ends outside images.
            ids: `int64[B, L]`, the parts with padding after them; codes are replaced by the placeholder token.
            starts: position of the first token of each part.
            pictures: images of the parts, by their SHA-256.
        """
        of_row = [[image for group in self._in(part) for image in group.images] for part in parts]
        order = list(dict.fromkeys(image for row in of_row for image in row))
        if not order:
            return {}
        ids.masked_fill_(ids < 0, self._token)
        image_features = self._of(order, pictures)
        lengths = torch.tensor([len(part) for part in parts], device=ids.device)
        place = {image: index for index, image in enumerate(order)}
        model_arguments = arguments(
            self._model,
            _joined([image_features[image] for image in order]),
            ids,
            torch.arange(ids.shape[1], device=ids.device) < lengths[:, None],
            [[place[image] for image in row] for row in of_row],
        )
        if self._rope is not None:
            positions, _ = self._rope(
                ids,
                mm_token_type_ids=model_arguments["mm_token_type_ids"],
                image_grid_thw=model_arguments["image_grid_thw"],
            )
            model_arguments["position_ids"] = positions + torch.from_numpy(starts).to(ids.device)[:, None]
        return model_arguments

    def blocks(self, ids: torch.Tensor) -> torch.Tensor | None:
        """Return the number of each token's image, from 1, or 0 outside images; None if attention in images is causal.

        None: image tokens do not attend to each other.
        """
        if not self._whole:
            return None
        shows = ids == self._token
        begins = shows & ~torch.nn.functional.pad(shows, (1, 0))[:, :-1]
        return begins.cumsum(dim=1) * shows

    def _check(self, request: Request) -> None:
        """Refuse a request whose placeholder tokens do not match its images."""
        others = request.tokens[np.isin(request.tokens, self._others)]
        if len(others):
            raise InvalidInputError(
                f"generate: the request holds token {others[0]}, the placeholder of a medium other than images; give "
                "texts and images alone"
            )
        tokens = int((request.tokens == self._token).sum())
        rows = sum(self._tokens[image.sha256] for image in request.images)
        if tokens != rows:
            raise InvalidInputError(
                f"generate: request.tokens has {tokens} image tokens (id {self._token}), but request.images needs "
                f"{rows}; render text and images together with this engine's chat"
            )
        if request.tokens[-1] == self._token:
            raise InvalidInputError(
                "generate: the request ends with an image token; give at least one token after the last image"
            )

    def _touching(self, images: Sequence[Image], places: NDArray[np.int64]) -> list[tuple[bytes, ...]]:
        """Return the images of a request, grouped if there is no token between them."""
        together: list[tuple[bytes, ...]] = []
        first = 0
        for image in images:
            touches = first > 0 and places[first] == places[first - 1] + 1
            together = [*together[:-1], (*together[-1], image.sha256)] if touches else [*together, (image.sha256,)]
            first += self._tokens[image.sha256]
        return together

    def _code(self, images: tuple[bytes, ...], tokens: NDArray[np.int32]) -> int:
        key = hashlib.sha256(b"".join(images) + tokens.astype(np.int32).tobytes()).digest()
        if key not in self._codes:
            self._codes[key] = _FIRST_CODE - len(self._shown)
            count = sum(self._tokens[image] for image in images)
            self._shown.append(_Shown(images, count, self._shift(images, tokens)))
        return self._codes[key]

    def _shift(self, images: tuple[bytes, ...], tokens: NDArray[np.int32]) -> int:
        if self._rope is None:
            return 0
        grids = torch.cat([self._grids[image] for image in images])
        ids = torch.from_numpy(tokens.astype(np.int64)).to(grids.device)[None]
        _, shift = self._rope(ids, mm_token_type_ids=(ids == self._token).long(), image_grid_thw=grids)
        return int(shift)

    def _in(self, part: NDArray[np.int32]) -> list[_Shown]:
        """Return the groups of adjacent images in a part of a coded prompt, in order."""
        codes = part[part < 0]
        groups: list[_Shown] = []
        at = 0
        while at < len(codes):
            groups.append(self._shown[_FIRST_CODE - int(codes[at])])
            at += groups[-1].tokens
        return groups

    def _of(self, images: Sequence[bytes], pictures: Mapping[bytes, Image]) -> dict[bytes, ImageFeatures]:
        """Return the features of images, and compute missing ones."""
        image_features = {image: self._features[image] for image in images if image in self._features}
        missing = [image for image in images if image not in image_features]
        for first in range(0, len(missing), self._most):
            chunk = missing[first : first + self._most]
            computed = features(self._model, [self._inputs.of(pictures[image]) for image in chunk])
            for place, image in enumerate(chunk):
                image_features[image] = self._features[image] = _one(computed, place)
                self._bytes += _bytes(image_features[image])
                self._tokens[image] = computed.tokens(place)
                if computed.grids is not None:
                    self._grids[image] = computed.grids[place]
        for image in images:
            self._features.move_to_end(image)
        while self._bytes > _MOST_BYTES:
            self._bytes -= _bytes(self._features.popitem(last=False)[1])
        return image_features


def _one(computed: ImageFeatures, place: int) -> ImageFeatures:
    """Return the features of one image, copied so that they share no memory with those of other images."""
    return replace(
        computed,
        pooled=(computed.pooled[place].clone(),),
        deepstack=tuple((layer[place].clone(),) for layer in computed.deepstack),
        grids=None if computed.grids is None else (computed.grids[place],),
    )


def _joined(per_image: Sequence[ImageFeatures]) -> ImageFeatures:
    return replace(
        per_image[0],
        pooled=tuple(image_features.pooled[0] for image_features in per_image),
        deepstack=tuple(
            tuple(layer[0] for layer in layers)
            for layers in zip(*(image_features.deepstack for image_features in per_image), strict=True)
        ),
        grids=None
        if per_image[0].grids is None
        else tuple(image_features.grids[0] for image_features in per_image if image_features.grids is not None),
    )


def _bytes(image_features: ImageFeatures) -> int:
    return sum(each.nbytes for each in (image_features.pooled[0], *(layer[0] for layer in image_features.deepstack)))
