"""Hostile input: every parser of a stranger's bytes, and what must hold whatever they are.

A target takes bytes and says whether they were accepted. `CkptPatchError` is the only way to refuse
them; anything else that is raised, any write, and any opening of something outside the sandbox, a
device or a FIFO is a fault.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import os
import re
import shutil
import stat
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from faults import samples

import patcher
from patcher import jsontext, recipes, saved_plan
from patcher.checkpoint import open_checkpoint
from patcher.cli.run import run as run_cli
from patcher.edits import WRITABLE_FILES
from patcher.errors import CkptPatchError
from patcher.headers import INDEX_FILE, read_header, read_index
from patcher.metadata.declarations import find, missing_required
from patcher.subject import Subject
from patcher.transaction import record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: What no output may hold raw: controls but for line ends and tabs, and bidirectional overrides.
_RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_MUTATIONS = {
    "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate",
    "os.chmod", "os.chown", "os.utime", "os.setxattr", "os.exec", "os.system", "subprocess.Popen",
    "os.posix_spawn", "shutil.rmtree", "socket.connect", "ctypes.dlopen",
}  # fmt: skip
_CODES = {0, 1, 2, 3, 4, 5, 6}


class Watch:
    """Notes what this process does to the file system, while it is told to."""

    def __init__(self) -> None:
        self._on = False
        self._seen: list[tuple[str, str]] = []
        sys.addaudithook(self._note)

    def _note(self, event: str, args: tuple[Any, ...]) -> None:
        if self._on and event == "open":
            kind = "write" if isinstance(args[2], int) and args[2] & _WRITE else "read"
            self._seen.append((kind, os.fsdecode(args[0]) if not _is_fd(args[0]) else ""))
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


@cache
def _memory() -> int:
    """An unnamed file in memory."""
    return os.memfd_create("hostile")


def _file(data: bytes) -> int:
    fd = _memory()
    os.ftruncate(fd, 0)
    os.pwrite(fd, data, 0)
    return fd


def _file_with_length(data: bytes) -> int:
    """A header's JSON with its length before it, and as many bytes as the last two say."""
    size = int.from_bytes(data[-2:], "little") % 64
    return _file(len(data[:-2]).to_bytes(8, "little") + data[:-2] + bytes(size))


def _as_it_is(data: bytes) -> bytes:
    return data


def _refusing(
    function: Callable[[Any], object], prepare: Callable[[bytes], object] = _as_it_is
) -> Callable[[bytes], bool]:
    """Run the function under watch; whether it took the bytes."""

    def target(data: bytes) -> bool:
        prepared = prepare(data)
        with watch().reading_only():
            try:
                function(prepared)
            except CkptPatchError as error:
                refused: CkptPatchError | None = error
            else:
                refused = None
        if refused is not None:
            assert refused.exit_code in {2, 3, 4}
            assert str(refused)
            return False
        return True

    return target


def _json(data: bytes) -> None:
    document = jsontext.read(data, source="config.json")
    pointer, inner = "", document.value
    while isinstance(inner, dict) and inner:
        key = next(iter(inner))
        pointer, inner = pointer + jsontext.format_pointer((key,)), inner[key]
    patched = jsontext.splice(document, [{"op": "replace", "path": pointer, "value": None}])
    again = jsontext.read(patched, source="config.json").value
    assert jsontext.resolve(again, pointer) is None


def _index(fd: int) -> None:
    index = read_index(f"/proc/self/fd/{fd}")
    for shard in index.shards:
        assert os.path.normpath(f"/checkpoint/{shard}") == f"/checkpoint/{shard}"


def _recipe(data: bytes) -> None:
    recipe = recipes.parse(data, "recipe.toml")
    documents = {name: jsontext.read(text, source=name) for name, text in samples.BEFORE.items()}
    wanted = recipe.operations(find(documents), missing_required(documents))
    assert set(wanted) <= WRITABLE_FILES


def _record(data: bytes) -> None:
    """Also with a hash that fits, so that more than the hash is met."""
    with contextlib.suppress(ValueError, RecursionError):
        body = json.loads(data)
        if isinstance(body, dict):
            body.pop("sha256", None)
            data = json.dumps(body | {"sha256": record._hash(body)}).encode()
    read = record.decode(data, state="applied", source="record.json")
    assert {each.file for each in read.files} <= WRITABLE_FILES


@cache
def sandbox() -> Path:
    """A checkpoint among things that it must not reach."""
    above = tempfile.mkdtemp(prefix="hostile-", dir=_memory_folder())
    atexit.register(shutil.rmtree, above, ignore_errors=True)
    home = Path(above) / "home"
    root = samples.build(home / "checkpoint")
    (home / "secret").write_bytes(b"secret")
    (home / "xdg").mkdir()
    os.mkfifo(root / "model-00001.safetensors")
    (root / "model-00002.safetensors").symlink_to("/dev/zero")
    (root / "model-00003.safetensors").symlink_to("../secret")
    return root


def _memory_folder() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@cache
def _opened() -> Any:
    return open_checkpoint(sandbox())


def _beside_a_checkpoint(data: bytes) -> bytes:
    _opened()
    return data


def _plan(data: bytes) -> None:
    change = saved_plan.load(data, "plan.json", _opened())
    assert {edit.file for edit in change.edits} <= WRITABLE_FILES
    for edit in change.edits:
        assert edit.before == samples.BEFORE[edit.file]


def _metadata(data: bytes) -> None:
    """Two files, parted by a NUL: what they say about the model and the KV cache."""
    config, _, other = data.partition(b"\0")
    documents = {
        name: jsontext.read(text, source=name)
        for name, text in {"config.json": config, "hf_quant_config.json": other or b"{}"}.items()
    }
    if all(isinstance(each.value, dict) for each in documents.values()):
        Subject.of(documents)


def _commands(data: bytes) -> bool:
    """Whole commands over a checkpoint of these bytes: files parted by NULs."""
    root = sandbox()
    journal = root / ".ckpt-patch"
    names = ("config.json", "hf_quant_config.json", INDEX_FILE)
    for name, text in zip(names, (*data.split(b"\0", 2), b"", b""), strict=False):
        (root / name).unlink(missing_ok=True)
        if text:
            (root / name).write_bytes(text)
    launch = ("--target", "sm120", "--engine", "vllm==0.16.0")
    codes = []
    for words in (("check", *launch), ("inspect",), ("apply", *launch), ("status",), ("undo",)):
        with watch().writing_by_name(str(journal), str(root.parent / "xdg"), "/dev/null"):
            code, said = _captured([*words, str(root)])
        assert code in _CODES, (words, code, said)
        assert not _RAW.search(said), (words, said)
        codes.append(code)
    assert (root.parent / "secret").read_bytes() == b"secret"
    assert set(os.listdir(root.parent)) <= {"checkpoint", "secret", "xdg"}
    return codes[0] in {0, 1}


def _captured(words: list[str]) -> tuple[int, str]:
    said = io.StringIO()
    xdg = str(sandbox().parent / "xdg")
    os.environ |= {"XDG_STATE_HOME": xdg, "XDG_CACHE_HOME": xdg}
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = run_cli(words)
    return code, said.getvalue()


TARGETS: dict[str, Callable[[bytes], bool]] = {
    "jsontext": _refusing(_json),
    "header": _refusing(read_header, _file),
    "header text": _refusing(read_header, _file_with_length),
    "index": _refusing(_index, _file),
    "recipe": _refusing(_recipe),
    "record": _refusing(_record),
    "plan": _refusing(_plan, _beside_a_checkpoint),
    "metadata": _refusing(_metadata),
    "commands": _commands,
}
