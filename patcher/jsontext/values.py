"""Parsed JSON values, and when two of them are equal."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct

# CPython's default (sys.int_info.default_max_str_digits), plus a sign. Above it, int() takes time
# that grows with the square of the length, so it is refused whatever the interpreter's setting.
_INT_LENGTH = 4301


class LongInteger(Struct, frozen=True):
    """An integer with more digits than CPython converts, as it is spelled in the file.

    JSON allows one spelling of each integer, so equal spellings mean equal values.
    """

    spelling: str

    def __str__(self) -> str:
        """Return the digits."""
        return self.spelling


def integer(spelling: str) -> int | LongInteger:
    """Convert a JSON integer of any length, in time that is linear in it."""
    if len(spelling) <= _INT_LENGTH:
        with suppress(ValueError):  # the interpreter's own limit may be lower
            return int(spelling)
    return LongInteger(spelling)


_DECODER = json.JSONDecoder(parse_int=integer)


def load(text: str) -> Any:
    """Parse text that is known to be JSON."""
    return _DECODER.decode(text)


def load_noticing_duplicates(text: str) -> tuple[Any, bool]:
    """Parse ``text``, and tell whether some object has a key twice (the last one wins).

    Raises:
        json.JSONDecodeError: it is not JSON.
    """
    noticed = False

    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal noticed
        members = dict(pairs)
        noticed |= len(members) != len(pairs)
        return members

    decoder = json.JSONDecoder(parse_int=integer, object_pairs_hook=mapping)
    return decoder.decode(text), noticed


def equal(first: Any, second: Any) -> bool:
    """Compare as RFC 6902 section 4.6 does: 1 equals 1.0, true equals only true.

    NaN equals nothing, as everywhere in Python.
    """
    if isinstance(first, bool) or isinstance(second, bool):
        return first is second
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        if first.keys() != second.keys():
            return False
        return all(map(equal, first.values(), (second[key] for key in first)))
    if _is_array(first) and _is_array(second):
        return len(first) == len(second) and all(map(equal, first, second))
    return bool(first == second)


def _is_array(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))
