"""Text from a checkpoint is hostile: nothing of it may act on a terminal or in a page."""

from __future__ import annotations

import json
import re
from typing import Any

# C0 and C1 controls, DEL, line and paragraph separators, bidirectional overrides, zero-width
# characters, BOM, and lone surrogates, which no terminal can encode.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)
_MARKDOWN = re.compile(r"([\\`*_\[\]<>|~&])")


def plain(text: str) -> str:
    """One line that a terminal shows as it is: everything that could act on it is spelled out."""
    return _UNSAFE.sub(lambda match: _spell(match.group()), text)


def lines(text: str) -> str:
    """Like :func:`plain`, with line ends and tabs kept: for diffs."""
    return _UNSAFE.sub(
        lambda match: match.group() if match.group() in "\n\t" else _spell(match.group()), text
    )


def markdown(text: str) -> str:
    """Text that Markdown and HTML show as it is."""
    return _MARKDOWN.sub(r"\\\1", plain(text)).replace("\\<", "&lt;").replace("\\&", "&amp;")


def _spell(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"  # noqa: PLR2004 - one byte


def value(item: Any, limit: int = 100) -> str:
    """A JSON value on one line, cut at ``limit`` characters."""
    text = plain(json.dumps(item, ensure_ascii=False, default=str))
    return text if len(text) <= limit else text[: limit - 3] + "..."
