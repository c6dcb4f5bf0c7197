"""JSON pointers (RFC 6901)."""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING, Any

from patcher.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

_BAD_ESCAPE = re.compile(r"~(?![01])")
# RFC 6901 section 4: no sign, no leading zero, ASCII digits. Longer indices cannot exist.
_INDEX = re.compile(r"0|[1-9][0-9]{0,17}")


class Missing(Enum):
    """The type of ``MISSING``: ``null`` is a value, so ``None`` cannot say "not there"."""

    MISSING = "missing"


MISSING = Missing.MISSING


def parse_pointer(pointer: str) -> tuple[str, ...]:
    """Split a pointer into its unescaped tokens; the whole document, ``""``, has none.

    Raises:
        UsageError: ``pointer`` does not begin with ``/``, or has a ``~`` without 0 or 1.
    """
    if not pointer:
        return ()
    if not pointer.startswith("/"):
        raise UsageError(f"{pointer!r} is not a JSON pointer", hint="a JSON pointer starts with /")
    if _BAD_ESCAPE.search(pointer):
        raise UsageError(
            f"{pointer!r} is not a JSON pointer", hint="write ~0 for a tilde and ~1 for a slash"
        )
    return tuple(token.replace("~1", "/").replace("~0", "~") for token in pointer[1:].split("/"))


def format_pointer(tokens: Iterable[str | int]) -> str:
    """Join unescaped object keys and array indices into a pointer."""
    return "".join("/" + str(token).replace("~", "~0").replace("/", "~1") for token in tokens)


def array_index(token: str, length: int) -> int | None:
    """Return the place of ``token`` in an array of ``length`` elements, None if it has none."""
    if not _INDEX.fullmatch(token):
        return None
    index = int(token)
    return index if index < length else None


def resolve(value: Any, pointer: str, default: Any = MISSING) -> Any:
    """Return what ``pointer`` addresses inside a parsed ``value``, or ``default``.

    Raises:
        UsageError: ``pointer`` is not a JSON pointer.
    """
    for token in parse_pointer(pointer):
        if isinstance(value, dict) and token in value:
            value = value[token]
        elif isinstance(value, list) and (index := array_index(token, len(value))) is not None:
            value = value[index]
        else:
            return default
    return value
