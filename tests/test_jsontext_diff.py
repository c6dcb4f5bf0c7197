"""The unified diff of two versions of a file."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patcher.jsontext import unified_diff

files = st.lists(st.sampled_from([b"a", b"b", b"\r", b"\xff", b"\n", b"\n"])).map(b"".join)


def test_a_change_in_the_last_line_without_line_end() -> None:
    assert unified_diff(b"{\n  1\n}", b"{\n  2\n}", "config.json") == (
        "--- a/config.json\n"
        "+++ b/config.json\n"
        "@@ -1,3 +1,3 @@\n"
        " {\n"
        "-  1\n"
        "+  2\n"
        " }\n"
        "\\ No newline at end of file\n"
    )


def test_a_line_end_that_is_added() -> None:
    assert unified_diff(b"x", b"x\n", "f") == (
        "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-x\n\\ No newline at end of file\n+x\n"
    )


def test_carriage_returns_and_broken_bytes_stay() -> None:
    diff = unified_diff(b"a\r\n\xff\x0c\r\n", b"a\r\n\xe2\x80\xa8\r\n", "f")
    assert diff == "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n a\r\n-\udcff\x0c\r\n+\u2028\r\n"
    assert diff.encode("utf-8", "surrogateescape").count(b"\xff") == 1


def test_equal_files_have_no_difference() -> None:
    assert unified_diff(b"x\n", b"x\n", "f") == ""


@pytest.mark.skipif(shutil.which("patch") is None, reason="patch is not installed")
@given(before=files, after=files)
def test_patch_makes_one_file_of_the_other(
    tmp_path_factory: pytest.TempPathFactory, before: bytes, after: bytes
) -> None:
    diff = unified_diff(before, after, "f").encode("utf-8", "surrogateescape")
    file = Path(tmp_path_factory.mktemp("diff")) / "f"
    file.write_bytes(before)
    if diff:
        subprocess.run(["patch", "--binary", "-s", str(file)], input=diff, check=True)
    assert (file.read_bytes() if file.exists() else b"") == after
