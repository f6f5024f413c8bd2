"""Convert prompts with images to vLLM's form: one placeholder for each image, which vLLM expands."""

from __future__ import annotations

import base64
import io
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from agentrl_core.engine.base import Request
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.model.images import ImageInputs, image_token, placeholder_ids

if TYPE_CHECKING:
    from PIL.Image import Image as Picture


class VllmImages:
    """Converts requests with expanded image placeholders to vLLM prompts with one placeholder for each image.

    vLLM would silently expand expanded placeholders again. The number of tokens of an image depends on its size.

    Args:
        processor: processor of the model.
        model: model of the checkpoint, with or without weights.

    Attributes:
        placeholders: the tokens that are never sampled.
    """

    def __init__(self, processor: Any, model: Any) -> None:
        self._processor = processor
        self._text = ImageInputs(processor).placeholder
        self._token = image_token(model)
        self.placeholders = placeholder_ids(model)
        once = processor.tokenizer(self._text, add_special_tokens=False)["input_ids"]
        self._once = np.asarray(once, np.int32)
        self._expanded = lru_cache(maxsize=256)(self._tokens_of)
        self._url = lru_cache(maxsize=256)(_url)

    def prompt(self, request: Request) -> dict[str, Any]:
        """Return the prompt of a request for `vllm.LLM`.

        Raises:
            InvalidInputError: an image cannot be read, or the tokens do not match the images.
        """
        if not request.images and self._token not in request.tokens:
            return {"prompt_token_ids": request.tokens.tolist()}
        pictures = [_picture(image) for image in request.images]
        return {
            "prompt_token_ids": self._unexpanded(request, pictures).tolist(),
            "multi_modal_data": {"image": pictures},
            # Keys of vLLM's cache of image features.
            "multi_modal_uuids": {"image": [image.sha256.hex() for image in request.images]},
        }

    def body(self, request: Request) -> dict[str, Any]:
        """Return the prompt of a request for a server: fields of a request to `/inference/v1/generate`.

        Raises:
            InvalidInputError: an image cannot be read, or the tokens do not match the images.
        """
        if not request.images and self._token not in request.tokens:
            return {"token_ids": request.tokens.tolist()}
        tokens = self._unexpanded(request, list(map(_picture, request.images)))
        parts = [{"type": "image_url", "url": self._url(image), "uuid": image.sha256.hex()} for image in request.images]
        return {"token_ids": tokens.tolist(), "content_parts": parts, "return_token_ids": True}

    def _unexpanded(self, request: Request, pictures: list[Picture]) -> NDArray[np.int32]:
        tokens = request.tokens
        places = np.flatnonzero(tokens == self._token)
        parts: list[NDArray[np.int32]] = []
        end, first = 0, 0
        for number, picture in enumerate(pictures):
            expanded, before, count = self._expanded(picture.size)
            begin = int(places[first]) - before if first < len(places) else len(tokens)
            if begin < end or not np.array_equal(tokens[begin : begin + len(expanded)], expanded):
                raise InvalidInputError(
                    f"generate: request.tokens lacks the {len(expanded)} placeholder tokens of image {number} "
                    f"({picture.size[0]} x {picture.size[1]} pixels) at its position; render text and images together "
                    "with this engine's chat"
                )
            parts += [tokens[end:begin], self._once]
            end, first = begin + len(expanded), first + count
        if first != len(places):
            raise InvalidInputError(
                f"generate: request.tokens has {len(places)} image tokens (id {self._token}), but request.images "
                f"needs {first}; render text and images together with this engine's chat"
            )
        return np.concatenate([*parts, tokens[end:]])

    def _tokens_of(self, size: tuple[int, int]) -> tuple[NDArray[np.int32], int, int]:
        """Return an image's tokens by its size, the number before its placeholders, and the number of placeholders."""
        from PIL import Image as Pictures

        try:
            inputs = self._processor(text=[self._text], images=[[Pictures.new("RGB", size)]], add_special_tokens=False)
        except ValueError as error:
            raise InvalidInputError(
                f"generate: the processor refuses an image of {size[0]} x {size[1]} pixels ({error}); give an image of "
                "another size"
            ) from error
        tokens = np.asarray(inputs["input_ids"][0], np.int32)
        places = np.flatnonzero(tokens == self._token)
        return tokens, int(places[0]), len(places)


def _picture(image: Any) -> Picture:
    from PIL import Image as Pictures

    try:
        return Pictures.open(io.BytesIO(image.content)).convert("RGB")
    except OSError as error:
        raise InvalidInputError(f"generate: {image!r} cannot be read ({error}); give a PNG or JPEG") from error


def _url(image: Any) -> str:
    """Return the RGB pixels of an image as a PNG data URL; servers read transparent or rotated images differently."""
    from PIL import Image as Pictures

    picture, buffer = _picture(image), io.BytesIO()
    Pictures.frombytes("RGB", picture.size, picture.tobytes()).save(buffer, "PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
