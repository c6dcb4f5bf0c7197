"""A mirror of 119 shards with each kind of link: seconds, and bytes that were written."""

# ruff: noqa: INP001, S603, S607 - a part of a program that starts the programs it compares

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import synthetic
from rounds import Environment, Goal, Row
from subjects import CONFLICT, Place

if TYPE_CHECKING:
    from collections.abc import Iterator

GOALS = (Goal("mirror, hardlink", {"cp -al": 1, "plan": 1}, 2.0, waits=True),)


def rows(place: Place, environment: Environment, reflinks: Path | None) -> list[Row]:
    """One row for each kind of link; reflinks on a file system that has them."""
    source = place.checkpoint
    found = [_row(place, environment, link, source) for link in ("hardlink", "symlink")]
    if reflinks is not None:
        found.append(_row(place, environment, "reflink", reflinks))
    return found


def _row(place: Place, environment: Environment, link: str, source: Path) -> Row:
    target = source.parent / f"mirror-{link}"
    words = place.run("mirror", "--link", link, *CONFLICT, "--json", str(source), str(target))
    without = partial(shutil.rmtree, target, ignore_errors=True)
    return environment.row(f"mirror, {link}", words, before=without)


def written(row: Row, target: Path) -> int:
    """Bytes that a row's mirror takes beside its links."""
    row.measure()
    own = (path.lstat() for path in target.rglob("*"))
    return sum(status.st_blocks * 512 for status in own if status.st_nlink == 1)


@contextmanager
def with_reflinks(folder: Path) -> Iterator[Path | str]:
    """A checkpoint on XFS, on a file mounted as a disk; a sentence where that is not possible."""
    if os.geteuid() != 0 or not shutil.which("mkfs.xfs"):
        yield "reflink: not measured, which takes root and mkfs.xfs to mount an XFS"
        return
    image, mount = folder / "xfs.img", Path(tempfile.mkdtemp(dir=folder))
    with image.open("wb") as file:
        file.truncate(2 * 2**30)
    subprocess.run(["mkfs.xfs", "-q", "-m", "reflink=1", str(image)], check=True)
    done = subprocess.run(
        ["mount", "-o", "loop", str(image), str(mount)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        yield f"reflink: not measured, {done.stderr.strip()}"
        return
    try:
        yield synthetic.make(mount / "checkpoint")
    finally:
        subprocess.run(["umount", str(mount)], check=True)
