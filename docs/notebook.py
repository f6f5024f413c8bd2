"""A notebook as a page: its cells from the first to the last, each with its output. Needs no Jupyter."""

from __future__ import annotations

import ast
import contextlib
import html
import io
import json
import os
import tempfile
from pathlib import Path
from typing import Any


def page(path: Path) -> str:
    """The cells of a notebook with what each of them printed and showed, run in an empty folder."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": "__main__"}
    parts, before = [], Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for cell in notebook["cells"]:
                source = "".join(cell["source"])
                parts.append(source if cell["cell_type"] == "markdown" else shown(source, names))
        finally:
            os.chdir(before)
    return "\n\n".join(parts) + "\n"


def shown(source: str, names: dict[str, Any]) -> str:
    """A cell of code, and its output: what it prints, and its last expression."""
    tree, printed, last = ast.parse(source), io.StringIO(), None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "<cell>", "exec", dont_inherit=True), names)  # noqa: S102 - a notebook of this repository
        value = None if last is None else eval(compile(last, "<cell>", "eval", dont_inherit=True), names)  # noqa: S307 - the same
    output = printed.getvalue() + ("" if value is None else f"{value}\n")
    return f"```python\n{source}\n```" + (f'\n\n<pre class="output">{html.escape(output)}</pre>' if output else "")
