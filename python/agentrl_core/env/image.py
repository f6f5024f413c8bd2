"""Images in an environment's observations."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from agentrl_core._util.picture_header import picture_header
from agentrl_core.exceptions import InvalidInputError

MOST_PIXELS = 89_478_485
"""The most pixels of an image: Pillow's limit against decompression bombs."""


class Image:
    """An image in a message: the bytes of a PNG, JPEG, WebP or GIF file.

    It is a part of a message's content, besides texts. The model's template renders it as a placeholder; the store
    keeps the bytes once by their SHA-256, to which column `blobs` of `nodes` refers.

    The header is read at creation; Pillow, if installed, verifies the rest of the file. Pixels are not decoded.

    Args:
        source: the bytes; or the path of a file, which is read at once.

    Raises:
        InvalidInputError: there are no bytes, the file cannot be read, the bytes are not such a picture, or it has more
            than 89 million pixels.

    Example:
        >>> import base64
        >>> from agentrl_core.env import Image, StepResult
        >>> screenshot = Image(base64.b64decode("R0lGODlhAQABAIAAAAAAAP///yH5BAAAAAAALAAAAAABAAEAAAICRAEAOw=="))
        >>> StepResult([{"role": "tool", "content": ["The page now:", screenshot]}]).observation
        [{'role': 'tool', 'content': ['The page now:', Image(43 bytes, e4c8efe0cd4a34ef)]}]
    """

    def __init__(self, source: bytes | str | os.PathLike[str]) -> None:
        content: object = source
        if isinstance(source, (str, os.PathLike)):
            try:
                content = Path(source).read_bytes()
            except OSError as error:
                raise InvalidInputError(
                    f"Image: {os.fspath(source)!r} cannot be read ({error}); give a picture file, or its bytes"
                ) from error
        if not isinstance(content, bytes) or not content:
            raise InvalidInputError(
                f"Image: source is {source!r:.60}; give the bytes of a picture, or a path to a file that is not empty"
            )
        is_file = isinstance(source, (str, os.PathLike))
        _check(content, repr(os.fspath(source)) if is_file else f"source, {len(content)} bytes,")
        self.content = content

    @cached_property
    def sha256(self) -> bytes:
        """SHA-256 of the bytes, by which the store identifies the image."""
        return hashlib.sha256(self.content).digest()

    def __eq__(self, other: object) -> bool:
        """Return whether two images have the same bytes."""
        return isinstance(other, Image) and self.content == other.content

    def __hash__(self) -> int:
        """Hash of the content, consistent with equality."""
        return hash(self.content)

    def __repr__(self) -> str:
        """Show the image's size and the start of its hash."""
        return f"Image({len(self.content)} bytes, {self.sha256.hex()[:16]})"


def _check(content: bytes, name: str) -> None:
    """Refuse bytes that are not a picture, and pictures with too many pixels."""
    header = picture_header(content)
    if header is None:
        raise InvalidInputError(f"Image: {name} is not a PNG, JPEG, WebP or GIF; save the picture as one of these")
    if header.width * header.height > MOST_PIXELS:
        raise InvalidInputError(
            f"Image: {name} has {header.width} x {header.height} pixels; give at most {MOST_PIXELS} in all"
        )
    try:
        from PIL import Image as Picture
    except ImportError:
        return
    try:
        Picture.open(io.BytesIO(content), formats=[header.type.upper()]).verify()
    except Exception as error:  # Pillow's plugins raise many types for a damaged file
        kind = header.type.upper()
        raise InvalidInputError(f"Image: {name} is a damaged {kind} ({type(error).__name__}); save it again") from error


def images_in(content: str | Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> tuple[Image, ...]:
    """Return the images in some content, in order."""
    if isinstance(content, str):
        return ()
    messages = [content] if isinstance(content, Mapping) else content
    return tuple(part for message in messages for part in message.get("content") or () if isinstance(part, Image))


def is_content(content: object) -> bool:
    """Return whether a value can be a message's content: a text, or a list of texts and images."""
    if isinstance(content, str):
        return True
    return isinstance(content, Sequence) and bool(content) and all(isinstance(part, (str, Image)) for part in content)
