"""Encode PNG files with the standard library and NumPy."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np


def encode_png(pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> bytes:
    r"""Encode pixels as a PNG file.

    Args:
        pixels: uint8 array of shape [height, width, 3]: red, green and blue.

    Example:
        >>> import numpy as np
        >>> from agentrl_core.env.png import encode_png
        >>> encode_png(np.zeros((2, 3, 3), np.uint8))[:8]
        b'\x89PNG\r\n\x1a\n'
    """
    height, width, _ = pixels.shape
    rows = np.zeros((height, 1 + 3 * width), np.uint8)  # each row begins with the number of its filter: none
    rows[:, 1:] = pixels.reshape(height, -1)
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows.tobytes(), 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    )
