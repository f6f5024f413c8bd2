"""Images of the page: formats that browsers show, up to a number of bytes; only facts of all other images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from agentrl_core._util.picture_header import picture_header
from agentrl_core.data.store import Store
from agentrl_core.env.image import MOST_PIXELS
from agentrl_core.exceptions import CorruptError, NotFoundError
from agentrl_core.integrations.polars.tables import Tables
from agentrl_core.view.blocks import Chosen


@dataclass(frozen=True)
class PageImages:
    """The images of the groups in a page.

    Args:
        facts: by SHA-256 as hex text: `type`, `width`, `height` and `bytes` of each image that was read, and for images
            that are not in the page the reason, `why`.
        contents: content of the images in the page, by SHA-256 as hex text.
    """

    facts: dict[str, dict[str, Any]]
    contents: dict[str, bytes]

    @classmethod
    def of(cls, store: Store, tables: Tables, chosen: Chosen, most: int) -> PageImages:
        """Read the images of chosen groups, latest iteration first, up to a number of bytes in all.

        Only PNG, JPEG, WebP and GIF are included, since they cannot run scripts. The first bytes of the content decide,
        not the type that the run recorded.
        """
        nodes = tables.nodes.filter(pl.col("blobs").list.len() > 0).select("group_id", "node_id", "blobs")
        groups = chosen.groups.filter(pl.col("block").is_not_null()).select("group_id", "iteration").lazy()
        rows = nodes.join(groups, on="group_id").sort("iteration", "node_id", descending=[True, False])
        hashes = rows.select(pl.col("blobs").explode()).collect()["blobs"].unique(maintain_order=True).to_list()
        facts: dict[str, dict[str, Any]] = {}
        contents: dict[str, bytes] = {}
        remaining = most
        for digest in hashes:
            name = digest.hex()
            if remaining <= 0:  # do not read all files of a long run
                facts[name] = {"why": "it exceeds the bytes of a page"}
                continue
            try:
                content = store.blob(digest)
            except (NotFoundError, CorruptError):
                facts[name] = {"why": "its file is missing or damaged; run agentrl verify"}
                continue
            picture = picture_facts(content)
            if "why" not in picture and len(content) > remaining:
                picture["why"] = "it exceeds the bytes of a page"
            if "why" not in picture:
                contents[name] = content
                remaining -= len(content)
            facts[name] = picture
        return cls(facts, contents)


def picture_facts(content: bytes) -> dict[str, Any]:
    """Return `type`, `width`, `height` and `bytes` of an image, if known, and `why` if the page must not show it.

    Example:
        >>> from agentrl_core.view.images import picture_facts
        >>> picture_facts(b"<svg/>")
        {'bytes': 6, 'why': 'it is not a PNG, JPEG, WebP or GIF'}
    """
    header = picture_header(content)
    if header is None:
        return {"bytes": len(content), "why": "it is not a PNG, JPEG, WebP or GIF"}
    facts: dict[str, Any] = {**header._asdict(), "bytes": len(content)}
    return facts if header.width * header.height <= MOST_PIXELS else {**facts, "why": "it has too many pixels"}
