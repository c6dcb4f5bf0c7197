"""How a JSON file is written, and new values in the same hand."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import partial
from operator import add
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from patcher.errors import UsageError
from patcher.jsontext.scan import MAX_DEPTH
from patcher.jsontext.values import LongInteger

if TYPE_CHECKING:
    from collections.abc import Sequence

_SAMPLE = 2**16  # characters; a file that changes its hand later is followed member by member

_STRING = r'"(?:[^"\\]|\\.)*"'
_COLON = re.compile(_STRING + r"([ \t]*:[ \t]*)?", re.DOTALL)
_GAP = re.compile(_STRING + r"|,([ \t]*)(?=\S)", re.DOTALL)
_UNIT = re.compile(r"[\[{]\s*\n([ \t]*)(?=[^\s\]}])")
_NEWLINE = re.compile(r"\r?\n")
_SURROGATE = re.compile("[\ud800-\udfff]")


class Style(Struct, frozen=True):
    """The hand of a file.

    Attributes:
        colon: what stands between a key and its value.
        gap: what follows a comma when the next member is on the same line.
        newline: the line end.
        unit: one level of indentation.
        multiline: whether any object or array has its members on lines of their own.
        escapes: whether characters beyond ASCII are escaped.
    """

    colon: str
    gap: str
    newline: str
    unit: str
    multiline: bool
    escapes: bool

    @classmethod
    def of(cls, text: str) -> Style:
        """Read the style off the first 64 K characters; what is not there is as ``json`` does."""
        sample = text[:_SAMPLE]
        colon = _first_group(_COLON, sample, ": ")
        unit = _UNIT.search(sample)
        newline = _NEWLINE.search(sample)
        return cls(
            colon=colon,
            gap=_first_group(_GAP, sample, "" if colon == ":" else " "),
            newline=newline[0] if newline else "\n",
            unit=unit[1] if unit else "  ",
            multiline=unit is not None,
            escapes=text.isascii(),
        )

    def string(self, value: str) -> str:
        """Write a string. UTF-8 has no lone surrogates, so they are always escaped."""
        written = json.dumps(value, ensure_ascii=self.escapes)
        return _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", written)

    def dump(self, value: Any, indent: str, *, multiline: bool, depth: int = 0) -> str:
        """Write a value that begins on a line indented by ``indent``.

        Raises:
            UsageError: JSON has no such value, or it is nested too deep.
        """
        if isinstance(value, str):
            return self.string(value)
        if not isinstance(value, (Mapping, list, tuple)):
            return _scalar(value)
        if depth == MAX_DEPTH:
            raise UsageError(f"the new value is nested deeper than {MAX_DEPTH} levels")
        inner = indent + self.unit
        # One Python frame per level: the value may be as deep as the limit, and the stack is not.
        dump = partial(self.dump, indent=inner, multiline=multiline, depth=depth + 1)
        if isinstance(value, Mapping):
            members = list(map(add, map(self.key, value), map(dump, value.values())))
            return self._join(members, "{}", indent, multiline=multiline)
        return self._join(list(map(dump, value)), "[]", indent, multiline=multiline)

    def key(self, key: Any) -> str:
        """Write a key and its colon."""
        if not isinstance(key, str):
            raise UsageError(f"{key!r} cannot be a key: only strings can")
        return self.string(key) + self.colon

    def _join(self, members: Sequence[str], brackets: str, indent: str, *, multiline: bool) -> str:
        if not members:
            return brackets
        before = self.newline + indent + self.unit if multiline else ""
        after = self.newline + indent if multiline else ""
        comma = "," + (before if multiline else self.gap)
        return brackets[0] + before + comma.join(members) + after + brackets[1]


def _scalar(value: Any) -> str:
    if isinstance(value, LongInteger):
        return value.spelling
    try:
        return json.dumps(value)
    except (TypeError, ValueError):  # no JSON type; more digits than the interpreter converts
        raise UsageError(f"JSON has no value for a {type(value).__name__} like this") from None


def _first_group(pattern: re.Pattern[str], sample: str, default: str) -> str:
    found = (match[1] for match in pattern.finditer(sample) if match[1] is not None)
    return next(found, default)
