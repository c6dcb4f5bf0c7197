"""What no program can beat: the files read once, and nothing done with them."""

# ruff: noqa: INP001 - a part of a program

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

LENGTH = 8


def shards(root: Path) -> list[Path]:
    """The files of weights, sorted."""
    return sorted(root.glob("*.safetensors"))


def read_headers(root: Path) -> int:
    """Read every header, each with one ``pread`` after that of its length; bytes."""
    size = 0
    for path in shards(root):
        fd = os.open(path, os.O_RDONLY)
        size += len(os.pread(fd, int.from_bytes(os.pread(fd, LENGTH, 0), "little"), LENGTH))
        os.close(fd)
    return size


def read_headers_cold(root: Path) -> int:
    """The same, with all of it asked for before the first byte is waited for."""
    for path in shards(root):
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 2**20, os.POSIX_FADV_WILLNEED)
        os.close(fd)
    return read_headers(root)


def open_all(root: Path) -> int:
    """Open every shard with the safetensors package, which checks its header; tensors."""
    from safetensors import safe_open  # noqa: PLC0415 - imported before the clock starts

    tensors = 0
    for path in shards(root):
        with safe_open(path, "np") as file:
            tensors += len(file.keys())
    return tensors


def evict(paths: Iterable[Path]) -> None:
    """Take files out of the page cache; it is not emptied as a whole, others work here too."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def replace_durably(folder: Path) -> None:
    """What a durable change of one file costs: write, fsync, rename, fsync of the folder."""
    fd = os.open(folder / "new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(fd, bytes(4096))
    os.fsync(fd)
    os.close(fd)
    os.rename(folder / "new", folder / "file")
    fd = os.open(folder, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
