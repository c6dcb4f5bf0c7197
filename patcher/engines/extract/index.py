"""Which module-level statements bind a name, without executing any."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

_Scoped = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
Guards = tuple[tuple[ast.expr, bool], ...]


@dataclass(frozen=True, slots=True)
class Binding:
    """A statement to execute, if every guard's test has the wanted truth value."""

    statement: ast.stmt
    guards: Guards
    names: frozenset[str]


class Index:
    """The bindings of one module.

    ``if`` statements are entered (their tests become guards); ``try``, ``for``, ``with`` are taken
    whole; a statement that changes a name in place (``X.append(...)``, ``X[k] = ...``) counts as
    one of its bindings.
    """

    def __init__(self, tree: ast.Module) -> None:
        #: ``(module, level)`` of every ``from module import *``.
        self.stars: list[tuple[str, int]] = []
        self.tree = tree
        self._codes: dict[ast.AST, CodeType] = {}
        self._all: list[Binding] = []
        self._collect(tree.body, ())
        self._by_name: dict[str, list[int]] = {}
        for position, binding in enumerate(self._all):
            for name in binding.names:
                self._by_name.setdefault(name, []).append(position)

    def __contains__(self, name: str) -> bool:
        """Whether the module binds ``name`` itself (star imports do not count)."""
        return name in self._by_name

    def bindings(self, name: str) -> list[Binding]:
        """What must run to define ``name``, in source order.

        A statement that binds two names pulls in the other bindings of the second name as well, so
        that no later demand for that one finds it half defined.
        """
        names, positions = [name], set[int]()
        for wanted in names:
            for position in self._by_name.get(wanted, ()):
                if position not in positions:
                    positions.add(position)
                    names.extend(self._all[position].names - set(names))
        return [self._all[position] for position in sorted(positions)]

    def names(self) -> list[str]:
        """All bound names."""
        return list(self._by_name)

    def line(self, name: str) -> int:
        """Line number of the last binding of ``name``, 0 if there is none."""
        positions = self._by_name.get(name)
        return self._all[positions[-1]].statement.lineno if positions else 0

    def code(self, node: ast.Module | ast.stmt | ast.expr, path: str, flags: int = 0) -> CodeType:
        """The node, compiled once for all slicers that share this index."""
        if node not in self._codes:
            mode, whole = "exec", cast("ast.Module | ast.Expression", node)
            if isinstance(node, ast.expr):
                mode, whole = "eval", ast.Expression(node)
            elif isinstance(node, ast.stmt):
                whole = ast.Module([node], [])
            self._codes[node] = compile(whole, path, mode, flags=flags, dont_inherit=True)
        return self._codes[node]

    def _collect(self, body: list[ast.stmt], guards: Guards) -> None:
        for statement in body:
            if isinstance(statement, ast.If):
                self._collect(statement.body, (*guards, (statement.test, True)))
                self._collect(statement.orelse, (*guards, (statement.test, False)))
            elif isinstance(statement, (ast.Import, ast.ImportFrom)):
                self._collect_import(statement, guards)
            elif names := frozenset(_bound_names(statement)):
                self._all.append(Binding(statement, guards, names))

    def _collect_import(self, statement: ast.Import | ast.ImportFrom, guards: Guards) -> None:
        """One binding for each alias: demand for one must not import its neighbours."""
        for alias in statement.names:
            if isinstance(statement, ast.Import):
                single: ast.stmt = ast.Import([alias])
            elif alias.name == "*":
                self.stars.append((statement.module or "", statement.level))
                continue
            else:
                single = ast.ImportFrom(statement.module, [alias], statement.level)
            ast.copy_location(single, statement)
            name = alias.asname or alias.name.partition(".")[0]
            self._all.append(Binding(single, guards, frozenset({name})))


def _bound_names(node: ast.AST) -> Iterator[str]:
    """Names that executing ``node`` binds or changes in the module's scope."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
        return
    if isinstance(node, _Scoped):
        return
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
    if isinstance(node, ast.AnnAssign) and node.value is None:
        return
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id
    elif isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
        yield from _root(node)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield from _root(node.value.func)
    for child in ast.iter_child_nodes(node):
        yield from _bound_names(child)


def _root(node: ast.expr) -> Iterator[str]:
    """``X`` of ``X.a[0].b``; a bare call ``f(...)`` changes nothing called ``f``."""
    if not isinstance(node, (ast.Attribute, ast.Subscript)):
        return
    inner: ast.expr = node
    while isinstance(inner, (ast.Attribute, ast.Subscript)):
        inner = inner.value
    if isinstance(inner, ast.Name):
        yield inner.id


def class_scope_names(node: ast.AST, *, inside: bool = False) -> Iterator[str]:
    """Names that class bodies within ``node`` read while they are executed."""
    if isinstance(node, ast.Name):
        if inside and isinstance(node.ctx, ast.Load):
            yield node.id
        return
    if isinstance(node, _Scoped):
        for child in _evaluated_at_definition(node):
            yield from class_scope_names(child, inside=inside)
        return
    inside = inside or isinstance(node, ast.ClassDef)
    for field, value in ast.iter_fields(node):
        if field == "annotation":
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from class_scope_names(child, inside=inside)


def _evaluated_at_definition(
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda,
) -> Iterator[ast.expr]:
    if not isinstance(node, ast.Lambda):
        yield from node.decorator_list
    yield from node.args.defaults
    yield from (default for default in node.args.kw_defaults if default is not None)
