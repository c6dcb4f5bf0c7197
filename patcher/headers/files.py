"""Opening files of a checkpoint that nobody vouches for: regular files only, never more than asked.

Links are followed, because a Hub cache snapshot consists of them. Nothing here writes.
"""

from __future__ import annotations

import errno
import os
import shlex
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING

from patcher.errors import UnreadableError

if TYPE_CHECKING:
    from collections.abc import Iterator

StrPath = str | os.PathLike[str]

#: The start of the command that fetches a file whose repository is not known.
DOWNLOAD = "hf download ORG/NAME"

LFS_POINTER = b"version https://git-lfs"

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFREG: "a file",
}


def kind_of(mode: int) -> str:
    """``"a FIFO"``, ``"a directory"`` ... for an ``st_mode``."""
    return _KINDS.get(stat.S_IFMT(mode), "not a regular file")


def fetch_again(download: str, name: str) -> str:
    """The command that replaces a damaged file; ``download`` is as in `DOWNLOAD`."""
    return f"{download} {shlex.quote(name)} --force-download"


@contextmanager
def open_regular(
    path: StrPath, name: str, download: str = DOWNLOAD
) -> Iterator[tuple[int, os.stat_result]]:
    """Open a regular file for reading; gives its descriptor and ``fstat``.

    Never blocks: what is not a regular file is refused before it is opened, and the descriptor is
    looked at again because the name may have been given to another file in between.

    Raises:
        UnreadableError: with ``name`` as its path.
    """
    try:
        _require_regular(os.stat(path), name)
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise unreadable(path, name, error, download) from error
    try:
        status = os.fstat(fd)
        _require_regular(status, name)
        yield fd, status
    finally:
        os.close(fd)


def read_whole(path: StrPath, name: str, limit: int, download: str = DOWNLOAD) -> bytes:
    """All bytes of a text file that has at most ``limit`` of them.

    Raises:
        UnreadableError: it is missing, not a regular file, too large, empty, a Git LFS pointer, or
            changed while it was read.
    """
    with open_regular(path, name, download) as (fd, before):
        if before.st_size > limit:
            raise UnreadableError(
                f"is {before.st_size:,} bytes long, more than the {limit:,} that it may have",
                path=name,
                hint=f"look at it, it is not what its name says: ls -lL {quoted(path)}",
            )
        data = _read_up_to(fd, before.st_size + 1, name)
        after = os.fstat(fd)
    if len(data) != before.st_size or changed(before, after):
        raise changed_while_reading(name)
    if not data:
        raise empty(name, download)
    refuse_lfs_pointer(data, name)
    return data


def quoted(path: StrPath) -> str:
    """``path`` as one word of a shell command."""
    return shlex.quote(os.fspath(path))


def changed(before: os.stat_result, after: os.stat_result) -> bool:
    """Whether a file was written to between two ``fstat`` calls."""
    return (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns)


def changed_while_reading(name: str) -> UnreadableError:
    """The error for a file that somebody is still writing."""
    return UnreadableError(
        "changed while it was being read",
        path=name,
        hint="wait until the download or the copy has finished, then run the command again",
    )


def empty(name: str, download: str) -> UnreadableError:
    """The error for a file of no bytes."""
    return UnreadableError(
        "is empty (0 bytes); an interrupted download leaves such files",
        path=name,
        hint=fetch_again(download, name),
    )


def refuse_lfs_pointer(start: bytes, name: str) -> None:
    """Raise UnreadableError when a file's first bytes are those of a Git LFS pointer."""
    if start.startswith(LFS_POINTER):
        raise UnreadableError(
            "is a Git LFS pointer, not the file itself", path=name, hint="git lfs pull"
        )


def unreadable(
    path: StrPath, name: str, error: OSError | ValueError, download: str = DOWNLOAD
) -> UnreadableError:
    """Say in plain words why ``path`` could not be opened."""
    code = error.errno if isinstance(error, OSError) else None
    message, hint = f"cannot be read: {getattr(error, 'strerror', None) or error}", None
    if code == errno.ENOENT:
        message, hint = "does not exist", f"{download} {shlex.quote(name)}"
        if os.path.islink(path):
            message = f"is a link to {os.readlink(path)}, which does not exist"
            hint = fetch_again(download, name)
    elif code == errno.ELOOP:
        message, hint = "is a link that leads back to itself", f"ls -l {quoted(path)}"
    elif code in (errno.EACCES, errno.EPERM):
        message, hint = "cannot be read: permission denied", f"ls -lL {quoted(path)}"
    return UnreadableError(message, path=name, hint=hint)


def _require_regular(status: os.stat_result, name: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise UnreadableError(f"is {kind_of(status.st_mode)}, not a file", path=name)


def _read_up_to(fd: int, size: int, name: str) -> bytes:
    chunks = []
    try:
        while size and (chunk := os.read(fd, size)):
            chunks.append(chunk)
            size -= len(chunk)
    except OSError as error:
        raise UnreadableError(f"cannot be read: {error.strerror}", path=name) from error
    return b"".join(chunks)
