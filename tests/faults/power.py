"""Real power cuts, at a mutating call and right after success, on a disk of `faults.disk`."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from faults import samples
from faults.harness import PROMISES, Answer, Campaign, Fault, die, run

from patcher import transaction

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from faults.disk import Disk
    from faults.operations import Operation


def campaign(
    scratch: Path, disk: Disk, operation: Operation, how: int, at: Iterable[int]
) -> Campaign:
    """Cut the power at the given calls of a command; every end is checked as in `harness`.

    A number beyond the last call means: right after exit 0, when the change must be there without
    any recovery. The loop ends with it.
    """
    template = scratch / "template"
    root = samples.build(template / "snapshot")
    pristine = samples.picture(root)
    operation.before(root)
    result = Campaign()
    for number in at:
        case = disk.path / "case"
        shutil.copytree(template, case, symlinks=True)
        disk.sync()
        ran = run(operation.action, case / "snapshot", _cut(disk, how), number)
        if not ran.fired:
            assert ran.code == 0
            disk.cut(how)
        disk.restart()
        if not ran.fired:
            assert transaction.status(case / "snapshot").state != "interrupted", "exit 0, then lost"
        outcome = operation.verify(case / "snapshot", pristine)
        assert outcome in PROMISES[ran.code, ran.slug], (number, ran, outcome)
        shutil.rmtree(case)
        result.ends[ran.code, outcome] += 1
        if not ran.fired:
            break
        result.points += 1
    shutil.rmtree(template)
    return result


def _cut(disk: Disk, how: int) -> Fault:
    def cut() -> Answer:
        disk.cut(how)
        return die()

    return Fault(cut)
