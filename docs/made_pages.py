"""Generate pages of the site during its build: recipes, figures, API, and notebooks with their outputs.

A hook of MkDocs (`hooks` in mkdocs.yml). The generated pages are not committed; their source files are the only list.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path[:0] = [str(DOCS), str(ROOT / "tests" / "support")]

import catalogue  # noqa: E402 - beside this file, which MkDocs loads by its path
import notebook  # noqa: E402 - the same
from mkdocs.config.defaults import MkDocsConfig  # noqa: E402
from mkdocs.structure.files import File, Files  # noqa: E402
from public_names import names_of, public_names  # noqa: E402 - the one list of what is public

LINK_IN_TABLE = re.compile(r"^\| \[\*\*(\w+)\*\*\]\([^)]*\)", re.MULTILINE)

BESIDE = ("collect", "agents", "integrations", "stats")
"""Packages that users import by name, in addition to those whose names count as public."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    pages = {**systems(), "figures.md": figures(), **api(), **notebooks()}
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """Link each name in the catalogue to the page of the recipe."""
    if page.file.src_uri != catalogue.TABLE.name:
        return markdown
    return LINK_IN_TABLE.sub(r"| [**\1**](catalogue/\1.md)", markdown)


def systems() -> dict[str, str]:
    """A page for each system, and the index by phase."""
    with tempfile.TemporaryDirectory() as folder:
        catalogue.write_pages(Path(folder))
        return {
            f"catalogue/{path.name}": path.read_text(encoding="utf-8") for path in sorted(Path(folder).glob("*.md"))
        }


def figures() -> str:
    """A section for each bench with its records: the command, the machine, and every printed line."""
    parts = [(DOCS / "figures.head").read_text(encoding="utf-8")]
    paths = sorted((ROOT / "bench" / "record").glob("*/*.json"), key=lambda path: (path.stem, path.parent.name))
    for name, records in itertools.groupby(paths, lambda path: path.stem):
        parts.append(f"\n## {name}\n")
        parts += [section(path.parent.name, json.loads(path.read_text(encoding="utf-8"))) for path in records]
    return "".join(parts)


def section(kind: str, record: dict[str, Any]) -> str:
    """One record of a bench."""
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    vectors = f", {' '.join(record['vectors'])}" if "vectors" in record else ""
    load = f", load {record['load'][0]:g}" if "load" in record else ""
    machine = f"{record['processor']}{vectors}, {record['cores']} cores, {record['threads']} threads{load}; {versions}"
    return f"\n### On {kind}\n\n```sh\n{record['command']}\n```\n\n{machine}.\n\n{table_of(record['lines'])}"


def table_of(lines: list[dict[str, Any]]) -> str:
    """Lines of a record as tables: lines with the same names share one."""
    tables: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for line in lines:
        tables.setdefault(tuple(line), []).append(line)
    text = ""
    for names, rows in tables.items():
        text += catalogue.row([name.replace("_", " ") for name in names]) + catalogue.row(["---"] * len(names))
        text += "".join(catalogue.row([figure(row[name]) for name in names]) for row in rows) + "\n"
    return text


def figure(value: object) -> str:
    """A number with few digits; a nested value as a list."""
    if isinstance(value, bool) or value is None:
        return "" if value is None else str(value).lower()
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    if isinstance(value, dict):
        return ", ".join(f"{name.replace('_', ' ')} {figure(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        return ", ".join(map(figure, value))
    return str(value)


def api() -> dict[str, str]:
    """A page for each module that has public names, from its docstrings, and their index."""
    index, pages = "# API\n\nTo look up a public name, open its module. Every example runs as a test.\n\n", {}
    homes: dict[str, str] = {}
    modules = [*public_names(), *(f"agentrl_core.{name}" for name in BESIDE)]
    for name in modules:
        module = importlib.import_module(name)
        first, _, rest = inspect.cleandoc(module.__doc__ or "").partition("\n")
        index += f"- [`{name}`]({name}.md): {first}\n"
        members = {public: getattr(module, public) for public in names_of(module) if public != "torch"}
        described = "".join(member(name, public, value, homes) for public, value in members.items())
        pages[f"api/{name}.md"] = f"# {name}\n\n{first}\n{rest}\n\n{described}"
    return {"api/index.md": index, **pages}


def member(module: str, name: str, value: object, homes: dict[str, str]) -> str:
    """A public name: its docstring on the first page that has it, and a link to that page on others."""
    if inspect.ismodule(value):
        return f"- [`{name}`]({value.__name__}.md)\n"
    home = getattr(value, "__module__", "")
    if not home.startswith("agentrl_core") or home.startswith("agentrl_core._core"):
        about = inspect.cleandoc(value.__doc__ or "") if callable(value) else ""
        return f"\n## {name} {{ #{module}.{name} }}\n\n{about}\n"
    path = f"{home}.{getattr(value, '__qualname__', name)}"
    if homes.setdefault(path, module) != module:
        return f"\n## {name} {{ #{module}.{name} }}\n\nSee [`{homes[path]}`]({homes[path]}.md#{path}).\n"
    return f"\n::: {path}\n"


def notebooks() -> dict[str, str]:
    """Each notebook as a page, run from the first cell to the last."""
    found = sorted((DOCS / "notebooks").glob("*.ipynb"))
    return {f"notebooks/{path.stem}.md": notebook.page(path) for path in found}
