"""Every system call of this package that changes something on disk.

All paths are single names relative to an open directory, links are never followed, and nothing that
exists is opened for writing: a file comes into being complete, then takes its name by a rename.

``hook`` is the seam for fault tests. It is called with the call's name and the file's before each
of these calls, and may raise an ``OSError`` (the call fails), return a number (``write`` takes at
most that many bytes), or return an ``OSError`` (the call happens, yet reports this failure).
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import MappingProxyType

Hook = Callable[[str, str], "int | OSError | None"]

hook: Hook | None = None

_CHUNK = 8 * 1024 * 1024
_FICLONE = 0x40049409  # linux/fs.h: _IOW(0x94, 9, int)


@contextmanager
def _call(name: str, file: str) -> Iterator[int | None]:
    """Run one mutating call under the hook; an ``OSError`` leaves with the file's name on it."""
    try:
        answer = None if hook is None else hook(name, file)
        yield answer if isinstance(answer, int) else None
        if isinstance(answer, OSError):
            raise answer
    except OSError as error:
        error.filename = file
        raise


@contextmanager
def open_dir(name: str, dir_fd: int | None = None, *, follow: bool = False) -> Iterator[int]:
    """Open a directory for the length of a ``with`` block.

    Raises:
        OSError: ``ELOOP`` or ``ENOTDIR`` where the name is a symbolic link and ``follow`` is false.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    fd = os.open(name, flags, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


def mkdir(dir_fd: int, name: str) -> None:
    """Make a directory, exclusively; never writable for group or others."""
    with _call("mkdir", name):
        os.mkdir(name, 0o755, dir_fd=dir_fd)


def create(  # noqa: PLR0913 - the attributes of a file
    dir_fd: int,
    name: str,
    data: bytes,
    *,
    mode: int = 0o644,
    owner: tuple[int, int] | None = None,
    mtime_ns: int | None = None,
    xattrs: Mapping[str, bytes] = MappingProxyType({}),
    sync: bool = True,
) -> None:
    """Make a new file and wait until its bytes and attributes are on disk.

    The umask has no influence. ``owner`` is kept where the system permits it. Without ``sync`` it
    is not waited for: a note that nothing depends on.

    Raises:
        FileExistsError: the name is taken, be it by a dangling link.
        OSError: anything else; what was made so far stays under ``name``.
    """
    with _new_file(dir_fd, name) as fd:
        _write(fd, name, data)
        if owner is not None:
            _chown(fd, name, owner)
        if sys.platform == "linux":
            for key, value in xattrs.items():
                with _call("setxattr", name):
                    os.setxattr(fd, key, value)
        _finish(fd, name, mode, mtime_ns, sync=sync)


def copy(  # noqa: PLR0913 - the attributes of a file, and a way to stop
    source_fd: int,
    dir_fd: int,
    name: str,
    *,
    mode: int = 0o644,
    mtime_ns: int | None = None,
    between: Callable[[], None] = lambda: None,
) -> bool:
    """Copy an open file to a new one; whether the file system could share the blocks (reflink).

    ``between`` is called before every part of the work, and stops it by raising.
    """
    with _new_file(dir_fd, name) as fd:
        shared = _clone(source_fd, fd, name) is None
        while not shared and (chunk := os.read(source_fd, _CHUNK)):
            between()
            _write(fd, name, chunk)
        _finish(fd, name, mode, mtime_ns)
    return shared


def reflink(
    source_fd: int, dir_fd: int, name: str, *, mode: int = 0o644, mtime_ns: int | None = None
) -> None:
    """Make a new file that shares the blocks of an open one until either of them is written.

    ``EXDEV``, ``EOPNOTSUPP`` and the like say that the file system cannot do this.
    """
    with _new_file(dir_fd, name) as fd:
        if (error := _clone(source_fd, fd, name)) is not None:
            raise error
        _finish(fd, name, mode, mtime_ns)


def symlink(
    dir_fd: int,
    name: str,
    target: str,
    *,
    owner: tuple[int, int] | None = None,
    mtime_ns: int | None = None,
) -> None:
    """Make a symbolic link with exactly this text; owner and mtime are the link's own."""
    with _call("symlink", name):
        os.symlink(target, name, dir_fd=dir_fd)
    if owner is not None:
        with suppress(PermissionError), _call("chown", name):
            os.chown(name, *owner, dir_fd=dir_fd, follow_symlinks=False)
    if mtime_ns is not None:
        with _call("utime", name):
            os.utime(name, ns=(mtime_ns, mtime_ns), dir_fd=dir_fd, follow_symlinks=False)


def link(source_fd: int, source: str, dir_fd: int, name: str) -> None:
    """Give a file a second name; a link's own inode is linked, not what it points to."""
    with _call("link", name):
        os.link(source, name, src_dir_fd=source_fd, dst_dir_fd=dir_fd, follow_symlinks=False)


def rename(dir_fd: int, source: str, target: str, target_fd: int | None = None) -> None:
    """Rename, replacing ``target``; inside one directory unless ``target_fd`` names another.

    A rename that reports a failure although it happened (seen on NFS, where a reply is lost and the
    retry finds nothing) is a success: the names on disk decide.
    """
    target_fd = dir_fd if target_fd is None else target_fd
    moved = os.stat(source, dir_fd=dir_fd, follow_symlinks=False)
    try:
        with _call("rename", target):
            os.replace(source, target, src_dir_fd=dir_fd, dst_dir_fd=target_fd)
    except OSError:
        if exists(dir_fd, source) or not _is(target_fd, target, moved):
            raise


def exchange(dir_fd: int, source: str, target_fd: int, target: str) -> None:
    """Let two names change places at one instant; one that happened is a success, as in `rename`.

    ``ENOSYS`` or ``EINVAL`` say that the system or the file system cannot do this.
    """
    moved = os.stat(source, dir_fd=dir_fd, follow_symlinks=False)
    try:
        with _call("exchange", target):
            _swap(dir_fd, source, target_fd, target)
    except OSError:
        if not _is(target_fd, target, moved):
            raise


def unlink(dir_fd: int, name: str) -> None:
    """Remove a name that is not a directory."""
    with _call("unlink", name):
        os.unlink(name, dir_fd=dir_fd)


def remove_tree(dir_fd: int, name: str) -> None:
    """Remove a directory and all below it, following no link."""
    with open_dir(name, dir_fd) as fd:
        for entry in sorted(os.listdir(fd)):
            if stat.S_ISDIR(os.stat(entry, dir_fd=fd, follow_symlinks=False).st_mode):
                remove_tree(fd, entry)
            else:
                unlink(fd, entry)
    rmdir(dir_fd, name)


def rmdir(dir_fd: int, name: str) -> None:
    """Remove an empty directory."""
    with _call("rmdir", name):
        os.rmdir(name, dir_fd=dir_fd)


def fsync_dir(fd: int, name: str) -> None:
    """Make the names of an open directory durable; ``name`` is for messages.

    File systems that cannot do this say so (``EINVAL``, ``ENOTSUP``); they order by themselves.
    """
    with _call("fsync_dir", name):
        try:
            _fsync(fd)
        except OSError as error:
            if error.errno not in {errno.EINVAL, errno.ENOTSUP}:
                raise


def exists(dir_fd: int, name: str) -> bool:
    """Whether the name is taken; a dangling link counts."""
    with suppress(FileNotFoundError):
        os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
        return True
    return False


def _is(dir_fd: int, name: str, wanted: os.stat_result) -> bool:
    with suppress(OSError):
        return os.path.samestat(os.stat(name, dir_fd=dir_fd, follow_symlinks=False), wanted)
    return False


@contextmanager
def _new_file(dir_fd: int, name: str) -> Iterator[int]:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with _call("open", name):
        fd = os.open(name, flags, 0o600, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


def _write(fd: int, name: str, data: bytes) -> None:
    view = memoryview(data)
    while view:
        with _call("write", name) as limit:
            view = view[os.write(fd, view[:limit]) :]


def _chown(fd: int, name: str, owner: tuple[int, int]) -> None:
    try:
        with _call("chown", name):
            os.fchown(fd, *owner)
    except OSError as error:  # EINVAL: an id that this user namespace does not know
        if error.errno not in {errno.EPERM, errno.EINVAL}:
            raise


def _finish(fd: int, name: str, mode: int, mtime_ns: int | None, *, sync: bool = True) -> None:
    """Give a new file its last attributes, and wait until all of it is on disk."""
    with _call("chmod", name):
        os.fchmod(fd, mode)
    if mtime_ns is not None:
        with _call("utime", name):
            os.utime(fd, ns=(mtime_ns, mtime_ns))
    if sync:
        with _call("fsync", name):
            _fsync(fd)


def _clone(source_fd: int, fd: int, name: str) -> OSError | None:
    """Share the blocks; the reason where the file system cannot. A failing disk raises."""
    if sys.platform != "linux":
        return OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP), name)
    try:
        with _call("clone", name):
            fcntl.ioctl(fd, _FICLONE, source_fd)
    except OSError as error:
        if error.errno in {errno.EIO, errno.ENOSPC, errno.EDQUOT}:
            raise
        return error
    return None


def _swap(dir_fd: int, source: str, target_fd: int, target: str) -> None:
    import ctypes  # noqa: PLC0415 - lazy: seldom needed

    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    names = (dir_fd, os.fsencode(source), target_fd, os.fsencode(target))
    if call is None or call(*names, 2):  # RENAME_EXCHANGE of linux/fs.h
        number = errno.ENOSYS if call is None else ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _fsync(fd: int) -> None:
    if sys.platform == "darwin":  # there, fsync leaves the bytes in the drive's cache
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fsync(fd)
