"""Twenty-five faults, what each must end in, and the tests that show it.

Where a test elsewhere shows it, the table names that test; the others are below.
"""

from __future__ import annotations

import ast
import errno
import os
import resource
import subprocess
import tempfile
from dataclasses import dataclass
from datetime import datetime, tzinfo
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from faults import harness, samples
from faults.operations import apply

from patcher import fsio, transaction
from patcher.checkpoint import open_checkpoint
from patcher.errors import CkptPatchError, UnreadableError
from patcher.transaction import entry
from patcher.transaction.journal import NAME

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Scenario:
    """A fault, the exit codes that it may end in, and ``file::test`` names; own ones need no file.

    137 stands for ``kill -9`` and for the process that a power cut takes along.
    """

    fault: str
    codes: set[int]
    tests: tuple[str, ...]


SCENARIOS = {
    1: Scenario(
        "kill -9 at each mutating call",
        {137},
        ("faults::test_every_point", "faults::test_a_kill_by_the_kernel"),
    ),
    2: Scenario("power cut at each mutating call", {137}, ("powercut::test_a_power_cut",)),
    3: Scenario(
        "power cut right after exit 0",
        {0},
        ("powercut::test_a_power_cut", "mutants::test_the_part_catches_the_mutant"),
    ),
    4: Scenario(
        "no space left",
        {5},
        (
            "faults::test_every_point",
            "transaction::test_a_full_file_system_names_its_free_bytes",
            "test_a_file_system_that_is_really_full",
        ),
    ),
    5: Scenario(
        "EIO on write, fsync, rename, and on reading an original",
        {5},
        ("faults::test_every_point", "test_an_original_that_the_disk_does_not_give_back"),
    ),
    6: Scenario(
        "the roll-back fails itself",
        {6},
        (
            "faults::test_every_point",
            "recovery::test_a_roll_back_that_fails_names_the_state_of_every_file",
        ),
    ),
    7: Scenario(
        "short write, EINTR, torn write",
        {0, 5, 137},
        (
            "faults::test_every_point",
            "faults::test_a_call_that_the_kernel_interrupts_is_made_again",
            "fsio::test_short_writes_are_continued",
        ),
    ),
    8: Scenario(
        "read-only file system, directory or file; immutable; another owner",
        {3},
        (
            "transaction::test_what_cannot_be_written_is_refused_without_a_trace",
            "transaction::test_an_immutable_file_is_refused_without_a_trace",
            "test_a_read_only_mount",
        ),
    ),
    9: Scenario(
        "two commands at once",
        {0, 3},
        (
            "concurrency::test_a_race",
            "concurrency::test_the_loser_names_the_winner",
            "recovery::test_the_second_writer_may_wait",
        ),
    ),
    10: Scenario(
        "flock that succeeds for everyone, or is not there",
        {0, 3},
        (
            "concurrency::test_a_race",
            "concurrency::test_a_race_for_the_note_of_a_process_that_is_gone",
            "recovery::test_without_flock",
        ),
    ),
    11: Scenario(
        "links into a Hub cache",
        {0},
        (
            "transaction::test_links_of_a_cache_are_replaced_and_blobs_stay",
            "test_the_hub_library_still_understands_its_cache",
        ),
    ),
    12: Scenario(
        "links that dangle, loop, lead to a directory, or outside",
        {4},
        (
            "transaction::test_what_is_no_file_cannot_be_patched",
            "test_a_link_to_elsewhere_is_read_and_never_written_through",
        ),
    ),
    13: Scenario(
        "edited after apply",
        {3},
        (
            "transaction::test_edited_after_apply",
            "transaction::test_merge_takes_back_only_the_keys_of_the_patch",
            "transaction::test_force_keeps_the_present_file_in_the_record",
        ),
    ),
    14: Scenario(
        "put back by a download",
        {0},
        (
            "transaction::test_reverted_outside",
            "transaction::test_apply_closes_what_was_reverted_outside",
        ),
    ),
    15: Scenario(
        "a new upstream revision",
        {3},
        (
            "transaction::test_a_file_that_changed_since_the_plan_is_refused_without_a_trace",
            "test_a_new_upstream_revision",
        ),
    ),
    16: Scenario(
        "moved, copied, copied without its history, current directory gone",
        {0},
        (
            "transaction::test_moved_and_copied_checkpoints_keep_their_undo",
            "transaction::test_a_copy_without_the_journal_has_no_history",
            "checkpoint::test_a_current_directory_that_is_gone",
            "state_machine::copy_without_history",
        ),
    ),
    17: Scenario(
        "damaged originals and records",
        {3},
        (
            "record::test_every_prefix_is_refused",
            "record::test_every_flipped_bit_is_refused_or_without_meaning",
            "transaction::test_a_damaged_original_is_refused",
            "transaction::test_a_damaged_record_is_refused_and_listed",
        ),
    ),
    18: Scenario(
        "names that lead out of the checkpoint",
        {3, 4},
        (
            "headers::test_a_hostile_shard_name_is_refused",
            "record::test_only_listed_names_may_be_written",
            "transaction::test_an_edit_of_another_file_cannot_even_be_made",
            "fuzz::test_no_bytes_lead_anywhere_but_to_an_answer_or_a_refusal",
        ),
    ),
    19: Scenario(
        "links planted in the way",
        {3},
        (
            "transaction::test_a_planted_journal_is_refused",
            "transaction::test_a_planted_link_in_the_journal_is_never_written_through",
            "transaction::test_a_planted_folder_of_originals_is_refused",
            "transaction::test_the_journal_of_another_user_is_refused",
            "test_a_link_swapped_in_between_check_and_write",
        ),
    ),
    20: Scenario(
        "hostile safetensors headers, FIFOs and devices",
        {4},
        (
            "headers::test_a_bad_header_is_refused_with_place_and_reason",
            "headers::test_whatever_is_accepted_safetensors_accepts_too",
            "headers::test_what_is_no_file_is_named_and_never_waited_for",
            "headers::test_a_claim_of_100_mb_does_not_take_the_memory",
        ),
    ),
    21: Scenario(
        "JSON bombs",
        {4},
        (
            "jsontext_read::test_the_size_is_limited_before_anything_is_read",
            "jsontext_read::test_depth_is_limited_without_recursion",
            "jsontext_read::test_integers_of_any_length_keep_their_spelling_in_linear_time",
        ),
    ),
    22: Scenario(
        "duplicate keys",
        {4},
        (
            "jsontext_read::test_duplicates_are_listed_and_the_last_one_wins",
            "headers::test_stricter_than_safetensors",
            "cli/bad_input::test_a_duplicate_statement_is_a_warning_for_check_and_stops_apply",
        ),
    ),
    23: Scenario(
        "every spelling that JSON files have",
        {0, 4},
        (
            "jsontext_splice::test_nothing_beside_the_member_changes",
            "jsontext_read::test_accepts_what_real_files_have",
            "jsontext_read::test_other_encodings_are_refused_with_the_command_that_converts",
        ),
    ),
    24: Scenario(
        "mode, owner, time, attributes, umask, hard links",
        {0},
        (
            "transaction::test_apply_keeps_mode_and_owner_and_takes_a_new_time",
            "transaction::test_user_attributes_stay_with_the_name",
            "transaction::test_the_other_name_of_a_hard_link_keeps_the_old_bytes",
            "fsio::test_create_gives_bytes_mode_and_time_whatever_the_umask",
        ),
    ),
    25: Scenario(
        "renames that lie, names that differ in case, signals, the clock",
        {0, 4, 130, 143},
        (
            "fsio::test_a_rename_that_happened_is_a_success",
            "fsio::test_a_rename_that_did_not_happen_is_a_failure",
            "checkpoint::test_what_is_missing_is_said",
            "recovery::test_a_signal_takes_everything_back",
            "test_two_names_that_differ_in_case",
            "test_ids_do_not_come_from_the_clock",
        ),
    ),
}


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
