"""JSON files as text: strict reading, positions of values, and edits that leave the rest alone."""

from __future__ import annotations

from patcher.jsontext.diff import unified_diff
from patcher.jsontext.document import Document, Duplicate, Span
from patcher.jsontext.pointer import MISSING, Missing, format_pointer, parse_pointer, resolve
from patcher.jsontext.read import CONFIG_LIMITS, INDEX_LIMITS, Limits, read
from patcher.jsontext.splice import splice
from patcher.jsontext.values import LongInteger, equal

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
