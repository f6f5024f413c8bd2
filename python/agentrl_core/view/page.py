"""The page of a run: one self-contained HTML file."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any, Self

import polars as pl

from agentrl_core import _core
from agentrl_core._util.files import new_file
from agentrl_core.data.store import Store
from agentrl_core.data.table_codes import CODES, UNTRAINED, StepFlag
from agentrl_core.exceptions import InvalidInputError, StoreError
from agentrl_core.integrations.polars import scan
from agentrl_core.integrations.polars._code_names import OPERATIONS
from agentrl_core.integrations.polars.vocabulary import Vocabulary, used
from agentrl_core.view.blocks import Chosen, blocks, packed, plain
from agentrl_core.view.groups import of_groups
from agentrl_core.view.health import signs
from agentrl_core.view.images import PageImages
from agentrl_core.view.iteration_recipes import recipes_of
from agentrl_core.view.iteration_statistics import statistics
from agentrl_core.view.javascript_bundle import joined

_ALL = (0, 2**62)
BYTES_OF_A_TOKEN = 10
"""Approximate size of a token in the page, in bytes; images get as many bytes in all as tokens."""
_HIDDEN = re.compile(  # assets/dom.js has the same list
    r"[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    r"\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)


@dataclass(frozen=True)
class Page:
    """The page of a run, one HTML file that needs neither a server nor a network.

    It has curves over iterations, groups of an iteration, token trees with advantages, the text of a path with the
    columns of each token and its images, the computation of an advantage, members side by side, and drift. A notebook
    displays it.

    Args:
        html: text of the file.

    Example:
        >>> import tempfile
        >>> import agentrl_core as arl
        >>> from agentrl_core.view import Page
        >>> with arl.Store.open(tempfile.mkdtemp()) as store:
        ...     page = Page.of(store)
        >>> page.html.startswith("<!doctype html>"), page
        (True, Page(0.1 MB))
    """

    html: str

    @classmethod
    def of(
        cls,
        store: Store,
        *,
        iterations: tuple[int, int] = _ALL,
        tokenizer: Any = None,
        tokens: int = 1_000_000,
        title: str | None = None,
    ) -> Self:
        """Create the page of a run, with all committed iterations.

        Args:
            store: the run, open.
            iterations: range of iterations with groups in the page, without the end; curves cover all iterations.
            tokenizer: decodes tokens: a `tokenizer.json`, its directory, or a fast tokenizer. None: the tokenizer of
                the run; without one, tokens are shown as ids.
            tokens: largest number of stored tokens in the page (a million make about 10 MB). The groups of the latest
                iterations come first, and the page lists omitted ones. Images of these groups are in the page up to 10
                bytes for each of this number; of others it has size and hash.
            title: title of the page; None: the name of the run's directory.

        Raises:
            InvalidInputError: `tokens` is not positive, or `tokenizer` is not a tokenizer.
        """
        if tokens < 1:
            raise InvalidInputError(f"tokens={tokens}; give at least 1")
        vocabulary = Vocabulary.find(store.path) if tokenizer is None else Vocabulary.of(tokenizer)
        tables = scan(store)
        chosen = Chosen.of(tables, iterations, tokens)
        numbers, groups = statistics(tables), of_groups(tables, chosen)
        nodes = tables.nodes.join(chosen.kept.lazy(), on="group_id", how="semi")
        ids = nodes.select(pl.col("tokens").list.explode().unique().sort()).collect()["tokens"].drop_nulls().to_list()
        words = used(vocabulary or Vocabulary.from_bytes({}, set()), ids)
        contents = {
            "iterations": plain(numbers),
            "metrics": plain(tables.metrics.collect()),
            "groups": plain(groups),
            "vocabulary": words,
        }
        recipes, of = recipes_of(store)
        images = PageImages.of(store, tables, chosen, BYTES_OF_A_TOKEN * tokens)
        name = title or Path(store.path).resolve().name
        metadata = {
            "title": name,
            "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "version": _core.__version__,
            "commit": store.version,
            "closed": store.iteration,
            "tokenizer": vocabulary is not None,
            "codes": {**CODES, "operation": OPERATIONS},
            "flags": {flag.name.lower().replace("_", " "): int(flag) for flag in StepFlag if flag.name},
            "untrained": UNTRAINED,
            "recipes": recipes,
            "recipe_of": of,
            "images": images.facts,
            "signs": [sign._asdict() for sign in signs(tables, numbers, groups)],
            "draw_columns": [name for name in tables.draw_columns.collect_schema().names() if name != "draw_id"],
        }
        parts = [_data(f"block-{number}", block) for number, block in enumerate(blocks(tables, chosen))]
        parts += [_data(f"image-{digest}", content) for digest, content in images.contents.items()]
        return cls(_page(name, metadata, packed(contents), parts))

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the page to an HTML file atomically.

        Raises:
            StoreError: the file cannot be written.
        """
        target = Path(path)
        try:
            with new_file(target) as file:
                file.write(self.html.encode())
        except OSError as error:
            raise StoreError(f"{target} cannot be written: {error}; check the folder and its permissions") from None
        return target

    def _repr_html_(self) -> str:
        """Return the page in an iframe for notebooks."""
        text = html.escape(self.html, quote=True)
        style = "width:100%;height:760px;border:1px solid #8884;border-radius:8px"
        return f'<iframe srcdoc="{text}" style="{style}"></iframe>'

    def __repr__(self) -> str:
        return f"Page({len(self.html) / 1e6:.1f} MB)"


def _data(name: str, content: bytes) -> str:
    return f'<script type="text/plain" id="{name}">{base64.b64encode(content).decode()}</script>'


def _page(title: str, about: dict[str, Any], contents: bytes, parts: list[str]) -> str:
    assets = files("agentrl_core.view") / "assets"
    style = (assets / "page.css").read_text(encoding="utf-8")
    script = joined(
        {path.name: path.read_text(encoding="utf-8") for path in assets.iterdir() if path.name.endswith(".js")}
    )
    # The policy allows only this style and script, even if a model's text gets into the page.
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    encoded = json.dumps(about).replace("<", "\\u003c")
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{html.escape(visible(title))}</title>",
            f"<style>{style}</style></head>",
            '<body><div id="page"></div>',
            f'<script type="text/plain" id="about">{encoded}</script>',
            _data("contents", contents),
            f"<script>{script}</script>",  # before the blocks, so that the page paints while they load
            *parts,
            "</body></html>",
        ]
    )


def visible(text: str) -> str:
    r"""Return a text with hidden characters made visible: controls, direction marks, lone surrogates.

    Example:
        >>> from agentrl_core.view.page import visible
        >>> visible("run\u202egnp.exe")
        'run⟨U+202E⟩gnp.exe'
    """

    def shown(match: re.Match[str]) -> str:
        code = ord(match[0])
        return chr(0x2400 + code) if code < ord(" ") else f"⟨U+{code:04X}⟩"

    return _HIDDEN.sub(shown, text)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
