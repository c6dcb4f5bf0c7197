"""Fail the Nth mutating call, for N = 1, 2, 3 ... until a run meets no fault.

Each run is a forked child, so that a kill is a kill. What must hold afterwards is one function,
`Operation.verify`, for every fault alike. The commands under test are in `operations`.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from patcher import fsio
from patcher.errors import CkptPatchError

if TYPE_CHECKING:
    from faults.operation import Operation

KILLED = 137

Action = Callable[[Path], object]
Answer = int | OSError | None


@dataclass(frozen=True)
class Fault:
    """What goes wrong at a call.

    Attributes:
        act: runs before the call; its result is the hook's answer.
        calls: which calls count; all when empty.
        persistent: whether every later call fails too.
        dies: whether the process ends at the call after.
    """

    act: Callable[[], Answer]
    calls: frozenset[str] = frozenset()
    persistent: bool = False
    dies: bool = False


def die() -> Answer:
    """End at once, as by ``kill -9``."""
    os._exit(KILLED)


def _error(number: int) -> Callable[[], Answer]:
    def act() -> Answer:
        raise OSError(number, os.strerror(number))

    return act


def _signal(number: signal.Signals) -> Callable[[], Answer]:
    def act() -> Answer:
        os.kill(os.getpid(), number)
        return None

    return act


def _lie() -> Answer:
    return OSError(errno.EIO, os.strerror(errno.EIO))


FAULTS = {
    "kill": Fault(die),
    "torn write": Fault(lambda: 7, frozenset({"write"}), dies=True),
    "short write": Fault(lambda: 7, frozenset({"write"})),
    "ENOSPC once": Fault(_error(errno.ENOSPC)),
    "ENOSPC from here on": Fault(
        _error(errno.ENOSPC),
        frozenset({"open", "write", "mkdir", "symlink", "setxattr"}),
        persistent=True,
    ),
    "EINTR once": Fault(_error(errno.EINTR)),
    "EIO once": Fault(_error(errno.EIO)),
    "EIO from here on": Fault(_error(errno.EIO), persistent=True),
    "done, but reported failed": Fault(_lie),
    "renamed, but reported failed": Fault(_lie, frozenset({"rename"})),
    "SIGINT": Fault(_signal(signal.SIGINT)),
    "SIGTERM": Fault(_signal(signal.SIGTERM)),
}


@dataclass
class Injector:
    """The hook: counts calls and lets the fault happen at the Nth."""

    fault: Fault
    at: int
    report: Callable[[], object]
    count: int = 0
    dying: bool = False
    seen: list[str] = field(default_factory=list)

    def __call__(self, call: str, _file: str) -> Answer:
        if self.dying:
            os._exit(KILLED)
        if self.fault.calls and call not in self.fault.calls:
            return None
        self.count += 1
        due = self.count >= self.at if self.fault.persistent else self.count == self.at
        if not due:
            return None
        self.report()
        self.dying = self.fault.dies
        return self.fault.act()


@dataclass(frozen=True)
class Run:
    """How a child ended: its exit code, the error's slug, and whether the fault happened."""

    code: int
    slug: str
    fired: bool


def run(action: Action, root: Path, fault: Fault, at: int) -> Run:
    """Run the action in a forked child with the fault at the Nth call."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork beside a test runner's threads
        child = os.fork()
    if child == 0:
        os.close(reader)
        fsio.hook = Injector(fault, at, lambda: os.write(writer, b"!"))
        code = _child(action, root, writer)
        sys.stderr.flush()
        os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    return Run(os.waitstatus_to_exitcode(status), said.strip("!"), said.startswith("!"))


def _child(action: Action, root: Path, writer: int) -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background
    try:
        action(root)
    except CkptPatchError as error:
        os.write(writer, error.slug.encode())
        return error.exit_code
    except KeyboardInterrupt:
        return 130  # as the command line does
    except BaseException:  # noqa: BLE001 - the parent shall see any other end as a failure
        traceback.print_exc()
        return 70
    return 0


@dataclass
class Campaign:
    """All runs of one fault against one operation: its points, and exit codes with outcomes."""

    points: int = 0
    ends: Counter[tuple[int, str]] = field(default_factory=Counter)

    @property
    def outcomes(self) -> Counter[str]:
        """How often runs that met the fault left things ``old``, ``new``, or ``absent``."""
        counts: Counter[str] = Counter()
        for (_, outcome), number in self.ends.items():
            counts[outcome] += number
        counts["new"] -= 1  # the last run, which met none
        return counts


def campaign(scratch: Path, operation: Operation, fault: Fault, *, linked: bool) -> Campaign:
    """Run the loop; every end is checked against what it promises and against the invariants."""
    pristine = operation.build(scratch / "template", linked=linked)
    result = Campaign()
    while True:
        root = operation.place(scratch / "template", scratch / "case")
        ran = run(operation.action, root, fault, result.points + 1)
        outcome = operation.verify(root, pristine)
        assert outcome in operation.promised(ran.code, ran.slug), (result.points + 1, ran, outcome)
        shutil.rmtree(scratch / "case")
        result.ends[ran.code, outcome] += 1
        if not ran.fired:
            assert (ran.code, outcome) == (0, "new")
            return result
        result.points += 1
