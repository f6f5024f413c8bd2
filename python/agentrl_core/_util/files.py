"""Files of a run that are there as a whole or not at all, also after a power cut."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file beside its place, sync it, and rename it into place; then sync the folder, which holds the name.

    Args:
        path: where the file is to be; one that lies there is replaced.
        write: writes the content.
    """
    half = path.with_name(path.name + ".tmp")
    with half.open("wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    half.replace(path)
    sync_folder(path.parent)


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
