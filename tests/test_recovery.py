"""Interrupted transactions, two writers at once, and locks that do not lock."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
import time
import warnings
from typing import TYPE_CHECKING

import pytest
from faults import harness, samples

from patcher import fsio, transaction
from patcher.errors import CkptPatchError, InterruptedError_, RefusedError, RollbackError
from patcher.transaction.journal import NAME

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return samples.build(tmp_path / "ckpt" / "snapshot")


def die_at(root: Path, action: harness.Action, call: str, file: str) -> None:
    """Run the action in a child that dies just before this call."""

    def hook(name: str, target: str) -> None:
        if (name, target) == (call, file):
            os._exit(harness.KILLED)

    child = fork()
    if child == 0:
        fsio.hook = hook
        action(root)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == harness.KILLED


def fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def apply(root: Path) -> object:
    return transaction.apply(root, samples.change())


def apply_merge(root: Path) -> object:
    return transaction.undo(root, merge=True)


def apply_force(root: Path) -> object:
    return transaction.undo(root, force=True)


@pytest.mark.parametrize(
    ("file", "state", "sentence"),
    [
        ("0001.pending", "pristine", "dropped transaction 1, which had changed nothing yet"),
        ("hf_quant_config.json", "pristine", "rolled back transaction 1"),
        ("0001.applied", "patched", "finished transaction 1: every file had been written"),
    ],
)
def test_an_interrupted_apply(root: Path, file: str, state: str, sentence: str) -> None:
    pristine = samples.picture(root)
    die_at(root, apply, "rename", file)
    assert transaction.status(root).state == "interrupted"
    assert transaction.status(root).problem is not None
    (said,) = transaction.recover(root)
    assert said.startswith(sentence)
    assert transaction.recover(root) == ()
    assert transaction.status(root).state == state
    transaction.undo(root)
    assert samples.picture(root) == pristine


def test_an_interrupted_undo_is_finished(root: Path) -> None:
    pristine = samples.picture(root)
    apply(root)
    die_at(root, transaction.undo, "rename", "hf_quant_config.json")
    with pytest.raises(RefusedError, match="interrupted"):
        transaction.undo(root, dry_run=True)
    assert transaction.recover(root) == ("finished the undo of transaction 1",)
    assert samples.picture(root) == pristine


@pytest.mark.parametrize("file", ["0001.undoing", "config.json", "hf_quant_config.json"])
@pytest.mark.parametrize("undo", [apply_merge, apply_force])
def test_an_interrupted_undo_of_an_edited_file(root: Path, undo: harness.Action, file: str) -> None:
    apply(root)
    path = root / "config.json"
    path.write_bytes(samples.AFTER["config.json"].replace(b"kimi_k2", b"kimi_k3"))
    die_at(root, undo, "rename", file)
    transaction.recover(root)
    if transaction.status(root).state == "edited":
        undo(root)
    old = samples.BEFORE["config.json"]
    edited = old.replace(b"kimi_k2", b"kimi_k3")
    assert path.read_bytes() == (edited if undo is apply_merge else old)
    assert (root / "hf_quant_config.json").read_bytes() == samples.BEFORE["hf_quant_config.json"]
    assert transaction.status(root).state == "pristine"


def test_what_a_failed_merge_prepared_does_not_reach_a_later_undo(root: Path) -> None:
    pristine = samples.picture(root)
    apply(root)
    path = root / "config.json"
    path.write_bytes(samples.AFTER["config.json"].replace(b"kimi_k2", b"kimi_k3"))
    die_at(root, apply_merge, "rename", "0001.undoing")
    path.write_bytes(samples.AFTER["config.json"])
    transaction.undo(root)
    assert samples.picture(root) == pristine


def test_apply_and_undo_recover_first(root: Path) -> None:
    die_at(root, apply, "rename", "hf_quant_config.json")
    applied = transaction.apply(root, samples.change())
    assert applied.recovered[0].startswith("rolled back transaction 1")
    assert applied.record.id == 2
    die_at(root, transaction.undo, "rename", "hf_quant_config.json")
    assert transaction.undo(root).recovered == ("finished the undo of transaction 2",)


def test_a_file_edited_during_an_interruption_is_left_alone(root: Path) -> None:
    die_at(root, apply, "rename", "hf_quant_config.json")
    (root / "hf_quant_config.json").write_bytes(b"mine")
    for _ in range(2):
        with pytest.raises(RefusedError, match="left alone") as caught:
            transaction.recover(root)
        assert caught.value.path == "hf_quant_config.json"
    assert (root / "hf_quant_config.json").read_bytes() == b"mine"
    (root / "hf_quant_config.json").unlink()  # as the hint says
    transaction.recover(root)
    assert (root / "config.json").read_bytes() == samples.BEFORE["config.json"]


def test_a_roll_back_that_fails_names_the_state_of_every_file(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = False

    def hook(call: str, file: str) -> None:
        nonlocal broken
        broken |= (call, file) == ("rename", "hf_quant_config.json")
        if broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fsio, "hook", hook)
    with pytest.raises(RollbackError) as caught:
        transaction.apply(root, samples.change())
    monkeypatch.setattr(fsio, "hook", None)
    assert caught.value.hint == f"ckpt-patch recover {root}"
    assert caught.value.detail == "config.json: patched\nhf_quant_config.json: as it was before"
    assert transaction.recover(root)
    assert (root / "config.json").read_bytes() == samples.BEFORE["config.json"]


def test_foreign_names_like_our_temporaries_are_not_removed(root: Path) -> None:
    names = [".config.json.ckpt-patch-tmp.x", ".other.ckpt-patch-tmp." + "0" * 16, "config.json~"]
    for name in names:
        (root / name).touch()
    folder = root / f".config.json.ckpt-patch-tmp.{'0' * 16}"
    folder.mkdir()
    apply(root)
    assert all((root / name).exists() for name in names)
    assert folder.exists()


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_takes_everything_back(
    root: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int
) -> None:
    pristine = samples.picture(root)
    handler = signal.getsignal(number)

    def hook(call: str, file: str) -> None:
        if (call, file) == ("rename", "config.json"):
            os.kill(os.getpid(), number)

    monkeypatch.setattr(fsio, "hook", hook)
    with pytest.raises(InterruptedError_, match=number.name) as caught:
        transaction.apply(root, samples.change())
    assert caught.value.exit_code == code
    assert samples.picture(root) == pristine
    assert signal.getsignal(number) == handler
    assert [each.state for each in transaction.log(root)] == ["aborted"]


def test_a_signal_that_comes_too_late_is_mentioned(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hook(call: str, file: str) -> None:
        if (call, file) == ("rename", "0001.applied"):
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(fsio, "hook", hook)
    applied = transaction.apply(root, samples.change())
    assert len(applied.warnings) == 1
    assert applied.warnings[0].startswith("SIGTERM came when all was written")


def test_ignored_signals_stay_ignored(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    former = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        monkeypatch.setattr(fsio, "hook", lambda *_: os.kill(os.getpid(), signal.SIGHUP))
        transaction.apply(root, samples.change())
    finally:
        signal.signal(signal.SIGHUP, former)
    assert transaction.status(root).state == "patched"


class Writer:
    """A child that applies, stopped while it holds the lock, until it is told to go on."""

    def __init__(self, root: Path) -> None:
        reached, self._reached = os.pipe()
        self._go, go = os.pipe()
        self.pid = fork()
        if self.pid == 0:
            fsio.hook = self._stop
            try:
                transaction.apply(root, samples.change())
            except CkptPatchError as error:
                os._exit(error.exit_code)
            os._exit(0)
        os.read(reached, 1)
        self._release = go

    def _stop(self, call: str, file: str) -> None:
        if (call, file) == ("rename", "hf_quant_config.json"):
            os.write(self._reached, b".")
            os.read(self._go, 1)

    def finish(self) -> int:
        os.write(self._release, b".")
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)


def _no_lock(_fd: int, _how: int) -> None:
    """A flock that succeeds for everyone, as on some Lustre and NFS mounts."""


def _unsupported(_fd: int, _how: int) -> None:
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


@pytest.mark.parametrize("flock", [None, _no_lock], ids=["flock", "flock lies"])
@pytest.mark.parametrize("command", [apply, transaction.undo])
def test_the_second_writer_is_told_who_is_at_work(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: harness.Action,
    flock: Callable[[int, int], None] | None,
) -> None:
    if flock is not None:
        monkeypatch.setattr(fcntl, "flock", flock)
    writer = Writer(root)
    with pytest.raises(RefusedError) as caught:
        command(root)
    assert f"process {writer.pid} on {socket.gethostname()}, since " in caught.value.message
    assert transaction.status(root).state == "busy"
    assert writer.finish() == 0
    assert transaction.status(root).state == "patched"


def test_the_second_writer_may_wait(root: Path) -> None:
    writer = Writer(root)
    child = fork()
    if child == 0:
        transaction.undo(root, wait=20)
        os._exit(0)
    time.sleep(0.2)
    assert writer.finish() == 0
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert transaction.status(root).state == "pristine"


@pytest.mark.filterwarnings("ignore")
def test_without_flock(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pristine = samples.picture(root)
    monkeypatch.setattr(fcntl, "flock", _unsupported)
    transaction.apply(root, samples.change())
    transaction.undo(root)
    assert samples.picture(root) == pristine


def test_many_writers_at_once(root: Path) -> None:
    children = []
    for number in range(6):
        child = fork()
        if child == 0:
            code = 0
            try:
                if number % 2:
                    transaction.undo(root)
                else:
                    transaction.apply(root, samples.change())
            except CkptPatchError as error:
                code = error.exit_code
            os._exit(code)
        children.append(child)
    codes = {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children}
    assert codes <= {0, 3}
    contents = {name: (root / name).read_bytes() for name in samples.BEFORE}
    assert contents in (samples.BEFORE, samples.AFTER)
    assert transaction.recover(root) == ()


def note(root: Path, **changes: object) -> None:
    (root / NAME).mkdir(exist_ok=True)
    holder = {"pid": 1, "host": "elsewhere", "since": "now", "command": "apply", "birth": None}
    (root / NAME / "holder").write_text(json.dumps(holder | changes))


def test_a_note_of_another_machine_counts_for_a_minute(root: Path) -> None:
    note(root)
    with pytest.raises(RefusedError, match="process 1 on elsewhere"):
        apply(root)
    old = time.time() - 120
    os.utime(root / NAME / "holder", (old, old))
    apply(root)
    assert not (root / NAME / "holder").exists()


@pytest.mark.parametrize("birth", [None, "0"])
def test_the_note_of_a_process_that_is_gone_does_not_count(root: Path, birth: str | None) -> None:
    note(root, host=socket.gethostname(), birth=birth)  # pid 1 lives, with another birth
    apply(root)


def test_a_directory_claimed_by_another_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def claim(call: str, file: str) -> None:
        if (call, file) == ("mkdir", "0001.staging"):
            (root / NAME / "0001.staging").mkdir()

    monkeypatch.setattr(fsio, "hook", claim)
    with pytest.raises(RefusedError, match="begun this transaction"):
        transaction.apply(root, samples.change())
    assert (root / NAME / "0001.staging").exists()


def test_an_edit_between_check_and_write_is_not_overwritten(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def edit(call: str, file: str) -> None:
        if (call, file) == ("fsync", "record.json"):
            (root / "config.json").write_bytes(b"mine")

    monkeypatch.setattr(fsio, "hook", edit)
    with pytest.raises(RollbackError) as caught:
        transaction.apply(root, samples.change())
    assert "config.json: neither the original nor the patched file" in (caught.value.detail or "")
    assert (root / "config.json").read_bytes() == b"mine"
    assert (root / "hf_quant_config.json").read_bytes() == samples.BEFORE["hf_quant_config.json"]


def test_recover_without_a_journal(root: Path) -> None:
    assert transaction.recover(root) == ()
    assert not (root / NAME).exists()
