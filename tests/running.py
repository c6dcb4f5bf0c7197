"""What tests of the command line share: a run's result, and what a directory holds."""

from __future__ import annotations

import hashlib
import importlib
import os
import pickle
import pkgutil
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import patcher

NOBODY = 65534


@dataclass(frozen=True, slots=True)
class Done:
    """One finished command line."""

    code: int
    out: str
    err: str


Run = Callable[..., Done]


def snapshot(root: Path) -> dict[str, tuple[object, ...]]:
    """Kind, mode, time, and content or link of everything below a directory."""
    found: dict[str, tuple[object, ...]] = {}
    for folder, directories, files in os.walk(root):
        for name in (*directories, *files):
            path = Path(folder, name)
            status = path.lstat()
            content: object = None
            if stat.S_ISLNK(status.st_mode):
                content = os.readlink(path)
            elif stat.S_ISREG(status.st_mode):
                content = hashlib.sha256(path.read_bytes()).hexdigest()
            times = None if stat.S_ISDIR(status.st_mode) else status.st_mtime_ns
            found[str(path.relative_to(root))] = (status.st_mode, times, content)
    return found


def make_reachable(tmp_path: Path) -> None:
    """Let every user reach a folder of pytest's, which are private."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.name.startswith(("pytest-", "popen-")) or folder == tmp_path:
            folder.chmod(0o755)


def as_nobody(run: Run, *words: str) -> Done:
    """Run in a child that has no privileges, where this process is root.

    It may be unable to read the interpreter's own files, so everything is imported before.
    """
    for module in pkgutil.walk_packages(patcher.__path__, "patcher."):
        if ".extract" not in module.name and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for library in ("deepdiff", "filelock", "jsonpatch", "msgspec", "packaging.version"):
        importlib.import_module(library)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            done = run(*words)
            os.write(writer, pickle.dumps(done))
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        data = stream.read()
    os.waitpid(child, 0)
    result = pickle.loads(data)
    assert isinstance(result, Done)
    return result
