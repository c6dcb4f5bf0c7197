"""The tests notice a broken writing layer: each part of the harness catches its own kind."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from faults import disk, harness, order, power, removals
from faults.mutants import MUTANTS, mutated
from faults.operations import OPERATIONS, TRANSACTIONS, apply_and_edit, cut_off, merge

from patcher import doctor, fsio
from patcher.errors import CkptPatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from faults.disk import Disk
    from faults.operation import Operation

APPLY = OPERATIONS["apply"]


def kill_loop(scratch: Path, operation: Operation) -> None:
    harness.campaign(scratch, operation, harness.FAULTS["kill"], linked=False)


def order_of_writes(scratch: Path, operation: Operation) -> None:
    assert order.violations(order.calls(scratch, operation)) == []


def power_cuts(kind: str) -> Callable[[Path, Operation], None]:
    def cuts(scratch: Path, operation: Operation) -> None:
        number = len(order.calls(scratch, operation))
        with mounted(kind) as made:
            for how in disk.CUTS.values():
                power.campaign(scratch, made, operation, how, range(1, number + 1))

    return cuts


def exit_0_then_cut(kind: str) -> Callable[[Path, Operation], None]:
    def cut(scratch: Path, operation: Operation) -> None:
        with mounted(kind) as made:
            power.campaign(scratch, made, operation, disk.CUTS["journal lost"], [10**6])

    return cut


@contextmanager
def mounted(kind: str) -> Iterator[Disk]:
    if (reason := disk.missing(kind)) is not None:
        pytest.skip(f"power cuts on {kind}: {reason}")
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
    with disk.disk(kind, folder) as made:
        yield made
    shutil.rmtree(folder)


PARTS: dict[str, Callable[[Path, Operation], None]] = {
    "kill loop": kill_loop,
    "order of writes": order_of_writes,
    "power cut, ext4": power_cuts("ext4"),
    "power cut, XFS": power_cuts("xfs"),
    "exit 0 then cut, ext4": exit_0_then_cut("ext4"),
    "exit 0 then cut, XFS": exit_0_then_cut("xfs"),
}

#: Which part catches what.
CAUGHT_BY = {
    "no file fsync": ("order of writes", "power cut, ext4", "power cut, XFS"),
    "no directory fsync": ("order of writes", "exit 0 then cut, ext4", "exit 0 then cut, XFS"),
    "no intent record": ("kill loop", "order of writes"),
    "write in place": ("kill loop", "order of writes"),
}


@pytest.mark.parametrize(
    ("mutant", "part"), [(mutant, part) for mutant in MUTANTS for part in CAUGHT_BY[mutant]]
)
def test_the_part_catches_the_mutant(mutant: str, part: str, tmp_path: Path) -> None:
    broken = replace(APPLY, action=mutated(mutant, APPLY.action))
    with pytest.raises((AssertionError, CkptPatchError)):
        PARTS[part](tmp_path, broken)


@pytest.mark.parametrize("operation", TRANSACTIONS)
def test_the_order_of_writes_of_every_command(operation: str, tmp_path: Path) -> None:
    story = order.calls(tmp_path, OPERATIONS[operation])
    recovers = operation.startswith("recover")
    assert order.violations(story, interrupted=recovers) == []
    for call in ("fsync", "fsync_dir"):
        for place, (name, file) in enumerate(story):
            if name == call and file != "holder":
                without = story[:place] + story[place + 1 :]
                again = (call, file) in story[place + 1 :]
                assert again or order.violations(without, interrupted=recovers), (
                    f"{call} {file} is not needed"
                )


def failed_merge(root: Path) -> None:
    """It has prepared what it wanted to write, and was killed before it said so."""
    apply_and_edit(root)
    cut_off(merge, 1)(root)


def test_what_a_failed_merge_prepared_is_removed_durably(tmp_path: Path) -> None:
    operation = replace(OPERATIONS["undo --force"], before=failed_merge)
    story = order.calls(tmp_path, operation)
    removed = story.index(("rmdir", "merged"))
    assert story[removed + 1] == ("fsync_dir", "0001.applied")
    assert order.violations(story) == []


def test_a_copy_is_synced_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, str]] = []
    monkeypatch.setattr(fsio, "hook", lambda call, name: calls.append((call, name)))
    (tmp_path / "source").write_bytes(b"data")
    with fsio.open_dir(str(tmp_path)) as folder, (tmp_path / "source").open("rb") as source:
        fsio.copy(source.fileno(), folder, "copy")
    assert calls[-1] == ("fsync", "copy")


def test_every_sync_and_intent_was_taken_out_once() -> None:
    """`faults.removals` tried each, and the table says which tests noticed."""
    assert removals.documented() == {site.key for site in removals.sites()}


def test_doctor_tries_the_syncs_that_it_speaks_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(fsio, "hook", lambda call, _name: calls.append(call))
    said = {each.subject: each.state for each in doctor.examine(tmp_path)}
    assert said["fsync"] == "works for files and directories"
    assert calls[:2] == ["mkdir", "open"]
    assert {"fsync", "fsync_dir"} <= set(calls)
    assert os.listdir(tmp_path) == []
