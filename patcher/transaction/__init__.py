"""Reversible changes of a checkpoint's metadata files: apply, undo, recover, status, log."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_HOMES = {
    "Applied": "applying",
    "FileRecord": "record",
    "FileStatus": "standing",
    "LogEntry": "standing",
    "Record": "record",
    "Status": "standing",
    "Step": "undoing",
    "Undone": "undoing",
    "UndoneTransaction": "undoing",
    "apply": "applying",
    "log": "standing",
    "recover": "recovery",
    "status": "standing",
    "undo": "undoing",
}


def __getattr__(name: str) -> Any:
    """What is asked for is imported then: who looks at a status writes nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
