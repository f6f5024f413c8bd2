"""Files of a crate have no cyclic imports: each can be read after those that it uses."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from import_graph import Arrow, circle

CRATES = ("agentrl-compute", "agentrl-data", "agentrl-python")

# Comments and literals, which can look like code.
NO_CODE = re.compile(r"""//[^\n]*|/\*.*?\*/|b?r(#*)".*?"\1|b?"(?:\\.|[^"\\])*"|b?'(?:\\.[^']*|[^'\\])'""", re.DOTALL)
# Tests use their own module; links in documentation are not compiled.
LEFT_OUT = re.compile(r"#\[cfg\((?:test|doc)\)\]")
INNER_MODULE = re.compile(r"\bmod\s+\w+\s*\{")
CHILD = re.compile(r"\bmod\s+(\w+)\s*;")
USE = re.compile(r"\b(pub(?:\([^)]*\))?\s+)?use\s+([^;]+);")
PATH = re.compile(r"(?<![\w:])(?:\w+\s*::\s*)+\w+")

Names = tuple[str, ...]  # a path in Rust, from the root of its crate


def end_of_item(source: str, start: int) -> int:
    """Return the index after the item that begins at `start`: after its `;`, or after its last brace."""
    depth = 0
    for place in range(start, len(source)):
        letter = source[place]
        depth += (letter in "([{") - (letter in ")]}")
        if depth == 0 and letter in ";}":
            return place + 1
    return len(source)


def code_of(source: str) -> str:
    """Return the source without comments, literals, tests and code for the documentation alone."""
    source = NO_CODE.sub(lambda found: " " if found[0].startswith("/") else '""', source)
    while found := LEFT_OUT.search(source):
        source = source[: found.start()] + source[end_of_item(source, found.end()) :]
    return source


def inner_modules(code: str) -> Iterator[tuple[int, str]]:
    """Yield the code of a file without its inner modules, then theirs, each with its depth in the file."""
    inner = []
    while found := INNER_MODULE.search(code):
        end = end_of_item(code, found.start())
        inner.append(code[found.end() : end - 1])
        code = code[: found.start()] + code[end:]
    yield 0, code
    for part in inner:
        yield from ((depth + 1, text) for depth, text in inner_modules(part))


def leaves(tree: str, before: Names = ()) -> Iterator[tuple[Names, str]]:
    """Yield each path of a `use`, with the name that it gets."""
    tree = tree.strip()
    if "{" not in tree:
        path, _, alias = tree.partition(" as ")
        full = (*before, *(part.strip() for part in path.split("::")))
        full = full[:-1] if full[-1] == "self" else full
        yield full, alias.strip() or full[-1]
        return
    head, _, rest = tree.partition("{")
    before = (*before, *(part.strip() for part in head.split("::") if part.strip()))
    depth, branch = 0, ""
    for letter in rest.rpartition("}")[0] + ",":
        depth += (letter == "{") - (letter == "}")
        if letter == "," and depth == 0:
            if branch.strip():
                yield from leaves(branch, before)
            branch = ""
        else:
            branch += letter


class Crate:
    """The files of a crate, from their sources by the path of their module; () is `lib.rs`."""

    def __init__(self, sources: dict[Names, str]) -> None:
        code = {module: code_of(source) for module, source in sources.items()}
        todo: list[Names] = [()]
        self.parts: dict[Names, list[tuple[int, str]]] = {}
        while todo:  # a file that only tests declare is not among these
            module = todo.pop()
            self.parts[module] = list(inner_modules(code[module]))
            children = {name for _, text in self.parts[module] for name in CHILD.findall(text)}
            todo += [(*module, name) for name in children if (*module, name) in code]
        self.exported: dict[Names, dict[str, Names]] = {module: {} for module in self.parts}
        self.imported: dict[Names, dict[str, Names]] = {module: {} for module in self.parts}
        self.inside: dict[Names, set[Names]] = {module: set() for module in self.parts}
        for module, parts in self.parts.items():
            for depth, text in parts:
                for found in USE.finditer(text):
                    for path, name in leaves(found[2]):
                        target = self.absolute(path, module, depth)
                        if target is None:
                            continue
                        if depth:
                            self.inside[module].add(target)
                        else:
                            (self.exported if found[1] else self.imported)[module][name] = target

    def absolute(self, path: Names, module: Names, depth: int) -> Names | None:
        """Return a path of some module, or of one `depth` levels inside it, from the root; None for another crate's."""
        if path[0] == "crate":
            return path[1:]
        if path[0] in {"self", "super"}:
            base = (*module, *("",) * depth)
            while path and path[0] in {"self", "super"}:
                base, path = base[:-1] if path[0] == "super" else base, path[1:]
            return (*base, *path)
        if not depth:
            for names in (self.imported, self.exported):
                if path[0] in names.get(module, {}):
                    return (*names[module][path[0]], *path[1:])
            if (*module, path[0]) in self.parts:
                return (*module, *path)
        return None

    def home(self, path: Names) -> Names:
        """Return the file that defines the target of a path, however many modules export it again."""
        while True:
            module = path
            while module not in self.parts:
                module = module[:-1]
            rest = path[len(module) :]
            if not rest or rest[0] not in self.exported[module]:
                return module
            path = (*self.exported[module][rest[0]], *rest[1:])

    def used(self, module: Names) -> Iterator[Names]:
        """Yield the paths that a file uses. Its exports count as used by others, unless its code has the name too."""
        yield from self.imported[module].values()
        yield from self.inside[module]
        for depth, text in self.parts[module]:
            body = CHILD.sub(" ", USE.sub(" ", text))
            for found in PATH.finditer(body):
                if target := self.absolute(tuple(re.split(r"\s*::\s*", found[0])), module, depth):
                    yield target
            for name, target in self.exported[module].items():
                if re.search(rf"\b{re.escape(name)}\b", body):
                    yield target

    def arrows(self) -> set[Arrow]:
        edges = {(module, self.home(path)) for module in self.parts for path in self.used(module)}
        return {("/".join(source), "/".join(target)) for source, target in edges if source != target}


def crate_at(folder: Path) -> Crate:
    sources = {}
    for path in folder.rglob("*.rs"):
        parts = path.relative_to(folder).with_suffix("").parts
        sources[parts[:-1] if parts[-1] in {"mod", "lib"} else parts] = path.read_text(encoding="utf-8")
    return Crate(sources)


@pytest.mark.parametrize("name", CRATES)
def test_files_of_a_crate_make_no_circle(name: str, root: Path) -> None:
    arrows = crate_at(root / "crates" / name / "src").arrows()
    assert len(arrows) > 100
    assert circle(arrows) is None


def test_known_arrows_are_found(root: Path) -> None:
    compute = crate_at(root / "crates/agentrl-compute/src").arrows()
    # A path in code, a name that the folder exports, a name of the crate's root, a `use` of several.
    assert {
        ("advantage/gigpo", "group/normalise"),
        ("group/moments", "group/grid"),
        ("group/columns", "float"),
        ("weight/select", "weight/top_options"),
    } <= compute
    assert ("group", "group/normalise") not in compute, "to export a name is not to use it"


def test_a_circle_is_found() -> None:
    sources = {
        (): "pub mod shop; mod tools;\npub use tools::Tool;",
        ("tools",): "use std::fmt;\nuse crate::shop::{self, shelf::{Shelf, Row as Line}};\npub struct Tool(Line);",
        ("shop",): "mod shelf;\n#[cfg(test)]\nmod tests;\npub use shelf::Shelf;\npub fn open() {}",
        ("shop", "shelf"): """
            // use crate::tools::Comment;
            const TEXT: &str = "crate::tools::Text";
            mod inner { use super::Shelf; }
            pub struct Row;
            pub struct Shelf;
            #[cfg(test)]
            mod tests { use crate::tools::Tool; }
        """,
        ("shop", "tests"): "use super::*;\nuse crate::Tool;",
    }
    plain = Crate(sources).arrows()
    assert plain == {("tools", "shop"), ("tools", "shop/shelf")}
    assert circle(plain) is None
    used = sources[("shop", "shelf")] + "fn lift(tool: &crate::Tool) {}"
    assert set(circle(Crate({**sources, ("shop", "shelf"): used}).arrows()) or []) == {"tools", "shop/shelf"}
    inside = sources[("shop", "shelf")].replace("super::Shelf", "super::super::open")
    assert ("shop/shelf", "shop") in Crate({**sources, ("shop", "shelf"): inside}).arrows()
