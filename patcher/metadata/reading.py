"""Reading parsed JSON that may hold anything: a value of the wrong type counts as absent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

#: No model comes near it; a hostile count must not size a table.
MAX_COUNT = 10_000_000


def mapping(value: Any) -> Mapping[str, Any]:
    """The object, or an empty one."""
    return value if isinstance(value, Mapping) else {}


def count(config: Mapping[str, Any], *names: str) -> int | None:
    """The first of the fields that holds a positive integer. ``true``, ``"8"``, 8.0, 0: absent."""
    for value in map(config.get, names):
        if is_integer(value) and 0 < value <= MAX_COUNT:
            return value
    return None


def text(config: Mapping[str, Any], *names: str) -> str | None:
    """The first of the fields that holds a string that is not empty."""
    return next(
        (value for value in map(config.get, names) if isinstance(value, str) and value), None
    )


def strings(value: Any) -> tuple[str, ...]:
    """The strings of a list, without its other members; empty where it is no list."""
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def is_integer(value: Any) -> TypeGuard[int]:
    """Python counts ``true`` as 1; JSON does not."""
    return isinstance(value, int) and not isinstance(value, bool)


def at(value: Any, *keys: str) -> Any:
    """The value below ``keys``; ``None`` where the path ends early."""
    for key in keys:
        value = mapping(value).get(key)
    return value
