"""A JSON file that was read: its bytes, its value, and the place of each part of it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from msgspec import Struct

from patcher.errors import UnreadableError
from patcher.jsontext.pointer import parse_pointer
from patcher.jsontext.scan import SPACE, Member, members, skip_space

BOM = b"\xef\xbb\xbf"


class Span(NamedTuple):
    """The half-open range from ``start`` to ``end``."""

    start: int
    end: int


class Duplicate(Struct, frozen=True):
    """A key that its object has more than once.

    ``lines`` (from 1) and ``offsets`` (bytes) are those of every occurrence, in order; the last one
    is what ``pointer`` addresses and what Python reads.
    """

    pointer: str
    lines: tuple[int, ...]
    offsets: tuple[int, ...]


class Document(Struct, frozen=True):
    """A JSON file that was read; see ``read``.

    Attributes:
        source: the name of the file in messages.
        data: the bytes of the file.
        text: the decoded bytes without the byte order mark.
        bom: whether ``data`` begins with a byte order mark. Engines that open the file as text and
            call ``json.load`` fail on it.
        value: the parsed text. Integers of more than 4300 digits are ``LongInteger``.
        duplicates: every key that its object has more than once.
    """

    source: str
    data: bytes
    text: str
    bom: bool
    value: Any
    duplicates: tuple[Duplicate, ...] = ()

    def __repr__(self) -> str:
        """Without the file itself, which would be there three times."""
        return f"Document(source={self.source!r}, bom={self.bom}, duplicates={self.duplicates})"

    def line(self, pointer: str) -> int:
        """Return the line, from 1, of the key (in an array, the element) at ``pointer``.

        Raises:
            UnreadableError: there is nothing at ``pointer``.
            UsageError: it is not a JSON pointer.
        """
        return self.text.count("\n", 0, self._member(pointer).key) + 1

    def span(self, pointer: str) -> Span:
        """Return the range of characters in ``text`` that the value at ``pointer`` takes.

        Raises: as ``line``.
        """
        member = self._member(pointer)
        return Span(member.start, member.end)

    def byte_span(self, pointer: str) -> Span:
        """Return the range of bytes in ``data`` that the value at ``pointer`` takes.

        Raises: as ``line``.
        """
        start, end = self.span(pointer)
        first = len(BOM) * self.bom + len(self.text[:start].encode())
        return Span(first, first + len(self.text[start:end].encode()))

    def _member(self, pointer: str) -> Member:
        start = skip_space(self.text, 0)
        end = len(self.text.rstrip(SPACE))
        member = Member("", start, start, end, end)
        for token in parse_pointer(pointer):
            found = _table(self.text, member.start).get(token)
            if found is None:
                raise UnreadableError("there is no such value", path=self.source, pointer=pointer)
            member = found
        return member


@lru_cache(maxsize=64)
def _table(text: str, start: int) -> dict[str, Member]:
    """Members of the object or array that begins there; those on the way to a pointer are kept."""
    if text[start] not in "[{":
        return {}
    # Of members with the same name the last one stays, as it does in Python.
    return {each.name: each for each in members(text, start)}
