"""Twenty-five faults, what each must end in, and the tests that show it."""

from __future__ import annotations

from dataclasses import dataclass


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
        (
            "faults::test_every_point",
            "faults::test_a_kill_by_the_kernel",
            "faults::test_the_command_line_says_that_it_recovered",
        ),
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
            "mirror_faults::test_eight_at_once_give_one_tree",
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
            "fuzz::test_a_name_in_a_manifest_never_leaves_the_mirror",
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
            "mirror_faults::test_a_planted_workspace_is_refused",
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
