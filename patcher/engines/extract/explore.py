"""The value of a predicate over a whole domain, found by running it only where it looks.

``explore(ask, domains)`` runs ``ask(inputs)``. An input is a Deferred until it is known; the first
operation on an unknown one stops the run, and it is repeated once for every value in that input's
domain. So a predicate that ignores ``dtype`` is never asked about dtypes, and one that compares
``head_size`` is asked about all of them. Equal answers are merged:

    {"kv_cache_dtype": {"auto": true, "*": {"head_size": {"64 128-256": true, "*": false}}}}

An answer is JSON (but never an object); an object is a question. ``*`` is every other value of the
domain. Text into which the engine formats an input holds ``{input}`` in its place.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

#: An answer, or ``{input: {values: Tree}}``.
Tree = bool | int | str | list[Any] | dict[str, dict[str, Any]] | None
Domains = Mapping[str, Sequence[Any]]


def _tested(operation: Callable[..., Any]) -> Any:
    def test(self: Known, *others: Any) -> Any:
        if any(type(other) is Known for other in others):
            # Two inputs were compared with each other: both values matter.
            return operation(self._exactly(), *(other._exactly() for other in others))  # noqa: SLF001
        result = operation(self._value, *others)
        self._tests[(operation, *others)] = result
        return result

    return test


def _used(operation: Callable[..., Any]) -> Any:
    def use(self: Known, *others: Any) -> Any:
        return operation(self._exactly(), *others)

    return use


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

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """Even isinstance() is a question."""
        _split(self)

    __getattr__ = __bool__ = __hash__ = __len__ = __iter__ = __contains__ = __getitem__ = _split
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _split
    __int__ = __float__ = __index__ = __neg__ = __abs__ = _split
    __str__ = __repr__ = __format__ = _split
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _split
    __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = __truediv__ = __rtruediv__ = _split


#: ``(operation, other operands...) -> result``.
Tests = dict[tuple[Any, ...], Any]


class Known:
    """A known int or str that notes what was asked about it.

    Two values for which all noted tests come out alike lead to the same answer, so that answer
    need not be computed twice. It prints as ``{name}``, so that messages are alike as well. Not a
    subclass of int or str: C code would read the value unnoticed.
    """

    __slots__ = ("_name", "_tests", "_value")

    def __init__(self, name: str, value: Any, tests: Tests) -> None:
        self._name = name
        self._value = value
        self._tests = tests

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """To isinstance() it is what it stands for."""
        return type(self._value)

    def _exactly(self) -> Any:
        self._tests[operator.eq, self._value] = True
        return self._value

    def __getattr__(self, key: str) -> Any:
        """Methods that are not listed below use the exact value."""
        return getattr(self._exactly(), key)

    def __str__(self) -> str:
        """The placeholder."""
        return f"{{{self._name}}}"

    __repr__ = __str__

    def __format__(self, _: str) -> str:
        """The placeholder."""
        return str(self)

    def __hash__(self) -> int:
        """Used by sets and dicts, which then ask for equality with anything they like."""
        return hash(self._exactly())

    __bool__ = _tested(operator.truth)
    __eq__ = _tested(operator.eq)
    __ne__ = _tested(operator.ne)
    __lt__ = _tested(operator.lt)
    __le__ = _tested(operator.le)
    __gt__ = _tested(operator.gt)
    __ge__ = _tested(operator.ge)
    __mod__ = _tested(operator.mod)
    __contains__ = _tested(operator.contains)
    startswith = _tested(str.startswith)
    endswith = _tested(str.endswith)
    __int__ = __index__ = _exactly
    __float__ = _used(float)
    __len__ = _used(len)
    __getitem__ = _used(operator.getitem)
    __add__ = _used(operator.add)
    __mul__ = __rmul__ = _used(operator.mul)
    __sub__ = _used(operator.sub)
    __floordiv__ = _used(operator.floordiv)
    __truediv__ = _used(operator.truediv)


class Inputs:
    """The inputs of one run: known values, and Deferreds for the rest."""

    def __init__(
        self, domains: Domains, known: Mapping[str, Any], tests: Mapping[str, Tests]
    ) -> None:
        self._domains = domains
        self._known = known
        self._tests = tests

    def __getitem__(self, name: str) -> Any:
        """The input to hand to the engine's code."""
        if name not in self._known:
            if name not in self._domains:
                raise KeyError(f"{name} has no domain")
            return Deferred(name)
        value = self._known[name]
        return value if isinstance(value, bool) else Known(name, value, self._tests[name])

    def get(self, name: str) -> Any:
        """The input, or None if there is no such input."""
        return self[name] if name in self._domains else None

    def known_value(self, name: str) -> Any:
        """The plain value, which counts as a look at it."""
        if name not in self._known:
            raise SplitError(name)
        value = self._known[name]
        self._tests[name][operator.eq, value] = True
        return value


def explore(
    ask: Callable[[Inputs], Tree],
    domains: Domains,
    known: Mapping[str, Any] | None = None,
    tests: Mapping[str, Tests] | None = None,
) -> Tree:
    """The answers of ``ask`` for all combinations of inputs that it tells apart."""
    known, tests = known or {}, tests or {}
    try:
        return ask(Inputs(domains, known, tests))
    except SplitError as split:
        name = split.name
    answers: dict[Any, Tree] = {}
    for value in domains[name]:
        if value in answers:
            continue
        noted: Tests = {}
        tree = explore(ask, domains, {**known, name: value}, {**tests, name: noted})
        for alike in _alike(value, [v for v in domains[name] if v not in answers], noted):
            answers[alike] = tree
    return _merge(name, [(value, answers[value]) for value in domains[name]])


def _alike(value: Any, domain: Sequence[Any], tests: Tests) -> list[Any]:
    """The values of the domain that pass and fail the same tests as ``value``."""
    if isinstance(value, bool):
        return [value]
    return [
        other
        for other in domain
        if all(test(other, *operands) == result for (test, *operands), result in tests.items())
    ]


def _merge(name: str, cases: list[tuple[Any, Tree]]) -> Tree:
    groups: dict[str, tuple[list[int], Tree]] = {}
    for position, (_, tree) in enumerate(cases):
        groups.setdefault(json.dumps(tree, sort_keys=True), ([], tree))[0].append(position)
    if len(groups) == 1:
        return cases[0][1]
    domain = [value for value, _ in cases]
    merged = {spell(domain, positions): tree for positions, tree in groups.values()}
    # The longest list is the least telling one.
    rest = max(merged, key=len)
    telling = {key: tree for key, tree in merged.items() if key != rest}
    return {name: {**telling, "*": merged[rest]}}


def spell(domain: Sequence[Any], positions: list[int]) -> str:
    """The values at ``positions``: ``"auto fp8"``, ``"true"``, and for numbers ``"8-64 128"``.

    ``8-64`` are the values of the domain from 8 to 64, which may have a step.
    """
    if not isinstance(domain[0], int) or isinstance(domain[0], bool):
        return " ".join(_word(domain[position]) for position in positions)
    members = set(positions)
    starts = [position for position in positions if position - 1 not in members]
    ends = [position for position in positions if position + 1 not in members]
    return " ".join(
        f"{domain[first]}-{domain[last]}" if last > first else f"{domain[first]}"
        for first, last in zip(starts, ends, strict=True)
    )


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
