"""A whole header checked at once, by loops that run in C.

A large checkpoint has 280,000 tensors, and nearly always nothing is wrong with them. What is not
written as the safetensors package writes it, or is wrong, is left to ``header``, which looks at one
tensor after the other and says what is wrong.
"""

from __future__ import annotations

import json
from functools import cache
from operator import itemgetter, sub
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    BytesOf = Callable[[str, tuple[int, ...]], int]

_METADATA = b'{"__metadata__":'

_kind = itemgetter("dtype", "shape")
_offsets = itemgetter("data_offsets")


class Described(TypedDict):
    """What the JSON says about one tensor."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def read(raw: bytes, size: int, bytes_of: BytesOf) -> tuple[dict[str, Any], Any] | None:
    """The tensors and the metadata of a header without a fault; ``None``: look at it closely.

    Args:
        raw: the JSON.
        size: of the data behind it, in bytes.
        bytes_of: dtype and shape -> bytes of a tensor; ValueError where there is none.
    """
    if b"\\" in raw or b"-0" in raw or any(map(raw.rstrip(b" ").__contains__, b" \t\n\r")):
        return None
    try:
        metadata, rest = _metadata(raw)
        tensors: dict[str, Any] = _decode(rest)
        # Without escapes and spaces '":' stands behind every name, and elsewhere only by chance;
        # so no name stands twice, and there are no further members.
        known = len(metadata) + (rest is not raw) + 4 * len(tensors)
        if raw.count(b'":') == known and _covers(tensors, size, bytes_of):
            return tensors, metadata
    except (TypeError, ValueError, RecursionError, MemoryError):
        return None
    return None


def _metadata(raw: bytes) -> tuple[Any, bytes]:
    """What ``__metadata__`` holds, and the header without it; it stands first."""
    if not raw.startswith(_METADATA):
        return {}, raw
    end = raw.index(b"}", len(_METADATA)) + 1
    return json.loads(raw[len(_METADATA) : end]), b"{" + raw[end:].removeprefix(b",")


def _decode(raw: bytes) -> Any:
    try:
        return _decoder().decode(raw)
    except msgspec.MsgspecError as error:
        raise ValueError from error


@cache
def _decoder() -> Any:
    return msgspec.json.Decoder(dict[str, Described])


def _covers(tensors: Mapping[str, Any], size: int, bytes_of: BytesOf) -> bool:
    """Whether each tensor takes the bytes that it should, and together ``size`` without a gap."""
    if not tensors:
        return size == 0
    kinds = list(map(_kind, tensors.values()))
    offsets = list(map(_offsets, tensors.values()))
    sizes = {kind: bytes_of(*kind) for kind in set(kinds)}
    starts, ends = zip(*offsets, strict=True)
    if list(map(sub, ends, starts)) != list(map(sizes.__getitem__, kinds)):
        return False
    starts, ends = zip(*sorted(offsets), strict=True)
    return starts == (0, *ends[:-1]) and bool(ends[-1] == size)
