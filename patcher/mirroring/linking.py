"""Bringing weights into a mirror without copying them: reflink, hard link, symbolic link."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from patcher import fsio
from patcher.errors import RefusedError
from patcher.mirroring import listing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from patcher.mirroring.listing import Item

Link = Literal["reflink", "hardlink", "symlink", "copy"]

#: ``--link`` -> what is tried, best first.
METHODS: Mapping[str, tuple[Link, ...]] = {
    "auto": ("reflink", "hardlink", "symlink"),
    "reflink": ("reflink",),
    "hardlink": ("hardlink",),
    "symlink": ("symlink",),
    "copy": ("copy",),
}

TRADE_OFFS: Mapping[Link, str] = {
    "reflink": "takes no space until one side is written, and neither side can harm the other",
    "hardlink": "takes no space and outlives the source; a program that writes into the file in "
    "place changes both",
    "symlink": "takes no space; a relative link to the bytes, which breaks when the mirror or they "
    "are moved or deleted",
    "copy": "takes the full space and depends on nothing",
}

#: What says "not this way here", and not that a disk fails: another file system, no such feature,
#: not permitted (`fs.protected_hardlinks`), too many names.
_CANNOT = {
    errno.EXDEV, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOTTY, errno.ENOSYS, errno.EINVAL,
    errno.EPERM, errno.EACCES, errno.EMLINK, errno.EBADF,
}  # fmt: skip


class Spot(Struct, frozen=True):
    """Where a file goes: an open folder, a name, and the text of a symbolic link from there."""

    folder_fd: int
    name: str
    link_text: str


class Placed(Struct, frozen=True):
    """How a file came into the mirror; ``failed``: what was tried before, and why it was not it."""

    link: Link
    failed: tuple[tuple[Link, str], ...]


def place(item: Item, spot: Spot, wanted: str, between: Callable[[], None]) -> Placed:
    """Bring one file into the mirror.

    Args:
        item: the source.
        spot: the place.
        wanted: one of `METHODS`.
        between: called now and then while bytes are copied; raises to stop.

    Raises:
        RefusedError: no method works here.
        UnreadableError: the source has changed.
        OSError: the disk failed.
    """
    failed: list[tuple[Link, str]] = []
    for link in METHODS[wanted]:
        try:
            return Placed(_WAYS[link](item, spot, between), tuple(failed))
        except OSError as error:
            if error.errno not in _CANNOT:
                raise
            failed.append((link, error.strerror or str(error)))
            if fsio.exists(spot.folder_fd, spot.name):
                fsio.unlink(spot.folder_fd, spot.name)
    reasons = ", ".join(f"{link}: {why}" for link, why in failed)
    raise RefusedError(
        f"cannot be brought into the mirror ({reasons}). Nothing was written",
        path=item.path,
        hint=f"choose a place on the file system of {os.path.dirname(item.real)}, "
        "or another way: --link auto, or --link copy, which takes the full space",
    )


def _reflink(item: Item, spot: Spot, _between: Callable[[], None]) -> Link:
    fd = _opened(item)
    try:
        fsio.reflink(fd, spot.folder_fd, spot.name, mode=item.mode, mtime_ns=item.mtime_ns)
    finally:
        os.close(fd)
    return "reflink"


def _hardlink(item: Item, spot: Spot, _between: Callable[[], None]) -> Link:
    folder, name = os.path.split(item.real)
    with fsio.open_dir(folder) as fd:
        fsio.link(fd, name, spot.folder_fd, spot.name)
    if not item.is_still(os.stat(spot.name, dir_fd=spot.folder_fd, follow_symlinks=False)):
        raise listing.moved(item)
    return "hardlink"


def _symlink(_item: Item, spot: Spot, _between: Callable[[], None]) -> Link:
    fsio.symlink(spot.folder_fd, spot.name, spot.link_text)
    return "symlink"


def _copy(item: Item, spot: Spot, between: Callable[[], None]) -> Link:
    fd = listing.opened(item)
    try:
        shared = fsio.copy(
            fd,
            spot.folder_fd,
            spot.name,
            mode=item.mode,
            mtime_ns=item.mtime_ns,
            between=between,
        )
        if not item.is_still(os.fstat(fd)):
            raise listing.moved(item)
    finally:
        os.close(fd)
    return "reflink" if shared else "copy"


def _opened(item: Item) -> int:
    """Open for a reflink; without the permission to read, a link may still work."""
    if not os.access(item.real, os.R_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), item.path)
    return listing.opened(item)


_WAYS: Mapping[Link, Callable[[Item, Spot, Callable[[], None]], Link]] = {
    "reflink": _reflink,
    "hardlink": _hardlink,
    "symlink": _symlink,
    "copy": _copy,
}
