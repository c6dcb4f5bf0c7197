"""What to say when the disk fails."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from patcher.errors import CkptPatchError, RollbackError, WriteError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from patcher.transaction.journal import FileState, Journal


@contextmanager
def untouched(root: Path, root_fd: int) -> Iterator[None]:
    """Give an ``OSError`` from a place where no file has changed its meaning."""
    try:
        yield
    except OSError as error:
        raise WriteError(f"{cause(root_fd, error)}. Nothing was changed", path=str(root)) from error


def cause(root_fd: int, error: OSError) -> str:
    """What failed on which file, and how much room the file system has."""
    status = os.fstatvfs(root_fd)
    free = status.f_bavail * status.f_frsize
    name = f" ({error.filename})" if error.filename else ""
    return f"{error.strerror or error}{name}; the file system has {free} bytes free"


def incomplete(journal: Journal, error: Exception) -> RollbackError:
    """The error for a roll-back that failed itself: which file is in which state, and what next."""
    try:
        files = {
            file.file: journal.file_state(file)
            for each in journal.transactions("pending", "undoing")
            for file in journal.record(each).files
        }
        lines = [f"{name}: {_WORDS[state]}" for name, state in files.items()]
    except (OSError, CkptPatchError) as second:
        lines = [f"the states of the files could not be read: {second}"]
    return RollbackError(
        f"the change could not be taken back completely: {error}. The originals are kept",
        path=str(journal.root),
        hint=journal.command("recover"),
        detail="\n".join(lines) or "no file of the checkpoint has changed",
    )


_WORDS: dict[FileState, str] = {
    "before": "as it was before",
    "after": "patched",
    "edited": "neither the original nor the patched file",
    "missing": "missing",
    "unreadable": "cannot be read",
}
