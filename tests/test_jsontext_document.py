"""Positions, pointers and comparison."""

from __future__ import annotations

import json
import time
from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import keys, pointers, texts, values

from patcher.errors import UnreadableError, UsageError
from patcher.jsontext import (
    MISSING,
    LongInteger,
    Span,
    equal,
    format_pointer,
    parse_pointer,
    read,
    resolve,
)


@given(texts, st.booleans())
def test_spans_cut_out_the_value_at_every_pointer(text: str, bom: bool) -> None:  # noqa: FBT001
    data = b"\xef\xbb\xbf" * bom + text.encode()
    document = read(data, source="x")
    for path in pointers(document.value):
        pointer = format_pointer(path)
        expected = json.dumps(resolve(document.value, pointer))
        start, end = document.span(pointer)
        assert json.dumps(json.loads(text[start:end])) == expected
        assert text[start:end].strip() == text[start:end]
        first, last = document.byte_span(pointer)
        assert data[first:last].decode() == text[start:end]


@given(values)
def test_lines_are_those_of_keys_and_elements(value: Any) -> None:
    text = json.dumps(value, indent=1, separators=(",", "\n:\n\n"))
    document = read(text.encode(), source="x")
    for path in pointers(value)[1:]:
        line = text.split("\n")[document.line(format_pointer(path)) - 1]
        if isinstance(path[-1], str):
            assert line.strip() == json.dumps(path[-1])
        else:
            start, _ = document.span(format_pointer(path))
            assert text[:start].count("\n") == document.line(format_pointer(path)) - 1


def test_lines_and_spans_of_a_small_file() -> None:
    text = '{\r\n  "a": [1,\r\n    {"b": null}],\r\n  "a":\r\n    {"b": [ ]}\r\n}\r\n'
    document = read(text.encode(), source="x")
    assert document.line("") == 1
    assert document.line("/a") == 4  # the last one, as Python reads it
    assert document.line("/a/b") == 5
    start = text.index("[ ]")
    assert document.span("/a/b") == Span(start, start + 3)
    assert document.span("") == Span(0, len(text) - 2)


@pytest.mark.parametrize(
    "pointer", ["/b", "/a/1", "/a/00", "/a/-", "/a/0/x", "/", "/a/" + "9" * 9999]
)
def test_a_pointer_to_nothing_is_an_error(pointer: str) -> None:
    document = read(b'{"a": [1]}', source="config.json")
    with pytest.raises(UnreadableError) as caught:
        document.span(pointer)
    assert (caught.value.path, caught.value.pointer) == ("config.json", pointer)
    assert resolve(document.value, pointer) is MISSING
    assert resolve(document.value, pointer, 7) == 7


def test_positions_in_a_large_file_are_fast() -> None:
    layers = {
        f"model.layers.{i}.w": {"quant_algo": "NVFP4", "group_size": 16} for i in range(22_000)
    }
    text = json.dumps({"q": {"layers": layers, "kv": {"x": 1}}}, indent=2)

    def seconds() -> float:
        start = time.process_time()
        document = read(text.encode(), source="x")
        assert document.line("/q/kv/x") == text.count("\n") - 2
        for name in layers:
            document.span(format_pointer(["q", "layers", name]))
        return time.process_time() - start

    assert any(
        seconds() < 3 for _ in range(3)
    )  # the least is what it takes; the rest is the machine


@given(st.lists(keys))
def test_pointers_round_trip(tokens: list[str]) -> None:
    assert list(parse_pointer(format_pointer(tokens))) == tokens
    assert jsonpatch.JsonPointer(format_pointer(tokens)).parts == tokens


def test_pointers_of_the_rfc() -> None:
    document = {"foo": ["bar", "baz"], "": 0, "a/b": 1, "m~n": 8, " ": 7, "n": None}
    assert resolve(document, "") == document
    assert resolve(document, "/foo/0") == "bar"
    assert resolve(document, "/") == 0
    assert resolve(document, "/a~1b") == 1
    assert resolve(document, "/m~0n") == 8
    assert resolve(document, "/ ") == 7
    assert resolve(document, "/n") is None
    assert parse_pointer("/~01") == ("~1",)


@pytest.mark.parametrize("pointer", ["a", "a/b", "/~", "/~2", "/a~/b", " /a"])
def test_what_is_no_pointer_is_refused(pointer: str) -> None:
    with pytest.raises(UsageError):
        parse_pointer(pointer)


@given(values, values)
def test_equality_is_that_of_jsonpatch(first: Any, second: Any) -> None:
    for other in (first, second):
        patch = [{"op": "test", "path": "", "value": other}]
        try:
            jsonpatch.apply_patch(first, patch)
        except jsonpatch.JsonPatchTestFailed:
            assert not equal(first, other)
        else:
            assert equal(first, other)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (1, 1.0, True),
        (1, True, False),
        (0, False, False),
        ([1], [True], False),
        ({"a": 1, "b": 2}, {"b": 2.0, "a": 1}, True),
        ({"a": 1}, {"a": 1, "b": None}, False),
        ([], {}, False),
        ("", [], False),
        (None, False, False),
        (float("nan"), float("nan"), False),
        (LongInteger("1" * 5000), LongInteger("1" * 5000), True),
    ],
)
def test_equality(first: Any, second: Any, expected: bool) -> None:  # noqa: FBT001
    assert equal(first, second) is expected
    assert equal(second, first) is expected
