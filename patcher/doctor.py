"""What this machine and a checkpoint's file system can do, for people who wonder why."""

from __future__ import annotations

import fcntl
import os
import platform
from typing import TYPE_CHECKING

from msgspec import Struct

from patcher import __version__, fsio, gpus, target
from patcher.errors import CkptPatchError, UsageError
from patcher.transaction import status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LIBRARIES = (
    "click",
    "deepdiff",
    "filelock",
    "huggingface_hub",
    "jsonpatch",
    "msgspec",
    "packaging",
    "safetensors",
)


class Symptom(Struct, frozen=True):
    """One line of the answer; ``healthy`` is false where something needs attention."""

    subject: str
    state: str
    healthy: bool = True


def examine(root: Path | None) -> Iterator[Symptom]:
    """Versions, GPUs, engines; with ``root`` its file system and its transactions.

    The file system is tried with scratch files in ``root``, which are removed; where it cannot be
    written, that is the answer.
    """
    yield Symptom("ckpt-patch", f"{__version__} on Python {platform.python_version()}")
    yield Symptom("libraries", ", ".join(f"{name} {_version(name)}" for name in LIBRARIES))
    yield _gpus()
    engines = [f"{name} {version}" for name, version in target.installed_engines().items()]
    yield Symptom("engines", ", ".join(engines) or "none installed in this environment")
    if root is not None:
        yield from _file_system(root)
        yield _transactions(root)


def _version(name: str) -> str:
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - 45 ms

    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"


def _gpus() -> Symptom:
    try:
        found = gpus.detect(timeout=5.0)
    except UsageError as error:
        return Symptom("GPU", f"{error.message}; name one with --target")
    return Symptom("GPU", ", ".join(f"{gpu.name} ({gpu.summary})" for gpu in found))


def _transactions(root: Path) -> Symptom:
    try:
        present = status(root)
    except CkptPatchError as error:
        return Symptom("transactions", str(error), healthy=False)
    healthy = present.state not in {"interrupted", "damaged"}
    return Symptom("transactions", present.problem or present.state, healthy)


def _file_system(root: Path) -> Iterator[Symptom]:
    folder = f".ckpt-patch-doctor.{os.urandom(4).hex()}"
    try:
        with fsio.open_dir(str(root), follow=True) as root_fd:
            fsio.mkdir(root_fd, folder)
            try:
                with fsio.open_dir(folder, root_fd) as fd:
                    yield from _features(root / folder, fd)
            finally:
                fsio.remove_tree(root_fd, folder)
    except OSError as error:
        hint = "check works here; to patch, mirror it elsewhere"
        yield Symptom("file system", f"cannot be written ({error.strerror}): {hint}", healthy=False)


def _features(path: Path, fd: int) -> Iterator[Symptom]:
    fsio.create(fd, "file", b"ckpt-patch")  # waits for fsync
    fsio.fsync_dir(fd, str(path))
    yield Symptom("fsync", "works for files and directories")
    with open(path / "file", "rb") as source:
        number = source.fileno()
        yield Symptom("reflink", _tried(lambda: fsio.reflink(number, fd, "reflink")))
    yield Symptom("hard links", _tried(lambda: fsio.link(fd, "file", fd, "link")))
    yield Symptom("symbolic links", _tried(lambda: fsio.symlink(fd, "symlink", "file")))
    yield _flock(path / "file")


def _tried(attempt: Callable[[], None]) -> str:
    try:
        attempt()
    except OSError as error:
        return f"no ({error.strerror})"
    return "yes"


def _flock(path: Path) -> Symptom:
    """Whether a second holder of an exclusive lock is turned away, as it must be."""
    with open(path, "rb") as first, open(path, "rb") as second:
        try:
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            state = f"not there ({error.strerror}); hashes and exclusive folders guard instead"
            return Symptom("flock", state, healthy=False)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return Symptom("flock", "honest")
    state = "lies: it lets everybody in; hashes and exclusive folders guard instead"
    return Symptom("flock", state, healthy=False)
