"""Twenty-five faults, what each must end in, and the tests that show it.

Where a test elsewhere shows it, the table in `faults.scenarios` names that test.
"""

from __future__ import annotations

import ast
import errno
import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from datetime import datetime, tzinfo
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from faults import harness, samples
from faults.operations import apply
from faults.scenarios import SCENARIOS

from patcher import fsio, transaction
from patcher.checkpoint import open_checkpoint
from patcher.cli.run import run as run_cli
from patcher.errors import CkptPatchError, UnreadableError
from patcher.transaction import entry
from patcher.transaction.journal import NAME

if TYPE_CHECKING:
    from collections.abc import Iterator

    from running import Run

HERE = Path(__file__).parent
FIXTURE = HERE.parent / "fixtures" / "Kimi-K2.5-NVFP4"


@cache
def defined(path: Path) -> set[str]:
    """The functions of a test file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_none_is_left_out() -> None:
    assert list(SCENARIOS) == list(range(1, 26))


@pytest.mark.parametrize("number", SCENARIOS)
def test_the_named_tests_exist(number: int) -> None:
    for name in SCENARIOS[number].tests:
        file, _, test = name.rpartition("::")
        folder, _, stem = file.rpartition("/")
        path = HERE / folder / f"test_{stem}.py" if file else Path(__file__)
        assert test in defined(path), name


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return samples.build(tmp_path / "ckpt" / "snapshot")


def code(action: harness.Action, root: Path) -> int:
    """The exit code that the command line would give."""
    try:
        action(root)
    except CkptPatchError as error:
        return error.exit_code
    return 0


def mount(*words: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount")
    done = subprocess.run(["mount", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mount {' '.join(words)}: {done.stderr.strip()}")


@pytest.fixture
def small() -> Iterator[Path]:
    """A file system of 64 KB."""
    folder = Path(tempfile.mkdtemp())
    mount("-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder))
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
    folder.rmdir()


def test_a_file_system_that_is_really_full(small: Path) -> None:
    root = samples.build(small / "snapshot")
    pristine = samples.picture(root)
    filler = small / "filler"
    with pytest.raises(OSError, match="No space"):
        filler.write_bytes(bytes(65536))
    full = samples.picture(root)
    assert code(apply, root) in SCENARIOS[4].codes
    assert samples.picture(root) == full
    filler.unlink()
    assert code(apply, root) == 0
    transaction.undo(root)
    assert samples.picture(root) == pristine


def test_an_original_that_the_disk_does_not_give_back(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply(root)
    patched = samples.picture(root)

    def unreadable(_fd: int, name: str, _limit: int = 0) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO), name)

    with monkeypatch.context() as patch:
        patch.setattr(entry, "read_bytes", unreadable)
        assert code(transaction.undo, root) in SCENARIOS[5].codes
    assert samples.picture(root) == patched
    assert transaction.status(root).state == "patched"


def test_a_read_only_mount(root: Path) -> None:
    mount("--bind", str(root), str(root))
    try:
        mount("-o", "remount,bind,ro", str(root))
        assert code(apply, root) in SCENARIOS[8].codes
        assert open_checkpoint(root).documents.keys() == samples.BEFORE.keys()
    finally:
        subprocess.run(["umount", str(root)], check=True)
    assert not (root / NAME).exists()


def test_the_hub_library_still_understands_its_cache(tmp_path: Path) -> None:
    from conftest import COMMIT, make_cache
    from huggingface_hub import scan_cache_dir, try_to_load_from_cache

    snapshot = make_cache(tmp_path, "org/name", samples.BEFORE)
    blobs = snapshot.parent.parent / "blobs"
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in blobs.iterdir()}
    apply(snapshot)
    assert scan_cache_dir(tmp_path).warnings == []
    found = try_to_load_from_cache("org/name", "config.json", tmp_path, COMMIT)
    assert isinstance(found, str)
    assert Path(found).read_bytes() == samples.AFTER["config.json"]
    transaction.undo(snapshot)
    assert os.readlink(snapshot / "config.json").startswith("../../blobs/")
    after = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in blobs.iterdir()}
    assert after == before


def test_a_link_to_elsewhere_is_read_and_never_written_through(root: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere.json"
    os.rename(root / "config.json", elsewhere)
    (root / "config.json").symlink_to(elsewhere)
    before = elsewhere.stat().st_mtime_ns, elsewhere.stat().st_ino, elsewhere.read_bytes()
    apply(root)
    after = elsewhere.stat().st_mtime_ns, elsewhere.stat().st_ino, elsewhere.read_bytes()
    assert after == before
    assert (root / "config.json").read_bytes() == samples.AFTER["config.json"]
    transaction.undo(root)
    assert os.readlink(root / "config.json") == str(elsewhere)


def test_a_new_upstream_revision(root: Path) -> None:
    apply(root)
    new = samples.BEFORE["config.json"].replace(b"kimi_k2", b"kimi_k25")
    (root / "config.json").write_bytes(new)
    assert code(transaction.undo, root) in SCENARIOS[15].codes
    assert code(apply, root) in SCENARIOS[15].codes
    assert (root / "config.json").read_bytes() == new


def test_a_link_swapped_in_between_check_and_write(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(samples.BEFORE["config.json"])

    def swap(call: str, file: str) -> None:
        if (call, file) == ("rename", "config.json"):
            (root / "config.json").unlink()
            (root / "config.json").symlink_to(precious)

    monkeypatch.setattr(fsio, "hook", swap)
    assert code(apply, root) in {0, *SCENARIOS[19].codes}
    assert precious.read_bytes() == samples.BEFORE["config.json"]
    assert not (root / "config.json").is_symlink()


def test_two_names_that_differ_in_case(root: Path) -> None:
    (root / "Config.json").write_bytes(b"another")
    apply(root)
    assert (root / "Config.json").read_bytes() == b"another"
    os.rename(root / "config.json", root / "moved")
    with pytest.raises(UnreadableError, match=r"Config\.json") as caught:
        open_checkpoint(root)
    assert caught.value.exit_code in SCENARIOS[25].codes


def test_ids_do_not_come_from_the_clock(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from patcher.transaction import applying

    class Yesterday(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Yesterday:
            return cls(1971, 1, 1, tzinfo=tz)

    apply(root)
    transaction.undo(root)
    monkeypatch.setattr(applying, "datetime", Yesterday)
    apply(root)
    assert [(each.id, each.state) for each in transaction.log(root)] == [
        (1, "undone"),
        (2, "applied"),
    ]


@pytest.mark.parametrize("number", [8, 10, 12])
def test_too_few_file_descriptors(root: Path, number: int) -> None:
    pristine = samples.picture(root)

    def starved(at: Path) -> object:
        free = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (free - 1 + number - 8, free + 20))
        return apply(at)

    ran = harness.run(starved, root, harness.Fault(lambda: None), 0)
    assert ran.code in {0, 4, 5, 6}, ran
    transaction.recover(root)
    transaction.undo(root)
    assert samples.picture(root) == pristine


def test_a_limit_of_file_size(root: Path) -> None:
    def limited(at: Path) -> object:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))
        return apply(at)

    pristine = samples.picture(root)
    assert harness.run(limited, root, harness.Fault(lambda: None), 0).code == 5
    assert samples.picture(root) == pristine


def test_many_transactions(root: Path) -> None:
    pristine = samples.picture(root)
    for _ in range(30):
        apply(root)
        transaction.undo(root)
    assert transaction.log(root)[-1].id == 30
    assert samples.picture(root) == pristine


# --- The exit codes that people see, for the faults that are a state of the checkpoint

LAUNCH = ("--target", "sm120", "--engine", "vllm==0.16.0")
#: What starts has its shards looked at.
STARTS = ("check", "--target", "sm120", "--engine", "vllm==0.33.0")
CHECK, APPLY, UNDO, STATUS = ("check", *LAUNCH), ("apply", *LAUNCH), ("undo",), ("status",)

Prepare = Callable[[Path], Path | None]


def holds(name: str, change: Callable[[bytes], bytes]) -> Prepare:
    def prepare(root: Path) -> None:
        data = (root / name).read_bytes() if (root / name).exists() else b""
        (root / name).write_bytes(change(data))

    return prepare


def links(name: str, text: str) -> Prepare:
    def prepare(root: Path) -> None:
        (root / name).unlink(missing_ok=True)
        (root / name).symlink_to(text)

    return prepare


def patched(then: Prepare) -> Prepare:
    def prepare(root: Path) -> Path | None:
        assert run_cli([*APPLY, str(root)]) == 0
        return then(root)

    return prepare


def in_transaction(name: str, change: Callable[[bytes], bytes]) -> Prepare:
    def prepare(root: Path) -> None:
        path = root / NAME / "0001.applied" / name
        path.chmod(0o600)
        path.write_bytes(change(path.read_bytes()))

    return patched(prepare)


def put_back(root: Path) -> None:
    for name in samples.BEFORE:
        (root / name).write_bytes((FIXTURE / name).read_bytes())


def moved(root: Path) -> Path:
    return root.rename(root.with_name("elsewhere"))


def without_history(root: Path) -> Path:
    return shutil.copytree(root, root.with_name("copy"), ignore=shutil.ignore_patterns(NAME))


def a_directory(root: Path) -> None:
    (root / "config.json").unlink()
    (root / "config.json").mkdir()


def a_fifo(root: Path) -> None:
    os.mkfifo(root / "model.safetensors")


def another_case(root: Path) -> None:
    (root / "config.json").rename(root / "Config.json")


DUPLICATE = b'"kv_cache_scheme": null, "kv_cache_scheme"'
NEW_REVISION = holds("config.json", lambda data: data.replace(b"kimi_k25", b"kimi_k26"))
CLAIM = (10**8).to_bytes(8, "little")

#: scenario, what is prepared, command -> exit code, and what is said.
ENDS: list[tuple[int, Prepare, tuple[str, ...], int, str]] = [
    (12, links("config.json", "nowhere"), CHECK, 4, "is a link to nowhere"),
    (12, links("config.json", "config.json"), APPLY, 4, "leads back to itself"),
    (12, a_directory, APPLY, 4, "is a directory"),
    (13, patched(holds("config.json", lambda data: data + b"\n")), UNDO, 3, "was edited after"),
    (13, patched(holds("config.json", lambda _: b"{}")), UNDO, 3, "undo --force"),
    (13, patched(holds("config.json", lambda data: data + b"\n")), (*UNDO, "--merge"), 0, "stay"),
    (13, patched(holds("config.json", lambda _: b"{}")), (*UNDO, "--force"), 0, "a copy of"),
    (14, patched(put_back), UNDO, 0, "was put back by something else already"),
    (15, patched(NEW_REVISION), UNDO, 3, "was edited after"),
    (16, patched(moved), UNDO, 0, "restored"),
    (16, patched(without_history), STATUS, 0, "no patch of ckpt-patch is applied"),
    (16, patched(without_history), CHECK, 0, "compatible"),
    (17, in_transaction("record.json", lambda data: data[:-30]), UNDO, 3, "cannot be trusted"),
    (17, in_transaction("record.json", lambda data: data[:-30]), ("doctor",), 1, "cannot be trust"),
    (17, in_transaction("before/config.json", lambda _: b"{}"), UNDO, 3, "is damaged"),
    (18, holds("model.safetensors.index.json", lambda _: b'{"weight_map":{"a":"../x"}}'), STARTS, 4,
     "not a plain path"),
    (19, links(NAME, ".."), APPLY, 3, "cannot be used"),
    (20, a_fifo, STARTS, 4, "is a FIFO"),
    (20, holds("model.safetensors", lambda _: CLAIM + b"{}"), STARTS, 4, "claims a header"),
    (20, links("model.safetensors", "/dev/zero"), STARTS, 4, "device"),
    (21, holds("config.json", lambda _: b"[" * 100_000), CHECK, 4, "nested deeper"),
    (21, holds("config.json", lambda _: b" " * (17 << 20)), CHECK, 4, "bytes long, more than"),
    (22, holds("config.json", lambda data: data.replace(b'"kv_cache_scheme"', DUPLICATE)), APPLY, 4,
     "twice"),
    (23, holds("config.json", lambda data: data.decode().encode("utf-16")), CHECK, 4, "UTF-16"),
    (23, holds("config.json", lambda data: data.replace(b"{", b'{"x": Infinity,', 1)), APPLY, 0,
     "Applied"),
    (25, another_case, APPLY, 4, "has Config.json"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("number", "prepare", "words", "code", "said"),
    ENDS,
    ids=[f"{number}-{place}" for place, (number, *_) in enumerate(ENDS)],
)
def test_the_exit_code_on_the_command_line(  # noqa: PLR0913, PLR0917 - a row of the table
    tmp_path: Path,
    run: Run,
    number: int,
    prepare: Prepare,
    words: tuple[str, ...],
    code: int,
    said: str,
) -> None:
    root = shutil.copytree(FIXTURE, tmp_path / FIXTURE.name)
    root = prepare(root) or root
    done = run(*words, str(root))
    assert (done.code, said in done.out + done.err) == (code, True), done
    assert words[0] in {"status", "doctor"} or code in SCENARIOS[number].codes | {0, 1}
    assert "Traceback" not in done.err
