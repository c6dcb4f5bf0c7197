"""Fail the Nth mutating call, for N = 1, 2, 3 ... until a run meets no fault.

Each run is a forked child, so that a kill is a kill. What must hold afterwards is one function,
`assert_recoverable`, for every fault alike.
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

from faults import samples

from patcher import fsio, transaction
from patcher.errors import CkptPatchError

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


def _kill() -> Answer:
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
    "kill": Fault(_kill),
    "torn write": Fault(lambda: 7, frozenset({"write"}), dies=True),
    "short write": Fault(lambda: 7, frozenset({"write"})),
    "ENOSPC once": Fault(_error(errno.ENOSPC)),
    "ENOSPC from here on": Fault(
        _error(errno.ENOSPC),
        frozenset({"open", "write", "mkdir", "symlink", "setxattr"}),
        persistent=True,
    ),
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
    try:
        action(root)
    except CkptPatchError as error:
        os.write(writer, error.slug.encode())
        return error.exit_code
    except BaseException:  # noqa: BLE001 - the parent shall see any other end as a failure
        traceback.print_exc()
        return 70
    return 0


def assert_recoverable(root: Path, pristine: dict[str, tuple[object, ...]]) -> str:
    """What must hold after any fault; returns whether the files are ``old`` or ``new``.

    Recovering twice is the same as once, all files are old or all are new, no temporary stays, and
    an undo gives the original bytes, modes, times and links.
    """
    transaction.recover(root)
    once = samples.picture(root)
    assert transaction.recover(root) == ()
    assert samples.picture(root) == once
    assert once.keys() == pristine.keys(), "a stray file, or one is gone"
    contents = {name: (root / name).read_bytes() for name in samples.BEFORE}
    outcome = {True: "old", False: "new"}[contents == samples.BEFORE]
    assert contents in (samples.BEFORE, samples.AFTER), "neither all old nor all new"
    assert transaction.status(root).state == {"old": "pristine", "new": "patched"}[outcome]
    for name in samples.AFTER:
        path = root / name
        assert path.stat().st_mode & 0o7777 == 0o640
        assert outcome == "old" or not path.is_symlink(), "written through a link"
    transaction.undo(root)
    assert samples.picture(root) == pristine
    return outcome


@dataclass(frozen=True)
class Operation:
    """A command under test: what runs before it, itself, and how each end must leave the files."""

    before: Action
    action: Action
    done: str
    untouched: str

    def expected(self, ran: Run) -> set[str]:
        """The outcomes that this end promises."""
        promises = {
            "": {0: {self.done}, KILLED: {"old", "new"}}.get(ran.code, set()),
            "not-confirmed-durable": {self.done},
            "write-failed": {self.untouched},
            "interrupted": {self.untouched},
            "rollback-incomplete": {"old", "new"},
        }
        return promises[ran.slug]


def apply(root: Path) -> object:
    """Apply the sample's change."""
    return transaction.apply(root, samples.change(), attachments={"report.md": b"# report\n"})


OPERATIONS = {
    "apply": Operation(lambda _root: None, apply, done="new", untouched="old"),
    "undo": Operation(apply, transaction.undo, done="old", untouched="new"),
}


@dataclass
class Campaign:
    """All runs of one fault against one operation."""

    points: int = 0
    ends: Counter[tuple[int, str]] = field(default_factory=Counter)


def campaign(scratch: Path, operation: Operation, fault: Fault, *, linked: bool) -> Campaign:
    """Run the loop; every end is checked against what it promises and against the invariants."""
    template = scratch / "template"
    root = samples.build(template / "snapshot", linked=linked)
    pristine = samples.picture(root)
    operation.before(root)
    result = Campaign()
    while True:
        case = scratch / "case"
        shutil.copytree(template, case, symlinks=True)
        ran = run(operation.action, case / "snapshot", fault, result.points + 1)
        outcome = assert_recoverable(case / "snapshot", pristine)
        assert outcome in operation.expected(ran), (result.points + 1, ran, outcome)
        shutil.rmtree(case)
        result.ends[ran.code, outcome] += 1
        if not ran.fired:
            assert (ran.code, outcome) == (0, operation.done)
            return result
        result.points += 1
