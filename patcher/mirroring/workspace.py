"""The hidden folder beside a mirror in which it is built before it gets its name.

One process at a time works there: the folder itself is locked. The lock saves double work and tells
the rest of a killed run from the work of a living one, nothing more. Where locks do not work (NFS
locks no directories; some file systems give everyone every lock), several build side by side, each
under a name of its own, and the rename decides.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from msgspec import Struct

from patcher import fsio
from patcher.errors import RefusedError
from patcher.headers.files import quoted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from patcher.transaction.interrupts import Interrupts

_POLL_SECONDS = 0.05

#: Where no lock says whether its process lives, a leftover is one that is older than this.
_ABANDONED_SECONDS = 24 * 3600.0


class Workspace(Struct, frozen=True):
    """An open workspace; ``tree`` is the empty folder in it that belongs to this process."""

    fd: int
    name: str
    tree: str


def name_for(destination: str) -> str:
    """The workspace's name, from the mirror's; of bounded length."""
    digest = hashlib.sha256(os.fsencode(destination)).hexdigest()
    return f".ckpt-patch-mirror.{digest[:16]}"


@contextmanager
def held(parent_fd: int, parent: str, name: str, signals: Interrupts) -> Iterator[Workspace]:
    """Work in the workspace; it is removed at the end, with all that is left in it.

    Args:
        parent_fd: the open folder in which the mirror will be.
        parent: its path, for messages.
        name: from `name_for`.
        signals: asked while another process is at work.

    Raises:
        RefusedError: the folder cannot be written, or the name is taken by something else.
        InterruptedError_: a signal came while waiting.
        OSError: the disk failed.
    """
    tree = f"tree.{os.urandom(8).hex()}"
    with ExitStack() as stack:
        while (fd := _attempt(parent_fd, parent, name, tree, stack)) is None:
            signals.check()
            time.sleep(_POLL_SECONDS)
        try:
            yield Workspace(fd, name, tree)
        finally:
            remove(fd, tree)
            with suppress(OSError):  # not empty: another one is at work, or the disk fails
                fsio.rmdir(parent_fd, name)


def _attempt(parent_fd: int, parent: str, name: str, tree: str, stack: ExitStack) -> int | None:
    """The workspace, open, locked, and with our tree; ``None`` while another process has it."""
    _make(parent_fd, parent, name)
    with ExitStack() as tries:
        try:
            fd = _opened(parent_fd, parent, name, tries)
            locked = _lock(fd)
            if locked is False:
                return None
            _tidy(fd, trusted=locked is True and _is_exclusive(fd))
            fsio.mkdir(fd, tree)
        except FileNotFoundError:  # its owner has just finished: the name, or the folder, is gone
            return None
        stack.push(tries.pop_all())
    return fd


def _opened(parent_fd: int, parent: str, name: str, tries: ExitStack) -> int:
    try:
        fd = tries.enter_context(fsio.open_dir(name, parent_fd))
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENOTDIR, errno.EACCES}:
            raise _taken(parent, name) from error
        raise
    if os.fstat(fd).st_uid != os.geteuid():
        raise _taken(parent, name)
    return fd


def _is_exclusive(fd: int) -> bool:
    """Whether a lock that we hold keeps others out; here another descriptor stands for them."""
    with fsio.open_dir(".", fd) as second:
        return _lock(second) is False


def _tidy(fd: int, *, trusted: bool) -> None:
    """Remove what killed runs left: all of it where the lock says that nobody else is here."""
    for left in os.listdir(fd):
        status = os.stat(left, dir_fd=fd, follow_symlinks=False)
        if trusted or time.time() - status.st_mtime > _ABANDONED_SECONDS:
            remove(fd, left)


def _make(parent_fd: int, parent: str, name: str) -> None:
    try:
        fsio.mkdir(parent_fd, name)
    except FileExistsError:
        return
    except OSError as error:
        if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
            raise RefusedError(
                f"nothing can be made here: {error.strerror}. Nothing was written",
                path=parent,
                hint="choose a place that you can write",
            ) from error
        raise


def _lock(fd: int) -> bool | None:
    """Whether the folder is ours now; ``None`` where folders cannot be locked."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def remove(fd: int, name: str) -> None:
    """Remove a tree of a workspace. What cannot be removed stays hidden; the next run tries again.

    It is renamed first: should it belong to a living process after all, that one finds nothing to
    give a name to, rather than half a tree.
    """
    aside = f"gone.{os.urandom(8).hex()}"
    with suppress(OSError):
        if fsio.exists(fd, name):
            fsio.rename(fd, name, aside)
            fsio.remove_tree(fd, aside)


def _taken(parent: str, name: str) -> RefusedError:
    path = os.path.join(parent, name)
    return RefusedError(
        "something else has the name of the folder that mirrors are built in. Nothing was written",
        path=path,
        hint=f"look at it, then move it away: ls -ld {quoted(path)}",
    )
