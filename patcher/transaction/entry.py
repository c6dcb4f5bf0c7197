"""One name in the checkpoint: what stands there, and putting something else in its place.

A name is a regular file, or a link to one (Hugging Face caches link to blobs that other revisions
share). Putting something in its place renames a finished file or link over the name, so neither a
blob nor another hard link is ever touched.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct

from patcher import fsio
from patcher.edits import WRITABLE_FILES, sha256
from patcher.errors import UnreadableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MAX_BYTES = 16 * 1024 * 1024

_TEMPORARY = re.compile(
    rf"\.(?:{'|'.join(map(re.escape, sorted(WRITABLE_FILES)))})\.ckpt-patch-tmp\.[0-9a-f]{{16}}"
)


class Entry(Struct, frozen=True):
    """What a name is, completely.

    Attributes:
        name: relative to the checkpoint.
        data: the bytes that one reads under this name.
        link_target: the exact text of the link; ``None`` for a regular file.
        mode: permission bits of the file that is read; never setuid, setgid or sticky.
        uid: owner of the name itself, not of what it links to.
        gid: group of the name itself.
        mtime_ns: modification time of the name itself; ``None`` when putting means "now".
        links: number of names of a regular file.
    """

    name: str
    data: bytes
    link_target: str | None
    mode: int
    uid: int
    gid: int
    mtime_ns: int | None
    links: int = 1

    @property
    def sha256(self) -> str:
        """Hash of the bytes that one reads under this name."""
        return sha256(self.data)


def read(dir_fd: int, name: str) -> Entry | None:
    """What stands under ``name``; ``None`` where nothing does.

    Raises:
        UnreadableError: a dangling link, a loop, a directory, a device, or too large.
        OSError: the disk failed.
    """
    try:
        own = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None
    target = os.readlink(name, dir_fd=dir_fd) if stat.S_ISLNK(own.st_mode) else None
    try:
        data, file = _read_regular(dir_fd, name, follow=target is not None)
    except (FileNotFoundError, PermissionError, NotADirectoryError) as error:
        raise UnreadableError(f"cannot be opened: {error.strerror}", path=name) from error
    except OSError as error:
        if target is None:
            raise
        raise UnreadableError(
            f"its link {target!r} leads nowhere: {error.strerror}", path=name
        ) from error
    return Entry(
        name=name,
        data=data,
        link_target=target,
        mode=stat.S_IMODE(file.st_mode) & 0o777,
        uid=own.st_uid,
        gid=own.st_gid,
        mtime_ns=own.st_mtime_ns,
        links=own.st_nlink,
    )


def read_bytes(dir_fd: int, name: str, limit: int = MAX_BYTES) -> bytes:
    """The bytes of a regular file that is no link.

    Raises:
        UnreadableError: not a regular file, or larger than ``limit`` bytes.
        OSError: absent, a link (``ELOOP``), or the disk failed.
    """
    return _read_regular(dir_fd, name, follow=False, limit=limit)[0]


def _read_regular(
    dir_fd: int, name: str, *, follow: bool, limit: int = MAX_BYTES
) -> tuple[bytes, os.stat_result]:
    # O_NONBLOCK: opening a FIFO must not wait for a writer.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    fd = os.open(name, flags, dir_fd=dir_fd)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise UnreadableError("is not a regular file", path=name)
        with os.fdopen(fd, "rb", closefd=False) as file:
            data = file.read(limit + 1)
    finally:
        os.close(fd)
    if len(data) > limit:
        raise UnreadableError(f"is larger than {limit} bytes", path=name)
    return data, status


def replace_all(
    dir_fd: int, entries: Iterable[Entry], guard: Callable[[str], None] = lambda _name: None
) -> None:
    """Put every entry in its place, durably.

    All bytes are on disk under temporary names before the first name changes, so a full disk is
    found while nothing has changed yet.

    Args:
        dir_fd: the checkpoint.
        entries: what shall stand there.
        guard: called with each name just before it changes; raises to stop.
    """
    ready = [(_prepare(dir_fd, entry), entry.name) for entry in entries]
    for temporary, name in ready:
        guard(name)
        fsio.rename(dir_fd, temporary, name)
    fsio.fsync_dir(dir_fd, ".")


def remove_temporaries(dir_fd: int) -> None:
    """Remove what an interrupted `replace_all` left; foreign names are not touched."""
    for name in sorted(os.listdir(dir_fd)):
        if _TEMPORARY.fullmatch(name):
            with suppress(IsADirectoryError, PermissionError):  # planted, not ours
                fsio.unlink(dir_fd, name)


def _prepare(dir_fd: int, entry: Entry) -> str:
    temporary = f".{entry.name}.ckpt-patch-tmp.{os.urandom(8).hex()}"
    owner = (entry.uid, entry.gid)
    if entry.link_target is not None:
        fsio.symlink(dir_fd, temporary, entry.link_target, owner=owner, mtime_ns=entry.mtime_ns)
    else:
        fsio.create(
            dir_fd,
            temporary,
            entry.data,
            mode=entry.mode,
            owner=owner,
            mtime_ns=entry.mtime_ns,
            xattrs=_user_xattrs(dir_fd, entry.name),
        )
    return temporary


def _user_xattrs(dir_fd: int, name: str) -> dict[str, bytes]:
    """The ``user.*`` attributes of what is read under ``name`` now; they stay with the name."""
    if not hasattr(os, "listxattr"):
        return {}
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=dir_fd)
    except OSError:  # nothing there: recovery puts back a file that is gone
        return {}
    try:
        keys = [key for key in os.listxattr(fd) if key.startswith("user.")]
        return {key: os.getxattr(fd, key) for key in keys}
    except OSError:  # the file system has none
        return {}
    finally:
        os.close(fd)
