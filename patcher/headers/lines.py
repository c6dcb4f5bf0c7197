"""An index of the usual spelling, counted a block of lines at a time.

``json.dumps(index, indent=2)`` gives each tensor a line of its own. To parse 280,000 of them takes
170 MB and half a second; to prove that they are such lines, and to find the few names of scales
among them, takes a fraction of both. What is spelled otherwise is left to ``index``.
"""

from __future__ import annotations

import json
import os
import string
from typing import Any

from msgspec import Struct, field

from patcher.headers.names import SCALE_NAMES

#: Bytes; small enough that most blocks name one shard only, and for the cache of a processor core.
_BLOCK = 32 * 1024
#: Bytes; what stands before the first tensor and behind the last is much shorter.
_EDGE = 64 * 1024

_OPENING = b'"weight_map": {\n'
_CLOSED = b'",\n'
#: What names consist of, as far as they are counted here: no quote, escape, space or control
#: character, nothing beyond ASCII.
_NAME = (string.ascii_letters + string.digits + "._-").encode()

#: The last word of a scale's name -> what can stand before it.
_SCALES = {
    word: tuple(name.removesuffix(word).encode() for name in SCALE_NAMES if name.endswith(word))
    for word in ("scale", "scaling_factor")
}


class Tally(Struct):
    """What was counted: ``tensors`` are lines, ``scales`` and ``shards`` are names.

    ``scales`` has every name of a scale, and maybe others.
    """

    tensors: int = 0
    scales: set[str] = field(default_factory=set)
    shards: set[str] = field(default_factory=set)


def count(fd: int) -> Tally | None:
    """Count the open index; ``None`` where it must be parsed, or cannot be read."""
    try:
        return _count(fd)
    except OSError:
        return None


def _count(fd: int) -> Tally | None:
    rest = os.pread(fd, _EDGE, 0)
    position, tally = len(rest), Tally()
    opening, found, rest = rest.partition(_OPENING)
    if not found or _parsed(opening + found + b"}}") is None:
        return None
    indent = rest[: rest.find(b'"')]
    if indent.strip(b" "):
        return None
    while block := os.pread(fd, _BLOCK, position):
        position += len(block)
        lines, closed, rest = (rest + block).rpartition(_CLOSED)
        if not closed or not _add(tally, lines + closed, indent):
            return None
    lines, closed, rest = rest.rpartition(_CLOSED)
    good = _add(tally, lines + closed, indent) and _add_last(tally, rest)
    return tally if good else None


def _add(tally: Tally, lines: bytes, indent: bytes) -> bool:
    """Count whole lines, unless they are something else than ``"name": "shard",``."""
    if not lines:
        return True
    number = lines.count(b"\n")
    if lines.translate(None, _NAME) != (indent + b'"": "",\n') * number:
        return False
    # The marks stand in the right order; now nothing must stand between them.
    if lines.count(_CLOSED + indent + b'"') != number - 1 or not lines.startswith(indent):
        return False
    last = lines[lines.rfind(b': "') + 3 : -len(_CLOSED)]
    if lines.count(b'": "' + last + b'"') == number:
        shards = {last}
    elif lines.count(b'": "') == number:
        shards = {line.rpartition(b': "')[2][:-2] for line in lines.splitlines()}
    else:
        return False
    tally.tensors += number
    tally.shards.update(map(bytes.decode, shards))
    tally.scales.update(_scales(lines))
    return True


def _scales(lines: bytes) -> set[str]:
    found = set()
    for word, before in _SCALES.items():
        for part in lines.split(f'{word}": "'.encode())[:-1]:
            if part.endswith(before):
                found.add(part[part.rfind(b'"') + 1 :].decode() + word)
    return found


def _add_last(tally: Tally, text: bytes) -> bool:
    """Count the last tensor, behind which the objects end."""
    closing = _parsed(b'{"weight_map": {' + text)
    if closing is None or b"weight_map" in text:
        return False
    last = closing["weight_map"]
    if len(text) > _EDGE or not all(isinstance(shard, str) for shard in last.values()):
        return False
    tally.tensors += len(last)
    tally.scales.update(last)
    tally.shards.update(last.values())
    return True


def _parsed(text: bytes) -> dict[str, Any] | None:
    """The object in ``text``; ``None`` where there is none, or not spelled in ASCII."""
    try:
        value = json.loads(text.decode("ascii"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
