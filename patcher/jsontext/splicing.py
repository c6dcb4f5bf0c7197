"""JSON patches (RFC 6902) on the text of a file: only the addressed members change."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from patcher.errors import RefusedError, UsageError
from patcher.jsontext.document import BOM, Document
from patcher.jsontext.pointer import array_index, format_pointer, parse_pointer
from patcher.jsontext.scan import MAX_DEPTH, too_deep
from patcher.jsontext.style import Style
from patcher.jsontext.tree import Place
from patcher.jsontext.values import equal, load

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from patcher.jsontext.tree import Writer

    _Operation = Callable[["_Text", Mapping[str, Any]], None]

_SHOWN = 80  # characters of a value in a message
_REPLAN = "the patch was made for another file: make a new plan"


def splice(document: Document, patch: Sequence[Mapping[str, Any]]) -> bytes:
    """Apply ``patch`` and return the new bytes of the file.

    The result parses to what RFC 6902 says, in the same key order as with a Python ``dict``:
    a replaced member keeps its place, a new one goes last. Removing a key that its object has twice
    removes both, since the earlier one would come back to life.

    New values take the file's indentation, separators, line ends and escaping; moved and copied
    ones keep their spelling and are indented anew.

    Raises:
        UsageError: the patch makes no sense on any file: unknown operation, missing member,
            malformed pointer, removal of the whole document, a move into itself, a value that JSON
            does not have, a result nested deeper than ``read`` accepts.
        RefusedError: the patch does not fit this file: nothing at a pointer, an index out of range,
            a failed ``test``.
    """
    text = _Text(document.source, Place.root(document.text, Style.of(document.text)))
    for number, operation in enumerate(patch):
        _apply(text, number, operation)
    result = text.root.branch.render()
    if too_deep(result, MAX_DEPTH) is not None:
        raise UsageError(f"the patch nests deeper than {MAX_DEPTH} levels", path=document.source)
    return BOM * document.bom + result.encode()


class _Text(Struct, frozen=True):
    """The file that is being patched."""

    source: str
    root: Place

    def find(self, tokens: Sequence[str]) -> Place:
        place = self.root.follow(tokens)
        if place is None:
            raise self.refusal(tokens, "there is no such value")
        return place

    def refusal(self, tokens: Sequence[str], message: str) -> RefusedError:
        pointer = format_pointer(tokens)
        return RefusedError(message, path=self.source, pointer=pointer, hint=_REPLAN)

    def put(self, tokens: Sequence[str], write: Writer) -> None:
        if not tokens:
            self.root.replace(write)
            return
        *outer, last = tokens
        parent = self.find(outer)
        if parent.node.is_object:
            parent.set(last, write)
            return
        length = len(parent.node.branches)
        index = length if last == "-" else array_index(last, length + 1)
        if not parent.node.is_array or index is None:
            raise self.refusal(tokens, "there is no such place")
        parent.insert(index, "", write)

    def take(self, tokens: Sequence[str]) -> None:
        *outer, last = tokens
        node = self.find(outer).node
        indices = node.indices(last)
        if not indices:
            raise self.refusal(tokens, "there is no such value")
        for index in reversed(indices):
            node.remove(index)


def _apply(text: _Text, number: int, operation: Mapping[str, Any]) -> None:
    try:
        _operation(operation)(text, operation)
    except UsageError as error:
        message = f"operation {number} of the patch: {error.message}"
        raise UsageError(message, path=text.source, hint=error.hint) from None


def _operation(operation: Mapping[str, Any]) -> _Operation:
    name = _member(operation, "op")
    found = _OPERATIONS.get(name) if isinstance(name, str) else None
    if found is None:
        raise UsageError(f"{name!r} is not an operation", hint=f"one of {', '.join(_OPERATIONS)}")
    return found


def _add(text: _Text, operation: Mapping[str, Any]) -> None:
    text.put(_tokens(operation, "path"), _new(text, operation))


def _remove(text: _Text, operation: Mapping[str, Any]) -> None:
    tokens = _tokens(operation, "path")
    if not tokens:
        raise UsageError("the whole document cannot be removed")
    text.take(tokens)


def _replace(text: _Text, operation: Mapping[str, Any]) -> None:
    write = _new(text, operation)
    text.find(_tokens(operation, "path")).replace(write)


def _test(text: _Text, operation: Mapping[str, Any]) -> None:
    tokens = _tokens(operation, "path")
    expected = _member(operation, "value")
    shown = text.root.style.dump(expected, "", multiline=False)
    place = text.root.follow(tokens)
    found = "nothing" if place is None else place.node.render()
    if place is None or not equal(load(found), expected):
        message = f"expected {_shorten(shown)}, found {_shorten(found)}"
        raise text.refusal(tokens, message)


def _move(text: _Text, operation: Mapping[str, Any]) -> None:
    source, target = _tokens(operation, "from"), _tokens(operation, "path")
    if source != target and target[: len(source)] == source:
        raise UsageError("a value cannot be moved into itself")
    write = _existing(text.find(source))
    if source != target:
        text.take(source)
        text.put(target, write)


def _copy(text: _Text, operation: Mapping[str, Any]) -> None:
    write = _existing(text.find(_tokens(operation, "from")))
    text.put(_tokens(operation, "path"), write)


_OPERATIONS: dict[str, _Operation] = {
    "add": _add,
    "remove": _remove,
    "replace": _replace,
    "test": _test,
    "move": _move,
    "copy": _copy,
}


def _member(operation: Mapping[str, Any], name: str) -> Any:
    if not isinstance(operation, Mapping) or name not in operation:
        raise UsageError(f'it has no "{name}"')
    return operation[name]


def _tokens(operation: Mapping[str, Any], name: str) -> tuple[str, ...]:
    pointer = _member(operation, name)
    if not isinstance(pointer, str):
        raise UsageError(f'"{name}" is not a string')
    return parse_pointer(pointer)


def _new(text: _Text, operation: Mapping[str, Any]) -> Writer:
    value = _member(operation, "value")
    style = text.root.style
    return lambda indent, multiline: style.dump(value, indent, multiline=multiline)


def _existing(place: Place) -> Writer:
    written = place.node.render()
    # Blank lines stay blank.
    line = re.compile("\n" + re.escape(place.indent) + r"(?![\r\n])")
    return lambda indent, _multiline: line.sub("\n" + indent, written)


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else line[: _SHOWN - 3] + "..."
