from __future__ import annotations

import json
from typing import Any

import pytest
from faults import samples
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from patcher.edits import WRITABLE_FILES, check_file_name, sha256
from patcher.errors import CkptPatchError, RefusedError
from patcher.transaction.record import SCHEMA, FileRecord, Record, decode, encode

SOURCE = ".ckpt-patch/0001.applied/record.json"


def sample(**changes: Any) -> Record:
    edit = samples.change("config.json").edits[0]
    file = FileRecord(
        file="config.json",
        kind="link",
        link_target="../../blobs/\udcff",
        mode=0o640,
        uid=1000,
        gid=1000,
        mtime_ns=samples.MTIME_NS,
        size=len(edit.before),
        before_sha256=edit.before_sha256,
        after_sha256=edit.after_sha256,
        patch=edit.patch,
        inverse=edit.inverse,
    )
    return Record(
        id=1,
        created="2026-01-02T03:04:05+00:00",
        host="node-1",
        pid=42,
        tool_version="0.1.0",
        recipe="kv-cache-model-dtype@1",
        recipe_sha256="ab" * 32,
        target={"gpu": "sm120", "limit": float("inf")},
        findings=("KV001",),
        note="",
        files=(replace(file, **changes),),
        state="applied",
    )


def read(data: bytes) -> Record:
    return decode(data, state="applied", source=SOURCE)


def resealed(body: dict[str, Any]) -> bytes:
    """A record that was altered on purpose, with a hash that fits."""
    body.pop("sha256", None)
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return json.dumps(body | {"sha256": sha256(canonical.encode())}).encode()


def test_round_trip() -> None:
    assert read(encode(sample())) == sample()


def test_the_text_is_stable_ascii_and_readable() -> None:
    text = encode(sample())
    assert text == encode(read(text))
    assert text.isascii()
    body = json.loads(text)
    assert list(body) == sorted(body)
    assert body["schema"] == SCHEMA
    assert "state" not in body
    assert text.startswith(b'{\n  "created"')


def test_every_prefix_is_refused() -> None:
    text = encode(sample())
    for length in range(len(text) - 1):  # the last byte is a line end
        with pytest.raises(RefusedError) as caught:
            read(text[:length])
        assert caught.value.path == SOURCE


def test_every_flipped_bit_is_refused_or_without_meaning() -> None:
    text = encode(sample())
    refused = 0
    for position in range(len(text)):
        for bit in (0, 1, 5, 7):
            flipped = bytearray(text)
            flipped[position] ^= 1 << bit
            try:
                assert read(bytes(flipped)) == sample()
            except RefusedError as error:
                assert error.path == SOURCE  # noqa: PT017 - either end is right
                refused += 1
    assert refused > 3 * len(text)


@pytest.mark.parametrize(
    "changes",
    [
        {"file": "model.safetensors"},
        {"file": "../config.json"},
        {"file": "/etc/passwd"},
        {"file": "config.json\0"},
        {"kind": "file"},
        {"kind": "directory"},
        {"link_target": "a\0b"},
        {"link_target": ""},
        {"mode": 0o4755},
        {"mode": -1},
        {"uid": -1},
        {"gid": 2**32},
        {"mtime_ns": 2**70},
        {"mtime_ns": "1"},
        {"size": -1},
        {"before_sha256": "ab"},
        {"after_sha256": "Z" * 64},
        {"patch": {}},
        {"inverse": [1]},
    ],
)
def test_a_value_that_no_transaction_writes_is_refused(changes: dict[str, Any]) -> None:
    body = json.loads(encode(sample()))
    body["files"][0].update(changes)
    with pytest.raises(RefusedError) as caught:
        read(resealed(body))
    assert caught.value.path == SOURCE


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        b'{"schema": ' + b"9" * 5000 + b"}",
        b'{"schema": "ckpt-patch/record@2"}',
    ],
)
def test_what_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(RefusedError) as caught:
        read(data)
    assert caught.value.path == SOURCE
    assert caught.value.hint


def test_additions_of_later_versions_are_ignored() -> None:
    body = json.loads(encode(sample()))
    body["later"] = {"more": 1}
    assert read(resealed(body)) == sample()


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode()))
def test_any_bytes_give_a_clear_error(data: bytes) -> None:
    with pytest.raises(CkptPatchError):
        read(data)


@given(st.text())
def test_only_listed_names_may_be_written(name: str) -> None:
    if name in WRITABLE_FILES:
        assert check_file_name(name) == name
    else:
        with pytest.raises(RefusedError):
            check_file_name(name)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a/config.json", "./config.json", "config.json/", "CONFIG.JSON", "x" * 9999],
)
def test_near_misses_are_refused(name: str) -> None:
    with pytest.raises(RefusedError):
        check_file_name(name)
