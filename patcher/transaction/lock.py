"""One writer at a time in a checkpoint.

Two guards, because ``flock`` succeeds for everyone on some Lustre, GPFS and NFS mounts: the file
``lock`` through the filelock library, and the file ``holder``, which only one process can create.
``holder`` also lets the loser say who is at work. Should both fail, the exclusive creation of a
transaction's directory and the hashes of the files still stand.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
import time
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import asdict

from patcher import fsio
from patcher.errors import RefusedError, UnreadableError
from patcher.transaction import entry, journal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from filelock import BaseFileLock

    from patcher.transaction.interrupts import Interrupts
    from patcher.transaction.journal import Journal

_HOLDER = "holder"
_POLL_SECONDS = 0.05

#: Between taking the lock and leaving the note, and after removing it, nobody can be named; that
#: is over in a moment.
_UNNAMED_SECONDS = 0.2

#: What file systems without hard links answer (FAT; some network file systems).
_NO_LINKS = {errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EMLINK}

#: A transaction takes well below a second. Whether a process of another machine still lives cannot
#: be seen from here; after this time its note is taken for the rest of a crash.
_FOREIGN_SECONDS = 60.0


class Holder(Struct, frozen=True):
    """Who is at work. ``birth`` is the process's start in clock ticks: pids are used again."""

    pid: int
    host: str
    since: str
    command: str
    birth: str | None

    @classmethod
    def me(cls) -> Holder:
        """This process."""
        return cls(
            pid=os.getpid(),
            host=os.uname().nodename,
            since=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            command=" ".join([os.path.basename(sys.argv[0] or "python"), *sys.argv[1:]])[:200],
            birth=_birth(os.getpid()),
        )

    def __str__(self) -> str:
        """For the message of the one who has to wait."""
        return f"process {self.pid} on {self.host}, since {self.since}: {self.command}"


@contextmanager
def hold(where: Journal, interrupts: Interrupts, wait: float) -> Iterator[None]:
    """Be the only writer inside the block.

    Args:
        where: the checkpoint's journal.
        interrupts: asked while waiting.
        wait: how many seconds to wait for another writer.

    Raises:
        RefusedError: another writer is at work, or a lock file is not one; nothing was written.
        InterruptedError_: a signal came while waiting.
        OSError: the disk failed.
    """
    lock = _file_lock(where)
    deadline = time.monotonic() + wait
    try:
        while not (_take(lock) and _note(where)):
            interrupts.check()
            found = holder(where)
            late = time.monotonic() - deadline
            if late >= (0 if found else _UNNAMED_SECONDS):
                raise _busy(found)
            time.sleep(_POLL_SECONDS if found else _POLL_SECONDS / 10)
        try:
            _remove_leftovers(where)
            yield
        finally:
            with suppress(OSError):  # a note that stays is recognised as stale
                fsio.unlink(where.fd, _HOLDER)
    finally:
        lock.release()


def holder(where: Journal, name: str = _HOLDER) -> Holder | None:
    """The other living process that is at work here, as far as can be seen; takes no lock.

    A note of this very process is what a failed removal left: its threads exclude each other by
    the file lock.
    """
    try:
        status = os.stat(name, dir_fd=where.fd, follow_symlinks=False)
        noted = Holder(**json.loads(entry.read_bytes(where.fd, name)))
    except (OSError, UnreadableError, ValueError, TypeError):
        return None
    if noted.host == os.uname().nodename:
        birth = None if noted.pid == os.getpid() else _birth(noted.pid)
        alive = birth is not None and noted.birth == birth
    else:
        alive = time.time() - status.st_mtime < _FOREIGN_SECONDS
    return noted if alive else None


def _file_lock(where: Journal) -> BaseFileLock:
    from filelock import FileLock  # noqa: PLC0415 - lazy: check and status take no lock

    path = where.root / journal.NAME / "lock"
    with suppress(FileNotFoundError):
        status = os.stat("lock", dir_fd=where.fd, follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            raise RefusedError(
                "is not a plain file, so it is not used as a lock. Nothing was written",
                path=f"{journal.NAME}/lock",
                hint="look where it leads, then remove it",
            )
    return FileLock(path)


def _take(lock: BaseFileLock) -> bool:
    from filelock import Timeout  # noqa: PLC0415 - see above

    if not lock.is_locked:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return False
        except NotImplementedError:  # no flock on this file system: the note alone decides
            return True
    return True


def _own_note() -> bytes:
    """It means something only while this process lives, so it is not waited for."""
    return json.dumps(asdict(Holder.me())).encode("ascii")


def _note(where: Journal) -> bool:
    """Leave the note; false while another's stands.

    It takes its name complete, by a link: half a note would look like the rest of a crash.
    """
    if not _clear_stale(where):
        return False
    own = _temporary()
    try:
        fsio.create(where.fd, own, _own_note(), sync=False)
        return _claim(where, own)
    finally:
        with suppress(OSError):
            fsio.unlink(where.fd, own)


def _claim(where: Journal, own: str) -> bool:
    try:
        fsio.link(where.fd, own, where.fd, _HOLDER)
    except OSError as error:
        if os.stat(own, dir_fd=where.fd).st_nlink > 1:
            return True  # it happened, and the reply was lost, as on NFS: see open(2) on O_EXCL
        if error.errno in _NO_LINKS:
            return _claim_without_links(where)
        if isinstance(error, FileExistsError):
            return False
        raise
    return True


def _claim_without_links(where: Journal) -> bool:
    try:
        fsio.create(where.fd, _HOLDER, _own_note(), sync=False)
    except FileExistsError:
        return False
    return True


def _clear_stale(where: Journal) -> bool:
    """Whether no living process's note stands; the note of one that is gone is removed.

    Only one process can rename it away; should that have caught a note that came after this one
    was read, it is put back.
    """
    if not fsio.exists(where.fd, _HOLDER):
        return True
    if holder(where) is not None:
        return False
    aside = _temporary()
    try:
        fsio.rename(where.fd, _HOLDER, aside)
    except FileNotFoundError:
        return True
    alive = holder(where, aside) is not None
    if alive:
        with suppress(FileExistsError):
            fsio.link(where.fd, aside, where.fd, _HOLDER)
    fsio.unlink(where.fd, aside)
    return not alive


def _temporary() -> str:
    return f"{_HOLDER}.{os.urandom(8).hex()}"


def _remove_leftovers(where: Journal) -> None:
    """Remove the temporary names of processes that were killed; those in use are young."""
    for name in os.listdir(where.fd):
        if name.startswith(f"{_HOLDER}."):
            with suppress(OSError):
                status = os.stat(name, dir_fd=where.fd, follow_symlinks=False)
                if time.time() - status.st_mtime > _FOREIGN_SECONDS:
                    fsio.unlink(where.fd, name)


def _busy(found: Holder | None) -> RefusedError:
    return RefusedError(
        f"another ckpt-patch is writing here ({found or 'it has not left its name yet'}). "
        "Nothing was written",
        path=journal.NAME,
        hint="try again when it is done, or add --wait 60",
    )


def _birth(pid: int) -> str | None:
    """Start time of a process in clock ticks since boot; ``None`` where that cannot be seen."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None
