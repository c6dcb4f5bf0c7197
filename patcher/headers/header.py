"""The header of one safetensors file: read within limits, checked in full.

Layout: 8 bytes little-endian length n, n bytes of JSON, then the tensors without gaps. The checks
are those of the safetensors package (``tensor.rs``: ``read_metadata``, ``validate``), and stricter
in this: a name may appear only once, the JSON must begin with ``{`` as the format demands,
``__metadata__`` is an object of strings wherever it is present, and a tensor has no other members
than the format gives it (in those, serde_json refuses numbers that Python's json takes).
"""

from __future__ import annotations

import os
import reprlib
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

from msgspec import Struct

from patcher.errors import UnreadableError
from patcher.headers import bulk, text
from patcher.headers.files import (
    DOWNLOAD,
    StrPath,
    changed,
    changed_while_reading,
    empty,
    fetch_again,
    open_regular,
    refuse_lfs_pointer,
)
from patcher.jsontext import format_pointer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    #: (size, offset) -> exactly that many bytes, or an UnreadableError.
    Reader = Callable[[int, int], bytes]

#: Bytes; the limit of the safetensors package (``MAX_HEADER_SIZE``).
MAX_HEADER = 100_000_000

_LENGTH = 8
_USIZE = 2**64

#: Bits per element, as of safetensors 0.8.
DTYPE_BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8,
    "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip

_MEMBERS = {"dtype", "shape", "data_offsets"}


class TensorInfo(NamedTuple):
    """One tensor; ``start`` and ``end`` are bytes from the header's ``data_start``.

    A named tuple because there are 280,000 of them in a large checkpoint.
    """

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


class Header(Struct, frozen=True):
    """A checked header; the tensors begin ``data_start`` bytes into the file.

    ``entries`` holds the description of each tensor by its name, as the JSON has it.
    """

    entries: Mapping[str, Any]
    metadata: Mapping[str, str]
    data_start: int

    def tensor(self, name: str) -> TensorInfo:
        """One tensor."""
        return _info(self.entries[name])

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """All tensors, made anew at each call."""
        return {name: _info(entry) for name, entry in self.entries.items()}


def read_header(
    file: StrPath | int, *, name: str | None = None, download: str = DOWNLOAD
) -> Header:
    """Read and check the header of a safetensors file; its weights are not read.

    Args:
        file: a path, or the descriptor of an open regular file (its position does not matter).
        name: what errors call the file; by default its base name.
        download: the command that hints begin with, ``hf download ORG/NAME``.

    Raises:
        UnreadableError: anything but a file that the safetensors package would load.
    """
    if isinstance(file, int):
        return _read(file, os.fstat(file), name or f"file descriptor {file}", download)
    name = name or os.path.basename(os.fspath(file))
    with open_regular(file, name, download) as (fd, status):
        return _read(fd, status, name, download)


def read_header_through(read: Reader, size: int, *, name: str, download: str = DOWNLOAD) -> Header:
    """Read and check the header of a file of ``size`` bytes that is somewhere else.

    Raises:
        UnreadableError: as `read_header` does, and whatever ``read`` raises.
    """
    return _checked(_read_json(read, size, name, download), size, name, download)


def _read(fd: int, status: os.stat_result, name: str, download: str) -> Header:
    def read(size: int, offset: int) -> bytes:
        return _pread(fd, size, offset, name)

    raw = _read_json(read, status.st_size, name, download)
    if changed(status, os.fstat(fd)):
        raise changed_while_reading(name)
    return _checked(raw, status.st_size, name, download)


def _checked(raw: bytes, size: int, name: str, download: str) -> Header:
    data_start = _LENGTH + len(raw)
    if good := bulk.read(raw, size - data_start, _bytes_of):
        tensors, metadata = good
        return Header(tensors, _metadata(metadata, name), data_start)
    entries = text.parse(raw, name, _LENGTH)
    metadata = _metadata(entries.pop("__metadata__", {}), name)
    for key, entry in entries.items():
        _check(key, entry, name)
    header = Header(entries, metadata, data_start)
    _check_coverage(header, size, name, download)
    return header


def _read_json(read: Reader, size: int, name: str, download: str) -> bytes:
    """The bytes of the JSON part; nothing is allocated before its length is known to be sane."""
    if size == 0:
        raise empty(name, download)
    if size < _LENGTH:
        raise UnreadableError(
            f"is {size} bytes long, too short for a safetensors file",
            path=name,
            offset=0,
            hint=fetch_again(download, name),
        )
    start = read(_LENGTH, 0)
    if start == b"version ":  # as a length this would be beyond every limit
        refuse_lfs_pointer(read(min(size, 64), 0), name)
    length = int.from_bytes(start, "little")
    if length > min(MAX_HEADER, size - _LENGTH):
        bound = f"the limit is {MAX_HEADER:,}" if length > MAX_HEADER else f"the file has {size:,}"
        raise UnreadableError(
            f"claims a header of {length:,} bytes, {bound}; it is damaged, cut off or not a "
            "safetensors file",
            path=name,
            offset=0,
            hint=fetch_again(download, name),
        )
    return read(length, _LENGTH)


def _pread(fd: int, size: int, offset: int, name: str) -> bytes:
    try:
        data = os.pread(fd, size, offset)
    except OSError as error:
        raise UnreadableError(
            f"cannot be read: {error.strerror}", path=name, offset=offset
        ) from error
    if len(data) < size:
        raise changed_while_reading(name)
    return data


def _metadata(value: Any, name: str) -> Mapping[str, str]:
    if isinstance(value, dict) and all(isinstance(item, str) for item in value.values()):
        return value
    raise UnreadableError("must be an object of strings", path=name, pointer="/__metadata__")


def _info(entry: Any) -> TensorInfo:
    return TensorInfo(entry["dtype"], tuple(entry["shape"]), *entry["data_offsets"])


def _check(key: str, entry: Any, name: str) -> None:
    try:
        _check_description(entry)
    except ValueError as error:
        raise UnreadableError(str(error), path=name, pointer=format_pointer((key,))) from None


def _check_description(entry: Any) -> None:
    if not isinstance(entry, dict) or entry.keys() != _MEMBERS:
        raise ValueError("a tensor is described by dtype, shape and data_offsets, and nothing else")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise ValueError(f"unknown dtype {reprlib.repr(dtype)}")
    if not _naturals(shape):
        raise ValueError(f"shape must be a list of whole numbers, not {reprlib.repr(shape)}")
    if not _naturals(offsets) or len(offsets) != 2:  # noqa: PLR2004 - a start and an end
        raise ValueError(f"data_offsets must be two whole numbers, not {reprlib.repr(offsets)}")
    start, end = offsets
    if end - start != _size(DTYPE_BITS[dtype], shape):
        raise ValueError(
            f"{dtype} of shape {reprlib.repr(shape)} does not take {end - start:,} bytes, which "
            "data_offsets give it"
        )


def _naturals(value: Any) -> TypeGuard[list[int]]:
    """Whether it is a list of what Rust reads as ``usize``; ``True`` is none."""
    if not isinstance(value, list):
        return False
    return all(type(item) is int and 0 <= item < _USIZE for item in value)


def _bytes_of(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor; ValueError where there is none of this dtype and shape."""
    if dtype not in DTYPE_BITS or not all(0 <= item < _USIZE for item in shape):
        raise ValueError("see _check_description")
    return _size(DTYPE_BITS[dtype], shape)


def _size(bits_per_element: int, shape: Sequence[int]) -> int:
    """Bytes of a tensor; what overflows the 64-bit arithmetic of safetensors is refused here too.

    So a shape of (2**62, 4, 0) is an overflow although the product is 0.
    """
    bits = 1
    for factor in (*shape, bits_per_element):
        bits *= factor
        if bits >= _USIZE:
            raise ValueError(f"the size of shape {reprlib.repr(shape)} overflows 64 bits")
    if bits % 8:
        raise ValueError("it does not end at a byte boundary")
    return bits // 8


def _check_coverage(header: Header, size: int, name: str, download: str) -> None:
    """The tensors must lie one after the other, from ``data_start`` to the end of the file."""
    end = 0
    for key, tensor in sorted(
        header.tensors.items(), key=lambda item: (item[1].start, item[1].end)
    ):
        if tensor.start != end:
            fault = "overlaps the tensor before it" if tensor.start < end else "leaves a gap before"
            raise UnreadableError(
                f"{fault}: it should start at {end:,}, not {tensor.start:,}",
                path=name,
                pointer=format_pointer((key,)),
                offset=header.data_start + tensor.start,
            )
        end = tensor.end
    expected = header.data_start + end
    if size < expected:
        raise UnreadableError(
            f"is cut off: {size:,} bytes of {expected:,}",
            path=name,
            offset=size,
            hint=fetch_again(download, name),
        )
    if size > expected:
        raise UnreadableError(
            f"has {size - expected:,} bytes that belong to no tensor",
            path=name,
            offset=expected,
            hint=fetch_again(download, name),
        )
