"""The directory ``.ckpt-patch`` of a checkpoint: its transactions and what they keep.

::

    .ckpt-patch/.gitignore ("*"), README, lock, holder
    .ckpt-patch/0001.applied/record.json
    .ckpt-patch/0001.applied/before/<file>    the original bytes
    .ckpt-patch/0001.applied/kept/<file>      what undo --merge or --force found there
    .ckpt-patch/0001.applied/merged/<file>    what undo --merge puts there

The state of a transaction is the name of its directory, so changing it is one rename.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from patcher import fsio
from patcher.edits import sha256
from patcher.errors import RefusedError, UnreadableError
from patcher.transaction import entry
from patcher.transaction.record import FileRecord, Record, decode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

NAME = ".ckpt-patch"

State = Literal["staging", "pending", "applied", "undoing", "undone", "aborted"]
FileState = Literal["before", "after", "edited", "missing", "unreadable"]

_TRANSACTION = re.compile(r"([0-9]{4,9})\.(staging|pending|applied|undoing|undone|aborted)")

_OWN_FILES = {
    ".gitignore": b"*\n",
    "README": b"ckpt-patch keeps the original metadata files of this checkpoint here.\n"
    b"`ckpt-patch undo` needs this directory; `ckpt-patch log` lists what is in it.\n",
}


class Transaction(Struct, frozen=True):
    """A transaction as its directory names it."""

    id: int
    state: str

    @property
    def directory(self) -> str:
        """``0001.applied``."""
        return f"{self.id:04d}.{self.state}"


class Journal(Struct, frozen=True):
    """An open ``.ckpt-patch``.

    Attributes:
        root: the checkpoint as the user named it, for messages and commands.
        root_fd: the open checkpoint directory.
        fd: the open ``.ckpt-patch``.
    """

    root: Path
    root_fd: int
    fd: int

    def transactions(self, *states: str) -> tuple[Transaction, ...]:
        """All transactions, or those in the given states, oldest first."""
        matches = (_TRANSACTION.fullmatch(name) for name in os.listdir(self.fd))
        found = [Transaction(int(match[1]), match[2]) for match in matches if match]
        chosen = [each for each in found if not states or each.state in states]
        return tuple(sorted(chosen, key=lambda each: each.id))

    def record(self, transaction: Transaction) -> Record:
        """Its record.

        Raises:
            RefusedError: absent or damaged.
        """
        source = self.path(transaction, "record.json")
        data = self.read(transaction, "record.json")
        if data is None:
            raise RefusedError("this record is missing", path=source, hint=self._by_hand())
        record = decode(data, state=transaction.state, source=source)
        if record.id != transaction.id:
            raise RefusedError(f"this is the record of transaction {record.id}", path=source)
        return record

    def original(self, transaction: Transaction, file: FileRecord) -> bytes:
        """The bytes that the file had before.

        Raises:
            RefusedError: absent, or not the bytes that were saved.
        """
        data = self.read(transaction, f"before/{file.file}")
        if data is None or sha256(data) != file.before_sha256:
            raise RefusedError(
                f"the saved original is {'missing' if data is None else 'damaged'}. "
                "Nothing was changed",
                path=self.path(transaction, f"before/{file.file}"),
                hint=self._by_hand(),
            )
        return data

    def read(self, transaction: Transaction, name: str) -> bytes | None:
        """The bytes of ``name`` or ``folder/name`` in a transaction; ``None`` where it is absent.

        Raises:
            RefusedError: a link or no regular file stands there.
        """
        folder, _, file = name.rpartition("/")
        try:
            with fsio.open_dir(transaction.directory, self.fd) as fd:
                if not folder:
                    return entry.read_bytes(fd, file)
                with fsio.open_dir(folder, fd) as inner:
                    return entry.read_bytes(inner, file)
        except FileNotFoundError:
            return None
        except (OSError, UnreadableError) as error:
            if isinstance(error, OSError) and error.errno == errno.EIO:
                raise
            raise RefusedError(
                f"cannot be read: {error}", path=self.path(transaction, name)
            ) from error

    def label(self) -> None:
        """Write the fixed files of this directory, where they are not complete."""
        for name, text in _OWN_FILES.items():
            with suppress(OSError, UnreadableError):
                if entry.read_bytes(self.fd, name) == text:
                    continue
            if fsio.exists(self.fd, name):
                fsio.unlink(self.fd, name)
            fsio.create(self.fd, name, text, sync=False)  # the next writer looks again

    def keep(self, transaction: Transaction, folder: str, files: Mapping[str, bytes]) -> None:
        """Save files in a new folder of a transaction, read-only and durable."""
        with fsio.open_dir(transaction.directory, self.fd) as fd:
            fsio.mkdir(fd, folder)
            with fsio.open_dir(folder, fd) as inner:
                for name, data in files.items():
                    fsio.create(inner, name, data, mode=0o444)
                fsio.fsync_dir(inner, folder)
            fsio.fsync_dir(fd, transaction.directory)

    def discard(self, transaction: Transaction, folder: str) -> None:
        """Remove a folder of a transaction, if there is one."""
        with fsio.open_dir(transaction.directory, self.fd) as fd:
            if fsio.exists(fd, folder):
                fsio.remove_tree(fd, folder)
                fsio.fsync_dir(fd, transaction.directory)

    def move(self, transaction: Transaction, state: State) -> Transaction:
        """Change the state of a transaction, durably."""
        moved = Transaction(transaction.id, state)
        fsio.rename(self.fd, transaction.directory, moved.directory)
        fsio.fsync_dir(self.fd, NAME)
        return moved

    def file_state(self, file: FileRecord) -> FileState:
        """Which of its two contents the file has now."""
        try:
            present = entry.read(self.root_fd, file.file)
        except UnreadableError:
            return "unreadable"
        if present is None:
            return "missing"
        known: dict[str, FileState] = {file.before_sha256: "before", file.after_sha256: "after"}
        return known.get(present.sha256, "edited")

    def path(self, transaction: Transaction, name: str) -> str:
        """Where something of a transaction is, relative to the checkpoint."""
        return f"{NAME}/{transaction.directory}/{name}"

    def command(self, words: str) -> str:
        """A ``ckpt-patch`` command for this checkpoint that can be pasted."""
        return f"ckpt-patch {words} {shlex.quote(str(self.root))}"

    def _by_hand(self) -> str:
        return f"{self.command('log')}; or download the metadata files of this checkpoint again"


@contextmanager
def open_root(root: Path) -> Iterator[int]:
    """Open the checkpoint directory; a link to it is followed.

    Raises:
        UnreadableError: absent, or not a directory.
    """
    with ExitStack() as stack:
        try:
            fd = stack.enter_context(fsio.open_dir(str(root), follow=True))
        except OSError as error:
            raise UnreadableError(
                f"not a checkpoint directory: {error.strerror}", path=str(root)
            ) from error
        yield fd


@contextmanager
def open_journal(root: Path, root_fd: int) -> Iterator[Journal | None]:
    """Open ``.ckpt-patch``; ``None`` where there is none.

    Raises:
        RefusedError: a link or a file has that name, or it belongs to another user.
    """
    with ExitStack() as stack:
        try:
            fd = stack.enter_context(fsio.open_dir(NAME, root_fd))
        except FileNotFoundError:
            yield None
            return
        except OSError as error:
            raise RefusedError(
                f"cannot be used ({error.strerror}). Nothing was written",
                path=NAME,
                hint=f"look at it, then move it away: ls -ld {shlex.quote(str(root / NAME))}",
            ) from error
        owner = os.fstat(fd).st_uid
        if owner != os.geteuid():
            raise RefusedError(
                f"belongs to another user (uid {owner}), so its records are not trusted. "
                "Nothing was written",
                path=NAME,
                hint="run the command as that user, or work on a copy: ckpt-patch mirror "
                f"{shlex.quote(str(root))} DEST",
            )
        yield Journal(root, root_fd, fd)


def make(root_fd: int) -> None:
    """Make ``.ckpt-patch`` where it is missing."""
    with suppress(FileExistsError):
        fsio.mkdir(root_fd, NAME)
