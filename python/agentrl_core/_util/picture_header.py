"""Type and size of a picture, read from the first bytes of its file."""

from __future__ import annotations

import struct
from typing import NamedTuple

# Markers of JPEG frames that hold the size: all of SOF0 to SOF15 but DHT, JPG and DAC.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_ALONE = frozenset((0x01, *range(0xD0, 0xD8)))
_START_OF_SCAN = 0xDA
_VP8_START = b"\x9d\x01\x2a"


class PictureHeader(NamedTuple):
    """Type (`png`, `jpeg`, `webp` or `gif`), width and height of a picture in pixels."""

    type: str
    width: int
    height: int


def picture_header(content: bytes) -> PictureHeader | None:
    """Return type and size of a PNG, JPEG, WebP or GIF file; None for other bytes.

    Example:
        >>> from agentrl_core._util.picture_header import picture_header
        >>> picture_header(b"GIF89a" + bytes([4, 0, 3, 0]))
        PictureHeader(type='gif', width=4, height=3)
    """
    for name, read in (("png", _png), ("jpeg", _jpeg), ("webp", _webp), ("gif", _gif)):
        try:
            size = read(content)
        except (struct.error, IndexError):  # the file ends in its header
            return None
        if size is not None:
            return PictureHeader(name, *size) if min(size) > 0 else None
    return None


def _png(content: bytes) -> tuple[int, int] | None:
    if not content.startswith(b"\x89PNG\r\n\x1a\n") or content[12:16] != b"IHDR":
        return None
    width, height = struct.unpack_from(">II", content, 16)
    return width, height


def _gif(content: bytes) -> tuple[int, int] | None:
    if content[:6] not in (b"GIF87a", b"GIF89a"):
        return None
    width, height = struct.unpack_from("<HH", content, 6)
    return width, height


def _webp(content: bytes) -> tuple[int, int] | None:
    if content[:4] != b"RIFF" or content[8:12] != b"WEBP":
        return None
    kind = content[12:16]
    if kind == b"VP8X":
        low_width, high_width, low_height, high_height = struct.unpack_from("<HBHB", content, 24)
        return 1 + low_width + (high_width << 16), 1 + low_height + (high_height << 16)
    if kind == b"VP8L" and content[20] == 0x2F:
        (bits,) = struct.unpack_from("<I", content, 21)
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 " and content[23:26] == _VP8_START:
        width, height = struct.unpack_from("<HH", content, 26)
        return width & 0x3FFF, height & 0x3FFF
    return None


def _jpeg(content: bytes) -> tuple[int, int] | None:
    if not content.startswith(b"\xff\xd8"):
        return None
    place = 2
    while content[place] == 0xFF:
        marker = content[place + 1]
        if marker == 0xFF:  # a byte that fills up
            place += 1
        elif marker in _ALONE:
            place += 2
        elif marker in _FRAMES:
            height, width = struct.unpack_from(">HH", content, place + 5)
            return width, height
        elif marker == _START_OF_SCAN:
            return None
        else:
            (length,) = struct.unpack_from(">H", content, place + 2)
            place += 2 + length
    return None
