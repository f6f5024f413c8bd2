"""Images in messages of OpenAI's API: parts with a `data:` URL, and `env.Image`."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl_core._util.picture_header import picture_header
from agentrl_core.env.image import Image
from agentrl_core.exceptions import InvalidInputError, UnsupportedError

_KINDS = ("image_url", "input_image")
_BASE64 = ";base64"


def is_image_part(part: object) -> bool:
    """Return whether a part of a content is an image in the form of OpenAI's Chat Completions or Responses."""
    return isinstance(part, Mapping) and part.get("type") in _KINDS


def image_of(part: Mapping[str, Any], where: str) -> Image:
    """Return the image of a part whose URL is `data:image/png;base64,...`.

    Raises:
        InvalidInputError: the part has no such URL, or its bytes are not a picture.
        UnsupportedError: the URL refers to a file or the network, from which nothing is loaded.

    Example:
        >>> from agentrl_core.env.message_images import image_of
        >>> pixel = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAAAAAAALAAAAAABAAEAAAICRAEAOw=="
        >>> image_of({"type": "image_url", "image_url": {"url": pixel}}, "message 0")
        Image(43 bytes, e4c8efe0cd4a34ef)
    """
    image_url = part.get("image_url")
    url = image_url.get("url") if isinstance(image_url, Mapping) else image_url
    if not isinstance(url, str):
        raise InvalidInputError(f"{where}: image_url is {url!r:.60}; give a URL data:image/png;base64,...")
    head, comma, data = url.partition(",")
    if not head[:5].lower() == "data:":
        raise UnsupportedError(
            f"{where}: the image is at {url!r:.60}, and nothing is loaded from files or the network; send its bytes as "
            "data:image/png;base64,..."
        )
    if not comma or not head.lower().endswith(_BASE64):
        raise InvalidInputError(f"{where}: the data URL {url!r:.40} is not base64; give data:image/png;base64,...")
    try:
        content = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidInputError(
            f"{where}: the base64 of an image is damaged ({error}); encode the image again"
        ) from None
    try:
        return Image(content)
    except InvalidInputError as error:
        raise InvalidInputError(f"{where}: {error}") from None


def data_url(content: bytes) -> str:
    """Return the `data:` URL of a picture.

    Example:
        >>> from agentrl_core.env.message_images import data_url
        >>> data_url(b"GIF89a" + bytes([4, 0, 3, 0]))
        'data:image/gif;base64,R0lGODlhBAADAA=='
    """
    header = picture_header(content)
    kind = "application/octet-stream" if header is None else f"image/{header.type}"
    return f"data:{kind}{_BASE64},{base64.b64encode(content).decode()}"


def with_images(messages: Sequence[Mapping[str, Any]], name: str = "messages") -> list[dict[str, Any]]:
    """Return messages with their image parts converted to `env.Image`; other parts and messages are unchanged.

    Args:
        messages: messages of a chat.
        name: name of the list in errors.

    Raises:
        InvalidInputError: an image has no URL or damaged bytes.
        UnsupportedError: an image refers to a file or the network, or is in an assistant's message.

    Example:
        >>> from agentrl_core.env.message_images import with_images
        >>> pixel = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAAAAAAALAAAAAABAAEAAAICRAEAOw=="
        >>> part = {"type": "image_url", "image_url": {"url": pixel}}
        >>> with_images([{"role": "user", "content": ["what?", part]}])
        [{'role': 'user', 'content': ['what?', Image(43 bytes, e4c8efe0cd4a34ef)]}]
    """
    return [_with_images(message, f"{name}[{place}]") for place, message in enumerate(messages)]


def _with_images(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    content = message.get("content")
    if not isinstance(content, (list, tuple)) or not any(map(is_image_part, content)):
        return dict(message)
    if message.get("role") == "assistant":
        raise UnsupportedError(
            f"{where}: an answer of the assistant has an image; remove it, as models generate text alone"
        )
    return {
        **message,
        "content": [
            image_of(part, f"{where}.content[{place}]") if is_image_part(part) else part
            for place, part in enumerate(content)
        ],
    }
