"""``model.safetensors.index.json``: which shard holds which tensor."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from patcher import jsontext
from patcher.errors import UnreadableError
from patcher.headers.files import DOWNLOAD, StrPath, read_whole

if TYPE_CHECKING:
    from collections.abc import Mapping

INDEX_FILE = "model.safetensors.index.json"

#: Characters; no usual file system holds a longer name.
_MAX_NAME = 255


class Index(Struct, frozen=True):
    """A checked index: tensor name -> shard, a path below the checkpoint that does not leave it.

    ``shards`` are the distinct values of ``weight_map``, sorted; ``size`` is the file's, in bytes.
    """

    weight_map: Mapping[str, str]
    shards: tuple[str, ...]
    size: int


def read_index(path: StrPath, *, download: str = DOWNLOAD) -> Index:
    """Read and check an index file.

    Raises:
        UnreadableError: it cannot be read, is not JSON, has no ``weight_map``, or sends a reader to
            a file outside the checkpoint.
    """
    name = os.path.basename(os.fspath(path))
    data = read_whole(path, name, jsontext.INDEX_LIMITS.size, download)
    value = jsontext.read(data, source=name, limits=jsontext.INDEX_LIMITS).value
    weight_map = _weight_map(value, name)
    shards = _distinct_shards(weight_map, name)
    return Index(weight_map, shards, len(data))


def _weight_map(value: Any, name: str) -> dict[str, Any]:
    weight_map = value.get("weight_map") if isinstance(value, dict) else None
    if not isinstance(weight_map, dict):
        raise UnreadableError(
            "must be an object that maps tensor names to files", path=name, pointer="/weight_map"
        )
    return weight_map


def _distinct_shards(weight_map: dict[str, Any], name: str) -> tuple[str, ...]:
    try:
        shards = set(weight_map.values())
    except TypeError:  # a list or an object: not hashable, so found below
        shards = set()
    bad = {shard: reason for shard in shards if (reason := unsafe(shard))}
    if bad or not shards:
        _refuse_first_unsafe(weight_map, name)
    return tuple(sorted(shards))


def _refuse_first_unsafe(weight_map: dict[str, Any], name: str) -> None:
    for key, shard in weight_map.items():
        if reason := unsafe(shard):
            raise UnreadableError(
                f"{shard!a} {reason}",
                path=name,
                pointer=jsontext.format_pointer(("weight_map", key)),
            )


def unsafe(name: Any) -> str | None:
    """Why a file name from inside a file must not be used; ``None`` for a good one.

    Good is a relative path of plain components, as repositories on the Hub can have them.
    """
    if not isinstance(name, str):
        return "is not a string"
    parts = name.split("/")
    faults = {
        "is not a printable name": not name.isprintable(),  # NUL, line ends, lone surrogates
        "has a backslash": "\\" in name,
        "is an absolute path": name.startswith("/"),
        "is not a plain path below the checkpoint": not {"", ".", ".."}.isdisjoint(parts),
        "is too long": max(map(len, parts)) > _MAX_NAME,
    }
    return next((fault for fault, applies in faults.items() if applies), None)
