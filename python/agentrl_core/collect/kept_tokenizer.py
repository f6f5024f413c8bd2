"""A run keeps the tokenizer that its tokens are of, so that they can be read as text later."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from agentrl_core.data.files import new_file
from agentrl_core.data.store import Store
from agentrl_core.engine.base import Engine
from agentrl_core.exceptions import StoreError


def keep_tokenizer(store: Store | None, engines: Iterable[Engine]) -> None:
    """Write `tokenizer/tokenizer.json` into the run, of the first engine that has a fast tokenizer; once.

    Raises:
        StoreError: it cannot be written.
    """
    file = None if store is None else Path(store.path, "tokenizer", "tokenizer.json")
    if file is None or file.exists() or (file.parents[1] / "start" / "tokenizer.json").exists():
        return
    for engine in engines:
        # An engine of somebody's own may make its tokens without a tokenizer.
        core = getattr(getattr(engine.chat, "tokenizer", None), "backend_tokenizer", None)
        if core is None:
            continue
        try:
            file.parent.mkdir(exist_ok=True)
            with new_file(file) as opened:
                opened.write(core.to_str().encode())
        except OSError as error:
            raise StoreError(f"{file} cannot be written: {error}") from None
        return
