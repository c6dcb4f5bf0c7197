"""Counting the KV-cache scales of a checkpoint by the names of its tensors."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct
from msgspec.structs import asdict

from patcher import jsontext
from patcher.headers import pieces
from patcher.headers.files import (
    DOWNLOAD,
    StrPath,
    changed,
    changed_while_reading,
    open_regular,
)
from patcher.headers.index import INDEX_FILE, read_index, unsafe
from patcher.headers.names import likely, scale_of
from patcher.headers.pieces import Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from patcher.headers.header import Header
    from patcher.headers.names import Kind


class ScaleCounts(Struct, frozen=True):
    """What the names of the tensors tell about KV-cache scales.

    Attributes:
        source: where the names came from; ``none``: there is neither an index nor a shard.
        shards: files that hold tensors, missing ones included.
        tensors: all tensors of the checkpoint.
        k_scales: tensors that scale k alone; ``v_scales`` and ``q_scales`` likewise.
        kv_scales: tensors that scale k and v together.
        paired: attention modules that have a k and a v scale.
        unpaired: the scales of modules that have only one of the two, one name per module.
        missing_shards: files that the index names and that are not there; usual for a checkpoint
            of which only the metadata was downloaded.
        bytes_read: of index or headers.
        weight_bytes_read: always 0.
    """

    source: Literal["index", "headers", "none"]
    shards: int
    tensors: int
    k_scales: int
    v_scales: int
    kv_scales: int
    q_scales: int
    paired: int
    unpaired: tuple[str, ...]
    missing_shards: tuple[str, ...]
    bytes_read: int
    weight_bytes_read: int = 0

    def to_dict(self) -> dict[str, Any]:
        """All fields, as JSON has them."""
        return asdict(self)


def count_scales(
    root: StrPath,
    shards: Sequence[str],
    *,
    download: str = DOWNLOAD,
    header_of: Callable[[str], Header] | None = None,
    full: bool = False,
) -> ScaleCounts:
    """Count from the index where there is one, else from the headers of ``shards``.

    ``header_of`` reads the header of a shard by its name; by default from the file below ``root``.
    ``full``: read and check all headers, although there is an index.

    Raises:
        UnreadableError: the index or a header cannot be used.
    """
    index_path = os.path.join(root, INDEX_FILE)
    if os.path.lexists(index_path) and not full:
        tally, size = tally_index(index_path, download=download)
        named = sorted(tally.shards)
        missing = [s for s in named if not os.path.isfile(os.path.join(root, s))]
        return _count("index", tally, named, size, missing)

    def local(shard: str) -> Header:
        from patcher.headers.header import read_header  # noqa: PLC0415 - lazy: an index needs none

        return read_header(os.path.join(root, shard), name=shard, download=download)

    header_of = header_of or local
    tally, size = Tally(), 0
    for shard in shards:
        header = header_of(shard)
        tally.tensors += len(header.entries)
        tally.scales.update(likely(header.entries))
        size += header.data_start
    return _count("headers" if shards else "none", tally, shards, size)


def tally_index(path: StrPath, *, download: str = DOWNLOAD) -> tuple[Tally, int]:
    """What the index names, and its size in bytes; quick where it is spelled as usual.

    Raises:
        UnreadableError: as `read_index`.
    """
    name = os.path.basename(os.fspath(path))
    with open_regular(path, name, download) as (fd, before):
        tally = pieces.count(fd) if before.st_size <= jsontext.INDEX_LIMITS.size else None
        after = os.fstat(fd)
    if tally is not None and changed(before, after):
        raise changed_while_reading(name)
    if tally is None or any(map(unsafe, tally.shards)):
        index = read_index(path, download=download)
        return Tally(len(index.weight_map), set(index.weight_map), {*index.shards}), index.size
    return tally, before.st_size


def _count(
    source: Literal["index", "headers", "none"],
    tally: Tally,
    shards: Sequence[str],
    bytes_read: int,
    missing: Sequence[str] = (),
) -> ScaleCounts:
    counts: Counter[Kind] = Counter()
    modules: dict[Kind, dict[str, str]] = {"k": {}, "v": {}, "q": {}, "kv": {}}
    for name in tally.scales:
        if scale := scale_of(name):
            kind, module = scale
            counts[kind] += 1
            modules[kind][module] = name
    k, v = modules["k"], modules["v"]
    lone = (k.keys() ^ v.keys()) - modules["kv"].keys()
    return ScaleCounts(
        source=source,
        shards=len(shards),
        tensors=tally.tensors,
        k_scales=counts["k"],
        v_scales=counts["v"],
        kv_scales=counts["kv"],
        q_scales=counts["q"],
        paired=len(k.keys() & v.keys()),
        unpaired=tuple(sorted(k.get(module) or v[module] for module in lone)),
        missing_shards=tuple(missing),
        bytes_read=bytes_read,
    )
