"""The value of a predicate over a whole domain, found by running it only where it looks.

``explore(ask, domains)`` runs ``ask(inputs)``. An input is a Deferred until it is known; the first
operation on an unknown one stops the run, and it is repeated once for every value in that input's
domain. So a predicate that ignores ``dtype`` is never asked about dtypes, and one that compares
``head_size`` is asked about all of them. Equal answers are merged:

    {"kv_cache_dtype": {"auto bfloat16": true, "*": {"head_size": {"64 128-256": true, "*": false}}}}

An answer is JSON (but never an object); an object is a question. ``*`` is every other value of the
domain. Text into which the engine formats an input holds ``{input}`` in its place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, Union

#: An answer, or ``{input: {values: Tree}}``.
Tree = Union[None, bool, int, str, list[Any], dict[str, dict[str, Any]]]
Domains = Mapping[str, Sequence[Any]]


class SplitError(BaseException):
    """The run needs the value of one input; not an Exception, engines catch those."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def _split(self: Deferred, *_: object) -> NoReturn:
    raise SplitError(object.__getattribute__(self, "_name"))


class Deferred:
    """An input whose value nobody has needed yet."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def __class__(self) -> Any:
        """Even isinstance() is a question."""
        _split(self)

    __getattr__ = __bool__ = __hash__ = __len__ = __iter__ = __contains__ = __getitem__ = _split
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _split
    __int__ = __float__ = __index__ = __neg__ = __abs__ = _split
    __str__ = __repr__ = __format__ = _split
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _split
    __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = __truediv__ = __rtruediv__ = _split


class NamedInt(int):
    """An int that prints as ``{name}``, so that messages about it are alike for all values."""

    name: str

    def __str__(self) -> str:
        """The placeholder."""
        return f"{{{self.name}}}"

    __repr__ = __str__

    def __format__(self, _: str) -> str:
        """The placeholder."""
        return str(self)


class NamedStr(str):
    """A str that prints as ``{name}``; its methods see the real value."""

    __slots__ = ("name",)
    name: str

    def __str__(self) -> str:
        """The placeholder."""
        return f"{{{self.name}}}"

    __repr__ = __str__

    def __format__(self, _: str) -> str:
        """The placeholder."""
        return str(self)


class Inputs:
    """The inputs of one run: known values, and Deferreds for the rest."""

    def __init__(self, domains: Domains, known: Mapping[str, Any]) -> None:
        self.domains = domains
        self.known = known

    def __getitem__(self, name: str) -> Any:
        """The input to hand to the engine's code."""
        if name not in self.known:
            if name not in self.domains:
                raise KeyError(f"{name} has no domain")
            return Deferred(name)
        value = self.known[name]
        kinds: dict[type, type] = {int: NamedInt, str: NamedStr}
        if type(value) not in kinds:
            return value
        named = kinds[type(value)](value)
        named.name = name
        return named

    def known_value(self, name: str) -> Any:
        """The plain value, which counts as a look at it."""
        if name not in self.known:
            raise SplitError(name)
        return self.known[name]


def explore(
    ask: Callable[[Inputs], Tree], domains: Domains, known: Mapping[str, Any] | None = None
) -> Tree:
    """The answers of ``ask`` for all combinations of inputs that it tells apart."""
    known = known or {}
    try:
        return ask(Inputs(domains, known))
    except SplitError as split:
        name = split.name
    cases = [(value, explore(ask, domains, {**known, name: value})) for value in domains[name]]
    return _merge(name, cases)


def _merge(name: str, cases: list[tuple[Any, Tree]]) -> Tree:
    groups: dict[str, tuple[list[Any], Tree]] = {}
    for value, tree in cases:
        groups.setdefault(json.dumps(tree, sort_keys=True), ([], tree))[0].append(value)
    if len(groups) == 1:
        return cases[0][1]
    merged = {spell(values): tree for values, tree in groups.values()}
    # The longest list is the least telling one.
    longest = max(merged, key=len)
    return {name: {key: tree for key, tree in merged.items() if key != longest} | {"*": merged[longest]}}


def spell(values: Iterable[Any]) -> str:
    """``"1-4 6 8-9"`` for numbers, ``"auto fp8"`` for words, ``"true"`` for booleans."""
    words: list[str] = []
    run: list[int] = []
    for value in values:
        if isinstance(value, bool):
            words.append(str(value).lower())
        elif isinstance(value, int):
            if run and value != run[-1] + 1:
                words.append(_range(run))
                run = []
            run.append(value)
        else:
            words.append(str(value))
    return " ".join(words + ([_range(run)] if run else []))


def _range(run: list[int]) -> str:
    return str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}"
