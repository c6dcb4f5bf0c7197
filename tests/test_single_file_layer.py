"""Only fsio.py changes anything on disk; the rest of the package is read here, word by word."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "patcher"

#: Calls that change a file system, by the module or the kind of object they belong to.
OS_CALLS = {
    "chflags", "chmod", "chown", "copy_file_range", "fchmod", "fchown", "fdatasync", "fsync",
    "ftruncate", "lchmod", "lchown", "link", "makedirs", "mkdir", "mkfifo", "mknod", "pwrite",
    "pwritev", "remove", "removedirs", "removexattr", "rename", "renames", "replace", "rmdir",
    "sendfile", "setxattr", "symlink", "truncate", "unlink", "utime", "write", "writev",
}  # fmt: skip
PATH_CALLS = {
    "chmod", "hardlink_to", "lchmod", "mkdir", "rename", "rmdir", "symlink_to", "touch", "unlink",
    "write_bytes", "write_text",
}  # fmt: skip
MODULES = {"ctypes", "mmap", "shutil", "sqlite3", "subprocess", "tempfile", "zipfile"}
WRITE_FLAGS = {"O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC", "O_APPEND", "O_TMPFILE"}

#: (file, what is called): why it is right.
ALLOWED = {
    ("engines/extract/", "*"): "maintainers' tools, run in a source checkout, never by a command",
    ("cli/run.py", "os.O_WRONLY"): "opens /dev/null when the reader of a pipe has left",
    ("gpus.py", "shutil.which"): "looks for a program, changes nothing",
    ("gpus.py", "subprocess.Popen"): "asks nvidia-smi and rocminfo",
    ("gpus.py", "subprocess.TimeoutExpired"): "an exception",
    ("engines/probing.py", "subprocess.run"): "asks the engine that the user named",
    ("jsontext/", "Path.replace"): "a method of its own tree",
    ("transaction/lock.py", "filelock"): "opens the file `lock`; nothing is ever written to it",
}


def offences(source: str) -> set[str]:
    """The mutating calls in a module's text."""
    return {
        found
        for node in ast.walk(ast.parse(source))
        for found in (*_imports(node), *_calls(node), *_flags(node))
    }


def _imports(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Import):
        return {
            f"{alias.name} under another name"
            for alias in node.names
            if alias.asname and alias.name in {"os", "fcntl", "io", *MODULES}
        }
    if isinstance(node, ast.ImportFrom) and node.module == "filelock":
        return {"filelock"}
    if isinstance(node, ast.ImportFrom) and node.module in {"os", *MODULES}:
        return {
            f"{node.module}.{alias.name}"
            for alias in node.names
            if node.module in MODULES or alias.name in OS_CALLS
        }
    return set()


def _calls(node: ast.AST) -> set[str]:
    if not isinstance(node, ast.Call):
        return set()
    owner, _, name = ast.unparse(node.func).rpartition(".")
    opens = (name == "open" and owner != "os") or name == "fdopen"
    position = 1 if owner in {"", "io", "os"} else 0
    if opens and _opens_for_writing(node, position):
        return {"open for writing"}
    if owner == "fcntl" and name == "ioctl":
        return {"fcntl.ioctl"}
    if name == "replace" and owner and len(node.args) == 1 and not node.keywords:
        return {"Path.replace"}  # of a text: two arguments
    if owner in MODULES or (owner == "os" and name in OS_CALLS):
        return {f"{owner}.{name}"}
    is_path_call = owner not in {"", "fsio", "os"} and name in PATH_CALLS
    return {f"Path.{name}"} if is_path_call else set()


def _opens_for_writing(call: ast.Call, position: int) -> bool:
    """True also for a mode that is not a literal: it cannot be judged here."""
    modes = [word.value for word in call.keywords if word.arg == "mode"]
    modes += call.args[position : position + 1]
    return any(
        not isinstance(mode, ast.Constant) or bool(set(str(mode.value)) & set("wax+"))
        for mode in modes
    )


def _flags(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Attribute) and node.attr in WRITE_FLAGS:
        return {f"os.{node.attr}"}
    return set()


def modules() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "fsio.py"]


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_changes_nothing_on_disk_by_itself(path: Path) -> None:
    name = path.relative_to(PACKAGE).as_posix()
    found = {
        offence
        for offence in offences(path.read_text(encoding="utf-8"))
        if not any(name.startswith(file) and what in {"*", offence} for file, what in ALLOWED)
    }
    assert found == set()


def test_fsio_itself_would_be_noticed() -> None:
    text = (PACKAGE / "fsio.py").read_text(encoding="utf-8")
    wanted = {"os.replace", "os.write", "os.mkdir", "os.unlink", "os.O_CREAT", "fcntl.ioctl"}
    assert wanted <= offences(text)


def test_there_are_about_a_dozen_ways_to_change_something() -> None:
    """Each is a function of this one file, and each asks the hook before it acts."""
    tree = ast.parse((PACKAGE / "fsio.py").read_text(encoding="utf-8"))
    hooked = {
        word.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "_call"
        for word in node.args[:1]
        if isinstance(word, ast.Constant)
    }
    assert hooked == {
        "chmod", "chown", "clone", "exchange", "fsync", "fsync_dir", "link", "mkdir", "open",
        "rename", "rmdir", "setxattr", "symlink", "unlink", "utime", "write",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("source", "offence"),
    [
        ("open(p, 'w')", "open for writing"),
        ("open(p, mode='r+b')", "open for writing"),
        ("open(p, mode)", "open for writing"),
        ("path.open('xb')", "open for writing"),
        ("Path(p).write_text('')", "Path.write_text"),
        ("path.parent.mkdir()", "Path.mkdir"),
        ("import os; os.rename(a, b)", "os.rename"),
        ("from os import replace", "os.replace"),
        ("from shutil import move", "shutil.move"),
        ("import shutil; shutil.copy(a, b)", "shutil.copy"),
        ("import tempfile; tempfile.mkdtemp()", "tempfile.mkdtemp"),
        ("os.open(p, os.O_RDWR)", "os.O_RDWR"),
        ("os.fdopen(fd, 'wb')", "open for writing"),
        ("io.open(p, 'a')", "open for writing"),
        ("path.replace(other)", "Path.replace"),
        ("path.chmod(0o600)", "Path.chmod"),
        ("import os as system", "os under another name"),
        ("fcntl.ioctl(fd, FICLONE, other)", "fcntl.ioctl"),
        ("ctypes.CDLL(None)", "ctypes.CDLL"),
        ("subprocess.run(['rm', p])", "subprocess.run"),
    ],
)
def test_the_search_finds(source: str, offence: str) -> None:
    assert offence in offences(source)


@pytest.mark.parametrize(
    "source",
    [
        "open(p)",
        "open(p, 'rb')",
        "path.open()",
        "fsio.rename(fd, a, b)",
        "os.read(fd, 1)",
        "text.replace(a, b)",
        "os.fdopen(fd, 'rb')",
        "replace(record, state=s)",
    ],
)
def test_the_search_lets_reading_pass(source: str) -> None:
    assert offences(source) == set()


def test_no_environment_variable_reaches_the_hook() -> None:
    text = (PACKAGE / "fsio.py").read_text(encoding="utf-8")
    assert "environ" not in text
    assert "getenv" not in text
    setters = [
        path.relative_to(PACKAGE).as_posix()
        for path in modules()
        if "fsio.hook" in path.read_text(encoding="utf-8")
    ]
    assert setters == []
