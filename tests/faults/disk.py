"""A file system in a file, whose power can be cut.

The shutdown ioctl (ext4: ``EXT4_IOC_SHUTDOWN``, XFS: ``XFS_IOC_GOINGDOWN``, one number) makes the
file system refuse everything from then on and forget what it had not written; mounting it again is
what a machine does after a power cut. It needs root, a loop device and mkfs.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import struct
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_SHUTDOWN = 0x8004587D  # _IOR('X', 125, __u32)

#: What reaches the disk at the cut: the journal's log and with it some newest names, or nothing.
CUTS = {"journal flushed": 1, "journal lost": 2}

#: mkfs with the smallest sizes that it takes. A small journal and no lazy work keep mounting fast.
MAKE = {
    "ext4": (["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"], 24),
    "xfs": (["mkfs.xfs", "-q", "-f"], 320),
}


def missing(kind: str) -> str | None:
    """Why there can be no such disk here; ``None`` where there can."""
    reasons = {
        "needs root": os.geteuid() != 0,
        "needs loop devices": not os.path.exists("/dev/loop-control"),
        f"needs {MAKE[kind][0][0]}": shutil.which(MAKE[kind][0][0]) is None,
        "needs losetup and mount": None in (shutil.which("losetup"), shutil.which("mount")),
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


@dataclass(frozen=True)
class Disk:
    """A mounted file system; ``device`` is its loop device."""

    kind: str
    device: str
    path: Path

    def sync(self) -> None:
        """Write everything of this file system, and of no other."""
        fd = os.open(self.path, os.O_RDONLY)
        try:
            if ctypes.CDLL(None, use_errno=True).syncfs(fd):
                raise OSError(ctypes.get_errno(), "syncfs")
        finally:
            os.close(fd)

    def cut(self, how: int) -> None:
        """Cut the power; every later call on this file system fails with ``EIO``."""
        fd = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, _SHUTDOWN, struct.pack("I", how))
        finally:
            os.close(fd)

    def restart(self) -> None:
        """Mount again what survived."""
        _run("umount", str(self.path))
        self.mount()

    def mount(self) -> None:
        """Mount it, replaying its journal."""
        _run("mount", "-t", self.kind, self.device, str(self.path))


@contextmanager
def disk(kind: str, folder: Path) -> Iterator[Disk]:
    """Make and mount a disk in a file below ``folder``."""
    command, megabytes = MAKE[kind]
    image, path = folder / f"{kind}.img", folder / kind
    path.mkdir()
    with image.open("wb") as file:
        file.truncate(megabytes * 1024 * 1024)
    _run(*command, str(image))
    made = Disk(kind, _run("losetup", "--find", "--show", str(image)).strip(), path)
    try:
        made.mount()
        yield made
    finally:
        subprocess.run(["umount", "--lazy", str(path)], capture_output=True, check=False)
        _run("losetup", "--detach", made.device)
        image.unlink()


def _run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
    return done.stdout
