"""Rewrite old names in Python: infer the kind of each expression, and edit the names in place."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from typing import Any

from agentrl_core.renames import is_removed, items
from renaming.imports import Imports
from renaming.kinds import At, Bound, Function, Many, Member, Of, Own, OwnValue, Scope, Several, identifiers, is_class
from renaming.metrics import Metrics
from renaming.source import Source
from renaming.table import PACKAGE, Table

_PATH = re.compile(rf"{PACKAGE}(\.\w+)+(:\w+)?")
_SAME = {"iter", "list", "reversed", "set", "sorted", "tuple"}
_LISTS = {"list", "sorted", "tuple"}
_FIRST = {"max", "min", "next"}


class Rewriter:
    """Finds the edits of one program.

    Args:
        source: the program, as UTF-8.
        table: old and new names.
    """

    def __init__(self, source: bytes, table: Table) -> None:
        self.source, self.table = Source(source), table
        self._metrics = Metrics(self.source, table.renames)
        self._later: list[Callable[[], None]] = []
        self._own: list[Own] = []
        flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        tree: Any = compile(source, "<program>", "exec", flags, dont_inherit=True)
        self._imports = Imports(self.source, table, set(identifiers(tree)))
        self._scope = Scope()
        self._body(tree.body)
        self._run_later()

    # Statements

    def _run_later(self) -> None:
        """Edit the functions of this scope, which can read all of its names."""
        while self._later:
            waiting, self._later = self._later, []
            for each in waiting:
                each()

    def _body(self, body: Sequence[ast.stmt]) -> None:
        for each in body:
            self._statement(each)

    def _statement(self, node: ast.stmt) -> None:
        handler = getattr(self, f"_do_{type(node).__name__}", None)
        if handler is not None:
            handler(node)
        else:
            self._children(node)

    def _children(self, node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                self._statement(child)
            elif isinstance(child, ast.expr):
                self._expression(child)
            else:
                self._children(child)

    def _do_Import(self, node: ast.Import) -> None:
        self._imports.bring(node, self._scope)

    def _do_ImportFrom(self, node: ast.ImportFrom) -> None:
        self._imports.bring_from(node, self._scope)

    def _do_ClassDef(self, node: ast.ClassDef) -> None:
        bases: list[str] = []
        for base in node.bases:
            known = self._expression(base)
            bases += [known.path] if isinstance(known, At) and known.inside else []
            bases += known.bases if isinstance(known, Own) else []
        for each in (*node.decorator_list, *(keyword.value for keyword in node.keywords)):
            self._expression(each)
        own = Own(tuple(bases))
        self._scope[node.name] = Bound(own)
        outer, self._scope = self._scope, Scope(self._scope)
        self._own.append(own)
        for each in node.body:
            targets = each.targets if isinstance(each, ast.Assign) else [getattr(each, "target", None)]
            for target in targets:
                if isinstance(target, ast.Name):
                    self.source.rename(self.source.span(target)[0], target.id, self._member(own, target.id))
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                own.members[each.target.id] = self._annotation(each.annotation)
                if each.value is not None:
                    self._expression(each.value)
            elif isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self._function(each, own)
            else:
                self._statement(each)
        self._own.pop()
        self._scope = outer

    def _do_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._function(node, None)

    _do_AsyncFunctionDef = _do_FunctionDef

    def _function(self, node: Any, own: Own | None) -> None:
        for each in node.decorator_list:
            self._expression(each)
        function = Function(None if node.returns is None else self._annotation(node.returns))
        if own is not None:
            begin = self.source.span(node)[0]
            found = re.compile(rb"(?:async\s+)?def\s+").match(self.source.content, begin)
            self.source.rename(found.end() if found else begin, node.name, self._member(own, node.name))
            own.members[node.name] = function
        self._scope[node.name] = Bound(function)
        inner = Scope(self._scope if own is None else self._scope.outer)
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        for each in (*arguments, node.args.vararg, node.args.kwarg):
            if each is not None:
                known = None if each.annotation is None else self._annotation(each.annotation)
                if known is None and own is not None:
                    found = (self.table.takes(base, node.name, each.arg) for base in own.bases)
                    known = self._typed(next((text for text in found if text), None))
                inner[each.arg] = Bound(known)
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self._expression(default)
        is_static = any(isinstance(each, ast.Name) and each.id == "staticmethod" for each in node.decorator_list)
        if own is not None and arguments and not is_static:
            inner[arguments[0].arg] = Bound(OwnValue(own))
        owners = list(self._own)

        def go_in() -> None:
            outer, later, before = self._scope, self._later, self._own
            self._scope, self._later, self._own = inner, [], owners
            self._body(node.body)
            self._run_later()
            self._scope, self._later, self._own = outer, later, before

        self._later.append(go_in)

    def _do_Assign(self, node: ast.Assign) -> None:
        known = self._expression(node.value)
        for target in node.targets:
            self._bind(target, known)

    def _do_AnnAssign(self, node: ast.AnnAssign) -> None:
        known = self._annotation(node.annotation)
        value = None if node.value is None else self._expression(node.value)
        self._bind(node.target, known or value)

    def _do_For(self, node: ast.For) -> None:
        self._bind(node.target, self._element(self._expression(node.iter)))
        self._body([*node.body, *node.orelse])

    _do_AsyncFor = _do_For

    def _do_With(self, node: ast.With) -> None:
        for item in node.items:
            known = self._expression(item.context_expr)
            if item.optional_vars is not None:
                self._bind(item.optional_vars, known)
        self._body(node.body)

    _do_AsyncWith = _do_With

    def _bind(self, target: ast.expr, known: Any) -> None:
        """Note the kind of an assignment's target for the code after it."""
        if isinstance(target, ast.Name):
            self._scope[target.id] = Bound(known)
        elif isinstance(target, (ast.Tuple, ast.List)):
            parts = known.parts if isinstance(known, Several) else ()
            each = self._element(known) if not parts else None
            for place, part in enumerate(target.elts):
                self._bind(part, parts[place] if place < len(parts) else each)
        elif isinstance(target, ast.Starred):
            self._bind(target.value, None)
        else:
            self._expression(target)
            if isinstance(target, ast.Attribute):
                owner = self._expression(target.value)
                if isinstance(owner, OwnValue):
                    owner.of.members[target.attr] = known

    # Expressions

    def _expression(self, node: ast.expr) -> Any:
        """Edit the names in an expression; return its kind, or None."""
        handler = getattr(self, f"_of_{type(node).__name__}", None)
        if handler is not None:
            return handler(node)
        self._children(node)
        return None

    def _of_Name(self, node: ast.Name) -> Any:
        bound = self._scope.find(node.id)
        if bound is None:
            return None
        if bound.new:
            self.source.replace(self.source.span(node)[0], node.id, bound.new)
        return self._constant(bound.known)

    def _constant(self, known: Any) -> Any:
        """Return a value, if a path is that of a constant, such as a recipe."""
        if isinstance(known, At) and known.inside and known.path.rpartition(".")[2].isupper():
            return self._typed(self.table.returns(f"{known.path.rpartition('.')[0]}.*")) or known
        return known

    def _of_Constant(self, node: ast.Constant) -> None:
        self.source.text(node, self._path_text)

    def _path_text(self, text: str) -> str | None:
        """Edit a package path in a string, with a colon or a dot before the class."""
        if not _PATH.fullmatch(text):
            return None
        new = self.table.renames.path(text.replace(":", "."))
        return None if is_removed(new) else ":".join(new.rsplit(".", 1)) if ":" in text else new

    def _of_Attribute(self, node: ast.Attribute) -> Any:
        chain, root = [node], node.value
        while isinstance(root, ast.Attribute):
            chain.insert(0, root)
            root = root.value
        known = self._expression(root)
        if isinstance(root, ast.Name) and isinstance(known, At) and known.inside:
            bound = self._scope.find(root.id)
            path, count = known.path, 0
            while count < len(chain) and not is_class(path):
                path, count = f"{path}.{chain[count].attr}", count + 1
                if path.rpartition(".")[2].isupper():
                    break
            if count:
                self._imports.move(chain[:count], known.path, path, bound.by if bound else None, self._scope)
            chain, known = chain[count:], self._constant(At(self.table.old(path)))
        for each in chain:
            known = self._attribute_of(known, each)
        return known

    def _member(self, own: Own, name: str) -> str | None:
        return next((new for base in own.bases if (new := self.table.member(base, name)) is not None), None)

    def _attribute_of(self, known: Any, node: ast.Attribute) -> Any:
        """Edit an attribute by the kind of its object; return the attribute's kind."""
        name = node.attr
        known = self._value(known)
        if isinstance(known, OwnValue):
            self.source.attribute(node, self._member(known.of, name))
            if name in known.of.members:
                return known.of.members[name]
            return Member(known.of.bases[0], name) if known.of.bases else None
        if isinstance(known, At) and known.inside and is_class(known.path):
            known = Of(known.path)
        if isinstance(known, Of):
            new = self.table.member(known.owner, name)
            self.source.attribute(node, self.table.anywhere(name) if new is None else new)
            return Member(known.owner, name)
        if isinstance(known, At):
            return At(f"{known.path}.{name}", known.inside)
        if known is None:
            self.source.attribute(node, self.table.anywhere(name))
        return None

    def _value(self, known: Any) -> Any:
        """Return the kind of an attribute, or of a method's result."""
        return self._typed(self.table.gives(known.owner, known.name)) if isinstance(known, Member) else known

    def _typed(self, text: str | None) -> Any:
        if text is None:
            return None
        return Many(self._typed(text[5:-1])) if text.startswith("list[") else Of(text)

    def _element(self, known: Any) -> Any:
        """Return the kind of the items of an iterable."""
        known = self._value(known)
        if isinstance(known, Of):
            known = self._value(Member(known.owner, "__iter__"))
        return known.each if isinstance(known, Many) else None

    def _of_Subscript(self, node: ast.Subscript) -> Any:
        known = self._value(self._expression(node.value))
        self._expression(node.slice)
        self._metrics.subscripts(node)
        if isinstance(known, Many):
            return known if isinstance(node.slice, ast.Slice) else known.each
        return None

    def _of_Compare(self, node: ast.Compare) -> None:
        self._children(node)
        for each in (node.left, *node.comparators):
            self._metrics.name(each)

    def _of_Call(self, node: ast.Call) -> Any:
        if isinstance(node.func, ast.Name) and node.func.id == "super" and self._own:
            return OwnValue(self._own[-1])
        known = self._expression(node.func)
        arguments = [self._expression(each) for each in node.args]
        for keyword in node.keywords:
            self._expression(keyword.value)
        self._metrics.call(node, known)
        return self._called(node, known, arguments)

    def _called(self, node: ast.Call, known: Any, arguments: list[Any]) -> Any:
        """Edit the keywords of a call; return the kind of its result."""
        builtin = node.func.id if isinstance(node.func, ast.Name) and known is None else ""
        if builtin and arguments:
            if builtin == "enumerate":
                return Many(Several((None, self._element(arguments[0]))))
            if builtin == "zip":
                return Many(Several(tuple(map(self._element, arguments))))
            if builtin in _FIRST:
                return self._element(arguments[0])
            return self._value(arguments[0]) if builtin in _SAME else None
        if isinstance(known, Function):
            return known.returns
        if isinstance(known, Own):
            for base in known.bases:
                self._keywords(node, base, "")
                self._positions(node, base)
            return OwnValue(known)
        if isinstance(known, At) and known.path == "dataclasses.replace" and arguments:
            value = self._value(arguments[0])
            self._changes(node, value)
            return value
        if isinstance(known, At) and known.inside:
            self._keywords(node, known.path, "")
            self._positions(node, known.path)
            return Of(known.path) if is_class(known.path) else self._typed(self.table.returns(known.path))
        known = Member(known.owner, "__call__") if isinstance(known, Of) else known
        if not isinstance(known, Member):
            return None
        if known.name == "replace":
            self._changes(node, Of(known.owner))
            return Of(known.owner)
        self._keywords(node, known.owner, known.name)
        return Of(known.owner) if known.name == "at" else self._value(known)

    def _changes(self, node: ast.Call, value: Any) -> None:
        """Edit the keywords of a call that replaces options."""
        for owner in value.of.bases if isinstance(value, OwnValue) else [value.owner] if isinstance(value, Of) else ():
            self._keywords(node, owner, "")

    def _keywords(self, node: ast.Call, owner: str, method: str) -> None:
        for keyword in node.keywords:
            name = keyword.arg
            if name is not None:
                self.source.rename(self.source.span(keyword)[0], name, self.table.argument(owner, method, name))
                if not method:
                    self.source.text(keyword.value, lambda text, name=name: self.table.word(owner, name, text))
                    self._listed(node, keyword.value, owner, name)

    def _positions(self, node: ast.Call, owner: str) -> None:
        """Edit the options that a call of a class gives without their names."""
        for name, value in zip(self.table.order(owner), node.args, strict=False):
            if isinstance(value, ast.Starred):
                return
            new = self.table.argument(owner, "", name)
            if new is not None and is_removed(new):
                self.source.rename(self.source.span(value)[0], name, new)
            self._listed(node, value, owner, name)

    def _listed(self, call: ast.Call, value: ast.expr, owner: str, option: str) -> None:
        """Edit the value of an option that is a tuple now and was a text."""
        form = self.table.list_form(owner, option)
        if form is None or self._is_list(value):
            return
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            given = (*call.args, *(each.value for each in call.keywords))
            by_domain = any(isinstance(each, ast.Constant) and each.value == "domain" for each in given)
            self.source.tuple(value, items(value.value, form, are_texts=by_domain))
        else:
            self.source.problem(self.source.span(value)[0], f"{option}: is a tuple now; change its value by hand")

    def _is_list(self, node: ast.expr) -> bool:
        called = node.func if isinstance(node, ast.Call) else None
        makes_list = isinstance(called, ast.Name) and called.id in _LISTS
        return makes_list or isinstance(self._value(self._expression(node)), (Many, Several))

    def _of_Await(self, node: ast.Await) -> Any:
        return self._value(self._expression(node.value))

    def _of_IfExp(self, node: ast.IfExp) -> Any:
        self._expression(node.test)
        types = [self._expression(each) for each in (node.body, node.orelse)]
        return types[0] or types[1]

    def _of_BoolOp(self, node: ast.BoolOp) -> Any:
        types = [self._expression(each) for each in node.values]
        return next((each for each in types if each is not None), None)

    def _of_NamedExpr(self, node: ast.NamedExpr) -> Any:
        known = self._expression(node.value)
        self._bind(node.target, known)
        return known

    def _of_Tuple(self, node: ast.Tuple) -> Any:
        return Several(tuple(self._expression(each) for each in node.elts))

    def _of_List(self, node: ast.List) -> Any:
        types = [self._expression(each) for each in node.elts]
        return Many(next((each for each in types if each is not None), None))

    def _of_Lambda(self, node: ast.Lambda) -> None:
        self._scope = Scope(self._scope)
        arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg)
        self._scope.update({each.arg: Bound(None) for each in arguments if each is not None})
        self._children(node.args)
        self._expression(node.body)
        self._scope = self._scope.outer or self._scope

    def _of_ListComp(self, node: Any) -> Any:
        self._scope = Scope(self._scope)
        for part in node.generators:
            self._bind(part.target, self._element(self._expression(part.iter)))
            for each in part.ifs:
                self._expression(each)
        inner = [self._expression(getattr(node, name)) for name in ("key", "value", "elt") if hasattr(node, name)]
        self._scope = self._scope.outer or self._scope
        return Many(inner[-1])

    _of_SetComp = _of_GeneratorExp = _of_ListComp

    def _of_DictComp(self, node: ast.DictComp) -> None:
        self._of_ListComp(node)

    # Annotations

    def _annotation(self, node: ast.expr) -> Any:
        """Return the kind of a variable with this annotation."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return self._quoted(node)
        if isinstance(node, ast.BinOp):
            types = [self._annotation(node.left), self._annotation(node.right)]
            return types[0] or types[1]
        if isinstance(node, ast.Subscript):
            outer = self._expression(node.value)
            inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            types = [self._annotation(each) for each in inner]
            name = outer.path.rpartition(".")[2] if isinstance(outer, At) else getattr(node.value, "id", "")
            if name in ("Optional", "Annotated", "ClassVar", "Final"):
                return types[0]
            if name == "tuple" and len(types) == len(inner) > 1 and not _is_dots(inner[-1]):
                return Several(tuple(types))
            return Many(types[0]) if name not in ("dict", "Mapping", "Callable", "type", "Literal") else None
        known = self._expression(node)
        if isinstance(known, At) and known.inside and is_class(known.path):
            return Of(known.path)
        return OwnValue(known) if isinstance(known, Own) else None

    def _quoted(self, node: ast.Constant) -> Any:
        """Return the expression of an annotation in quotes."""
        begin = self.source.inner(node)
        if begin is None:
            return None
        try:
            inner = ast.parse(node.value, mode="eval").body
        except SyntaxError:
            return None
        for each in ast.walk(inner):
            if hasattr(each, "lineno"):
                each.lineno, each.end_lineno = node.lineno, node.lineno  # type: ignore[attr-defined]
                shift = node.col_offset + begin - self.source.span(node)[0]
                each.col_offset += shift  # type: ignore[attr-defined]
                each.end_col_offset += shift  # type: ignore[attr-defined]
        return self._annotation(inner)


def _is_dots(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...
