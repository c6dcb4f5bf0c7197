"""Reading: the language that is accepted, the limits, and the errors."""

from __future__ import annotations

import json
import math
import pickle
import sys
import time

import pytest
from hypothesis import given
from strategies import broken_bytes, texts

from patcher.errors import UnreadableError
from patcher.jsontext import INDEX_LIMITS, Document, Duplicate, Limits, LongInteger, read


def read_text(text: str) -> Document:
    return read(text.encode(), source="config.json")


def refusal(data: bytes, limits: Limits | None = None) -> UnreadableError:
    with pytest.raises(UnreadableError) as caught:
        read(data, source="config.json", limits=limits or Limits(16 * 2**20, 200))
    assert caught.value.path == "config.json"
    assert caught.value.hint
    return caught.value


@given(texts)
def test_reads_the_value_that_python_reads(text: str) -> None:
    assert json.dumps(read_text(text).value) == json.dumps(json.loads(text))


@given(broken_bytes)
def test_accepts_and_refuses_what_python_does(data: bytes) -> None:
    try:
        value = json.loads(data.decode("utf-8-sig"))
    except ValueError:
        error = refusal(data)
        assert error.offset is not None
        assert 0 <= error.offset <= len(data)
        return
    if json.detect_encoding(data).startswith("utf-8"):
        assert json.dumps(read(data, source="x").value) == json.dumps(value)
    else:
        refusal(data)  # python would read these bytes as UTF-16


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e400", math.inf),
        ("-Infinity", -math.inf),
        ("[Infinity]", [math.inf]),
        ('{"a":\r\n1}\r\n', {"a": 1}),
        (r'"\ud800"', "\ud800"),
        (r'"\u0000"', "\0"),
        (r'{"\/": "\uff5c"}', {"/": "\uff5c"}),
        ("-0", 0),
        ("1E2", 100.0),
        ("9" * 4300, 10**4300 - 1),
        ("-" + "9" * 4300, 1 - 10**4300),
    ],
)
def test_accepts_what_real_files_have(text: str, value: object) -> None:
    assert read_text(text).value == value


def test_accepts_nan() -> None:
    assert math.isnan(read_text("NaN").value)


@pytest.mark.parametrize("digits", [4301, 5000, 1_000_000])
def test_integers_of_any_length_keep_their_spelling_in_linear_time(digits: int) -> None:
    spelling = "-" + "7" * digits
    start = time.process_time()
    document = read_text(f'{{"a": {spelling}}}')
    assert time.process_time() - start < 2
    assert document.value == {"a": LongInteger(spelling)}
    assert document.value != {"a": LongInteger(spelling[:-1] + "8")}
    assert str(document.value["a"]) == spelling


def test_a_lower_limit_of_the_interpreter_does_not_matter() -> None:
    before = sys.get_int_max_str_digits()
    try:
        sys.set_int_max_str_digits(640)
        assert read_text("7" * 700).value == LongInteger("7" * 700)
        sys.set_int_max_str_digits(0)
        assert read_text("7" * 4302).value == LongInteger("7" * 4302)
    finally:
        sys.set_int_max_str_digits(before)


def test_the_byte_order_mark_is_tolerated_and_known() -> None:
    document = read(b"\xef\xbb\xbf{}", source="config.json")
    assert (document.bom, document.text, document.value) == (True, "{}", {})
    assert document.data == b"\xef\xbb\xbf{}"
    assert not read(b"{}", source="config.json").bom


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"])
def test_other_encodings_are_refused_with_the_command_that_converts(encoding: str) -> None:
    error = refusal('{"a": 1}'.encode(encoding))
    assert error.offset == 0
    assert error.hint is not None
    assert f"iconv -f {encoding[:6].upper()}" in error.hint


def test_bytes_that_are_not_utf8_are_named() -> None:
    error = refusal(b'\xef\xbb\xbf{\n "\xc3\xa9": "\xff"}')
    assert str(error) == "config.json at byte 13: not UTF-8 (line 2, column 8)"
    refusal(b'"\xed\xa0\x80"')  # a surrogate in UTF-8, which json.loads takes and open() does not


@pytest.mark.parametrize(
    ("text", "offset", "line", "column", "hint"),
    [
        ("", 0, 1, 1, "download"),
        (" \n ", 0, 1, 1, "download"),
        ('{"a": 1', 7, 1, 8, "cut short"),
        ('{"a": "b', 6, 1, 7, "cut short"),
        ('{\n  "\u00e9": 1 // no\n}', 12, 2, 10, "comments"),
        ("# no\n{}", 0, 1, 1, "comments"),
        ("{} x", 3, 1, 4, "python -m json.tool config.json"),
        ("{'a': 1}", 1, 1, 2, "double quotes"),
        ("<!DOCTYPE html>", 0, 1, 1, "web page"),
        ("version https://git-lfs.github.com/spec/v1\n", 0, 1, 1, "git lfs pull"),
        ('{"a": "\n"}', 7, 1, 8, "json.tool"),
        ('{"a": 01}', 7, 1, 8, "json.tool"),
        ('{"a": nul}', 6, 1, 7, "json.tool"),
    ],
)
def test_errors_name_the_place_and_a_remedy(
    text: str, offset: int, line: int, column: int, hint: str
) -> None:
    error = refusal(text.encode())
    assert error.offset == offset
    assert f"(line {line}, column {column})" in str(error)
    assert error.hint is not None
    assert hint in error.hint


@pytest.mark.parametrize("text", ["[1,]", '{"a": 1,}', "[1 , ]", '{"a": 1,\n}'])
def test_trailing_commas_are_named(text: str) -> None:
    hint = refusal(text.encode()).hint  # the place differs between releases of Python
    assert hint is not None
    assert "comma" in hint


@pytest.mark.parametrize("data", [b"\0", b'{"a": "\0"}', b"\0\0\0\0", b"{\0}", b"[\0]", b"\\"])
def test_nul_bytes_and_junk_are_refused(data: bytes) -> None:
    refusal(data)


def test_the_size_is_limited_before_anything_is_read() -> None:
    assert "17 bytes" in str(refusal(b"[" * 17, Limits(size=16, depth=200)))
    assert read(b"[1]", source="x", limits=Limits(size=3, depth=1)).value == [1]
    assert INDEX_LIMITS.size == 512 * 2**20


@pytest.mark.parametrize("unit", ["[", '{"a":', '["[", '])
@pytest.mark.parametrize("depth", [201, 5_000, 2_000_000])
def test_depth_is_limited_without_recursion(unit: str, depth: int) -> None:
    data = (unit * depth).encode()[: 16 * 2**20]
    assert refusal(data).offset == 200 * len(unit)


def test_the_deepest_text_allowed_is_read() -> None:
    text = "[" * 200 + "]" * 200
    assert read_text(text).text == text
    assert read_text('["' + "[" * 300 + '"]').value == ["[" * 300]
    assert len(read_text("[" + "[]," * 300 + "[]]").value) == 301


def test_the_depth_counts_the_mark_and_non_ascii_bytes() -> None:
    error = refusal(b"\xef\xbb\xbf" + '["\u00e9",'.encode() + b"[" * 200)
    assert error.offset == 3 + 6 + 199


@pytest.mark.parametrize(
    "text",
    [
        '"' + '\\"' * 4_000_000 + '"',
        '{"' + "\\n" * 1_000_000 + '": {"b": "' + "\\\\" * 1_000_000 + '"}}',
    ],
)
def test_a_string_of_escapes_takes_no_memory_of_its_own(text: str) -> None:
    document = read_text(text)
    assert document.value == json.loads(text)
    if isinstance(document.value, dict):
        assert document.span(f"/{next(iter(document.value))}/b").end == len(text) - 2


def test_brackets_and_quotes_in_a_string_of_many_escapes_are_no_structure() -> None:
    string = '"' + "\\n" * 1500 + "[" * 300 + '{\\"a\\": 1, ' + '"'
    text = f'[[{string}, {{"a": {string}, "b": [[]], "a": 2}}], 3]'
    document = read_text(text)
    assert document.value == json.loads(text)
    assert [(each.pointer, each.offsets) for each in document.duplicates] == [
        ("/0/1/a", (text.index('{"a"') + 1, text.rindex('"a"')))
    ]
    start, end = document.span("/0")
    assert text[start:end] == text[1:-4]
    assert text[slice(*document.span("/0/1/b"))] == "[[]]"


def test_duplicates_are_listed_and_the_last_one_wins() -> None:
    nested = r'{"x": [{"k": 1, "\u006b": 2}]}'
    text = f'{{\n"\u00e9": 1,\n"a": {nested},\n"b": 0, "\u00e9": 2,\n"\u00e9": 3\n}}'
    data = b"\xef\xbb\xbf" + text.encode()
    document = read(data, source="x")
    assert document.value == {"\u00e9": 3, "a": {"x": [{"k": 2}]}, "b": 0}
    inner, outer = document.duplicates
    assert (inner.pointer, inner.lines) == ("/a/x/0/k", (3, 3))
    assert (outer.pointer, outer.lines) == ("/\u00e9", (2, 4, 5))
    assert [data[offset : offset + 3] for offset in inner.offsets] == [b'"k"', b'"\\u']
    assert [data[offset : offset + 4] for offset in outer.offsets] == ['"\u00e9"'.encode()] * 3


def test_equal_names_in_different_objects_and_values_are_no_duplicates() -> None:
    document = read_text('[{"a": "a"}, {"a": {"a": ["a", "a"]}}, {"A": 1, "a": "}{,"}]')
    assert document.duplicates == ()


def test_duplicates_in_a_value_that_is_shadowed_are_reported_too() -> None:
    document = read_text('{"a": {"x": 1, "x": 2}, "a": 1}')
    assert document.duplicates == (
        Duplicate("/a/x", (1, 1), (7, 15)),
        Duplicate("/a", (1, 1), (1, 24)),
    )


def test_a_document_is_frozen_and_can_be_pickled() -> None:
    document = read_text('{"a": 1}')
    assert pickle.loads(pickle.dumps(document)) == document
    with pytest.raises(AttributeError):
        document.bom = True  # type: ignore[misc]
