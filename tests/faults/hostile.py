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
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from faults import samples
from faults.watching import watch

from patcher import jsontext, recipes, saved_plan
from patcher.checkpoint import open_checkpoint
from patcher.cli.run import run as run_cli
from patcher.edits import WRITABLE_FILES
from patcher.errors import CkptPatchError, RefusedError
from patcher.headers import INDEX_FILE, read_header, read_index
from patcher.metadata.declarations import find, missing_required
from patcher.mirroring import manifest, verifying
from patcher.subject import Subject
from patcher.transaction import record

if TYPE_CHECKING:
    from collections.abc import Callable

#: What no output may hold raw: controls but for line ends and tabs, and bidirectional overrides.
_RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_CODES = {0, 1, 2, 3, 4, 5, 6}


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
def _mirror() -> Path:
    """A mirror with a FIFO and links that lead elsewhere, under names that a manifest may list."""
    root = sandbox().parent / "mirror"
    (root / "sub").mkdir(parents=True)
    (root / ".ckpt-patch").mkdir()
    (root / "config.json").write_bytes(samples.AFTER["config.json"])
    (root / "hf_quant_config.json").symlink_to("../secret")
    os.mkfifo(root / "sub" / "a.json")
    (root / "sub" / "model.safetensors").symlink_to("/dev/zero")
    return root


def _manifest(data: bytes) -> bool:
    """What it lists is looked at, nothing beside it; also with a hash that fits."""
    with contextlib.suppress(ValueError, RecursionError):
        body = json.loads(data)
        if isinstance(body, dict):
            body.pop("sha256", None)
            data = json.dumps(body | {"sha256": manifest._hash(body)}).encode()
    root = str(_mirror())
    (_mirror() / manifest.PATH).write_bytes(data)
    with watch().reading_only(root):
        try:
            read = manifest.read(root)
            assert read is not None
            problems = verifying.here(root, read)
        except RefusedError:
            return False
    paths = [*read.folders, *read.folder_links, *(file.path for file in read.files)]
    assert all(os.path.normpath(f"/mirror/{path}") == f"/mirror/{path}" for path in paths)
    assert {each.file for each in problems} <= {*paths, *_below_mirror()}
    return True


def _below_mirror() -> set[str]:
    return {str(path.relative_to(_mirror())) for path in _mirror().rglob("*")}


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
    assert set(os.listdir(root.parent)) <= {"checkpoint", "mirror", "secret", "xdg"}
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
    "manifest": _manifest,
    "metadata": _refusing(_metadata),
    "commands": _commands,
}
