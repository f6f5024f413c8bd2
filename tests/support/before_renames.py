"""Unpack files that an older build wrote before names changed, and the tool that rewrites these names."""

from __future__ import annotations

import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
ARCHIVE = ROOT / "tests" / "data" / "before_renames.tar.gz"

sys.path.append(str(ROOT / "tools"))


def unpack(folder: Path, part: str) -> Path:
    """Unpack a folder or file of the archive below `folder`."""
    with tarfile.open(ARCHIVE) as archive:
        members = [each for each in archive if each.name == part or each.name.startswith(f"{part}/")]
        assert members, f"the archive has no {part}"
        archive.extractall(folder, members, filter="data")
    return folder / part
