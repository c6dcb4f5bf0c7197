"""Mirrors that are stopped, what is on disk when, and eight of them at once.

A fault at every call and power cuts: `test_faults` and `test_powercut`, as for every command.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from conftest import make_checkpoint
from faults import order, races
from faults.mirrors import FORMER, SHARD, WANTED, Maker, build
from faults.operations import OPERATIONS

from patcher import fsio, mirroring
from patcher.errors import CkptPatchError, RefusedError
from patcher.mirroring import workspace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder in memory where there is one."""
    memory = "/dev/shm"
    folder = tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else None)
    yield Path(folder)
    shutil.rmtree(folder)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return build(tmp_path / "source")


def test_a_full_disk_leaves_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Counter[str]()

    def hook(call: str, _file: str) -> None:
        calls[call] += 1
        if call == "write" and calls[call] == 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(fsio, "hook", hook)
    with pytest.raises(CkptPatchError, match="No space left on device") as caught:
        Maker(source).make(tmp_path / "mirror")
    assert caught.value.exit_code == 5
    assert os.listdir(tmp_path) == ["source"]


def test_a_signal_stops_a_long_copy(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (source / SHARD).open("r+b") as file:
        file.truncate(40 * 1024 * 1024)
    (source / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": {"a": SHARD}})
    )
    prepared = Maker(source).prepare(tmp_path / "mirror", "copy")
    written: list[str] = []

    def hook(call: str, file: str) -> None:
        if call == "write" and file == SHARD:
            written.append(file)
            if len(written) == 2:
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(fsio, "hook", hook)
    with pytest.raises(CkptPatchError, match="interrupted by SIGINT") as caught:
        mirroring.make(prepared)
    assert caught.value.exit_code == 130
    assert len(written) == 2
    assert os.listdir(tmp_path) == ["source"]


def test_everything_is_on_disk_before_it_has_its_name(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File systems differ in what a power cut takes; the order is what holds on all of them."""
    calls: list[tuple[str, str]] = []
    monkeypatch.setattr(fsio, "hook", lambda call, file: calls.append((call, file)))
    Maker(source).make(tmp_path / "mirror", "copy")
    commit = calls.index(("rename", "mirror"))
    before, after = calls[:commit], calls[commit + 1 :]
    tree = next(file for call, file in before if call == "mkdir" and file.startswith("tree."))
    for name in ("config.json", "hf_quant_config.json", "tokenizer.json", SHARD, "mirror.json"):
        assert before.index(("fsync", name)) > max(
            at for at, each in enumerate(before) if each == ("write", name)
        )
    for folder in ("sub", ".ckpt-patch", tree):
        synced = before.index(("fsync_dir", folder))
        assert synced > before.index(("mkdir", folder))
    assert before.index(("fsync_dir", tree)) > before.index(("fsync", "mirror.json"))
    assert before.index(("fsync_dir", "sub")) > before.index(("open", "tokenizer.json"))
    assert after[0] == ("fsync_dir", str(tmp_path))


def test_a_revision_is_on_disk_before_its_name_means_it(tmp_path: Path) -> None:
    """Blobs, then the snapshot, then the list of it, each durable before what rests on it."""
    story = order.calls(tmp_path, OPERATIONS["mirror --cache-revision"])
    steps = [
        re.sub("[0-9a-f]{40}", "HASH", f"{call} {name}")
        for call, name in story
        if call in {"fsync_dir", "link", "rename"} and not name.startswith("gone.")
    ]
    assert steps == [
        "link HASH", "link HASH", "fsync_dir blobs",
        "fsync_dir .ckpt-patch", "fsync_dir .",  # the snapshot, still hidden
        "fsync_dir .",  # the repository has a new folder: trees
        "rename HASH.json", "fsync_dir trees",
        "rename HASH", "fsync_dir snapshots",
        "link patched", "fsync_dir refs",
    ]  # fmt: skip


# --- Several at once


def lying_flock() -> None:
    """Locks that succeed for everyone, as on some network file systems."""
    vars(fcntl)["flock"] = lambda _fd, _how: None


def missing_flock() -> None:
    """Folders that cannot be locked, as on NFS."""

    def refuse(_fd: int, _how: int) -> None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    vars(fcntl)["flock"] = refuse


@pytest.mark.parametrize("lock", [races.honest_flock, lying_flock, missing_flock])
@pytest.mark.parametrize("replaces", [False, True])
def test_eight_at_once_give_one_tree(
    scratch: Path, lock: Callable[[], None], *, replaces: bool
) -> None:
    root = build(scratch / "source")
    maker = Maker(root)

    def command(folder: Path) -> None:
        maker.make(folder / "mirror")

    for number in range(2):
        home = scratch / f"home{number}"
        home.mkdir()
        if replaces:
            maker.make(home / "mirror", version=FORMER)
        ends = races.race(home, [command] * 8, lock)
        assert [end.code for end in ends] == [0] * 8, [end.message for end in ends]
        assert mirroring.verify(home / "mirror").manifest.target["version"] == WANTED
        assert mirroring.verify(home / "mirror").problems == ()
        assert os.listdir(home) == ["mirror"]


@pytest.mark.parametrize("finishes", [True, False])
def test_the_work_of_a_living_process_is_left_alone(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, finishes: bool
) -> None:
    """A second run waits for the first, which holds the lock; then the mirror is there, or not."""
    maker = Maker(source)
    maker.make(tmp_path / "first" if finishes else tmp_path / "mirror", "hardlink")
    if not finishes:
        shutil.rmtree(tmp_path / "mirror")
    name = workspace.name_for("mirror")
    (tmp_path / name / "tree.living").mkdir(parents=True)
    fd = os.open(tmp_path / name, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    calls: list[str] = []
    monkeypatch.setattr(fsio, "hook", lambda call, _file: calls.append(call))
    made: list[str] = []
    waiter = threading.Thread(
        target=lambda: made.append(maker.make(tmp_path / "mirror", "hardlink").outcome)
    )
    waiter.start()
    time.sleep(0.3)
    assert made == []
    assert os.listdir(tmp_path / name) == ["tree.living"]
    if finishes:
        os.rename(tmp_path / "first", tmp_path / "mirror")
    os.close(fd)
    waiter.join(10)
    assert made == ["current" if finishes else "made"]
    assert ("link" in calls) == (not finishes)
    assert sorted(os.listdir(tmp_path)) == ["mirror", "source"]


@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_planted_workspace_is_refused(source: Path, tmp_path: Path, kind: str) -> None:
    planted = tmp_path / workspace.name_for("mirror")
    precious = make_checkpoint(tmp_path / "precious", {"file": b""})
    if kind == "file":
        planted.write_bytes(b"")
    else:
        planted.symlink_to(precious)
    with pytest.raises(RefusedError, match="something else has the name"):
        Maker(source).make(tmp_path / "mirror")
    assert (precious / "file").exists()
