"""Writing layers with one thing left out, to see that the tests would notice."""

from __future__ import annotations

import os
import stat
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from patcher import fsio
from patcher.transaction import entry
from patcher.transaction.journal import Journal, State, Transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from faults.harness import Action

    from patcher.transaction.entry import Entry


def _put(owner: Any, name: str, value: object) -> None:
    setattr(owner, name, value)


def _no_file_fsync() -> None:
    call, sync = fsio._call, fsio._fsync

    def quiet(name: str, file: str) -> Any:
        return nullcontext() if name == "fsync" else call(name, file)

    def directories_only(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            sync(fd)

    _put(fsio, "_call", quiet)
    _put(fsio, "_fsync", directories_only)


def _no_directory_fsync() -> None:
    _put(fsio, "fsync_dir", lambda _fd, _name: None)


def _no_intent() -> None:
    move = Journal.move

    def without(journal: Journal, transaction: Transaction, state: State) -> Transaction:
        return transaction if state == "pending" else move(journal, transaction, state)

    _put(Journal, "move", without)


def _in_place() -> None:
    def replace_all(
        dir_fd: int, entries: Iterable[Entry], guard: Callable[[str], None] = lambda _name: None
    ) -> None:
        for each in entries:
            guard(each.name)
            fd = os.open(each.name, os.O_WRONLY | os.O_TRUNC, dir_fd=dir_fd)
            fsio._write(fd, each.name, each.data)
            with fsio._call("fsync", each.name):
                os.fsync(fd)
            os.close(fd)
        fsio.fsync_dir(dir_fd, ".")

    _put(entry, "replace_all", replace_all)


#: What is left out or done wrong -> how to do so in a child process.
MUTANTS: dict[str, Callable[[], None]] = {
    "no file fsync": _no_file_fsync,
    "no directory fsync": _no_directory_fsync,
    "no intent record": _no_intent,
    "write in place": _in_place,
}


def mutated(mutant: str, action: Action) -> Action:
    """The command in a process whose writing layer is broken."""

    def broken(root: Path) -> object:
        MUTANTS[mutant]()
        return action(root)

    return broken
