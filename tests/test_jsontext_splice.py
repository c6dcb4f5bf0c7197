"""Patches on text: the value is that of jsonpatch, everything else is the file's own."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any

import jsonpatch
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import (
    Hand,
    broken_bytes,
    hands,
    operation,
    patches,
    places,
    pointers,
    scalars,
    texts,
    texts_without_duplicates,
    values,
)

from patcher.errors import RefusedError, UnreadableError, UsageError
from patcher.jsontext import (
    Document,
    LongInteger,
    Span,
    format_pointer,
    parse_pointer,
    read,
    resolve,
    splice,
)

JSONPATCH_ERRORS = (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException)

Patch = list[dict[str, Any]]


def edit(text: str, *patch: dict[str, Any]) -> str:
    data = splice(read(text.encode(), source="config.json"), patch)
    return data.decode()


def add(path: str, value: Any) -> dict[str, Any]:
    return {"op": "add", "path": path, "value": value}


def replace(path: str, value: Any) -> dict[str, Any]:
    return {"op": "replace", "path": path, "value": value}


def remove(path: str) -> dict[str, Any]:
    return {"op": "remove", "path": path}


def reference(value: Any, patch: Patch) -> Any:
    """Apply ``patch`` with jsonpatch; None if it refuses."""
    try:
        return (jsonpatch.apply_patch(value, patch),)
    except JSONPATCH_ERRORS:
        return None


def assert_like_jsonpatch(document: Document, patch: Patch) -> bytes | None:
    """The same value with the same key order (dumped: true is not 1), or a typed error."""
    expected = reference(document.value, patch)
    if expected is None:
        with pytest.raises((UsageError, RefusedError)):
            splice(document, patch)
        return None
    data = splice(document, patch)
    text = data.decode("utf-8-sig")
    assert json.dumps(json.loads(text)) == json.dumps(expected[0])
    return data


def gap(document: Document, pointer: str) -> Span:
    """Return the range between the neighbours of a member: all that its removal may touch."""
    *outer, last = parse_pointer(pointer)
    parent = resolve(document.value, format_pointer(outer))
    names = [str(i) for i in range(len(parent))] if isinstance(parent, list) else list(parent)
    place = names.index(last) if last in names else len(names)
    start, end = document.span(format_pointer(outer))
    start, end = start + 1, end - 1
    if place:
        start = document.span(format_pointer([*outer, names[place - 1]])).end
    if place + 1 < len(names):
        end = document._member(format_pointer([*outer, names[place + 1]])).key
    return Span(start, end)


def assert_changed_only_inside(before: str, after: str, span: Span) -> None:
    head, tail = before[: span.start], before[span.end :]
    assert after.startswith(head)
    assert after.endswith(tail)
    assert len(after) >= len(head) + len(tail)


@given(texts, st.data())
def test_patches_do_what_jsonpatch_does(text: str, data: st.DataObject) -> None:
    document = read(text.encode(), source="x")
    assert_like_jsonpatch(document, data.draw(patches(document.value)))


@given(values, hands(), st.data())
def test_a_file_that_json_wrote_stays_as_json_would_write_it(
    value: Any, hand: Hand, data: st.DataObject
) -> None:
    # The first member shows every trait of the hand.
    before = {"hand": [0, {"a": 1}] if hand.ensure_ascii else ["\u00e9", {"a": 1}], "value": value}
    patch = data.draw(patches(value))
    for each in patch:
        each.update({key: "/value" + each[key] for key in ("path", "from") if key in each})
    assume(not any(each["op"] == "remove" and each["path"] == "/value" for each in patch))
    expected = reference(before, patch)
    assume(expected is not None)
    document = read(hand.write(before), source="x")
    assert splice(document, patch) == hand.write(expected[0])


@given(texts_without_duplicates, st.sampled_from(["add", "remove", "replace"]), values, st.data())
def test_nothing_beside_the_member_changes(
    text: str, name: str, new: Any, data: st.DataObject
) -> None:
    document = read(text.encode(), source="x")
    paths = (places if name == "add" else pointers)(document.value)
    *outer, last = data.draw(st.sampled_from([path for path in paths if path]))
    pointer = format_pointer([*outer, last])
    parent = resolve(document.value, format_pointer(outer))
    after = assert_like_jsonpatch(document, [{"op": name, "path": pointer, "value": new}])
    assert after is not None
    if name == "replace" or (name == "add" and isinstance(parent, dict) and last in parent):
        span = document.span(pointer)
    elif name == "add" and isinstance(last, int) and last < len(parent):
        # Between the element before the place and the one that it pushes on.
        span = Span(gap(document, pointer).start, document.span(pointer).start)
    else:
        span = gap(document, pointer)
    assert_changed_only_inside(text, after.decode(), span)


@given(texts, st.data())
def test_a_test_or_a_move_to_itself_changes_nothing(text: str, data: st.DataObject) -> None:
    document = read(b"\xef\xbb\xbf" + text.encode(), source="x")
    made = operation(document.value, None, lambda options: data.draw(st.sampled_from(options)))
    path = made["from"] if made["op"] in {"move", "copy"} else ""
    value = resolve(document.value, path)
    patch = [
        {"op": "test", "path": path, "value": value},
        {"op": "move", "from": path, "path": path},
    ]
    assert splice(document, patch) == document.data
    assert splice(document, []) == document.data


@given(broken_bytes, st.data())
def test_broken_input_raises_typed_errors_only(raw: bytes, data: st.DataObject) -> None:
    with suppress(UnreadableError, UsageError, RefusedError):
        document = read(raw, source="x")
        assert_like_jsonpatch(document, data.draw(patches(document.value)))


@given(texts, st.lists(st.dictionaries(st.sampled_from(["op", "path", "from", "value"]), scalars)))
def test_junk_for_a_patch_raises_typed_errors_only(text: str, patch: Patch) -> None:
    document = read(text.encode(), source="x")
    if reference(document.value, patch) is None or patch:
        try:
            splice(document, patch)
        except (UsageError, RefusedError):
            assert patch
    else:
        assert splice(document, patch) == text.encode()


KIMI = """{
  "quantization_config": {
    "quant_algo": "NVFP4",
    "kv_cache_scheme": {
      "dynamic": false,
      "num_bits": 8,
      "type": "float"
    },
    "ignore": ["lm_head", "x"]
  },
  "time_step_limit": [0.0, Infinity],
  "eps": 1E-05
}"""


def test_null_for_an_object_of_several_lines_takes_one_line() -> None:
    patch = [replace("/quantization_config/kv_cache_scheme", None)]
    assert edit(KIMI, *patch).split("\n") == [
        *KIMI.split("\n")[:3],
        '    "kv_cache_scheme": null,',
        *KIMI.split("\n")[8:],
    ]


def test_the_object_comes_back_as_it_was() -> None:
    scheme = json.loads(KIMI)["quantization_config"]["kv_cache_scheme"]
    nulled = edit(KIMI, replace("/quantization_config/kv_cache_scheme", None))
    assert edit(nulled, replace("/quantization_config/kv_cache_scheme", scheme)) == KIMI


@pytest.mark.parametrize(
    ("before", "operation", "after"),
    [
        # replacing
        ('{"a":1, "b" : 2}', replace("/b", [1, {}]), '{"a":1, "b" : [1, {}]}'),
        ("[1, 2]", replace("/0", "\u00e9\ud800"), '["\\u00e9\\ud800", 2]'),
        ('["\u00df", 2]', replace("/1", "\u00e9\ud800"), '["\u00df", "\u00e9\\ud800"]'),
        ("  [1]\n", replace("", {"a": 1}), '  {"a": 1}\n'),
        ("[\n\t1\n]\n", replace("", {"a": [2]}), '{\n\t"a": [\n\t\t2\n\t]\n}\n'),
        ('{\n "a": [1, 2]\n}', replace("/a", [3]), '{\n "a": [3]\n}'),
        ('{\n "a": [1, 2]\n}', replace("/a", []), '{\n "a": []\n}'),
        ('{"a": 1, "a": 2}', replace("/a", 3), '{"a": 1, "a": 3}'),
        ('{\r\n  "a": 1\r\n}', replace("/a", [2]), '{\r\n  "a": [\r\n    2\r\n  ]\r\n}'),
        ("[0]", replace("/0", float("inf")), "[Infinity]"),
        ("[0]", replace("/0", LongInteger("8" * 5000)), f"[{'8' * 5000}]"),
        # removing
        ("[1]", remove("/0"), "[]"),
        ('{\n  "a": 1\n}\n', remove("/a"), "{}\n"),
        ("[1, 2, 3]", remove("/0"), "[2, 3]"),
        ("[1, 2, 3]", remove("/1"), "[1, 3]"),
        ("[1, 2, 3]", remove("/2"), "[1, 2]"),
        ('{\n "a": 1,\n "b": 2\n}', remove("/a"), '{\n "b": 2\n}'),
        ('{\n "a": 1,\n "b": 2\n}', remove("/b"), '{\n "a": 1\n}'),
        ('{\n "a": 1, \n "b": 2\n}', remove("/a"), '{\n "b": 2\n}'),
        ("[\n 1, 2,\n 3, 4\n]", remove("/1"), "[\n 1,\n 3, 4\n]"),
        ("[\n 1, 2,\n 3, 4\n]", remove("/2"), "[\n 1, 2,\n 4\n]"),
        ('{ "a": 1\n, "b": 2\n}', remove("/b"), '{ "a": 1\n}'),
        ('{"a": 1, "b": 0, "a": 2}', remove("/a"), '{"b": 0}'),
        # adding
        ('{"a": 1}', add("/b", 2), '{"a": 1, "b": 2}'),
        ('{"a":1}', add("/b", [2, {"c": 3}]), '{"a":1,"b":[2,{"c":3}]}'),
        ('{\n  "a": 1\n}', add("/b", {"c": 2}), '{\n  "a": 1,\n  "b": {\n    "c": 2\n  }\n}'),
        ('{\n  "a": {"c": 1}\n}', add("/a/b", {"d": 2}), '{\n  "a": {"c": 1, "b": {"d": 2}}\n}'),
        ('{\n  "a": {}\n}', add("/a/b", 1), '{\n  "a": {\n    "b": 1\n  }\n}'),
        ('{\n  "a": [ ]\n}', add("/a/-", 1), '{\n  "a": [\n    1\n  ]\n}'),
        ('{"a": {}}', add("/a/b", 1), '{"a": {"b": 1}}'),
        ("{}", add("/a", 1), '{"a": 1}'),
        ("{\n}\n", add("/a", 1), '{\n  "a": 1\n}\n'),
        ("[\n 1, 2,\n 3, 4\n]", add("/-", 5), "[\n 1, 2,\n 3, 4, 5\n]"),
        ("[\n 1, 2,\n 3, 4\n]", add("/2", 5), "[\n 1, 2, 5,\n 3, 4\n]"),
        ("[\n 1,\n 2\n]", add("/0", 5), "[\n 5,\n 1,\n 2\n]"),
        ("[1]", add("/0", 5), "[5, 1]"),
        ('{ "a": 1\n, "b": 2\n}', add("/c", 3), '{ "a": 1\n, "b": 2\n, "c": 3\n}'),
        ('{"a": 1, "b": 2}', add("/a", 3), '{"a": 3, "b": 2}'),
        # over-indented, as some published files are
        ('{\n  "a": {\n        "b": 1\n        }\n}', add("/a/c", 2),
         '{\n  "a": {\n        "b": 1,\n        "c": 2\n        }\n}'),
        # moving and copying keep the spelling
        ('{"a": 1E5, "b": 2}', {"op": "move", "from": "/a", "path": "/c"}, '{"b": 2, "c": 1E5}'),
        ('[1e400, "\\/"]', {"op": "copy", "from": "/1", "path": "/0"}, '["\\/", 1e400, "\\/"]'),
        ('{\n "a": [\n  1,\n\n  2\n ],\n "b": {\n  "c": 3\n }\n}',
         {"op": "move", "from": "/a", "path": "/b/a"},
         '{\n "b": {\n  "c": 3,\n  "a": [\n   1,\n\n   2\n  ]\n }\n}'),
        ("[\n 1,\n\n 2\n]", {"op": "copy", "from": "", "path": "/-"},
         "[\n 1,\n\n 2,\n\n [\n  1,\n\n  2\n ]\n]"),
        ('{\n "a": {\n  "b": [\n   1\n  ]\n }\n}', {"op": "move", "from": "/a/b", "path": ""},
         "[\n 1\n]"),
    ],
)  # fmt: skip
def test_the_text_after_an_operation(before: str, operation: dict[str, Any], after: str) -> None:
    assert edit(before, operation) == after


@pytest.mark.parametrize(
    ("operation", "pointer", "message"),
    [
        ({"op": "test", "path": "/a", "value": 2}, "/a", "expected 2, found 1"),
        ({"op": "test", "path": "/a", "value": True}, "/a", "expected true, found 1"),
        ({"op": "test", "path": "/b", "value": None}, "/b", "expected null, found nothing"),
        ({"op": "test", "path": "/c/-", "value": 1}, "/c/-", "expected 1, found nothing"),
        ({"op": "test", "path": "/c", "value": [1]}, "/c", "expected [1], found [ 1, 2 ]"),
        (remove("/b"), "/b", "there is no such value"),
        (remove("/c/-"), "/c/-", "there is no such value"),
        (replace("/c/2", 1), "/c/2", "there is no such value"),
        (replace("/c/01", 1), "/c/01", "there is no such value"),
        (add("/b/c", 1), "/b", "there is no such value"),
        (add("/c/3", 1), "/c/3", "there is no such place"),
        (add("/a/b", 1), "/a/b", "there is no such place"),
        ({"op": "move", "from": "/b", "path": "/c"}, "/b", "there is no such value"),
        ({"op": "copy", "from": "/b", "path": "/c"}, "/b", "there is no such value"),
    ],
)
def test_a_patch_that_does_not_fit_the_file_is_refused(
    operation: dict[str, Any], pointer: str, message: str
) -> None:
    with pytest.raises(RefusedError) as caught:
        edit('{"a": 1, "c": [ 1,\n2 ]}', operation)
    assert (caught.value.path, caught.value.pointer) == ("config.json", pointer)
    assert caught.value.message == message
    assert caught.value.hint


@pytest.mark.parametrize(
    "operation",
    [
        {},
        {"op": "add"},
        {"op": "append", "path": "/a", "value": 1},
        {"op": ["add"], "path": "/a", "value": 1},
        {"op": "add", "path": "/a"},
        {"op": "add", "path": None, "value": 1},
        {"op": "add", "path": "a", "value": 1},
        {"op": "add", "path": "/~", "value": 1},
        {"op": "add", "path": "/b", "value": {1}},
        {"op": "add", "path": "/b", "value": {1: 2}},
        {"op": "add", "path": "/b", "value": 10**5000},
        {"op": "test", "path": "/a"},
        {"op": "move", "path": "/a"},
        {"op": "remove", "path": ""},
        {"op": "move", "from": "/a", "path": "/a/b"},
        {"op": "move", "from": "", "path": "/a"},
        "remove",
    ],
)
def test_a_patch_that_makes_no_sense_is_a_usage_error(operation: Any) -> None:
    with pytest.raises(UsageError, match=r"^config\.json: operation 1 of the patch: "):
        edit('{"a": {"b": 1}}', replace("/a/b", 2), operation)


def test_equal_numbers_pass_a_test() -> None:
    assert edit("[1]", {"op": "test", "path": "/0", "value": 1.0}) == "[1]"
    long = "5" * 5000
    test = {"op": "test", "path": "/0", "value": LongInteger(long)}
    assert edit(f"[{long}]", test) == f"[{long}]"


def test_a_result_that_could_not_be_read_again_is_refused() -> None:
    value: list[Any] = []
    for _ in range(199):
        value = [value]
    assert read(edit("[]", replace("", value)).encode(), source="x").value == value
    for hopeless in ([value], [[value]]):
        with pytest.raises(UsageError, match="deeper than 200"):
            edit("[]", replace("", hopeless))
    with pytest.raises(UsageError, match="deeper than 200"):
        edit("[" * 200 + "]" * 200, add("/-", value))


def test_the_deepest_value_can_be_edited_compared_and_moved() -> None:
    text = '{"a":' * 200 + "1" + "}" * 200
    deepest = "/a" * 200
    inner = json.loads(text)["a"]
    patch = [
        {"op": "test", "path": "/a", "value": inner},
        replace(deepest, 2),
        {"op": "move", "from": "/a", "path": "/b"},
        add("/a", inner),
    ]
    assert edit(text, *patch[:2]) == text.replace("1", "2")
    assert edit(text, *patch) == f'{{"b":{text[5:-1].replace("1", "2")},"a":{text[5:-1]}}}'


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(UsageError, match="deeper than 200"):
        edit("[]", replace("", value))


def test_a_file_of_several_lines_stays_one_when_it_is_emptied_between() -> None:
    text = '{\n "a": 1\n}\n'
    assert edit(text, remove("/a"), add("/b", [2])) == '{\n "b": [\n  2\n ]\n}\n'
    assert edit(text, replace("", None), replace("", [2])) == "[\n 2\n]\n"


def test_the_operations_are_not_changed() -> None:
    patch = [add("/a", {"b": [1]}), add("/a/b/-", 2)]
    assert edit("{}", *patch) == '{"a": {"b": [1, 2]}}'
    assert patch == [add("/a", {"b": [1]}), add("/a/b/-", 2)]


def test_two_operations_on_three_megabytes_are_fast() -> None:
    layers = {
        f"model.layers.{i}.w": {"quant_algo": "NVFP4", "group_size": 16} for i in range(32_000)
    }
    text = json.dumps({"q": {"layers": layers, "kv": {"x": 1}}}, indent=2)
    assert len(text) > 3_000_000
    document = read(text.encode(), source="x")
    patch = [{"op": "test", "path": "/q/kv", "value": {"x": 1}}, replace("/q/kv", None)]
    start = time.process_time()
    data = splice(document, patch)
    assert time.process_time() - start < 3
    assert data.decode() == text[: document.span("/q/kv").start] + "null\n  }\n}"
