"""A fault at every mutating call of every writing command leaves a checkpoint that recovers."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from faults import harness
from faults.operations import OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder in memory where there is one: the faults do not depend on the file system."""
    memory = "/dev/shm"
    folder = tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else None)
    yield Path(folder)
    shutil.rmtree(folder)


#: Links differ from files in how a name is made anew; these faults cover all of that.
ON_LINKS = ("kill", "ENOSPC from here on", "EIO once")
LINKED = ("apply", "undo", "recover, half applied", "recover, half undone")


@pytest.mark.parametrize(
    ("operation", "fault", "linked"),
    [
        *((operation, fault, False) for operation in OPERATIONS for fault in harness.FAULTS),
        *((operation, fault, True) for operation in LINKED for fault in ON_LINKS),
    ],
)
def test_every_point(scratch: Path, operation: str, fault: str, *, linked: bool) -> None:
    chosen = harness.FAULTS[fault]
    result = harness.campaign(scratch, OPERATIONS[operation], chosen, linked=linked)
    print(f"{operation}, {fault}, linked={linked}: {result.points} points, {dict(result.ends)}")  # noqa: T201 - shown by pytest -s
    if not chosen.calls:
        assert result.points >= OPERATIONS[operation].fewest[linked]
    if fault in {"short write", "renamed, but reported failed"}:
        assert {code for code, _ in result.ends} == {0}, "this must not even be noticed"
    if fault == "kill":
        outcomes = {outcome for code, outcome in result.ends if code == harness.KILLED}
        assert outcomes == {"old", "new"}, "the loop must hit both sides of the commit"
