"""Real power cuts, at a mutating call and right after success, on a disk of `faults.disk`."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from faults.harness import Answer, Campaign, Fault, die, run

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from faults.disk import Disk
    from faults.operation import Operation


def campaign(
    scratch: Path, disk: Disk, operation: Operation, how: int, at: Iterable[int]
) -> Campaign:
    """Cut the power at the given calls of a command; every end is checked as in `harness`.

    A number beyond the last call means: right after exit 0, when the change must be there without
    any recovery. The loop ends with it.
    """
    pristine = operation.build(scratch / "template")
    result = Campaign()
    for number in at:
        root = operation.place(scratch / "template", disk.path / "case")
        disk.sync()
        ran = run(operation.action, root, _cut(disk, how), number)
        if not ran.fired:
            assert ran.code == 0
            disk.cut(how)
        disk.restart()
        assert ran.fired or operation.kept(root), "exit 0, then lost"
        outcome = operation.verify(root, pristine)
        assert outcome in operation.promised(ran.code, ran.slug), (number, ran, outcome)
        shutil.rmtree(disk.path / "case")
        result.ends[ran.code, outcome] += 1
        if not ran.fired:
            break
        result.points += 1
    shutil.rmtree(scratch / "template")
    return result


def _cut(disk: Disk, how: int) -> Fault:
    def cut() -> Answer:
        disk.cut(how)
        return die()

    return Fault(cut)
