"""How a checkpoint stands: reads only, takes no lock, makes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from patcher.errors import RefusedError
from patcher.transaction import lock
from patcher.transaction.journal import FileState, open_journal, open_root
from patcher.transaction.recovery import INTERRUPTED

if TYPE_CHECKING:
    from pathlib import Path

    from patcher.transaction.journal import Journal
    from patcher.transaction.record import FileRecord, Record

State = Literal[
    "pristine", "patched", "edited", "reverted", "interrupted", "busy", "damaged",
    "new-revision", "foreign", "mirror",
]  # fmt: skip


class FileStatus(Struct, frozen=True):
    """A file that a transaction in force has changed, and what it holds now."""

    file: str
    state: FileState


class Status(Struct, frozen=True):
    """How a checkpoint stands.

    Attributes:
        state: ``pristine``, no transaction is in force; ``patched``, every file is as apply left
            it; ``edited``, some file is not; ``reverted``, something else put the originals back;
            ``interrupted``, recover is needed; ``busy``, a writer is at work; ``damaged``, a
            record cannot be trusted. Only `patcher.drift` tells: ``new-revision``, a download has
            brought a revision that is not patched; ``foreign``, something else than ckpt-patch has
            changed it; ``mirror``, it was made by ``ckpt-patch mirror``.
        record: the last transaction in force, or the interrupted one.
        files: every file that the transactions in force have changed.
        problem: a sentence without a full stop; ``None`` for ``pristine`` to ``reverted``.
        commands: what to do next, best first; from `patcher.drift`.
    """

    state: State
    record: Record | None = None
    files: tuple[FileStatus, ...] = ()
    problem: str | None = None
    commands: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The body of ``status --json``."""
        return {
            "state": self.state,
            "record": self.record.to_dict() if self.record else None,
            "files": [{"file": each.file, "state": each.state} for each in self.files],
            "problem": self.problem,
            "commands": list(self.commands),
        }


class LogEntry(Struct, frozen=True):
    """One transaction; ``problem`` says why ``record`` is ``None``."""

    id: int
    state: str
    record: Record | None
    problem: str | None = None


def status(root: Path) -> Status:
    """How the checkpoint stands now.

    Raises:
        UnreadableError: no checkpoint directory.
        RefusedError: ``.ckpt-patch`` is a link or another user's.
    """
    with open_root(root) as root_fd, open_journal(root, root_fd) as journal:
        return Status("pristine") if journal is None else _status(journal)


def log(root: Path) -> tuple[LogEntry, ...]:
    """All transactions of the checkpoint, oldest first; damaged ones too.

    Raises:
        UnreadableError: no checkpoint directory.
        RefusedError: ``.ckpt-patch`` is a link or another user's.
    """
    with open_root(root) as root_fd, open_journal(root, root_fd) as journal:
        return () if journal is None else _entries(journal)


def _entries(journal: Journal, *states: str) -> tuple[LogEntry, ...]:
    found = []
    for each in journal.transactions(*states):
        record, problem = None, None
        try:
            record = journal.record(each) if each.state != "staging" else None
        except RefusedError as error:
            problem = str(error)
        found.append(LogEntry(each.id, each.state, record, problem))
    return tuple(found)


def _status(journal: Journal) -> Status:
    if (holder := lock.holder(journal)) is not None:
        return Status("busy", problem=f"{holder} is at work")
    interrupted = _entries(journal, *INTERRUPTED)
    if interrupted:
        last = interrupted[-1]
        problem = f"transaction {last.id} was interrupted: {journal.command('recover')}"
        return Status("interrupted", last.record, _files(journal, interrupted), problem)
    applied = _entries(journal, "applied")
    if not applied:
        return Status("pristine")
    files = _files(journal, applied)
    problems = [each.problem for each in applied if each.problem]
    if problems:
        return Status("damaged", applied[-1].record, files, problems[0])
    states = {each.state for each in files}
    known: dict[frozenset[FileState], State] = {
        frozenset({"after"}): "patched",
        frozenset({"before"}): "reverted",
    }
    return Status(known.get(frozenset(states), "edited"), applied[-1].record, files)


def _files(journal: Journal, entries: tuple[LogEntry, ...]) -> tuple[FileStatus, ...]:
    """The state of each file according to the newest transaction that has it."""
    newest: dict[str, FileRecord] = {}
    for each in entries:
        newest |= {file.file: file for file in (each.record.files if each.record else ())}
    return tuple(FileStatus(name, journal.file_state(file)) for name, file in newest.items())
