"""Patches on published files, where they are at hand."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from strategies import operation, pointers
from test_jsontext_splice import assert_changed_only_inside, assert_like_jsonpatch, gap, replace

from patcher.jsontext import format_pointer, read, splice

CORPUS = Path(__file__).parents[2] / "shared" / "corpus"
CORPUS_FILES = sorted(CORPUS.rglob("*.json"))

pytestmark = pytest.mark.skipif(
    not CORPUS_FILES, reason="the corpus of published files is not here"
)


@pytest.mark.parametrize("file", CORPUS_FILES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_published_files_keep_everything_but_the_member(file: Path) -> None:
    document = read(file.read_bytes(), source=file.name)
    random = Random(f"{file.parent.name}/{file.name}")
    for _ in range(10 if len(document.data) < 500_000 else 1):
        new: Any = random.choice([None, 1.5, "x", [], {"a": [1, {"b": None}]}])
        made = operation(document.value, new, random.choice)
        data = assert_like_jsonpatch(document, [made])
        if data is not None and made["path"] and made["op"] in {"replace", "remove"}:
            whole = made["op"] == "replace"
            span = document.span(made["path"]) if whole else gap(document, made["path"])
            assert_changed_only_inside(document.text, data.decode(), span)


@pytest.mark.parametrize("file", CORPUS_FILES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_null_changes_the_lines_of_one_member_in_a_published_file(file: Path) -> None:
    document = read(file.read_bytes(), source=file.name)
    lines = document.text.split("\n")
    random = Random(file.parent.name)
    members = [path for path in pointers(document.value) if path]
    for path in random.choices(members, k=8 if len(document.data) < 500_000 else 1):
        pointer = format_pointer(path)
        first = document.line(pointer)
        last = document.text.count("\n", 0, document.span(pointer).end) + 1
        after = splice(document, [replace(pointer, None)]).decode().split("\n")
        assert after[: first - 1] == lines[: first - 1]
        assert after[first:] == lines[last:]
        assert "null" in after[first - 1]
