"""What this process opens and changes, as Python's audit hooks see it."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

import patcher

if TYPE_CHECKING:
    from collections.abc import Iterator

_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_MUTATIONS = {
    "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate",
    "os.chmod", "os.chown", "os.utime", "os.setxattr", "os.exec", "os.system", "subprocess.Popen",
    "os.posix_spawn", "shutil.rmtree", "socket.connect", "ctypes.dlopen",
}  # fmt: skip
_CODE = {"compile", "exec", "import", "pickle.find_class", "marshal.loads"}


class Watch:
    """Notes what this process does to the file system, while it is told to."""

    def __init__(self) -> None:
        self._on = self._code = False
        self._seen: list[tuple[str, str]] = []
        sys.addaudithook(self._note)

    def _note(self, event: str, args: tuple[Any, ...]) -> None:
        if self._on and event == "open":
            kind = "write" if isinstance(args[2], int) and args[2] & _WRITE else "read"
            self._seen.append((kind, os.fsdecode(args[0]) if not _is_fd(args[0]) else ""))
        elif self._code and event in _CODE:
            self._seen.append((event, ""))
        elif self._on and event in _MUTATIONS:
            self._seen.append((event, os.fsdecode(args[0]) if not _is_fd(args[0]) else ""))

    @contextlib.contextmanager
    def reading_only(self, *allowed: str) -> Iterator[None]:
        """Nothing may be written, and only files below ``allowed`` be opened."""
        with self._watching():
            yield
        for kind, path in self._seen:
            assert kind == "read", f"{kind} of {path!r} by a reader"
            assert _below(path, allowed), f"opened {path!r}"

    @contextlib.contextmanager
    def writing_by_name(self, *allowed: str) -> Iterator[None]:
        """Whatever is written has a bare name, relative to an open directory, or is ``allowed``."""
        with self._watching():
            yield
        for kind, path in self._seen:
            if kind != "read":
                assert "/" not in path or _below(path, allowed), f"{kind} of {path!r}"
            elif os.path.isabs(path) and not path.startswith("/proc/"):
                mode = os.stat(path).st_mode if os.path.exists(path) else stat.S_IFREG
                assert stat.S_ISREG(mode) or stat.S_ISDIR(mode), f"opened {path!r}"

    @contextlib.contextmanager
    def running_nothing(self) -> Iterator[None]:
        """No text may be compiled and no code object be run; what is imported late, is before."""
        self._code = True
        try:
            with self._watching():
                yield
        finally:
            self._code = False
        ran = [kind for kind, _ in self._seen if kind in _CODE]
        assert not ran, f"a text was run: {ran}"

    @contextlib.contextmanager
    def _watching(self) -> Iterator[None]:
        self._seen.clear()
        self._on = True
        try:
            yield
        finally:
            self._on = False


def _is_fd(path: object) -> bool:
    return path is None or isinstance(path, int)


def _below(path: str, allowed: tuple[str, ...]) -> bool:
    code = (sys.prefix, sys.base_prefix, os.path.dirname(patcher.__path__[0]), "/proc/self/")
    return not path or os.path.normpath(path).startswith((*allowed, *code))


@cache
def watch() -> Watch:
    """The one watch of this process: an audit hook stays for good."""
    return Watch()
