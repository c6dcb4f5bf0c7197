"""Whether a checkpoint can be written, seen before anything is."""

from __future__ import annotations

import os
import shlex
import stat
from typing import TYPE_CHECKING

from patcher.errors import RefusedError
from patcher.transaction import journal as journals

if TYPE_CHECKING:
    from pathlib import Path


def require_writable(root: Path, root_fd: int, names: list[str]) -> None:
    """See before anything is written whether it can be.

    Raises:
        RefusedError: a read-only file system or directory, a file that is read-only, immutable or
            another user's.
    """
    hint = (
        f"work on a linked copy: ckpt-patch mirror {shlex.quote(str(root))} DEST; "
        "ckpt-patch check still works here"
    )
    for directory in (".", journals.NAME):
        status = _lstat(root_fd, directory)
        if status is None or not stat.S_ISDIR(status.st_mode):
            continue  # open_journal says what is wrong with it
        if not _may(os.W_OK | os.X_OK, directory, root_fd):
            raise RefusedError(
                "this directory cannot be written. Nothing was changed",
                path=str(root / directory),
                hint=hint,
            )
    for name in names:
        status = _lstat(root_fd, name)
        if status is None:
            continue
        foreign = os.geteuid() not in {0, status.st_uid}
        if foreign or not (stat.S_ISLNK(status.st_mode) or _may(os.W_OK, name, root_fd)):
            why = f"belongs to another user (uid {status.st_uid})" if foreign else "is read-only"
            raise RefusedError(f"{why}. Nothing was changed", path=name, hint=hint)


def _may(mode: int, name: str, dir_fd: int) -> bool:
    effective = os.access in os.supports_effective_ids
    return os.access(name, mode, dir_fd=dir_fd, effective_ids=effective)


def _lstat(dir_fd: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None
