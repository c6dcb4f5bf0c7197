"""An index read a piece at a time.

To parse 280,000 names at once takes 170 MB. Cut behind any ``",``, what is between two cuts is
itself an object without its braces, or the file is no index; so every byte is parsed, by msgspec,
and few are kept. Where a cut falls elsewhere, or something is wrong, it is left to ``index``, which
says what.
"""

from __future__ import annotations

import json
import os
import re
from functools import cache
from itertools import groupby
from operator import itemgetter
from typing import Any

import msgspec
from msgspec import Struct, field

from patcher.headers.names import likely

#: Bytes; small enough for the cache of a processor core.
_PIECE = 32 * 1024
#: Bytes; what stands before the first tensor and behind the last is much shorter.
_EDGE = 64 * 1024

_CUT = b'",'


class Tally(Struct):
    """What was counted: ``tensors`` are members, ``scales`` and ``shards`` are names.

    ``scales`` has every name of a scale, and maybe others. A name that stands twice may be counted
    twice.
    """

    tensors: int = 0
    scales: set[str] = field(default_factory=set)
    shards: set[str] = field(default_factory=set)


def count(fd: int) -> Tally | None:
    """Count the open index; ``None`` where it must be parsed as a whole, or cannot be read."""
    try:
        return _count(fd)
    except (OSError, ValueError, msgspec.MsgspecError, RecursionError):
        return None


def _count(fd: int) -> Tally | None:
    rest = os.pread(fd, _EDGE, 0)
    position, tally = len(rest), Tally()
    opening = re.search(rb'"weight_map"\s*:\s*\{', rest)
    if opening is None or _object(rest[: opening.end()] + b"}}") is None:
        return None
    rest = rest[opening.end() :]
    while block := os.pread(fd, _PIECE, position):
        position += len(block)
        piece, cut, rest = (rest + block).rpartition(_CUT)
        if not cut:
            return None
        _add(tally, _members().decode(b'{%b"}' % piece))
    piece, cut, rest = rest.rpartition(_CUT)
    if cut:
        _add(tally, _members().decode(b'{%b"}' % piece))
    closing = _object(b'{"weight_map": {' + rest)
    if closing is None or b"weight_map" in rest or len(rest) > _EDGE:
        return None
    _add(tally, msgspec.convert(closing["weight_map"], dict[str, str]))
    return tally


@cache
def _members() -> msgspec.json.Decoder[dict[str, str]]:
    return msgspec.json.Decoder(dict[str, str])


def _add(tally: Tally, members: dict[str, str]) -> None:
    tally.tensors += len(members)
    tally.shards.update(map(itemgetter(0), groupby(members.values())))  # mostly one for all
    tally.scales.update(likely(members))


def _object(text: bytes) -> dict[str, Any] | None:
    value = json.loads(text)
    return value if isinstance(value, dict) else None
