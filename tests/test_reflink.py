"""Reflinks, on a real file system that has them: XFS in a file (needs root and loop devices)."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from conftest import make_cache, make_checkpoint, packed
from faults import disk
from running import Run, snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator

FIXTURE = Path(__file__).resolve().parent.parent / "fixtures" / "Kimi-K2.5-NVFP4"
SHARD = "model.safetensors"
#: Bytes; far more than the file system needs for itself.
SIZE = 64 * 1024 * 1024
FILES = {
    **{name: (FIXTURE / name).read_bytes() for name in ("config.json", "hf_quant_config.json")},
    SHARD: packed(
        {"w": {"dtype": "U8", "shape": [SIZE], "data_offsets": [0, SIZE]}}, os.urandom(SIZE)
    ),
}
TARGET = ("--target", "sm120", "--engine", "vllm==0.16.0")


@pytest.fixture(scope="module")
def xfs() -> Iterator[Path]:
    if (reason := disk.missing("xfs")) is not None:
        pytest.skip(f"reflinks on XFS: {reason}")
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
    with disk.disk("xfs", folder) as mounted:
        yield mounted.path
    shutil.rmtree(folder)


@pytest.fixture(params=["directory", "cache"])
def source(xfs: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A checkpoint on XFS that no test may change, blobs included."""
    home = xfs / request.param
    if request.param == "directory":
        root = make_checkpoint(home / "Kimi", FILES)
    else:
        root = make_cache(home / "hub", "acme/Kimi", FILES)
    before = snapshot(home)
    yield root
    assert {n: e for n, e in snapshot(home).items() if not n.startswith("mirror")} == before
    shutil.rmtree(home)


def used(folder: Path) -> int:
    """Bytes that the file system of ``folder`` holds."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
        found = os.statvfs(fd)
    finally:
        os.close(fd)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


@pytest.mark.parametrize("link", ["auto", "reflink"])
def test_the_bytes_are_shared_and_each_side_is_on_its_own(
    source: Path, xfs: Path, run: Run, link: str
) -> None:
    place = source.parents[0 if source.name == "Kimi" else 3] / f"mirror-{link}"
    before = used(xfs)
    done = run("mirror", *TARGET, "--link", link, "--json", str(source), str(place))
    assert done.code == 0, done.err
    files = {file["path"]: file for file in json.loads(done.out)["files"]}
    assert files[SHARD]["link"] == "reflink"
    assert used(xfs) - before < SIZE // 16
    here, there = place / SHARD, source / SHARD
    assert here.stat().st_ino != there.stat().st_ino
    assert here.stat().st_mtime_ns == there.stat().st_mtime_ns
    assert here.read_bytes() == FILES[SHARD]
    assert run("verify", "--hash", str(place)).code == 0
    told = run("mirror", *TARGET, "--link", link, str(source), str(place))
    assert "reflink: takes no space until one side is written, and neither side" in told.out
    with here.open("r+b") as file:  # which would change both sides of a hard link
        file.write(b"other")
    assert there.read_bytes() == FILES[SHARD]
    assert run("verify", "-q", str(place)).out == f"edited {SHARD}\n"


def test_another_file_system_is_another_matter(source: Path, tmp_path: Path, run: Run) -> None:
    place = tmp_path / "mirror"
    refused = run("mirror", *TARGET, "--link", "reflink", str(source), str(place))
    assert (refused.code, place.exists()) == (3, False)
    assert "reflink: Invalid cross-device link" in refused.err
    done = run("mirror", *TARGET, str(source), str(place))
    assert done.code == 0
    assert os.path.samefile(place / SHARD, source / SHARD)
    assert (place / SHARD).is_symlink()
    assert "hardlink is not possible here (Invalid cross-device link)" in done.err
