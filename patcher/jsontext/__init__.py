"""JSON files as text: strict reading, positions of values, and edits that leave the rest alone.

What only edits need is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from patcher.jsontext.document import Document, Duplicate, Span
from patcher.jsontext.pointer import MISSING, Missing, format_pointer, parse_pointer, resolve
from patcher.jsontext.read import CONFIG_LIMITS, INDEX_LIMITS, Limits, read
from patcher.jsontext.values import LongInteger, equal

if TYPE_CHECKING:
    from patcher.jsontext.diff import unified_diff
    from patcher.jsontext.splicing import splice

__all__ = [
    "CONFIG_LIMITS",
    "INDEX_LIMITS",
    "MISSING",
    "Document",
    "Duplicate",
    "Limits",
    "LongInteger",
    "Missing",
    "Span",
    "equal",
    "format_pointer",
    "parse_pointer",
    "read",
    "resolve",
    "splice",
    "unified_diff",
]

_HOMES = {"splice": "splicing", "unified_diff": "diff"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
