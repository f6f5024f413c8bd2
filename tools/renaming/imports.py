"""Rewrite imports, and the dotted names that begin with what an import brought."""

from __future__ import annotations

import ast
import re

from agentrl_core.renames import is_removed
from renaming.kinds import At, Bound, Scope
from renaming.source import Edit, Source
from renaming.table import PACKAGE, Table


class Imports:
    """The imports of a program.

    Args:
        source: the program.
        table: old and new names.
        taken: the names that the program has of its own.
    """

    def __init__(self, source: Source, table: Table, taken: set[str]) -> None:
        self.source, self.table, self._taken = source, table, taken
        self._added: dict[str, str] = {}

    def bring(self, node: ast.Import, scope: Scope) -> None:
        """Rewrite `import a.b`, and note what it binds."""
        for alias in node.names:
            inside = alias.name.partition(".")[0] == PACKAGE
            if inside:
                begin = self.source.span(alias)[0]
                self.source.rename(begin, alias.name, self.table.renames.path(alias.name))
            path = alias.name if alias.asname else alias.name.partition(".")[0]
            scope[alias.asname or path] = Bound(At(path, inside), by=node)

    def bring_from(self, node: ast.ImportFrom, scope: Scope) -> None:
        """Rewrite `from a import b`, and note what it binds; names that part get an import each."""
        module = node.module or ""
        if node.level or module.partition(".")[0] != PACKAGE:
            for alias in node.names:
                scope[alias.asname or alias.name] = Bound(At(f"{module}.{alias.name}", inside=False), by=node)
            return
        homes: dict[str, list[str]] = {}
        names: list[tuple[ast.alias, str]] = []
        for alias in node.names:
            old = f"{module}.{alias.name}"
            new = self.table.renames.module(module) + ".*" if alias.name == "*" else self.table.renames.path(old)
            if is_removed(new):
                self.source.rename(self.source.span(alias)[0], alias.name, new)
                new = old
            home, _, last = new.rpartition(".")
            local, bound = alias.asname or alias.name, alias.asname or last
            if bound != local and bound in self._taken and not _is_import_of(scope, bound, self.table.old(new)):
                bound = local
            names.append((alias, last if bound == last or alias.asname else f"{last} as {bound}"))
            text = f"{last} as {bound}" if bound != last else last
            homes.setdefault(home, []).append(text)
            known = At(self.table.old(old))
            scope[local] = Bound(known, bound if bound != local else "", node)
        begin = self.source.span(node)[0]
        if len(homes) == 1:
            found = re.compile(rb"from\s+").match(self.source.content, begin)
            self.source.replace(found.end() if found else begin, module, next(iter(homes)))
            for alias, text in names:
                self.source.replace(self.source.span(alias)[0], alias.name, text)
            return
        before = self.source.content[self.source.lines[node.lineno - 1] : begin]
        joint = "; " if before.strip() else "\n" + before.decode()
        text = joint.join(f"from {home} import {', '.join(each)}" for home, each in homes.items())
        end = self.source.span(node)[1]
        self.source.edit(begin, end, text)

    def move(self, chain: list[ast.Attribute], root: str, old: str, by: ast.stmt | None, scope: Scope) -> None:
        """Rewrite a dotted path, which begins with a name that is imported."""
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
        if is_below and len(rest) == len(chain):
            for each, name in zip(chain, rest, strict=True):
                self.source.attribute(each, name)
        elif is_below and new.rpartition(".")[0] == renames.module(old.rpartition(".")[0]):
            start = self.source.span(chain[0].value)[1]
            self.source.edit(start, end, "." + ".".join(rest))
        else:
            name = self._added_import(new, by, scope)
            self.source.edit(begin, end, name)

    def _added_import(self, path: str, by: ast.stmt | None, scope: Scope) -> str:
        """The name of something that an import beside `by` brings, which is added."""
        if path in self._added:
            return self._added[path]
        home, _, name = path.rpartition(".")
        local = name
        while local in self._taken and not _is_import_of(scope, local, self.table.old(path)):
            local += "_"
        if local not in self._taken:
            line = by.end_lineno if by is not None else 1
            place = self.source.lines[line] if line < len(self.source.lines) else len(self.source.content)
            indent = "" if by is None else " " * by.col_offset
            text = f"{indent}from {home} import {name}{'' if local == name else f' as {local}'}\n"
            before = self.source.edits.get((place, place))
            self.source.edits[place, place] = Edit(place, place, (before.text if before else "") + text)
            self._taken.add(local)
        self._added[path] = local
        return local


def _is_import_of(scope: Scope, name: str, old: str) -> bool:
    bound = scope.find(name)
    return bound is not None and isinstance(bound.known, At) and bound.known.path == old
