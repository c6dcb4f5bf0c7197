"""A fault at every mutating call of apply and undo leaves a checkpoint that recovers."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from faults import harness

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Recorded numbers of mutating calls: fewer points would mean that the seam has been bypassed.
FEWEST_POINTS = {
    ("apply", False): 54,
    ("apply", True): 54,
    ("undo", False): 24,
    ("undo", True): 18,
}


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder in memory where there is one: the faults do not depend on the file system."""
    memory = "/dev/shm"
    folder = tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else None)
    yield Path(folder)
    shutil.rmtree(folder)


#: Links differ from files in how a name is made anew; these faults cover all of that.
ON_LINKS = ("kill", "ENOSPC from here on", "EIO once")


@pytest.mark.parametrize(
    ("fault", "linked"),
    [*((fault, False) for fault in harness.FAULTS), *((fault, True) for fault in ON_LINKS)],
)
@pytest.mark.parametrize("operation", harness.OPERATIONS)
def test_every_point(scratch: Path, operation: str, fault: str, *, linked: bool) -> None:
    chosen = harness.FAULTS[fault]
    result = harness.campaign(scratch, harness.OPERATIONS[operation], chosen, linked=linked)
    print(f"{operation}, {fault}, linked={linked}: {result.points} points, {dict(result.ends)}")  # noqa: T201 - shown by pytest -s
    if not chosen.calls:
        assert result.points >= FEWEST_POINTS[operation, linked]
    if fault in {"short write", "renamed, but reported failed"}:
        assert {code for code, _ in result.ends} == {0}, "this must not even be noticed"
    if fault == "kill":
        outcomes = {outcome for code, outcome in result.ends if code == harness.KILLED}
        assert outcomes == {"old", "new"}, "the loop must hit both sides of the commit"
