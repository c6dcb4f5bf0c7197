"""Files that the user names: reports, plans, recipes, crash notes, the history."""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from patcher import fsio
from patcher.errors import UnreadableError, WriteError

if TYPE_CHECKING:
    from pathlib import Path

_ABANDONED_SECONDS = 60.0


def write(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Write a whole file: complete under its name or not there at all.

    Without ``sync`` a power cut may take it away: for what is only a convenience.

    Raises:
        WriteError: the folder is missing or not writable, the disk is full, or ``path`` is
            something else than a regular file.
    """
    try:
        if path.exists() and not stat.S_ISREG(path.stat().st_mode):
            raise WriteError("not a regular file, so it is not replaced", path=str(path))
        with fsio.open_dir(str(path.parent), follow=True) as folder:
            start = f".{path.name[:100]}."
            _remove_leftovers(folder, start)
            temporary = f"{start}{os.urandom(4).hex()}.tmp"
            try:
                fsio.create(folder, temporary, data, sync=sync)
                fsio.rename(folder, temporary, path.name)
            except BaseException:  # a signal too: nothing half done stays behind
                if fsio.exists(folder, temporary):
                    fsio.unlink(folder, temporary)
                raise
            if sync:
                fsio.fsync_dir(folder, str(path.parent))
    except OSError as error:
        raise WriteError(
            f"cannot write it: {error.strerror or error}",
            path=str(path),
            hint="name a file in a folder that exists and is writable",
        ) from error


def _remove_leftovers(folder: int, start: str) -> None:
    """Remove the temporary files of writers that were killed; those in use are young."""
    for name in os.listdir(folder):
        if name.startswith(start) and name.endswith(".tmp") and len(name) == len(start) + 12:
            with suppress(OSError):
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if time.time() - status.st_mtime > _ABANDONED_SECONDS:
                    fsio.unlink(folder, name)


def read(path: Path, limit: int, what: str) -> bytes:
    """The bytes of a file that the user named; a FIFO or a device is not opened.

    Args:
        path: the file.
        limit: the most bytes that it may have.
        what: what it should be, for messages: ``"plan"``.

    Raises:
        UnreadableError: it cannot be read, is no regular file, or is larger than ``limit``.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise UnreadableError(f"not a regular file, so it is no {what}", path=str(path))
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise UnreadableError(
            f"cannot read the {what}: {error.strerror}", path=str(path), hint="ckpt-patch --help"
        ) from error
    if len(data) > limit:
        raise UnreadableError(f"the {what} is larger than {limit >> 20} MB", path=str(path))
    return data


def make_folder(path: Path) -> None:
    """Make a folder and its parents, readable by the user alone where it is new.

    Raises:
        OSError: it cannot be made.
    """
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        try:
            with fsio.open_dir(str(folder.parent), follow=True) as parent:
                fsio.mkdir(parent, folder.name)
        except FileExistsError:
            continue


def state_folder() -> Path:
    """Where this user's history lives (XDG base directory specification)."""
    return _xdg("XDG_STATE_HOME", ".local/state")


def cache_folder() -> Path:
    """Where crash notes and probed facts live (XDG base directory specification)."""
    return _xdg("XDG_CACHE_HOME", ".cache")


def _xdg(variable: str, default: str) -> Path:
    from pathlib import Path  # noqa: PLC0415 - lazy: the type is needed only here

    base = os.environ.get(variable, "")
    root = Path(base) if os.path.isabs(base) else Path.home() / default
    return root / "ckpt-patch"
