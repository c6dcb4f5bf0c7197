"""A fault at every mutating call of every writing command leaves a checkpoint that recovers."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from faults import harness, samples
from faults.operations import OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from faults.operation import Picture

HERE = Path(__file__).parent


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder in memory where there is one: the faults do not depend on the file system."""
    memory = "/dev/shm"
    folder = tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else None)
    yield Path(folder)
    shutil.rmtree(folder)


#: Links differ from files in how a name is made anew; these faults cover all of that.
ON_LINKS = ("kill", "ENOSPC from here on", "EIO once")
LINKED = ("apply", "undo", "recover, half applied", "recover, half undone")


@pytest.mark.parametrize(
    ("operation", "fault", "linked"),
    [
        *((operation, fault, False) for operation in OPERATIONS for fault in harness.FAULTS),
        *((operation, fault, True) for operation in LINKED for fault in ON_LINKS),
    ],
)
def test_every_point(scratch: Path, operation: str, fault: str, *, linked: bool) -> None:
    chosen = harness.FAULTS[fault]
    result = harness.campaign(scratch, OPERATIONS[operation], chosen, linked=linked)
    print(f"{operation}, {fault}, linked={linked}: {result.points} points, {dict(result.ends)}")  # noqa: T201 - shown by pytest -s
    if not chosen.calls:
        assert result.points >= OPERATIONS[operation].fewest[linked]
    if fault in {"short write", "renamed, but reported failed"}:
        assert {code for code, _ in result.ends} == {0}, "this must not even be noticed"
    if fault == "kill":
        outcomes = {outcome for code, outcome in result.ends if code == harness.KILLED}
        assert outcomes >= {"old", "new"}, "the loop must hit both sides of the commit"


# --- What the kernel sees

CALLS = {
    "openat": "open", "write": "write", "fsync": "fsync", "renameat": "rename", "mkdirat": "mkdir",
    "renameat2": "rename", "rename": "rename", "linkat": "link", "symlinkat": "symlink",
    "fchmod": "chmod", "fchown": "chown", "utimensat": "utime", "fsetxattr": "setxattr",
    "unlinkat": "unlink", "unlink": "unlink", "mkdir": "mkdir", "rmdir": "rmdir", "link": "link",
    "symlink": "symlink", "open": "open", "pwrite64": "write", "writev": "write",
    "fdatasync": "fsync", "ftruncate": "truncate", "truncate": "truncate", "chmod": "chmod",
    "fchmodat": "chmod", "chown": "chown", "fchownat": "chown", "lchown": "chown",
    "setxattr": "setxattr", "creat": "open", "copy_file_range": "write", "sendfile": "write",
    "ioctl": "clone",
}  # fmt: skip
#: What the hook calls otherwise.
NAMES = {"fsync_dir": "fsync", "exchange": "rename"}
PROGRAM = """
import sys
from pathlib import Path
from faults.operations import OPERATIONS
from patcher import fsio
name, root, log = sys.argv[1:]
calls = []
fsio.hook = lambda call, _file: calls.append(call)
OPERATIONS[name].action(Path(root))
Path(log).write_text("\\n".join(calls))
"""
TRACED = (
    "apply", "undo", "undo --merge", "recover, half applied", "plan -o", "mirror",
    "mirror --link copy", "mirror, replacing",
)  # fmt: skip


@dataclass(frozen=True)
class Traced:
    """A command that ran under strace: its exit code, its mutating calls, its checkpoint."""

    code: int
    calls: list[str]
    root: Path
    pristine: Picture


def traced(tmp_path: Path, operation: str, *inject: str) -> Traced:
    if (strace := shutil.which("strace")) is None:
        pytest.skip("needs strace")
    pristine = OPERATIONS[operation].build(tmp_path / "template")
    root = OPERATIONS[operation].place(tmp_path / "template", tmp_path / "traced")
    trace, log = tmp_path / "trace", tmp_path / "log"
    filters = ["-e", f"trace={','.join('?' + call for call in CALLS)}"]
    words = [strace, "-f", "-y", "-qq", "-o", str(trace), *filters, *inject]
    done = subprocess.run(
        [*words, sys.executable, "-c", PROGRAM, operation, str(root), str(log)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (HERE, HERE.parent)))},
        capture_output=True,
        text=True,
        check=False,
    )
    if "ptrace" in done.stderr or "PTRACE" in done.stderr:
        pytest.skip(f"strace may not trace here: {done.stderr.strip()}")
    calls = list(_mutations(trace.read_text(), str(root.parent)))
    return Traced(done.returncode, calls, root, pristine)


def _mutations(trace: str, folder: str) -> Iterator[str]:
    for line in trace.splitlines():
        call, _, rest = line.partition(" ")[2].lstrip().partition("(")
        # The filelock library asks for its folder, which is there, and opens "lock" for writing;
        # nothing is ever written to it.
        library = "/.ckpt-patch/lock" in rest or (call == "mkdir" and rest.endswith("exists)"))
        if folder not in rest or library or call not in CALLS:
            continue
        if call == "ioctl" and "FICLONE" not in rest:
            continue
        if CALLS[call] == "open" and "O_CREAT" not in rest and "O_WRONLY" not in rest:
            continue
        yield "rmdir" if "AT_REMOVEDIR" in rest else CALLS[call]


@pytest.mark.parametrize("operation", TRACED)
def test_the_kernel_agrees_with_the_hook(operation: str, tmp_path: Path) -> None:
    """No mutating call escapes the layer: the kernel sees those that the hook sees, in order."""
    ran = traced(tmp_path, operation)
    assert ran.code == 0
    hooked = [NAMES.get(call, call) for call in (tmp_path / "log").read_text().split()]
    assert ran.calls == hooked
    assert len(hooked) >= OPERATIONS[operation].fewest[0]


#: About three in a hundred of all points.
KILLS = [
    ("apply", "renameat", 2), ("apply", "fsync", 9), ("undo", "renameat", 2),
    ("plan -o", "renameat", 1), ("mirror", "fsync", 4), ("mirror", "renameat", 1),
    ("mirror, replacing", "renameat2", 1), ("mirror, replacing", "unlinkat", 2),
]  # fmt: skip


@pytest.mark.parametrize(("operation", "call", "number"), KILLS)
def test_a_kill_by_the_kernel(operation: str, call: str, number: int, tmp_path: Path) -> None:
    ran = traced(tmp_path, operation, "-e", f"inject={call}:signal=KILL:when={number}")
    assert ran.code == -signal.SIGKILL
    assert OPERATIONS[operation].verify(ran.root, ran.pristine) in {"old", "new"}


def test_a_call_that_the_kernel_interrupts_is_made_again(tmp_path: Path) -> None:
    inject = "inject=fsync,fchmod:error=EINTR:when=2+3"
    ran = traced(tmp_path, "apply", "-e", inject)
    assert ran.code == 0
    assert {name: (ran.root / name).read_bytes() for name in samples.BEFORE} == samples.AFTER


def test_the_command_line_says_that_it_recovered(tmp_path: Path) -> None:
    if (strace := shutil.which("strace")) is None:
        pytest.skip("needs strace")
    root = tmp_path / "Kimi-K2.5-NVFP4"
    shutil.copytree(HERE.parent / "fixtures" / root.name, root)
    pristine = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in root.iterdir()}
    state = {"XDG_STATE_HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    options = ("--target", "sm120", "--engine", "vllm==0.16.0", "--recipe", "kv-cache-model-dtype")

    def command(*words: str, under: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*under, sys.executable, "-m", "patcher", *words, str(root)],
            env=os.environ | state | {"PYTHONPATH": str(HERE.parent)},
            capture_output=True,
            text=True,
            check=False,
        )

    inject = ("-e", "trace=renameat", "-e", "inject=renameat:signal=KILL:when=3")
    killed = command("apply", *options, under=(strace, "-f", "-qq", "-o", "/dev/null", *inject))
    if "ptrace" in killed.stderr.lower():
        pytest.skip("strace may not trace here")
    assert killed.returncode == -signal.SIGKILL
    assert "interrupted" in command("status").stdout
    again = command("apply", *options)
    assert again.returncode == 0
    assert "Note: rolled back transaction 1" in again.stderr
    assert command("undo").returncode == 0
    found = {name: (root / name) for name in pristine}
    assert {n: (p.read_bytes(), p.stat().st_mtime_ns) for n, p in found.items()} == pristine
