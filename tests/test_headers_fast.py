"""The quick ways through a header and an index accept nothing that the thorough ones refuse."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from conftest import packed
from hypothesis import given
from hypothesis import strategies as st

from patcher.errors import UnreadableError
from patcher.headers import Header, bulk, count_scales, pieces, read_header_through
from patcher.headers.index import INDEX_FILE
from patcher.headers.names import scale_of

if TYPE_CHECKING:
    from pathlib import Path

WIDTHS = {"F32": 4, "BF16": 2, "U8": 1}
NAMES = st.one_of(
    st.from_regex(r"[a-z0-9_.]{0,8}\.[kvq]_(proj\.output_|global_)?scale", fullmatch=True),
    st.from_regex(r"[A-Za-z0-9_.-]{1,12}", fullmatch=True),
    st.text(max_size=6),
)


@st.composite
def headers(draw: st.DrawFn) -> tuple[bytes, int]:
    """The JSON of a good header, spelled in some way, and the size of the data."""
    entries: dict[str, Any] = {}
    if draw(st.booleans()):
        entries["__metadata__"] = draw(st.dictionaries(NAMES, NAMES, max_size=2))
    end = 0
    for name in draw(st.lists(NAMES, max_size=5, unique=True)):
        dtype, shape = draw(st.sampled_from(sorted(WIDTHS))), draw(st.lists(st.integers(0, 3)))
        size = WIDTHS[dtype]
        for factor in shape:
            size *= factor
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (",", " :")]))
    raw = json.dumps(entries, separators=separators, ensure_ascii=draw(st.booleans()))
    return raw.encode("utf-8", "surrogatepass"), end


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """A few bytes replaced, inserted, doubled or taken out."""
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(whole)))
        until = min(len(whole), at + draw(st.integers(0, 20)))
        new = draw(
            st.sampled_from([b"", b'"', b",", b" ", b"\\", b"-0", b"1", b":", whole[at:until]])
        )
        whole = whole[:at] + new + whole[until if draw(st.booleans()) else at :]
    return whole


def read(raw: bytes, size: int) -> Header | None:
    content = packed(raw)
    try:
        return read_header_through(
            lambda n, at: content[at : at + n], len(content) + size, name="a.safetensors"
        )
    except UnreadableError:
        return None


@given(st.data())
def test_both_ways_through_a_header_agree(data: st.DataObject) -> None:
    raw, size = data.draw(headers())
    raw = data.draw(damaged(raw))
    with patch.object(bulk, "read", return_value=None):
        thorough = read(raw, size)
    found = read(raw, size)
    assert (found is None) == (thorough is None)
    if found is not None and thorough is not None:
        assert found.tensors == thorough.tensors
        assert found.metadata == thorough.metadata


def test_a_header_as_safetensors_writes_it_takes_the_quick_way() -> None:
    raw = (
        b'{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}   '
    )
    assert bulk.read(raw, 8, lambda *_: 8) is not None


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
        b'"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
        b'{"a":{"dtype":"F32","shape":[1],"shape":[1],"data_offsets":[0,4]}}',
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"more":1}}',
        b'{"a":{"dtype":"F32","shape":[true],"data_offsets":[0,4]}}',
        b'{"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}}',
        b'{"a":{"dtype":"F32","shape":[-0,1],"data_offsets":[0,0]}}',
        b'{"__metadata__":{"a":"b","a":"b"}}',
        b'{"__metadata__":{},"__metadata__":{}}',
    ],
)
def test_what_needs_a_closer_look_gets_it(raw: bytes) -> None:
    assert bulk.read(raw, 4, lambda *_: 4) is None


def reference(text: bytes) -> list[tuple[str, str]]:
    """Every member of the weight map, doubled ones too."""
    pairs: list[tuple[str, str]] = []

    def hook(members: list[tuple[str, Any]]) -> Any:
        value = dict(members)
        if isinstance(value.get("weight_map"), list):
            pairs.extend(value["weight_map"])
        return members

    json.loads(text, object_pairs_hook=hook)
    return pairs


@st.composite
def indices(draw: st.DrawFn) -> bytes:
    shards = st.sampled_from(["a.safetensors", "model-00001-of-00002.safetensors", "sub/b"])
    index = {
        "metadata": draw(st.dictionaries(NAMES, st.integers(), max_size=2)),
        "weight_map": draw(st.dictionaries(NAMES, shards, max_size=20)),
    }
    if draw(st.booleans()):
        index = dict(reversed(index.items()))
    indent = draw(st.sampled_from([None, 0, 1, 2, 4]))
    text = json.dumps(index, indent=indent, sort_keys=draw(st.booleans()))
    return (text + draw(st.sampled_from(["", "\n"]))).encode()


@given(st.data(), st.integers(1, 200))
def test_what_is_counted_is_an_index(data: st.DataObject, block: int) -> None:
    text = data.draw(damaged(data.draw(indices())))
    fd = os.memfd_create("index")
    try:
        os.write(fd, text)
        with patch.object(pieces, "_PIECE", block), patch.object(pieces, "_EDGE", 4 * block):
            tally = pieces.count(fd)
    finally:
        os.close(fd)
    if tally is not None:
        pairs = reference(text)
        scales = {name for name in tally.scales if scale_of(name)}
        assert scales == {name for name, _ in pairs if scale_of(name)}
        # Of a name that stands twice the last one counts; or both.
        assert len(dict(pairs)) <= tally.tensors <= len(pairs)
        assert {*dict(pairs).values()} <= tally.shards <= {shard for _, shard in pairs}


@pytest.mark.parametrize("names", [2, 30, 3000])
def test_an_index_as_everybody_writes_it_is_counted_piece_by_piece(
    tmp_path: Path, names: int
) -> None:
    weight_map = {
        f"model.layers.{n}.self_attn.{'kv'[n % 2]}_proj.{'kv'[n % 2]}_scale": f"{n % 7}.safetensors"
        for n in range(names)
    }
    text = json.dumps({"metadata": {}, "weight_map": weight_map}, indent=2, sort_keys=True) + "\n"
    (tmp_path / INDEX_FILE).write_text(text)
    with patch("patcher.headers.scales.read_index", side_effect=AssertionError):
        counts = count_scales(tmp_path, [])
    assert (counts.tensors, counts.k_scales, counts.v_scales) == (names, names // 2, names // 2)
    assert (counts.shards, len(counts.unpaired)) == (min(names, 7), names)
