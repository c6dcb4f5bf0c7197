"""What a transaction keeps: the originals, and the reports that were made for it. Reads only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from patcher.transaction.journal import open_journal, open_root

if TYPE_CHECKING:
    from pathlib import Path


def attachment(root: Path, name: str) -> bytes | None:
    """A report of the last applied transaction; ``None`` where none is applied or it has none.

    Raises:
        RefusedError: something else than a regular file stands there.
    """
    with open_root(root) as root_fd, open_journal(root, root_fd) as journal:
        applied = journal.transactions("applied") if journal else ()
        return journal.read(applied[-1], name) if journal and applied else None


def originals(root: Path) -> dict[str, bytes]:
    """The bytes that each patched file had before the first applied transaction.

    Raises:
        RefusedError: a record or a saved original is missing or damaged.
    """
    found: dict[str, bytes] = {}
    with open_root(root) as root_fd, open_journal(root, root_fd) as journal:
        for transaction in journal.transactions("applied") if journal else ():
            assert journal is not None
            for file in journal.record(transaction).files:
                found.setdefault(file.file, journal.original(transaction, file))
    return found
