"""Write files and folders atomically, safe against power loss and planted symbolic links."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Open a new file for the block; it replaces the file at `path` if the block ends without an error.

    The data go to a new file with a random name in the same folder, so a planted link is never followed. File and name
    are on disk when the block ends.

    Args:
        path: path of the file. An existing link is replaced, not followed.

    Raises:
        OSError: the file cannot be written; the older file stays.

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
    try:
        descriptor = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except KeyboardInterrupt:  # it may come as soon as the file is there
        half.unlink(missing_ok=True)
        raise
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
    """Create an empty folder with a random name next to `path`; `rename_whole` renames it when it is complete."""
    half = _unused(path)
    half.mkdir()
    return half


def rename_whole(half: Path, folder: Path) -> None:
    """Sync the files of a folder to disk, then rename it."""
    for file in half.iterdir():
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
    sync_folder(half)
    half.rename(folder)
    sync_folder(folder.parent)


def remove_unfinished(folder: Path) -> None:
    """Remove the unfinished files and folders that a kill left in a folder; no other process may write there."""
    for path in folder.glob(f".*{UNFINISHED}"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def sync_folder(folder: Path) -> None:
    """Sync a folder's directory entries to disk, so that its file names survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unused(path: Path) -> Path:
    return path.with_name(f".{secrets.token_hex(16)}{UNFINISHED}")


UNFINISHED = ".unfinished"
"""Suffix of unfinished files and folders, which a kill leaves on disk."""
