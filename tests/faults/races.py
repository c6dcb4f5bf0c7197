"""Two commands at once, in processes that start at the same moment."""

from __future__ import annotations

import fcntl
import json
import os
import pickle
import random
import shutil
import socket
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults import samples
from faults.operations import apply

from patcher import fsio, transaction
from patcher.checkpoint import open_checkpoint
from patcher.errors import CkptPatchError
from patcher.transaction.journal import NAME

Prepare = Callable[[Path], object]


@dataclass(frozen=True)
class End:
    """How a process ended; ``pid`` is its own."""

    pid: int
    code: int
    message: str


def wait_and_apply(root: Path) -> object:
    """Apply when the other one is done."""
    return transaction.apply(root, samples.change(), wait=20)


def wait_and_undo(root: Path) -> object:
    """Undo when the other one is done."""
    return transaction.undo(root, wait=20)


def slow_apply(root: Path) -> object:
    """Apply so slowly that the other one must meet it."""
    fsio.hook = lambda _call, _file: time.sleep(0.005)
    return apply(root)


def check(root: Path) -> None:
    """What ``check`` and ``status`` read; they take no lock and never wait."""
    for document in open_checkpoint(root).documents.values():
        assert document.data in (samples.BEFORE[document.source], samples.AFTER[document.source])
    transaction.status(root)


#: Two commands, and whether the checkpoint is patched when they start.
PAIRS: dict[str, tuple[Prepare, Prepare, bool]] = {
    "apply / apply": (apply, apply, False),
    "apply / undo": (apply, transaction.undo, True),
    "undo / undo": (transaction.undo, transaction.undo, True),
    "check / apply": (check, apply, False),
    "apply / apply, waiting": (wait_and_apply, wait_and_apply, False),
    "apply / undo, waiting": (wait_and_apply, wait_and_undo, True),
}


def lying_flock() -> None:
    """Locks that succeed for everyone, as on some Lustre and NFS mounts."""
    vars(fcntl)["flock"] = lambda _fd, _how: None


def honest_flock() -> None:
    """Locks as they are."""


LOCKS = {"flock": honest_flock, "flock lies": lying_flock}


def race(root: Path, commands: Sequence[Prepare], lock: Callable[[], None]) -> list[End]:
    """Start all commands at once and wait for all of them."""
    gate, opener = os.pipe()
    children = [_start(root, command, lock, gate, opener) for command in commands]
    os.close(gate)
    os.close(opener)  # all of them read the end of this pipe now
    ends = []
    for pid, reader in children:
        with os.fdopen(reader, "rb") as pipe:
            data = pipe.read()
        os.waitpid(pid, 0)
        ends.append(End(pid, *pickle.loads(data)))
    return ends


def _start(
    root: Path, command: Prepare, lock: Callable[[], None], gate: int, opener: int
) -> tuple[int, int]:
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    os.close(opener)
    lock()
    chance = random.Random(os.getpid())
    fsio.hook = lambda _call, _file: time.sleep(chance.choice((0, 0, 0, 0.002)))
    os.read(gate, 1)
    end: tuple[int, str] = (0, "")
    try:
        command(root)
    except CkptPatchError as error:
        end = (error.exit_code, str(error))
    except BaseException as error:  # noqa: BLE001 - the parent shall see it
        end = (70, repr(error))
    os.write(writer, pickle.dumps(end))
    os._exit(0)


@dataclass
class Rounds:
    """What many rounds gave: exit codes of both, and how often a loser named the winner."""

    codes: Counter[tuple[int, ...]] = field(default_factory=Counter)
    named: int = 0


def rounds(
    scratch: Path, pair: str, lock: str, number: int, plant: Prepare | None = None
) -> Rounds:
    """Run a pair many times; never a mixed result, and every loser is refused with a reason."""
    *commands, patched = PAIRS[pair]
    result = Rounds()
    for _ in range(number):
        root = samples.build(scratch / "race" / "snapshot")
        pristine = samples.picture(root)
        if patched:
            apply(root)
        if plant is not None:
            plant(root)
        ends = race(root, commands, LOCKS[lock])
        _verify(root, pristine, ends)
        result.codes[tuple(sorted(end.code for end in ends))] += 1
        result.named += sum(_names_the_other(end, ends) for end in ends)
        shutil.rmtree(scratch / "race")
    return result


def _names_the_other(end: End, ends: list[End]) -> bool:
    return any(f"process {other.pid} on " in end.message for other in ends if other != end)


def _verify(root: Path, pristine: dict[str, Any], ends: list[End]) -> None:
    contents = {name: (root / name).read_bytes() for name in samples.BEFORE}
    assert contents in (samples.BEFORE, samples.AFTER), ("mixed", ends)
    assert transaction.recover(root) == (), ends
    assert samples.picture(root).keys() == pristine.keys(), ends
    for end in ends:
        assert end.code in {0, 3}, ends
        if end.code:
            reasons = (" on ", "changed since the plan", "has not left its name", "has begun this")
            assert any(reason in end.message for reason in reasons), ends
    transaction.undo(root)
    assert samples.picture(root) == pristine, ends


def stale_note(root: Path) -> None:
    """The note of a process that is gone."""
    (root / NAME).mkdir(exist_ok=True)
    note = {
        "pid": 2**22 - 1,
        "host": socket.gethostname(),
        "since": "",
        "command": "",
        "birth": "1",
    }
    (root / NAME / "holder").write_text(json.dumps(note))
