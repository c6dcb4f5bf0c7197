"""Take transactions back: the saved bytes, mode, time and kind of link; or the patch's keys alone.

The order of writes::

    lock -> recover -> is every file as apply left it? else refuse, merge, or keep a copy
         -> rename to NNNN.undoing -> restore every file -> directory on disk
         -> rename to NNNN.undone
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from patcher import jsontext
from patcher.edits import sha256
from patcher.errors import (
    CkptPatchError,
    RefusedError,
    UnconfirmedError,
    UsageError,
    WriteError,
)
from patcher.transaction import entry, interrupts, lock, recovery
from patcher.transaction.failures import cause, untouched
from patcher.transaction.interrupts import late
from patcher.transaction.journal import Transaction, open_journal, open_root
from patcher.transaction.preflight import require_writable
from patcher.transaction.recovery import roll_back

if TYPE_CHECKING:
    from pathlib import Path

    from patcher.transaction.entry import Entry
    from patcher.transaction.journal import Journal
    from patcher.transaction.record import FileRecord, Record

Action = Literal["restore", "merge", "overwrite", "none"]


class Step(Struct, frozen=True):
    """What the undo of a transaction does to one file.

    Attributes:
        file: name relative to the checkpoint.
        action: ``restore`` the original in place of what apply left; ``merge`` the patch's own keys
            back into an edited file; ``overwrite`` an edited file, keeping a copy in the record;
            ``none``, something else has put the original back already.
        present: what stands there; ``None`` where the file is gone.
        wanted: what will stand there.
    """

    file: str
    action: Action
    present: Entry | None
    wanted: Entry

    def diff(self) -> str:
        """The change as a unified diff; empty for ``none``."""
        present = self.present.data if self.present else b""
        return jsontext.unified_diff(present, self.wanted.data, self.file)


class UndoneTransaction(Struct, frozen=True):
    """One transaction that was, or with ``dry_run`` would be, taken back."""

    record: Record
    steps: tuple[Step, ...]

    @property
    def reverted_outside(self) -> bool:
        """Whether nothing was left to do but to close the record."""
        return all(step.action == "none" for step in self.steps)


class Undone(Struct, frozen=True):
    """What an undo did; with ``dry_run``, what it would do.

    Attributes:
        transactions: newest first; empty when there was nothing to take back.
        recovered: sentences about interrupted transactions that were made whole first.
        warnings: sentences about what the user may not expect.
    """

    transactions: tuple[UndoneTransaction, ...] = ()
    recovered: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def undo(  # noqa: PLR0913 - the options of the command
    root: Path,
    *,
    to: int | None = None,
    merge: bool = False,
    force: bool = False,
    dry_run: bool = False,
    wait: float = 0.0,
) -> Undone:
    """Take back the last transaction.

    Args:
        root: the checkpoint directory.
        to: take back every transaction after this one; 0 takes back all.
        merge: in files that were edited since, take back the patch's own keys only.
        force: restore files that were edited since too; a copy of each stays in the record.
        dry_run: only say what would be done; writes nothing and takes no lock.
        wait: how many seconds to wait for another writer.

    Raises:
        RefusedError: a file was edited since (``detail`` is the diff), a saved original is
            damaged, or the directory cannot be written; nothing was changed.
        WriteError: the disk failed; nothing was changed (`UnconfirmedError`: all is restored).
        RollbackError: the disk failed twice; ``ckpt-patch recover`` finishes.
        InterruptedError_: a signal came before anything was changed.
    """
    if merge and force:
        raise UsageError("merge and force exclude each other")
    with (
        interrupts.deferred() as signals,
        open_root(root) as root_fd,
        untouched(root, root_fd),
        open_journal(root, root_fd) as journal,
    ):
        if journal is None or not journal.transactions("applied", *recovery.INTERRUPTED):
            return Undone()
        if dry_run:
            return Undone(_plan(journal, to, merge=merge, force=force))
        require_writable(root, root_fd, [])
        with lock.hold(journal, signals, wait):
            recovered = recovery.run(journal)
            plan = _plan(journal, to, merge=merge, force=force)
            files = {step.file for each in plan for step in each.steps if step.action != "none"}
            require_writable(root, root_fd, sorted(files))
            signals.check()
            for each in plan:
                _take_back(journal, each)
    return Undone(plan, recovered, tuple(late(signals)))


def _plan(
    journal: Journal, to: int | None, *, merge: bool, force: bool
) -> tuple[UndoneTransaction, ...]:
    """All that will be done, so that a refusal comes before the first write."""
    if journal.transactions(*recovery.INTERRUPTED):  # only a dry run can see this
        raise RefusedError(
            "a transaction was interrupted here",
            path=str(journal.root),
            hint=journal.command("recover"),
        )
    applied = journal.transactions("applied")[::-1]
    chosen = applied[:1] if to is None else [each for each in applied if each.id > to]
    ahead: dict[str, Entry] = {}  # what the steps so far will have put there
    plan = []
    for transaction in chosen:
        record = journal.record(transaction)
        steps = []
        for file in record.files:
            present = ahead.get(file.file) or entry.read(journal.root_fd, file.file)
            steps.append(_step(journal, transaction, file, present, merge=merge, force=force))
        ahead |= {step.file: step.wanted for step in steps}
        plan.append(UndoneTransaction(record, tuple(steps)))
    return tuple(plan)


def _step(  # noqa: PLR0913 - one file, all that decides
    journal: Journal,
    transaction: Transaction,
    file: FileRecord,
    present: Entry | None,
    *,
    merge: bool,
    force: bool,
) -> Step:
    original = journal.original(transaction, file)
    hash_now = present.sha256 if present else None
    if present and hash_now == file.before_sha256:
        return Step(file.file, "none", present, present)
    if hash_now == file.after_sha256:
        return Step(file.file, "restore", present, file.entry(original))
    if force:
        return Step(file.file, "overwrite", present, file.entry(original))
    if merge and present:
        return Step(file.file, "merge", present, _merged(journal, file, present))
    raise _edited(journal, file, original, present)


def _merged(journal: Journal, file: FileRecord, present: Entry) -> Entry:
    try:
        data = jsontext.splice(jsontext.read(present.data, source=file.file), file.inverse)
    except CkptPatchError as error:
        raise RefusedError(
            f"the patch's own keys were edited too, so they cannot be taken back alone: "
            f"{error.message}. Nothing was changed",
            path=file.file,
            pointer=error.pointer,
            hint=f"restore the whole file, keeping a copy: {journal.command('undo --force')}",
        ) from error
    return recovery.merge_entry(present, data)


def _edited(
    journal: Journal, file: FileRecord, original: bytes, present: Entry | None
) -> RefusedError:
    if present is None:
        return RefusedError(
            "is gone. Nothing was changed",
            path=file.file,
            hint=f"put the original back: {journal.command('undo --force')}",
        )
    return RefusedError(
        "was edited after the patch was applied. Nothing was changed",
        path=file.file,
        hint=f"take back only the patch's own keys: {journal.command('undo --merge')}\n"
        f"or restore the original and keep a copy of this file: {journal.command('undo --force')}",
        detail=jsontext.unified_diff(_as_applied(file, original), present.data, file.file),
    )


def _as_applied(file: FileRecord, original: bytes) -> bytes:
    """What apply left, made again from the original; the original where that does not fit."""
    try:
        made = jsontext.splice(jsontext.read(original, source=file.file), file.patch)
    except CkptPatchError:
        return original
    return made if sha256(made) == file.after_sha256 else original


def _take_back(journal: Journal, plan: UndoneTransaction) -> None:
    transaction = Transaction(plan.record.id, "applied")
    steps = {step.file: step for step in plan.steps if step.action != "none"}

    def guard(name: str) -> None:
        if not _unchanged(journal, steps[name]):
            raise RefusedError("changed while it was being restored", path=name)

    try:
        _save(journal, transaction, list(steps.values()))
        undoing = journal.move(transaction, "undoing")
        entry.replace_all(journal.root_fd, [step.wanted for step in steps.values()], guard)
        journal.move(undoing, "undone")
    except OSError as error:
        raise _settled(journal, transaction, list(steps.values()), error) from error
    except BaseException as error:
        roll_back(journal, error)
        raise


def _save(journal: Journal, transaction: Transaction, steps: list[Step]) -> None:
    """Keep what merge and overwrite replace, and what merge wants, for recovery."""
    kept = {
        step.file: step.present.data
        for step in steps
        if step.present and step.action in {"merge", "overwrite"}
    }
    merged = {step.file: step.wanted.data for step in steps if step.action == "merge"}
    for folder, files in (("kept", kept), ("merged", merged)):
        journal.discard(transaction, folder)  # of an attempt that failed
        if files:
            journal.keep(transaction, folder, files)


def _unchanged(journal: Journal, step: Step) -> bool:
    present = entry.read(journal.root_fd, step.file)
    return (present and present.data) == (step.present and step.present.data)


def _settled(
    journal: Journal, transaction: Transaction, steps: list[Step], error: OSError
) -> WriteError:
    """Back out while nothing has changed, else go through with it; then say how it ended."""
    undoing = Transaction(transaction.id, "undoing")
    with suppress(OSError, CkptPatchError):
        if undoing in journal.transactions() and all(_unchanged(journal, step) for step in steps):
            journal.move(undoing, "applied")
    roll_back(journal, error)
    why = cause(journal.root_fd, error)
    if Transaction(transaction.id, "undone") in journal.transactions():
        return UnconfirmedError(
            f"undone, but not confirmed durable: {why}",
            path=str(journal.root),
            hint=f"sync; {journal.command('status')}",
        )
    return WriteError(f"{why}. Nothing was changed", path=str(journal.root))
