"""The values of k/v scales: the only tensor bytes that are ever read, a few per attention layer.

They decide one question: whether an engine that applies stored scales to an unquantized cache would
answer wrongly. Scales that are all 1.0 change nothing.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

from msgspec import Struct

from patcher.errors import UnreadableError
from patcher.headers.files import DOWNLOAD, StrPath, open_regular
from patcher.headers.header import read_header
from patcher.headers.names import scale_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from patcher.headers.header import Header, TensorInfo

#: dtype -> struct format of one element; bfloat16 is the upper half of a float32.
_FORMATS = {"F64": "<d", "F32": "<f", "F16": "<e", "BF16": "<f"}
#: A scale has one element, or one for each head; anything larger is no scale.
_MAX_BYTES = 64 * 1024


class ScaleValues(Struct, frozen=True):
    """The range of all k and v scales; ``bytes_read`` are those of the scales alone."""

    count: int
    lowest: float
    highest: float
    bytes_read: int

    @property
    def all_one(self) -> bool:
        """Whether applying them changes nothing; also true of no scales at all."""
        return self.count == 0 or self.lowest == self.highest == 1.0


def read_scale_values(
    root: StrPath, shards: Sequence[str], *, download: str = DOWNLOAD
) -> ScaleValues:
    """Read every k and v scale in the shards.

    Raises:
        UnreadableError: a shard cannot be read, or a scale has a dtype or size that no scale has.
    """
    found: list[float] = []
    size = 0
    for shard in shards:
        with open_regular(os.path.join(root, shard), shard, download) as (fd, _):
            header = read_header(fd, name=shard, download=download)
            for name, info in _scales(header):
                data = os.pread(fd, _size(info, shard, name), header.data_start + info.start)
                size += len(data)
                found.extend(_values(data, info))
    return ScaleValues(len(found), min(found, default=1.0), max(found, default=1.0), size)


def _scales(header: Header) -> Iterator[tuple[str, TensorInfo]]:
    for name in header.entries:
        kind = scale_of(name)
        if kind is not None and kind[0] != "q":
            yield name, header.tensor(name)


def _size(info: TensorInfo, shard: str, name: str) -> int:
    size = info.end - info.start
    if info.dtype not in _FORMATS or size > _MAX_BYTES:
        raise UnreadableError(
            f"the scale {name} is no small float tensor ({info.dtype}, {size} bytes)", path=shard
        )
    return size


def _values(data: bytes, info: TensorInfo) -> list[float]:
    if info.dtype == "BF16":
        data = b"".join(b"\0\0" + data[i : i + 2] for i in range(0, len(data), 2))
    return [value for (value,) in struct.iter_unpack(_FORMATS[info.dtype], data)]
