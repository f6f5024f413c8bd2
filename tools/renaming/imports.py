"""Rewrite imports, and the dotted names that start with an imported name."""

from __future__ import annotations

import ast
import re

from agentrl_core.renames import is_removed
from renaming.kinds import At, Bound, Scope, is_class
from renaming.source import Edit, Source
from renaming.table import PACKAGE, Table


class Imports:
    """The imports of a program.

    Args:
        source: the program.
        table: old and new names.
        taken: the program's own names.
    """

    def __init__(self, source: Source, table: Table, taken: set[str]) -> None:
        self.source, self.table, self._taken = source, table, taken
        self._added: dict[tuple[str, ast.stmt | None], str] = {}
        self._own: dict[str, str] = {}

    def bring(self, node: ast.Import, scope: Scope) -> None:
        """Rewrite `import a.b`, and note the names that it binds."""
        for alias in node.names:
            inside = alias.name.partition(".")[0] == PACKAGE
            if inside:
                begin = self.source.span(alias)[0]
                self.source.rename(begin, alias.name, self.table.renames.module(alias.name))
            path = alias.name if alias.asname else alias.name.partition(".")[0]
            scope[alias.asname or path] = Bound(At(path, inside), by=node)

    def bring_from(self, node: ast.ImportFrom, scope: Scope) -> None:
        """Rewrite `from a import b`, and note the names that it binds, with an import for each new module."""
        module = node.module or ""
        if node.level or module.partition(".")[0] != PACKAGE:
            for alias in node.names:
                scope[alias.asname or alias.name] = Bound(At(f"{module}.{alias.name}", inside=False), by=node)
            return
        homes: dict[str, list[str]] = {}
        texts: list[tuple[ast.alias, str]] = []
        for alias in node.names:
            home, text, bound = self._brought_by(module, alias, scope)
            local = alias.asname or alias.name
            scope[local] = Bound(At(self.table.old(f"{module}.{alias.name}")), "" if bound == local else bound, node)
            texts.append((alias, text))
            if text not in homes.setdefault(home, []):
                homes[home].append(text)
        begin, end = self.source.span(node)
        if len(homes) == 1 and len(homes[home]) == len(texts):
            found = re.compile(rb"from\s+").match(self.source.content, begin)
            self.source.replace(found.end() if found else begin, module, home)
            for alias, text in texts:
                first, last = self.source.span(alias)
                if alias.asname:
                    last = first + len(alias.name.encode())
                self.source.edit(first, last, text.partition(" as ")[0] if alias.asname else text)
            return
        before = self.source.content[self.source.lines[node.lineno - 1] : begin]
        joint = "; " if before.strip() else "\n" + before.decode()
        self.source.edit(begin, end, joint.join(f"from {each} import {', '.join(homes[each])}" for each in homes))

    def _brought_by(self, module: str, alias: ast.alias, scope: Scope) -> tuple[str, str, str]:
        """Return the new module of a name, the text of its import, and the program's name for it."""
        renames, local = self.table.renames, alias.asname or alias.name
        if alias.name == "*":
            return renames.module(module), "*", "*"
        old = f"{module}.{alias.name}"
        new = renames.path(old)
        if is_removed(new):
            self.source.rename(self.source.span(alias)[0], alias.name, new)
            new = old
        path, inner = importable(new)
        home, _, last = path.rpartition(".")
        if inner:
            return home, last, f"{last}{inner}"
        if alias.asname:
            return home, f"{last} as {local}", local
        if last != local and self._is_taken(last, new, scope):
            return home, f"{last} as {local}", local
        return home, last, last

    def _is_taken(self, name: str, path: str, scope: Scope) -> bool:
        """Return whether the program uses a name for something else."""
        bound = scope.find(name)
        is_it = bound is not None and isinstance(bound.known, At) and bound.known.path == self.table.old(path)
        return name in self._taken and self._own.get(name) != path and not is_it

    def move(self, chain: list[ast.Attribute], root: str, old: str, by: ast.stmt | None, scope: Scope) -> None:
        """Rewrite a dotted path that starts with an imported name."""
        renames = self.table.renames
        new, base = renames.path(old), renames.path(root)
        last = chain[-1]
        begin, end = self.source.span(last)
        if is_removed(new):
            self.source.rename(end - len(last.attr.encode()), last.attr, new)
            return
        if new == old and base == root:
            return
        rest = new.removeprefix(f"{base}.").split(".")
        is_below = new.startswith(f"{base}.")
        home = importable(new)[0].rpartition(".")[0]
        stays = rest[0] == chain[0].attr or root != PACKAGE  # otherwise nothing may have loaded the other package yet
        if is_below and len(rest) == len(chain):
            for each, name in zip(chain, rest, strict=True):
                self.source.attribute(each, name)
        elif is_below and (home == base or (stays and home == renames.module(old.rpartition(".")[0]))):
            start = self.source.span(chain[0].value)[1]
            self.source.edit(start, end, "." + ".".join(rest))
        else:
            self.source.edit(begin, end, self._added_import(new, by, scope))

    def _added_import(self, path: str, by: ast.stmt | None, scope: Scope) -> str:
        """Return the name bound by an import that is added beside `by`."""
        path, inner = importable(path)
        if (path, by) in self._added:
            return self._added[path, by] + inner
        home, _, name = path.rpartition(".")
        local = name
        while self._is_taken(local, path, scope):
            local += "_"
        bound = scope.find(local)
        if bound is None or not isinstance(bound.known, At):
            line = by.end_lineno if by is not None else 1
            place = self.source.lines[line] if line < len(self.source.lines) else len(self.source.content)
            indent = "" if by is None else " " * by.col_offset
            text = f"{indent}from {home} import {name}{'' if local == name else f' as {local}'}\n"
            before = self.source.edits.get((place, place))
            self.source.edits[place, place] = Edit(place, place, (before.text if before else "") + text)
        self._taken.add(local)
        self._own[local] = path
        self._added[path, by] = local
        return local + inner


def importable(path: str) -> tuple[str, str]:
    """Return the importable part of a path, and the attributes of a class after it."""
    parts = path.split(".")
    count = next((n for n in range(2, len(parts)) if is_class(".".join(parts[:n]))), len(parts))
    return ".".join(parts[:count]), "".join(f".{part}" for part in parts[count:])
