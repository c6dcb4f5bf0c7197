from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from faults import samples
from msgspec.structs import replace

from patcher import fsio, transaction
from patcher.edits import Change, FileEdit
from patcher.errors import CkptPatchError, RefusedError, UnreadableError, UsageError
from patcher.transaction.journal import NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REPORT = {"report.md": b"# report\n", "report.json": b"{}\n"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return samples.build(tmp_path / "ckpt" / "snapshot")


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    return samples.build(tmp_path / "cache" / "snapshot", linked=True)


def contents(root: Path) -> dict[str, bytes]:
    return {name: (root / name).read_bytes() for name in samples.BEFORE}


def tree(root: Path) -> dict[str, bytes]:
    """Every file of the journal."""
    return {
        str(path.relative_to(root / NAME)): path.read_bytes()
        for path in sorted((root / NAME).rglob("*"))
        if path.is_file()
    }


def test_apply_then_undo_gives_everything_back(root: Path) -> None:
    pristine = samples.picture(root)
    applied = transaction.apply(root, samples.change())
    assert contents(root) == samples.AFTER
    assert applied.record.id == 1
    assert applied.record.state == "applied"
    assert applied.warnings == applied.recovered == ()
    undone = transaction.undo(root)
    assert [step.action for step in undone.transactions[0].steps] == ["restore", "restore"]
    assert samples.picture(root) == pristine


def test_apply_keeps_mode_and_owner_and_takes_a_new_time(root: Path) -> None:
    former = os.umask(0o077)
    try:
        transaction.apply(root, samples.change())
    finally:
        os.umask(former)
    status = (root / "config.json").stat()
    assert stat.S_IMODE(status.st_mode) == 0o640
    assert status.st_mtime_ns > samples.MTIME_NS


@pytest.mark.parametrize("which", ["root", "linked"])
def test_keep_mtime(which: str, request: pytest.FixtureRequest) -> None:
    root = request.getfixturevalue(which)
    transaction.apply(root, samples.change(), keep_mtime=True)
    assert (root / "config.json").stat().st_mtime_ns == samples.MTIME_NS


def test_what_is_in_the_journal(root: Path) -> None:
    transaction.apply(root, samples.change(), attachments=REPORT)
    kept = tree(root)
    assert kept.keys() == {
        ".gitignore",
        "README",
        "lock",
        "0001.applied/record.json",
        "0001.applied/before/config.json",
        "0001.applied/before/hf_quant_config.json",
        "0001.applied/report.md",
        "0001.applied/report.json",
    }
    assert kept[".gitignore"] == b"*\n"
    assert kept["0001.applied/report.md"] == REPORT["report.md"]
    for name, data in samples.BEFORE.items():
        backup = root / NAME / "0001.applied" / "before" / name
        assert backup.read_bytes() == data
        assert stat.S_IMODE(backup.stat().st_mode) == 0o444
    assert {path.name for path in root.glob("*.json")} == set(samples.BEFORE)


def test_the_order_of_writes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, str]] = []
    monkeypatch.setattr(fsio, "hook", lambda call, file: calls.append((call, file)))
    transaction.apply(root, samples.change("config.json"))
    story = [
        (call, file.partition(".ckpt-patch-tmp")[0])
        for call, file in calls
        if call in {"mkdir", "fsync", "fsync_dir", "rename"} and file not in {"README", "holder"}
    ]
    start = story.index(("mkdir", "0001.staging"))
    assert story[start:] == [
        ("mkdir", "0001.staging"),
        ("mkdir", "before"),
        ("fsync", "config.json"),
        ("fsync_dir", "before"),
        ("fsync_dir", "0001.staging"),
        ("fsync", "record.json"),
        ("fsync_dir", "0001.staging"),
        ("fsync_dir", ".ckpt-patch"),
        ("fsync_dir", "."),
        ("rename", "0001.pending"),
        ("fsync_dir", ".ckpt-patch"),
        ("fsync", ".config.json"),
        ("rename", "config.json"),
        ("fsync_dir", "."),
        ("rename", "0001.applied"),
        ("fsync_dir", ".ckpt-patch"),
    ]


def test_links_of_a_cache_are_replaced_and_blobs_stay(linked: Path) -> None:
    pristine = samples.picture(linked)
    transaction.apply(linked, samples.change())
    patched = samples.picture(linked)
    assert contents(linked) == samples.AFTER
    for name in samples.BEFORE:
        assert not (linked / name).is_symlink()
        assert stat.S_IMODE((linked / name).stat().st_mode) == 0o640
        assert patched[f"blobs/{name}"] == pristine[f"blobs/{name}"]
    transaction.undo(linked)
    assert samples.picture(linked) == pristine
    assert os.readlink(linked / "config.json") == "../blobs/config.json"


def test_the_other_name_of_a_hard_link_keeps_the_old_bytes(root: Path) -> None:
    os.link(root / "config.json", root.parent / "other")
    applied = transaction.apply(root, samples.change())
    assert len(applied.warnings) == 1
    assert "config.json has 1 other name" in applied.warnings[0]
    assert (root.parent / "other").read_bytes() == samples.BEFORE["config.json"]


def test_user_attributes_stay_with_the_name(root: Path) -> None:
    try:
        os.setxattr(root / "config.json", "user.origin", b"hub")
    except OSError:
        pytest.skip("this file system has no user attributes")
    transaction.apply(root, samples.change())
    assert os.getxattr(root / "config.json", "user.origin") == b"hub"
    transaction.undo(root)
    assert os.getxattr(root / "config.json", "user.origin") == b"hub"


def test_a_file_that_changed_since_the_plan_is_refused_without_a_trace(root: Path) -> None:
    edited = samples.BEFORE["config.json"].replace(b"kimi_k2", b"kimi_k3")
    (root / "config.json").write_bytes(edited)
    before = samples.picture(root)
    with pytest.raises(RefusedError, match="changed since the plan") as caught:
        transaction.apply(root, samples.change())
    assert caught.value.path == "config.json"
    assert caught.value.detail is not None
    assert '-  "model_type": "kimi_k2"' in caught.value.detail
    assert '+  "model_type": "kimi_k3"' in caught.value.detail
    assert samples.picture(root) == before
    assert not (root / NAME).exists()


def test_a_second_apply_of_the_same_plan_is_refused(root: Path) -> None:
    transaction.apply(root, samples.change())
    with pytest.raises(RefusedError, match="changed since the plan"):
        transaction.apply(root, samples.change())
    assert transaction.status(root).state == "patched"


def test_an_empty_change_is_refused(root: Path) -> None:
    with pytest.raises(RefusedError):
        transaction.apply(root, replace(samples.change(), edits=()))


@pytest.mark.parametrize("name", ["../config.json", "model.safetensors", "tokenizer.json"])
def test_an_edit_of_another_file_cannot_even_be_made(name: str) -> None:
    with pytest.raises(RefusedError):
        FileEdit(name, (), (), b"a", b"b")


def _dangling(path: Path) -> None:
    path.symlink_to("nowhere")


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


def _folder(path: Path) -> None:
    path.mkdir()


def _to_folder(path: Path) -> None:
    path.symlink_to(".")


@pytest.mark.parametrize("plant", [_dangling, _loop, _folder, _to_folder, os.mkfifo])
def test_what_is_no_file_cannot_be_patched(root: Path, plant: Callable[[Path], None]) -> None:
    (root / "config.json").unlink()
    plant(root / "config.json")
    with pytest.raises(UnreadableError) as caught:
        transaction.apply(root, samples.change())
    assert caught.value.path == "config.json"
    assert not (root / NAME).exists()


def test_edited_after_apply(root: Path) -> None:
    transaction.apply(root, samples.change())
    edited = samples.AFTER["config.json"].replace(b"kimi_k2", b"kimi_k3")
    (root / "config.json").write_bytes(edited)
    before = samples.picture(root)
    with pytest.raises(RefusedError, match="edited after") as caught:
        transaction.undo(root)
    error = caught.value
    assert error.path == "config.json"
    assert error.hint is not None
    assert f"ckpt-patch undo --merge {root}" in error.hint
    assert f"ckpt-patch undo --force {root}" in error.hint
    assert error.detail is not None
    assert '-  "model_type": "kimi_k2"' in error.detail
    assert '+  "model_type": "kimi_k3"' in error.detail
    assert "kv_cache_scheme" not in "".join(
        line for line in error.detail.splitlines() if line[:1] in "+-"
    ), "the patch itself is no edit"
    assert samples.picture(root) == before
    assert transaction.status(root).state == "edited"


def test_merge_takes_back_only_the_keys_of_the_patch(root: Path) -> None:
    transaction.apply(root, samples.change())
    path = root / "config.json"
    path.write_bytes(samples.AFTER["config.json"].replace(b"kimi_k2", b"kimi_k3"))
    undone = transaction.undo(root, merge=True)
    assert path.read_bytes() == samples.BEFORE["config.json"].replace(b"kimi_k2", b"kimi_k3")
    assert (root / "hf_quant_config.json").read_bytes() == samples.BEFORE["hf_quant_config.json"]
    assert [step.action for step in undone.transactions[0].steps] == ["merge", "restore"]
    assert transaction.status(root).state == "pristine"
    kept = tree(root)["0001.undone/kept/config.json"]
    assert kept == samples.AFTER["config.json"].replace(b"kimi_k2", b"kimi_k3")


@pytest.mark.parametrize("data", [b"not json", b'{"quantization_config": {}}', b""])
def test_merge_is_refused_where_it_does_not_fit(root: Path, data: bytes) -> None:
    transaction.apply(root, samples.change())
    (root / "config.json").write_bytes(data)
    with pytest.raises(RefusedError) as caught:
        transaction.undo(root, merge=True)
    assert "undo --force" in (caught.value.hint or "")
    assert (root / "config.json").read_bytes() == data


def test_force_keeps_the_present_file_in_the_record(root: Path) -> None:
    pristine = samples.picture(root)
    transaction.apply(root, samples.change())
    (root / "config.json").write_bytes(b"mine")
    transaction.undo(root, force=True)
    assert samples.picture(root) == pristine
    assert tree(root)["0001.undone/kept/config.json"] == b"mine"


def test_a_file_that_is_gone_comes_back_only_by_force(root: Path) -> None:
    pristine = samples.picture(root)
    transaction.apply(root, samples.change())
    (root / "config.json").unlink()
    with pytest.raises(RefusedError, match="is gone"):
        transaction.undo(root)
    transaction.undo(root, force=True)
    assert samples.picture(root) == pristine


def test_merge_and_force_exclude_each_other(root: Path) -> None:
    with pytest.raises(UsageError):
        transaction.undo(root, merge=True, force=True)


def test_reverted_outside(root: Path) -> None:
    transaction.apply(root, samples.change())
    for name, data in samples.BEFORE.items():
        (root / name).write_bytes(data)
    before = samples.picture(root)
    assert transaction.status(root).state == "reverted"
    undone = transaction.undo(root)
    assert undone.transactions[0].reverted_outside
    assert samples.picture(root) == before
    assert transaction.status(root).state == "pristine"


def test_apply_closes_what_was_reverted_outside(root: Path) -> None:
    transaction.apply(root, samples.change())
    for name, data in samples.BEFORE.items():
        (root / name).write_bytes(data)
    applied = transaction.apply(root, samples.change())
    assert applied.record.id == 2
    assert len(applied.recovered) == 1
    assert [each.state for each in transaction.log(root)] == ["undone", "applied"]


def test_one_file_reverted_outside(root: Path) -> None:
    transaction.apply(root, samples.change())
    (root / "config.json").write_bytes(samples.BEFORE["config.json"])
    status = transaction.status(root)
    assert status.state == "edited"
    assert {each.file: each.state for each in status.files} == {
        "config.json": "before",
        "hf_quant_config.json": "after",
    }
    transaction.undo(root)
    assert contents(root) == samples.BEFORE


def test_several_transactions_are_taken_back_one_by_one_or_together(root: Path) -> None:
    pristine = samples.picture(root)
    transaction.apply(root, samples.change("config.json"))
    middle = samples.picture(root)
    transaction.apply(root, samples.change("hf_quant_config.json"))
    assert [each.file for each in transaction.status(root).files] == [
        "config.json",
        "hf_quant_config.json",
    ]
    transaction.undo(root)
    assert samples.picture(root) == middle
    transaction.apply(root, samples.change("hf_quant_config.json"))
    undone = transaction.undo(root, to=0)
    assert [each.record.id for each in undone.transactions] == [3, 1]
    assert samples.picture(root) == pristine


def test_patches_on_top_of_each_other(root: Path) -> None:
    pristine = samples.picture(root)
    transaction.apply(root, samples.change("config.json"))
    first = samples.AFTER["config.json"]
    second = first.replace(b"kimi_k2", b"kimi_k3")
    operation = {"op": "replace", "path": "/model_type", "value": "kimi_k3"}
    edit = FileEdit("config.json", (operation,), (operation,), first, second)
    transaction.apply(root, replace(samples.change(), edits=(edit,)))
    dry = transaction.undo(root, to=0, dry_run=True)
    assert [each.steps[0].wanted.data for each in dry.transactions] == [
        first,
        samples.BEFORE["config.json"],
    ]
    transaction.undo(root, to=1)
    assert (root / "config.json").read_bytes() == first
    transaction.undo(root)
    assert samples.picture(root) == pristine


def test_a_dry_run_writes_nothing_and_shows_the_diff(root: Path) -> None:
    transaction.apply(root, samples.change())
    before, journal = samples.picture(root), tree(root)
    undone = transaction.undo(root, dry_run=True)
    assert "+" in undone.transactions[0].steps[0].diff()
    assert samples.picture(root) == before
    assert tree(root) == journal


def test_nothing_to_undo(root: Path) -> None:
    assert transaction.undo(root).transactions == ()
    assert not (root / NAME).exists()
    transaction.apply(root, samples.change())
    transaction.undo(root)
    assert transaction.undo(root).transactions == ()


def test_status_and_log_make_nothing(root: Path) -> None:
    assert transaction.status(root).state == "pristine"
    assert transaction.log(root) == ()
    assert not (root / NAME).exists()
    transaction.apply(root, samples.change())
    status = transaction.status(root)
    assert status.state == "patched"
    assert status.record is not None
    assert status.record.to_dict()["files"][0]["before_sha256"]
    assert [(each.id, each.state) for each in transaction.log(root)] == [(1, "applied")]


def test_moved_and_copied_checkpoints_keep_their_undo(root: Path) -> None:
    pristine = samples.picture(root)
    transaction.apply(root, samples.change())
    moved = root.rename(root.parent / "moved")
    copied = root.parent.parent / "copy" / "snapshot"
    shutil.copytree(moved, copied, symlinks=True)
    transaction.undo(copied)
    assert samples.picture(copied) == pristine
    transaction.undo(moved)
    assert contents(moved) == samples.BEFORE


def test_a_copy_without_the_journal_has_no_history(root: Path) -> None:
    transaction.apply(root, samples.change())
    shutil.rmtree(root / NAME)
    assert transaction.status(root).state == "pristine"
    assert transaction.undo(root).transactions == ()


@pytest.mark.parametrize("plant", [_dangling, lambda path: path.symlink_to("/tmp"), Path.touch])
def test_a_planted_journal_is_refused(root: Path, plant: Callable[[Path], None]) -> None:
    plant(root / NAME)
    calls: list[Callable[[], object]] = [
        lambda: transaction.apply(root, samples.change()),
        lambda: transaction.undo(root),
        lambda: transaction.status(root),
    ]
    for call in calls:
        with pytest.raises(RefusedError) as caught:
            call()
        assert caught.value.path == NAME
    assert contents(root) == samples.BEFORE


@pytest.mark.parametrize("name", ["lock", "holder", "README", ".gitignore"])
def test_a_planted_link_in_the_journal_is_never_written_through(root: Path, name: str) -> None:
    precious = root.parent / "precious"
    precious.write_bytes(b"precious")
    (root / NAME).mkdir()
    (root / NAME / name).symlink_to(precious)
    if name == "lock":
        with pytest.raises(RefusedError):
            transaction.apply(root, samples.change())
    else:  # the link is removed, and a file takes its place
        transaction.apply(root, samples.change())
    assert precious.read_bytes() == b"precious"
    assert contents(root) == (samples.BEFORE if name == "lock" else samples.AFTER)


def test_a_planted_folder_of_originals_is_refused(root: Path) -> None:
    transaction.apply(root, samples.change())
    before = root / NAME / "0001.applied" / "before"
    elsewhere = before.rename(root.parent / "elsewhere")
    before.symlink_to(elsewhere)
    with pytest.raises(RefusedError) as caught:
        transaction.undo(root)
    assert caught.value.path == f"{NAME}/0001.applied/before/config.json"
    assert contents(root) == samples.AFTER


@pytest.mark.parametrize("data", [b"", samples.AFTER["config.json"], None])
def test_a_damaged_original_is_refused(root: Path, data: bytes | None) -> None:
    transaction.apply(root, samples.change())
    backup = root / NAME / "0001.applied" / "before" / "config.json"
    backup.unlink()
    if data is not None:
        backup.write_bytes(data)
    with pytest.raises(RefusedError, match="missing" if data is None else "damaged") as caught:
        transaction.undo(root)
    assert caught.value.path == f"{NAME}/0001.applied/before/config.json"
    assert contents(root) == samples.AFTER


def test_a_damaged_record_is_refused_and_listed(root: Path) -> None:
    transaction.apply(root, samples.change())
    path = root / NAME / "0001.applied" / "record.json"
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[:100])
    with pytest.raises(RefusedError) as caught:
        transaction.undo(root)
    assert caught.value.path == f"{NAME}/0001.applied/record.json"
    assert transaction.status(root).state == "damaged"
    entry = transaction.log(root)[0]
    assert entry.record is None
    assert entry.problem is not None
    assert "record.json" in entry.problem


def test_the_record_of_another_transaction_is_refused(root: Path) -> None:
    transaction.apply(root, samples.change())
    (root / NAME / "0001.applied").rename(root / NAME / "0007.applied")
    with pytest.raises(RefusedError, match="record of transaction 1"):
        transaction.undo(root)


def test_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError):
        transaction.status(tmp_path / "absent")


def as_nobody(action: Callable[[], object]) -> CkptPatchError | None:
    """Run the action with another user's rights; root ignores mode bits."""
    caught: list[CkptPatchError] = []
    os.seteuid(65534)
    try:
        action()
    except CkptPatchError as error:
        caught.append(error)
    finally:
        os.seteuid(0)
    return caught[0] if caught else None


@pytest.fixture
def shared(root: Path) -> Iterator[Path]:
    """A checkpoint that other users can reach."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to act as another user")
    folders = [
        root,
        *(each for each in root.parents if each.owner() == "root" and each != Path("/")),
    ]
    former = {each: each.stat().st_mode for each in folders}
    for each in folders:
        each.chmod(former[each] | 0o055)
    yield root
    for each in folders:
        each.chmod(former[each])


def _only_readable(root: Path) -> None:
    for name in samples.BEFORE:
        (root / name).chmod(0o644)


def _foreign_files(root: Path) -> None:
    for name in samples.BEFORE:
        (root / name).chmod(0o666)
    root.chmod(0o777)


def _own_but_read_only(root: Path) -> None:
    root.chmod(0o777)
    for name in samples.BEFORE:
        os.chown(root / name, 65534, 65534)
        (root / name).chmod(0o444)


@pytest.mark.parametrize("prepare", [_only_readable, _foreign_files, _own_but_read_only])
def test_what_cannot_be_written_is_refused_without_a_trace(
    shared: Path, prepare: Callable[[Path], None]
) -> None:
    prepare(shared)
    before = samples.picture(shared)
    error = as_nobody(lambda: transaction.apply(shared, samples.change()))
    assert isinstance(error, RefusedError)
    assert "ckpt-patch mirror" in (error.hint or "")
    assert samples.picture(shared) == before
    assert not (shared / NAME).exists()


def test_the_journal_of_another_user_is_refused(shared: Path) -> None:
    transaction.apply(shared, samples.change())
    shared.chmod(0o777)
    (shared / NAME).chmod(0o777)
    error = as_nobody(lambda: transaction.undo(shared))
    assert isinstance(error, RefusedError)
    assert error.path == NAME
    assert contents(shared) == samples.AFTER


def test_an_immutable_file_is_refused_without_a_trace(root: Path) -> None:
    chattr = shutil.which("chattr")
    path = root / "config.json"
    if (
        not chattr
        or subprocess.run([chattr, "+i", path], capture_output=True, check=False).returncode
    ):
        pytest.skip("needs chattr, root, and a file system with immutable files")
    try:
        with pytest.raises(RefusedError, match="read-only") as caught:
            transaction.apply(root, samples.change())
    finally:
        subprocess.run([chattr, "-i", path], check=True)
    assert caught.value.path == "config.json"
    assert not (root / NAME).exists()


def test_a_full_file_system_names_its_free_bytes(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(call: str, file: str) -> None:
        if call == "write" and file == "record.json":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(fsio, "hook", full)
    with pytest.raises(CkptPatchError) as caught:
        transaction.apply(root, samples.change())
    assert caught.value.exit_code == 5
    assert "record.json" in caught.value.message
    assert "bytes free" in caught.value.message
    assert contents(root) == samples.BEFORE
    assert transaction.status(root).state == "pristine"


def test_another_thread_may_apply(root: Path) -> None:
    threads = [threading.Thread(target=transaction.apply, args=(root, samples.change()))]
    threads[0].start()
    threads[0].join()
    assert contents(root) == samples.AFTER


def test_the_state_modules_load_no_heavy_library() -> None:
    code = (
        "import sys, patcher.transaction\n"
        "print(sorted({'filelock', 'jsonpatch', 'numpy'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_the_sample_is_a_real_patch() -> None:
    from patcher import jsontext

    change: Change = samples.change()
    for edit in change.edits:
        document = jsontext.read(edit.before, source=edit.file)
        assert jsontext.splice(document, edit.patch) == edit.after
        patched = jsontext.read(edit.after, source=edit.file)
        assert jsontext.splice(patched, edit.inverse) == edit.before
