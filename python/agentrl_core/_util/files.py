"""Files and folders that appear whole or not at all, also after a power cut, and never through a planted link."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Write a file in this block; it gets its name, in place of an older one, when the block ends without an error.

    It is written under a random name beside its place, which must not exist before, so no link that was
    planted there is written through. File and name are on the disk when the block has ended.

    Args:
        path: the place of the file. A link that lies there is replaced, not followed.

    Raises:
        OSError: it cannot be written; the older file stays.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from agentrl_core._util.files import new_file
        >>> path = Path(tempfile.mkdtemp(), "note")
        >>> with new_file(path) as file:
        ...     _ = file.write(b"whole")
        >>> path.read_bytes()
        b'whole'
    """
    half = _unused(path)
    descriptor = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        half.replace(path)
    except BaseException:
        half.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def new_folder(path: Path) -> Path:
    """Make an empty folder of a random name beside `path`, to be renamed when it is whole; see `rename_whole`."""
    half = _unused(path)
    half.mkdir()
    return half


def rename_whole(half: Path, folder: Path) -> None:
    """Give a folder of files its name once they are on the disk."""
    for file in half.iterdir():
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
    sync_folder(half)
    half.rename(folder)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make the names of a folder's files durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unused(path: Path) -> Path:
    return path.with_name(f".{secrets.token_hex(16)}{UNFINISHED}")


UNFINISHED = ".unfinished"
"""The end of the names of files and folders that are being written; a kill leaves them."""
