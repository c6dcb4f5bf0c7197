"""Power cuts on real file systems: a sample; ``python -m faults`` in this folder makes them all."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from faults import disk, power
from faults.operations import OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from faults.disk import Disk

#: Calls at which the sample cuts, as parts of a command; 1 is right after exit 0.
SAMPLE = (0.3, 0.6, 0.85)


@pytest.fixture(scope="module", params=disk.MAKE)
def mounted(request: pytest.FixtureRequest) -> Iterator[Disk]:
    if (reason := disk.missing(request.param)) is not None:
        pytest.skip(f"power cuts on {request.param}: {reason}")
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
    with disk.disk(request.param, folder) as made:
        yield made
    shutil.rmtree(folder)


@pytest.mark.parametrize("how", disk.CUTS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_power_cut(mounted: Disk, operation: str, how: str, tmp_path: Path) -> None:
    chosen = OPERATIONS[operation]
    calls = chosen.fewest[0]
    at = sorted({max(1, round(part * calls)) for part in SAMPLE})
    result = power.campaign(tmp_path, mounted, chosen, disk.CUTS[how], [*at, calls + 1000])
    assert result.points == len(at)
    assert result.ends[0, "new"] == 1


@pytest.mark.parametrize("how", disk.CUTS)
def test_the_cut_is_one(mounted: Disk, how: str) -> None:
    """What was written without fsync is gone, or cut; else this file would show nothing."""
    path = mounted.path / "unsynced"
    path.write_bytes(b"x" * 5000)
    mounted.cut(disk.CUTS[how])
    with pytest.raises(OSError, match="Input/output error"):
        path.write_bytes(b"y")
    mounted.restart()
    assert not path.exists() or path.read_bytes() != b"x" * 5000
