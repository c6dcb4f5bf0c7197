"""Reversible changes of a checkpoint's metadata files: apply, undo, recover, status, log."""

from __future__ import annotations

from patcher.transaction.applying import Applied, apply
from patcher.transaction.record import FileRecord, Record
from patcher.transaction.recovery import recover
from patcher.transaction.standing import FileStatus, LogEntry, Status, log, status
from patcher.transaction.undoing import Step, Undone, UndoneTransaction, undo

__all__ = [
    "Applied",
    "FileRecord",
    "FileStatus",
    "LogEntry",
    "Record",
    "Status",
    "Step",
    "Undone",
    "UndoneTransaction",
    "apply",
    "log",
    "recover",
    "status",
    "undo",
]
