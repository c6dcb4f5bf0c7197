"""Strict reading of JSON files that nobody vouches for."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

from msgspec import Struct

from patcher.errors import UnreadableError
from patcher.jsontext.document import BOM, Document, Duplicate
from patcher.jsontext.pointer import format_pointer
from patcher.jsontext.scan import MAX_DEPTH, SPACE, repeated_keys, too_deep
from patcher.jsontext.values import load_noticing_duplicates

_DOWNLOAD = "download it again"
# What stands at the place of the error, behind the last character before it that is not a space.
_HINTS = (
    (re.compile(r".?\Z"), f"the file is cut short: {_DOWNLOAD}"),
    (re.compile(r",[\]}]|.?,\s*[\]}]"), "JSON allows no comma before a closing bracket: remove it"),
    (re.compile(r".?(//|/\*|#)"), "JSON has no comments: remove it"),
    (re.compile(r".?'"), "JSON strings take double quotes"),
    (re.compile(r".?<"), f"this looks like a web page: {_DOWNLOAD}"),
    (re.compile(r"version https://git-lfs"), "this is a git-lfs pointer: git lfs pull"),
)


class Limits(Struct, frozen=True):
    """What ``read`` accepts: ``size`` in bytes, ``depth`` in nested objects and arrays."""

    size: int
    depth: int


CONFIG_LIMITS = Limits(size=16 * 2**20, depth=MAX_DEPTH)
INDEX_LIMITS = Limits(size=512 * 2**20, depth=MAX_DEPTH)


def read(data: bytes, *, source: str, limits: Limits = CONFIG_LIMITS) -> Document:
    """Read a JSON file from its bytes, accepting what Python's ``json`` accepts, in UTF-8 only.

    Args:
        data: the whole file.
        source: its name in messages.
        limits: sizes and depths beyond are refused before parsing.

    Raises:
        UnreadableError: too large, too deep, not UTF-8 or not JSON; ``offset`` is in bytes, the
            message has line and column (in characters), both from 1.
    """
    if len(data) > limits.size:
        raise UnreadableError(
            f"{len(data)} bytes are more than the limit of {limits.size}",
            path=source,
            hint=f"a file of this name is never that large: {_DOWNLOAD}",
        )
    bom = data.startswith(BOM)
    file = _File(source, bom, _decode(data, source, bom=bom))
    deep = too_deep(file.text, limits.depth)
    if deep is not None:
        raise file.error(
            deep,
            f"nested deeper than {limits.depth} levels",
            f"no known checkpoint needs that: {_DOWNLOAD}",
        )
    value, has_duplicates = _parse(file)
    duplicates = _duplicates(file) if has_duplicates else ()
    return Document(source, data, file.text, bom, value, duplicates)


class _File(Struct, frozen=True):
    """The decoded text of a file, and how its positions are told."""

    source: str
    bom: bool
    text: str

    def offset(self, position: int) -> int:
        """Return the byte of the file at which a position of the text is."""
        return len(BOM) * self.bom + self.width(0, position)

    def width(self, start: int, end: int) -> int:
        """Return the number of bytes between two positions of the text."""
        return len(self.text[start:end].encode())

    def error(self, position: int, problem: str, hint: str) -> UnreadableError:
        """Make an error that names the place in every way there is."""
        line = self.text.count("\n", 0, position) + 1
        column = position - self.text.rfind("\n", 0, position)
        return UnreadableError(
            f"{problem} (line {line}, column {column})",
            path=self.source,
            offset=self.offset(position),
            hint=hint,
        )


def _decode(data: bytes, source: str, *, bom: bool) -> str:
    encoding = json.detect_encoding(data)
    try:
        if encoding.startswith("utf-8"):
            return data[len(BOM) * bom :].decode("utf-8")
    except UnicodeDecodeError as error:
        before = _File(source, bom, error.object[: error.start].decode("utf-8"))
        raise before.error(
            len(before.text), "not UTF-8", f"if the file was not edited, {_DOWNLOAD}"
        ) from None
    other = encoding.upper().replace("-LE", "LE").replace("-BE", "BE")
    raise _File(source, bom=False, text="").error(
        0,
        f"{other} or binary data, not UTF-8",
        f"if it is text: iconv -f {other} -t UTF-8 {shlex.quote(source)}",
    )


def _parse(file: _File) -> tuple[Any, bool]:
    text = file.text
    try:
        return load_noticing_duplicates(text)
    except json.JSONDecodeError as error:
        problem, position = error.msg, error.pos
    if not text.strip(SPACE):
        raise file.error(0, "the file is empty", _DOWNLOAD)
    unterminated = problem.startswith("Unterminated")
    raise file.error(position, problem, _hint(file, len(text) if unterminated else position))


def _hint(file: _File, position: int) -> str:
    around = file.text[:position].rstrip()[-1:] + file.text[position : position + 80].rstrip()
    for pattern, hint in _HINTS:
        if pattern.match(around):
            return hint
    return f"python -m json.tool {shlex.quote(file.source)}"


def _duplicates(file: _File) -> tuple[Duplicate, ...]:
    repeated = list(repeated_keys(file.text))
    places: dict[int, tuple[int, int]] = {}
    line, offset, last = 1, file.offset(0), 0
    for position in sorted(position for _, positions in repeated for position in positions):
        line += file.text.count("\n", last, position)
        offset += file.width(last, position)
        places[position] = line, offset
        last = position
    return tuple(
        Duplicate(
            format_pointer(path),
            tuple(places[position][0] for position in positions),
            tuple(places[position][1] for position in positions),
        )
        for path, positions in repeated
    )
