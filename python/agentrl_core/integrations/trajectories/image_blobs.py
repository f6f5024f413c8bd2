"""Images of imported records: the bytes are stored as blobs, and the stored record refers to them by hash."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

_BASE64, _HASH = ";base64,", ";sha256,"
_HASHED = re.compile(rf"(data:[^,]*){_HASH}([0-9a-f]{{64}})", re.IGNORECASE)


def with_hashes(record: Any, known: Collection[bytes]) -> Any:
    """Return a record in whose `data:` URLs the bytes of stored images are replaced by their SHA-256.

    A URL that cannot be restored exactly from its bytes, such as one with line breaks, is unchanged.

    Args:
        record: a record of JSON types.
        known: SHA-256 of the stored images.
    """

    def hashed(url: str) -> str:
        head, mark, data = url.partition(_BASE64)
        try:
            content = base64.b64decode(data, validate=True) if mark else b""
        except (binascii.Error, ValueError):
            return url
        digest = hashlib.sha256(content).digest()
        same = mark and digest in known and base64.b64encode(content).decode() == data
        return f"{head}{_HASH}{digest.hex()}" if same else url

    return _mapped(record, hashed)


def with_bytes(record: Any, blob: Callable[[bytes], bytes]) -> Any:
    """Restore a record from the result of `with_hashes`.

    Args:
        record: a record of JSON types.
        blob: returns the content of a blob by its SHA-256.

    Raises:
        NotFoundError: a blob is missing.
    """

    def data_url(url: str) -> str:
        match = _HASHED.fullmatch(url)
        return (
            url if match is None else f"{match[1]}{_BASE64}{base64.b64encode(blob(bytes.fromhex(match[2]))).decode()}"
        )

    return _mapped(record, data_url)


def names_blobs(text: str) -> bool:
    """Return whether the JSON text of a record has image hashes instead of bytes."""
    return _HASH in text


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value) if value[:5].lower() == "data:" else value
    if isinstance(value, Mapping):
        return {name: _mapped(inner, change) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_mapped(inner, change) for inner in value]
    return value
