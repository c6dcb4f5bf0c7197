"""The order in which a command makes things durable, read from its calls without a file system.

A directory is dirty from the first new name in it until it is synced. Before a transaction changes
its state, and before a file of the checkpoint is replaced, all that this rests on must be clean.
No file of the checkpoint is written to, and none is replaced before the intent is recorded.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from faults import samples
from faults.harness import Fault, run

from patcher import fsio
from patcher.transaction.journal import NAME

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from faults.harness import Action
    from faults.operation import Operation

Call = tuple[str, str]

_STATE = re.compile(r"\d{4}\.(pending|undoing|applied|undone|aborted)")
_TRANSACTION = re.compile(r"\d{4}\.\w+")
_FOLDERS = {"before", "kept", "merged"}

#: state -> the directories that a transaction may not enter it without.
_CLEAN_BEFORE = {
    "pending": {".", NAME, "transaction", *_FOLDERS},
    "undoing": {"transaction", *_FOLDERS},
    "applied": {".", NAME},
    "undone": {".", NAME},
    "aborted": {".", NAME},
}


def calls(scratch: Path, operation: Operation, mutate: Action | None = None) -> list[Call]:
    """The mutating calls of a command, in a child that may be mutated first."""
    home = scratch / "order"
    operation.build(home / "template")
    root = operation.place(home / "template", home / "case")
    log = home / "calls"

    def recorded(at: Path) -> None:
        if mutate is not None:
            mutate(at)
        with log.open("a") as file:
            fsio.hook = lambda call, name: print(call, name, file=file)
            operation.action(at)

    assert run(recorded, root, Fault(lambda: None), 0).code == 0
    return [(call, name) for call, _, name in map(_split, log.read_text().splitlines())]


#: What need not survive a power cut: who is at work, and what the next writer writes again.
_NOTES = ("holder", ".gitignore", "README")


def _split(line: str) -> tuple[str, str, str]:
    return line.partition(" ")


def violations(story: Iterable[Call], *, interrupted: bool = False) -> list[str]:
    """What a command did too early; ``interrupted``: it goes on with what another one began."""
    return list(_Order(interrupted=interrupted).violations([*story, ("end", "")]))


class _Order:
    def __init__(self, *, interrupted: bool) -> None:
        self._dirty = {"."} if interrupted else set()
        self._intent = interrupted
        self._folder = "transaction"
        self._opened: str | None = None
        self._unsynced: str | None = None

    def violations(self, story: list[Call]) -> Iterable[str]:
        for call, name in story:
            if self._unsynced and call in {"open", "rename", "mkdir", "fsync_dir", "end"}:
                yield f"{call} {name} while {self._unsynced} is not synced"
            if call == "write" and self._opened != name:
                yield f"{name} is written in place"
            if call == "rename" and name in samples.BEFORE and not self._intent:
                yield f"{name} is replaced before the intent is recorded"
            needed = self._needed(call, name)
            yield from (f"{call} {name} while {each} is dirty" for each in needed & self._dirty)
            self._follow(call, name)

    def _needed(self, call: str, name: str) -> set[str]:
        state = _STATE.fullmatch(name)
        if call == "rename" and state:
            return _CLEAN_BEFORE[state[1]]
        if call == "rename" and name in samples.BEFORE:
            return {NAME, "transaction", *_FOLDERS}
        return {".", NAME, "transaction", *_FOLDERS} if call == "end" else set()

    def _follow(self, call: str, name: str) -> None:
        if call == "fsync_dir":
            self._dirty.discard("transaction" if _TRANSACTION.fullmatch(name) else name)
        elif call in {"open", "mkdir", "rename"} and not name.startswith("holder"):
            self._dirty.add(self._directory(call, name))
        self._intent |= call == "rename" and name.endswith((".pending", ".undoing"))
        if call == "rmdir" and name in _FOLDERS:
            self._dirty.add("transaction")
        if call == "mkdir" and name in _FOLDERS:
            self._folder = name
        if call in {"open", "fsync"}:
            self._opened = name if call == "open" else None
            self._unsynced = None if name.startswith(_NOTES) else self._opened

    def _directory(self, call: str, name: str) -> str:
        """The directory in which this call makes a name."""
        if _TRANSACTION.fullmatch(name) or name in {".gitignore", "README"}:
            return NAME
        if name in _FOLDERS or name in {"record.json", "report.md"}:
            return "transaction"
        if name == NAME or call == "rename" or ".ckpt-patch-tmp." in name:
            return "."
        return self._folder
