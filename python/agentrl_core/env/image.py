"""Images in an environment's observations."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from agentrl_core.exceptions import InvalidInputError


class Image:
    """A picture in a message: its bytes as a file has them (PNG, JPEG).

    It is a part of a message's content, beside texts. The model's template shows it by its own placeholder; the bytes
    are kept once in the store by their SHA-256, which column `blobs` of `nodes` names.

    Args:
        source: the bytes; or the path of a file, which is read at once.

    Raises:
        InvalidInputError: no bytes, or a file that cannot be read.

    Example:
        >>> from agentrl_core.env import Image, StepResult
        >>> screenshot = Image(bytes.fromhex("89504e470d0a1a0a"))
        >>> StepResult([{"role": "tool", "content": ["The page now:", screenshot]}]).observation
        [{'role': 'tool', 'content': ['The page now:', Image(8 bytes, 4c4b6a3be1314ab8)]}]
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
            raise InvalidInputError(f"Image: source is {source!r:.60}; give the bytes of a picture, or a path")
        self.content = content

    @cached_property
    def sha256(self) -> bytes:
        """The hash by which it is known."""
        return hashlib.sha256(self.content).digest()

    def __eq__(self, other: object) -> bool:
        """Images of the same bytes are equal."""
        return isinstance(other, Image) and self.content == other.content

    def __hash__(self) -> int:
        """Hash of the content, consistent with equality."""
        return hash(self.content)

    def __repr__(self) -> str:
        """Its size and the start of its hash."""
        return f"Image({len(self.content)} bytes, {self.sha256.hex()[:16]})"


def images_in(content: str | Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> tuple[Image, ...]:
    """Return the images of a content, in their order."""
    if isinstance(content, str):
        return ()
    messages = [content] if isinstance(content, Mapping) else content
    return tuple(part for message in messages for part in message.get("content") or () if isinstance(part, Image))


def is_content(content: object) -> bool:
    """Return whether this can be a message's content: a text, or texts and images."""
    if isinstance(content, str):
        return True
    return isinstance(content, Sequence) and bool(content) and all(isinstance(part, (str, Image)) for part in content)
