"""Where the values of a JSON text begin and end, without recursion.

The patterns allow a bounded number of escapes: the matcher of ``re`` keeps about 120 bytes for each
repetition of a group, so that one hostile string of 16 MB would otherwise take a gigabyte.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

# Deeper than any configuration; Python's own parser gives up at about a thousand levels.
MAX_DEPTH = 200

_STRING = r'"[^"\\]*(?:\\.[^"\\]*){0,99}"'
# An object or array that holds no other and few strings, in one step.
_LEAF = r'[\[{][^"\[\]{}]*(?:"[^"\\]*"[^"\[\]{}]*){0,99}[\]}]'
# The lone quote is the string with more escapes, or without an end.
_BRACKETS = re.compile(rf'{_STRING}|{_LEAF}|["\[\]{{}}]', re.DOTALL)
_BRACKETS_AND_COMMAS = re.compile(rf'{_STRING}|["\[\]{{}},]', re.DOTALL)
_SHORT_VALUE = re.compile(rf"{_STRING}|{_LEAF}|[-+.0-9A-Za-z]+", re.DOTALL)
_SHORT_KEY = re.compile(rf"({_STRING})[ \t\n\r]*:[ \t\n\r]*", re.DOTALL)
_STRING_PART = re.compile(r'[^"\\]*(?:\\.[^"\\]*){0,999}', re.DOTALL)
SPACE = " \t\n\r"
_SPACE = re.compile(f"[{SPACE}]*")


class Member(NamedTuple):
    """A member of an object or array; all numbers are character positions.

    ``key`` is where the member begins (in an array, its value), ``start`` to ``end`` is its value,
    ``stop`` is the comma or closing bracket after it. The name of an array element is its index.
    """

    name: str
    key: int
    start: int
    end: int
    stop: int


def skip_space(text: str, position: int) -> int:
    """Return the first position from ``position`` on that is not JSON white space."""
    match = _SPACE.match(text, position)
    assert match is not None  # the pattern matches nothing, too
    return match.end()


def too_deep(text: str, limit: int) -> int | None:
    """Return the position of the first bracket nested deeper than ``limit``; any text will do."""
    if text.count("{") + text.count("[") <= limit:
        return None
    depth = 0
    for start, end in _tokens(text, _BRACKETS):
        if depth == limit and text[start] in "[{":
            return start
        depth += _step(text[start:end])
    return None


def value_end(text: str, start: int) -> int:
    """Return the position after the value that begins at ``start``."""
    short = _SHORT_VALUE.match(text, start)
    if short:
        return short.end()
    if text[start] == '"':
        return _string_end(text, start)
    depth = 0
    for token, end in _tokens(text, _BRACKETS, start):
        depth += _step(text[token:end])
        if not depth:
            return end
    raise AssertionError("unbalanced brackets in a text that was parsed before")


def members(text: str, start: int) -> list[Member]:
    """Return the members of the object or array that begins at ``start``, as they are written."""
    is_object = text[start] == "{"
    found: list[Member] = []
    key = skip_space(text, start + 1)
    while text[key] not in "]}":
        name, begin = _key(text, key) if is_object else (str(len(found)), key)
        end = value_end(text, begin)
        stop = skip_space(text, end)
        found.append(Member(name, key, begin, end, stop))
        if text[stop] != ",":
            break
        key = skip_space(text, stop + 1)
    return found


def repeated_keys(text: str) -> Iterator[tuple[tuple[str | int, ...], list[int]]]:
    """Yield path and positions of each key that its object has more than once."""
    path: list[str | int] = []
    objects: list[dict[str, list[int]] | None] = []  # None for an array
    expects_key = False
    for start, end in _tokens(text, _BRACKETS_AND_COMMAS):
        character = text[start]
        if character in "[{":
            objects.append({} if character == "{" else None)
            path.append("" if character == "{" else 0)
            expects_key = character == "{"
        elif character in "]}":
            path.pop()
            for name, positions in (objects.pop() or {}).items():
                if len(positions) > 1:
                    yield (*path, name), positions
        elif character == ",":
            names, place = objects[-1], path[-1]
            expects_key = names is not None
            path[-1] = place if isinstance(place, str) else place + 1
        elif expects_key:
            name = path[-1] = _name(text, start, end)
            names = objects[-1]
            assert names is not None
            names.setdefault(name, []).append(start)
            expects_key = False


def _key(text: str, start: int) -> tuple[str, int]:
    short = _SHORT_KEY.match(text, start)
    if short:
        return _name(text, start, short.end(1)), short.end()
    end = _string_end(text, start)
    colon = skip_space(text, end)
    return _name(text, start, end), skip_space(text, colon + 1)


def _name(text: str, start: int, end: int) -> str:
    name = text[start + 1 : end - 1]
    return str(json.loads(text[start:end])) if "\\" in name else name


def _step(token: str) -> int:
    """Return how much deeper it is after ``token``; a string or leaf changes nothing."""
    return {"[": 1, "{": 1, "]": -1, "}": -1}.get(token, 0)


def _tokens(text: str, pattern: re.Pattern[str], position: int = 0) -> Iterator[tuple[int, int]]:
    while match := pattern.search(text, position):
        start, position = match.span()
        if position == start + 1 and text[start] == '"':
            position = _string_end(text, start)
        yield start, position


def _string_end(text: str, start: int) -> int:
    """Return the position after a string; the end of the text if it is not terminated."""
    position = start + 1
    while position < len(text) and text[position] != '"':
        match = _STRING_PART.match(text, position)
        assert match is not None
        position = max(match.end(), position + 1)  # it matches nothing at a last backslash
    return min(position + 1, len(text))
