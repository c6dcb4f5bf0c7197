"""Make an interrupted transaction whole: forward where everything was written, else back.

What happened is read from the files' hashes, never from how far a log came. Every writing command
runs this first, under the lock; running it twice is the same as once. The same code rolls back a
transaction that fails half-way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from patcher import fsio
from patcher.edits import sha256
from patcher.errors import CkptPatchError, RefusedError, RollbackError
from patcher.transaction import entry, interrupts, lock
from patcher.transaction.failures import incomplete
from patcher.transaction.journal import Journal, Transaction, open_journal, open_root

if TYPE_CHECKING:
    from pathlib import Path

    from patcher.transaction.entry import Entry
    from patcher.transaction.record import FileRecord


INTERRUPTED = ("staging", "pending", "undoing")


def recover(root: Path, *, wait: float = 0.0) -> tuple[str, ...]:
    """Finish or take back whatever was interrupted.

    Returns:
        One sentence for each thing done; empty when all was well.

    Raises:
        RefusedError: another process is at work, or a file is neither what it was nor what was
            to be written.
        RollbackError: the disk failed again.
    """
    with (
        interrupts.deferred() as signals,
        open_root(root) as root_fd,
        open_journal(root, root_fd) as journal,
    ):
        if journal is None or not journal.transactions(*INTERRUPTED):
            return ()
        try:
            with lock.hold(journal, signals, wait):
                return run(journal)
        except OSError as error:
            raise incomplete(journal, error) from error


def run(journal: Journal) -> tuple[str, ...]:
    """As `recover`, under a lock that is held already.

    Raises:
        RefusedError: a file is neither what it was nor what was to be written.
        RollbackError: the disk failed again.
    """
    steps = dict(zip(INTERRUPTED, (_drop, _settle, _finish_undo), strict=True))
    try:
        entry.remove_temporaries(journal.root_fd)
        return tuple(steps[each.state](journal, each) for each in journal.transactions(*steps))
    except OSError as error:
        raise incomplete(journal, error) from error


def roll_back(journal: Journal, error: BaseException) -> None:
    """Make whole what was begun.

    Raises:
        RollbackError: that failed too.
    """
    try:
        run(journal)
    except RollbackError:
        raise
    except CkptPatchError as second:
        raise incomplete(journal, second) from error


def _drop(journal: Journal, transaction: Transaction) -> str:
    fsio.remove_tree(journal.fd, transaction.directory)
    return f"dropped transaction {transaction.id}, which had changed nothing yet"


def _settle(journal: Journal, transaction: Transaction) -> str:
    files = journal.record(transaction).files
    if all(journal.file_state(file) == "after" for file in files):
        fsio.fsync_dir(journal.root_fd, ".")
        journal.move(transaction, "applied")
        return f"finished transaction {transaction.id}: every file had been written"
    originals = [file.entry(journal.original(transaction, file)) for file in files]
    _put(journal, transaction, files, originals)
    journal.move(transaction, "aborted")
    return f"rolled back transaction {transaction.id}: the files are as they were before"


def _finish_undo(journal: Journal, transaction: Transaction) -> str:
    files = journal.record(transaction).files
    wanted = [undone(journal, transaction, file) for file in files]
    _put(journal, transaction, files, wanted)
    journal.move(transaction, "undone")
    return f"finished the undo of transaction {transaction.id}"


def undone(journal: Journal, transaction: Transaction, file: FileRecord) -> Entry:
    """What the undo puts in a file's place: the original, or what ``--merge`` prepared."""
    merged = journal.read(transaction, f"merged/{file.file}")
    present = entry.read(journal.root_fd, file.file) if merged is not None else None
    if merged is None or present is None:
        return file.entry(journal.original(transaction, file))
    return merge_entry(present, merged)


def merge_entry(present: Entry, data: bytes) -> Entry:
    """A regular file with new bytes in the place of what stands there now."""
    return entry.Entry(
        present.name, data, None, present.mode, present.uid, present.gid, mtime_ns=None
    )


def _put(
    journal: Journal, transaction: Transaction, files: tuple[FileRecord, ...], wanted: list[Entry]
) -> None:
    """Put the wanted entries where they are not yet, over known contents only."""
    todo = []
    for file, target in zip(files, wanted, strict=True):
        present = entry.read(journal.root_fd, file.file)
        if present is not None and present.sha256 == target.sha256:
            continue
        kept = journal.read(transaction, f"kept/{file.file}")
        known = {file.before_sha256, file.after_sha256} | (
            {sha256(kept)} if kept is not None else set()
        )
        if present is not None and present.sha256 not in known:
            raise _changed_meanwhile(journal, transaction, file.file)
        todo.append(target)
    entry.replace_all(journal.root_fd, todo)


def _changed_meanwhile(journal: Journal, transaction: Transaction, name: str) -> RefusedError:
    saved = journal.root / journal.path(transaction, f"before/{name}")
    return RefusedError(
        "was changed by something else while a transaction was interrupted, so it is left alone",
        path=name,
        hint=f"save your change, move the file away, and run {journal.command('recover')}; "
        f"the original is {saved}",
    )
