"""Rewrite programs, notebooks, pages and recipe files from the names before 0.1.0 to those of today.

    python tools/rename.py PATH... [--check]

A folder is searched for `.py`, `.ipynb`, `.md` and `.toml` files. Only names change; everything else stays as it is,
byte for byte. A name that was removed is reported with its line, and the exit status is 1. The names are in
`python/agentrl_core/renames.toml`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import textwrap
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from agentrl_core.exceptions import RecipeError
from agentrl_core.renames import TABLE, Renames
from renaming.python import Rewriter
from renaming.source import Edit, Problem
from renaming.table import Table
from renaming.toml import removed
from renaming.toml import rewrite as rewrite_toml

_BLOCK = re.compile(r"^([ \t]*)```(python|py|toml)[^\n]*\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)
_MAGIC = re.compile(rb"^[ \t]*[%!]", re.MULTILINE)
_BOM = b"\xef\xbb\xbf"


class Rewritten(NamedTuple):
    """A text with current names, and the lines to change by hand."""

    text: bytes
    problems: list[Problem]


def rewrite_python(source: bytes, table: Table) -> Rewritten:
    """Rewrite a program."""
    parts, problems = rewrite_parts([source], table)
    return Rewritten(parts[0], problems)


def rewrite_parts(
    parts: Sequence[bytes], table: Table, *, has_magic: bool = False
) -> tuple[list[bytes], list[Problem]]:
    """Rewrite a program in several parts of whole lines. Line numbers of problems count over all parts."""
    joined = [part if part.endswith(b"\n") else part + b"\n" for part in parts]
    source = b"".join(joined)
    try:
        new_source = Rewriter(
            _MAGIC.sub(lambda line: line[0][:-1] + b"#", source) if has_magic else source, table
        ).source
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        return list(parts), [Problem(line, f"cannot be read as Python: {error}; correct it, or change it by hand")]
    pieces, begin = [], 0
    for part, text in zip(parts, joined, strict=True):
        end = begin + len(text)
        mine = [
            Edit(e.begin - begin, e.end - begin, e.text) for e in new_source.edits.values() if begin <= e.begin < end
        ]
        mine += [
            Edit(e.begin - begin, e.end - begin, e.text) for e in new_source.edits.values() if e.begin == end == e.end
        ]
        new = _edited(text, mine)
        pieces.append(new if part.endswith(b"\n") else new.removesuffix(b"\n"))
        begin = end
    return pieces, new_source.problems


def _edited(text: bytes, edits: Sequence[Edit]) -> bytes:
    for edit in sorted(edits, key=lambda each: (each.begin, each.end), reverse=True):
        text = text[: edit.begin] + edit.text.encode() + text[edit.end :]
    return text


def rewrite_notebook(source: bytes, table: Table) -> Rewritten:
    """Rewrite the code cells of a notebook, which share their names."""
    text = source.decode()
    notebook = json.loads(text)
    cells = [cell for cell in notebook.get("cells", ()) if cell.get("cell_type") == "code"]
    old = ["".join(cell["source"]) for cell in cells]
    new, problems = rewrite_parts([each.encode() for each in old], table, has_magic=True)
    changed = False
    for cell, before, after in zip(cells, old, new, strict=True):
        if before.encode() != after:
            lines = after.decode()
            cell["source"] = lines.splitlines(keepends=True) if isinstance(cell["source"], list) else lines
            changed = True
    return Rewritten(_like(text, notebook).encode() if changed else source, problems)


def _like(text: str, notebook: Any) -> str:
    """Return a notebook as JSON, laid out like its original text."""
    original = json.loads(text)
    end = "\n" if text.endswith("\n") else ""
    for indent in (1, 2, 4, None):
        for ascii_only in (False, True):
            layout: dict[str, Any] = {"indent": indent, "ensure_ascii": ascii_only}
            if json.dumps(original, **layout) + end == text:
                return json.dumps(notebook, **layout) + end
    return json.dumps(notebook, indent=1, ensure_ascii=False) + end


def rewrite_page(source: bytes, table: Table) -> Rewritten:
    """Rewrite the blocks of Python and TOML of a Markdown page; those of Python share their names."""
    text = source.decode()
    blocks = list(_BLOCK.finditer(text))
    new: dict[int, str] = {}
    problems: list[Problem] = []
    python = _python_of([block for block in blocks if block[2] != "toml"])
    if python:
        parts, block_problems = rewrite_parts([_dedented(block).encode() for block in python], table)
        new |= {block.start(3): part.decode() for block, part in zip(python, parts, strict=True)}
        problems += [_in_page(text, python, problem) for problem in block_problems]
    for block in blocks:
        if block[2] == "toml":
            try:
                new[block.start(3)] = rewrite_toml(_dedented(block), table.renames)
            except tomllib.TOMLDecodeError as error:
                problems.append(Problem(text.count("\n", 0, block.start(3)) + 1, str(error)))
            except RecipeError as error:
                before = text.count("\n", 0, block.start(3))
                found = removed(_dedented(block), table.renames) or [Problem(1, str(error))]
                problems += [Problem(before + each.line, each.text) for each in found]
    for block in reversed(blocks):
        if block.start(3) in new and new[block.start(3)] != _dedented(block):
            inner = textwrap.indent(new[block.start(3)], block[1])
            text = text[: block.start(3)] + inner + text[block.end(3) :]
    return Rewritten(text.encode(), problems)


def _python_of(blocks: list[re.Match[str]]) -> list[re.Match[str]]:
    """Yield the Python blocks of a page, each alone, or joined with the next ones if a loop spans several blocks."""
    found: list[re.Match[str]] = []
    while blocks:
        counts = range(len(blocks), 0, -1)
        count = next((n for n in counts if _is_python("".join(map(_dedented, blocks[:n])))), 0)
        found += blocks[:count]
        blocks = blocks[max(count, 1) :]
    return found


def _dedented(block: re.Match[str]) -> str:
    return re.sub(rf"^{block[1]}", "", block[3], flags=re.MULTILINE) if block[1] else block[3]


def _is_python(code: str) -> bool:
    try:
        compile(code, "<block>", "exec", 0x2000 | 0x400, dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


def _in_page(text: str, blocks: Sequence[re.Match[str]], problem: Problem) -> Problem:
    """Return a problem with the line of the page, from its line in the joined blocks."""
    line = problem.line
    for block in blocks:
        lines = block[3].count("\n")
        if line <= lines:
            return Problem(text.count("\n", 0, block.start(3)) + line, problem.text)
        line -= lines
    return problem


def rewrite_recipe(source: bytes, table: Table) -> Rewritten:
    """Rewrite a recipe file; leave other TOML documents unchanged."""
    text = source.decode()
    try:
        return Rewritten(rewrite_toml(text, table.renames).encode(), [])
    except tomllib.TOMLDecodeError:
        return Rewritten(source, [])
    except RecipeError as error:
        return Rewritten(source, removed(text, table.renames) or [Problem(1, str(error))])


KINDS = {".py": rewrite_python, ".ipynb": rewrite_notebook, ".md": rewrite_page, ".toml": rewrite_recipe}


def rewrite(path: Path, table: Table) -> Rewritten:
    """Rewrite the content of a file by its type."""
    source = path.read_bytes()
    bom, rest = (_BOM, source[len(_BOM) :]) if source.startswith(_BOM) else (b"", source)
    try:
        rest.decode()
        rewritten = KINDS[path.suffix](rest, table)
    except ValueError as error:  # not UTF-8, or not JSON
        return Rewritten(source, [Problem(1, f"cannot be read: {error}; change it by hand")])
    return Rewritten(bom + rewritten.text, rewritten.problems)


def files(paths: Sequence[Path]) -> Iterator[Path]:
    """Yield named files and those in named folders, without hidden folders."""
    for path in paths:
        if path.is_dir():
            inside = (each for each in sorted(path.rglob("*")) if each.suffix in KINDS and each.is_file())
            yield from (each for each in inside if not any(p[0] == "." for p in each.relative_to(path).parts))
        else:
            yield path


def main(arguments: Sequence[str] | None = None) -> int:
    """Rewrite the files; return 1 if lines are left to change by hand."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="a file or a folder")
    parser.add_argument("--check", action="store_true", help="change nothing; exit status 1 if something would change")
    parser.add_argument("--table", type=Path, default=TABLE, help="another table of names")
    options = parser.parse_args(arguments)
    table = Table.of(Renames.read(options.table))
    file_count, changed, remaining = 0, 0, 0
    for path in files(options.paths):
        if path.suffix not in KINDS:
            parser.error(
                f"{path}: the suffix is {path.suffix!r}; give a file with one of {', '.join(KINDS)}, or a folder"
            )
        rewritten = rewrite(path, table)
        file_count, remaining = file_count + 1, remaining + len(rewritten.problems)
        for problem in sorted(rewritten.problems, key=lambda each: each.line):
            print(f"{path}:{problem.line}: {problem.text}")
        if rewritten.text != path.read_bytes():
            changed += 1
            if not options.check:
                path.write_bytes(rewritten.text)
    verb = "would change" if options.check else "changed"
    print(f"{file_count} files read, {changed} {verb}, {remaining} places to change by hand")
    return int(bool(remaining or (options.check and changed)))


if __name__ == "__main__":
    sys.exit(main())
