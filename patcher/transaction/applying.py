"""Apply a change to a checkpoint, all of it or nothing, so that it can be taken back.

The order of writes is what makes it safe::

    lock -> recover -> NNNN.staging: originals, reports, record, each on disk
         -> rename to NNNN.pending (intent: from here on undo is possible)
         -> every new file on disk under a temporary name, then renamed over the old name
         -> directory on disk -> rename to NNNN.applied (commit)
"""

from __future__ import annotations

import os
from datetime import datetime, timezone
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from patcher import fsio, jsontext
from patcher.errors import (
    RefusedError,
    UnconfirmedError,
    WriteError,
)
from patcher.transaction import entry, interrupts, lock, recovery
from patcher.transaction import journal as journals
from patcher.transaction.failures import cause, untouched
from patcher.transaction.interrupts import late
from patcher.transaction.journal import Transaction, open_journal, open_root
from patcher.transaction.preflight import require_writable
from patcher.transaction.record import FileRecord, Record, encode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from patcher.edits import Change, FileEdit
    from patcher.transaction.entry import Entry
    from patcher.transaction.interrupts import Interrupts
    from patcher.transaction.journal import Journal

_NOTHING: Mapping[str, bytes] = MappingProxyType({})


class Applied(Struct, frozen=True):
    """A change that is in force and on disk.

    Attributes:
        record: what was done.
        recovered: sentences about older transactions that were made whole first.
        warnings: sentences about what the user may not expect.
    """

    record: Record
    recovered: tuple[str, ...]
    warnings: tuple[str, ...]


def apply(
    root: Path,
    change: Change,
    *,
    attachments: Mapping[str, bytes] = _NOTHING,
    wait: float = 0.0,
    keep_mtime: bool = False,
) -> Applied:
    """Apply a change.

    Args:
        root: the checkpoint directory.
        change: from a plan; the files must still be as it says.
        attachments: reports to keep with the record: file name to bytes.
        wait: how many seconds to wait for another writer.
        keep_mtime: give the new files the old modification times.

    Raises:
        RefusedError: a file has changed since the plan, the directory or a file cannot be written,
            or another writer is at work; nothing was written.
        UnreadableError: a file cannot be read.
        WriteError: the disk failed; everything is as before (`UnconfirmedError`: all is applied).
        RollbackError: the disk failed twice; ``ckpt-patch recover`` finishes.
        InterruptedError_: a signal came; everything is as before.
    """
    names = [edit.file for edit in change.edits]
    if not names or len(set(names)) != len(names):
        raise RefusedError("a change needs edits, one for each file", path=str(root))
    with interrupts.deferred() as signals, open_root(root) as root_fd, untouched(root, root_fd):
        require_writable(root, root_fd, names)
        if not fsio.exists(root_fd, journals.NAME):
            _require_planned(root_fd, change)  # before even the journal is made
            journals.make(root_fd)
        with open_journal(root, root_fd) as journal:
            assert journal is not None
            with lock.hold(journal, signals, wait):
                recovered = recovery.run(journal) + _close_reverted(journal)
                present = _require_planned(root_fd, change)
                signals.check()
                record = _write(journal, change, present, attachments, signals, keep_mtime)
    warnings = [*_warnings(present), *late(signals)]
    return Applied(record, recovered, tuple(warnings))


def _require_planned(root_fd: int, change: Change) -> tuple[Entry, ...]:
    """Read all files; they must be what the plan saw."""
    return tuple(_require_same(root_fd, edit) for edit in change.edits)


def _require_same(root_fd: int, edit: FileEdit) -> Entry:
    present = entry.read(root_fd, edit.file)
    data = present.data if present else b""
    if present is None or data != edit.before:
        raise RefusedError(
            "has changed since the plan was made. Nothing was changed",
            path=edit.file,
            hint="look at the difference, then plan again",
            detail=jsontext.unified_diff(edit.before, data, edit.file),
        )
    return present


def _close_reverted(journal: Journal) -> tuple[str, ...]:
    """Close the last transaction if something else has put the originals back since."""
    applied = journal.transactions("applied")
    if not applied:
        return ()
    files = journal.record(applied[-1]).files
    if any(journal.file_state(file) != "before" for file in files):
        return ()
    journal.move(applied[-1], "undone")
    return (f"closed transaction {applied[-1].id}: something else had put the originals back",)


def _write(  # noqa: PLR0913, PLR0917 - the parts of one transaction
    journal: Journal,
    change: Change,
    present: tuple[Entry, ...],
    attachments: Mapping[str, bytes],
    signals: Interrupts,
    keep_mtime: bool,  # noqa: FBT001 - passed on
) -> Record:
    record = _record(journal, change, present)
    transaction = _begin(journal, record.id)
    try:
        _stage(journal, transaction, record, present, attachments)
        signals.check()
        pending = journal.move(transaction, "pending")
        edits = {edit.file: edit for edit in change.edits}

        def guard(name: str) -> None:
            signals.check()
            _require_same(journal.root_fd, edits[name])

        new = [recovery.merge_entry(each, edits[each.name].after) for each in present]
        if keep_mtime:
            new = [replace(each, mtime_ns=_mtime_ns(journal, each.name)) for each in new]
        entry.replace_all(journal.root_fd, new, guard)
        return replace(record, state=journal.move(pending, "applied").state)
    except OSError as error:
        raise _settled(journal, transaction, error) from error
    except BaseException as error:
        recovery.roll_back(journal, error)
        raise


def _record(journal: Journal, change: Change, present: tuple[Entry, ...]) -> Record:
    last = max((each.id for each in journal.transactions()), default=0)
    return Record(
        id=last + 1,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        host=os.uname().nodename,
        pid=os.getpid(),
        tool_version=change.tool_version,
        recipe=change.recipe,
        recipe_sha256=change.recipe_sha256,
        target=change.target,
        findings=change.findings,
        note=change.note,
        files=tuple(map(FileRecord.of, present, change.edits)),
    )


def _begin(journal: Journal, number: int) -> Transaction:
    """Claim the number; two writers never both can."""
    transaction = Transaction(number, "staging")
    journal.label()
    try:
        fsio.mkdir(journal.fd, transaction.directory)
    except FileExistsError as error:
        raise RefusedError(
            "another ckpt-patch has begun this transaction. Nothing was changed",
            path=journal.path(transaction, ""),
            hint="try again when it is done",
        ) from error
    return transaction


def _stage(
    journal: Journal,
    transaction: Transaction,
    record: Record,
    present: tuple[Entry, ...],
    attachments: Mapping[str, bytes],
) -> None:
    """Write everything that undo needs, durably, before anything is changed."""
    journal.keep(transaction, "before", {each.name: each.data for each in present})
    with fsio.open_dir(transaction.directory, journal.fd) as fd:
        for name, data in attachments.items():
            fsio.create(fd, name, data)
        fsio.create(fd, "record.json", encode(record), mode=0o444)
        fsio.fsync_dir(fd, transaction.directory)
    fsio.fsync_dir(journal.fd, journals.NAME)
    fsio.fsync_dir(journal.root_fd, ".")


def _mtime_ns(journal: Journal, name: str) -> int:
    return os.stat(name, dir_fd=journal.root_fd).st_mtime_ns


def _settled(journal: Journal, transaction: Transaction, error: OSError) -> WriteError:
    """Roll back, then say by what the disk holds how it ended."""
    recovery.roll_back(journal, error)
    why = cause(journal.root_fd, error)
    if Transaction(transaction.id, "applied") in journal.transactions("applied"):
        return UnconfirmedError(
            f"applied, but not confirmed durable: {why}",
            path=str(journal.root),
            hint=f"sync; {journal.command('status')}; or take it back: {journal.command('undo')}",
        )
    return WriteError(f"{why}. Everything was rolled back", path=str(journal.root))


def _warnings(present: tuple[Entry, ...]) -> Iterator[str]:
    for each in present:
        if each.link_target is None and each.links > 1:
            yield (
                f"{each.name} has {each.links - 1} other name(s) (hard links), which keep the "
                "old content"
            )
