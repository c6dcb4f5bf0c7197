from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

import pytest

from patcher import fsio

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    with fsio.open_dir(str(tmp_path)) as fd:
        yield fd


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    seen: list[tuple[str, str]] = []
    monkeypatch.setattr(fsio, "hook", lambda call, file: seen.append((call, file)))
    return seen


def test_the_hook_is_absent_in_production() -> None:
    assert fsio.hook is None


def test_create_gives_bytes_mode_and_time_whatever_the_umask(folder: int, tmp_path: Path) -> None:
    former = os.umask(0o077)
    try:
        fsio.create(folder, "a", b"bytes", mode=0o664, mtime_ns=1_234_567_890_123_456_789)
    finally:
        os.umask(former)
    status = (tmp_path / "a").stat()
    assert (tmp_path / "a").read_bytes() == b"bytes"
    assert stat.S_IMODE(status.st_mode) == 0o664
    assert status.st_mtime_ns == 1_234_567_890_123_456_789


def test_create_syncs_last(folder: int, calls: list[tuple[str, str]]) -> None:
    fsio.create(folder, "a", b"bytes", owner=(os.getuid(), os.getgid()), mtime_ns=1)
    assert [call for call, _ in calls] == ["open", "write", "chown", "chmod", "utime", "fsync"]
    assert {file for _, file in calls} == {"a"}


@pytest.mark.parametrize("dangling", [False, True])
def test_create_never_takes_a_name_that_is_taken(
    folder: int, tmp_path: Path, *, dangling: bool
) -> None:
    if dangling:
        (tmp_path / "a").symlink_to("elsewhere")
    else:
        (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(FileExistsError):
        fsio.create(folder, "a", b"new")
    assert not (tmp_path / "elsewhere").exists()
    assert dangling or (tmp_path / "a").read_bytes() == b"old"


def test_user_attributes(folder: int, tmp_path: Path) -> None:
    try:
        fsio.create(folder, "a", b"", xattrs={"user.origin": b"hub"})
    except OSError as error:
        if error.errno == errno.ENOTSUP:
            pytest.skip("this file system has no user attributes")
        raise
    assert os.getxattr(tmp_path / "a", "user.origin") == b"hub"


def test_open_dir_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with (
        pytest.raises(OSError, match=r"Not a directory|Too many levels"),
        fsio.open_dir(str(tmp_path / "link")),
    ):
        pass
    with fsio.open_dir(str(tmp_path / "link"), follow=True) as fd:
        assert os.listdir(fd) == []


def test_rename_replaces_a_link_and_not_its_target(folder: int, tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(b"blob")
    (tmp_path / "name").symlink_to("blob")
    fsio.create(folder, "new", b"new")
    fsio.rename(folder, "new", "name")
    assert not (tmp_path / "name").is_symlink()
    assert (tmp_path / "name").read_bytes() == b"new"
    assert (tmp_path / "blob").read_bytes() == b"blob"


def test_a_rename_that_happened_is_a_success(
    folder: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsio.create(folder, "a", b"new")
    monkeypatch.setattr(fsio, "hook", lambda *_: OSError(errno.EIO, "lost reply"))
    fsio.rename(folder, "a", "b")
    assert os.listdir(tmp_path) == ["b"]


def test_a_rename_that_did_not_happen_is_a_failure(
    folder: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_call: str, _file: str) -> None:
        raise OSError(errno.EIO, "no")

    fsio.create(folder, "a", b"new")
    fsio.create(folder, "b", b"old")
    monkeypatch.setattr(fsio, "hook", fail)
    with pytest.raises(OSError, match="no") as caught:
        fsio.rename(folder, "a", "b")
    assert caught.value.filename == "b"
    assert (tmp_path / "b").read_bytes() == b"old"


def test_short_writes_are_continued(
    folder: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fsio, "hook", lambda call, _file: 3 if call == "write" else None)
    fsio.create(folder, "a", b"0123456789")
    assert (tmp_path / "a").read_bytes() == b"0123456789"


def test_symlink_keeps_its_text_and_its_own_time(folder: int, tmp_path: Path) -> None:
    fsio.symlink(folder, "a", "../../blobs/./x", owner=(os.getuid(), os.getgid()), mtime_ns=7)
    assert os.readlink(tmp_path / "a") == "../../blobs/./x"
    assert (tmp_path / "a").lstat().st_mtime_ns == 7


def test_link_is_a_second_name(folder: int, tmp_path: Path) -> None:
    fsio.create(folder, "a", b"weights")
    fsio.link(folder, "a", folder, "b")
    assert (tmp_path / "a").stat().st_ino == (tmp_path / "b").stat().st_ino


def test_copy_is_another_file(folder: int, tmp_path: Path) -> None:
    data = os.urandom(100_000)
    (tmp_path / "a").write_bytes(data)
    source = os.open(tmp_path / "a", os.O_RDONLY)
    try:
        fsio.copy(source, folder, "b", mode=0o600)
    finally:
        os.close(source)
    assert (tmp_path / "b").read_bytes() == data
    assert (tmp_path / "a").stat().st_ino != (tmp_path / "b").stat().st_ino
    assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == 0o600


def test_remove_tree_follows_no_link(folder: int, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_bytes(b"")
    (tmp_path / "tree" / "deep").mkdir(parents=True)
    (tmp_path / "tree" / "deep" / "file").write_bytes(b"")
    (tmp_path / "tree" / "link").symlink_to("../precious")
    fsio.remove_tree(folder, "tree")
    assert sorted(os.listdir(tmp_path)) == ["precious"]
    assert (tmp_path / "precious" / "file").exists()


@pytest.mark.parametrize(("number", "fails"), [(errno.EINVAL, False), (errno.EIO, True)])
def test_fsync_dir_forgives_only_what_cannot_be_done(
    folder: int, monkeypatch: pytest.MonkeyPatch, number: int, *, fails: bool
) -> None:
    def fail(_fd: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    if fails:
        with pytest.raises(OSError, match="Input/output"):
            fsio.fsync_dir(folder, ".")
    else:
        fsio.fsync_dir(folder, ".")
