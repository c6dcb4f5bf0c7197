"""Headers, index and scale counting; the safetensors package is the judge of what a header is."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import safetensors
from conftest import make_checkpoint, packed, shard
from hypothesis import example, given
from hypothesis import strategies as st

from patcher.errors import UnreadableError
from patcher.headers import INDEX_FILE, Header, count_scales, read_header, read_index, read_whole
from patcher.headers.header import DTYPE_BITS
from patcher.headers.index import unsafe
from patcher.headers.names import _LAST, _LAST_TWO, likely, scale_of


def tensor(start: Any, end: Any, shape: Any = (2,), dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def deserialize(content: bytes) -> dict[str, Any]:
    """What the safetensors package makes of a file."""
    return dict(safetensors.deserialize(content))  # type: ignore[no-untyped-call]


ONE = json.dumps({"a": tensor(0, 8)}).encode()
DATA = bytes(8)


def header_of(content: bytes) -> Header:
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        return read_header(file.fileno(), name="x.safetensors")


def refusal(content: bytes) -> UnreadableError:
    with pytest.raises(UnreadableError) as caught:
        header_of(content)
    assert caught.value.path == "x.safetensors"
    assert caught.value.exit_code == 4
    return caught.value


def test_a_good_header_is_read_in_full(tmp_path: Path) -> None:
    content = packed(
        {"__metadata__": {"format": "pt"}, "b": tensor(8, 10, [], "BF16"), "a/~": tensor(0, 8)},
        bytes(10),
    )
    path = make_checkpoint(tmp_path, {"m.safetensors": content}) / "m.safetensors"
    header = read_header(path)
    assert header.tensors == {"b": ("BF16", (), 8, 10), "a/~": ("F32", (2,), 0, 8)}
    assert header.metadata == {"format": "pt"}
    assert header.data_start == len(content) - 10


@pytest.mark.parametrize("dtype", sorted(DTYPE_BITS))
def test_every_dtype_has_the_size_that_safetensors_gives_it(dtype: str) -> None:
    size = DTYPE_BITS[dtype]
    content = packed({"a": tensor(0, size, [8], dtype)}, bytes(size))
    assert header_of(content).tensors["a"].dtype == dtype
    assert list(deserialize(content)) == ["a"]


def test_safetensors_knows_no_other_dtype() -> None:
    with pytest.raises(safetensors.SafetensorError, match="unknown variant") as caught:
        deserialize(packed({"a": tensor(0, 8, [2], "Q9")}, DATA))
    known = str(caught.value).partition("one of")[2].partition(" at line")[0]
    assert {word.strip("` ") for word in known.split(",")} <= set(DTYPE_BITS)


#: What safetensors refuses too: content, words of the reason, byte offset, JSON pointer.
REFUSED: dict[str, tuple[bytes, str, int | None, str | None]] = {
    "length 0": (packed(b"", DATA), "must begin with '{'", 8, None),
    "1 byte": (b"a", "1 bytes long, too short", 0, None),
    "7 bytes": (b"abcdefg", "7 bytes long, too short", 0, None),
    "length 2**63": (packed(ONE, DATA, 2**63), "claims a header of 9,223,3", 0, None),
    "length beyond the file": (packed(ONE, DATA, 10_000), "claims a header of 10,000", 0, None),
    "length of 100 MB": (packed(ONE, DATA, 100_000_000), "claims a header of 100,000,", 0, None),
    "empty file": (b"", "is empty (0 bytes)", None, None),
    "git lfs": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n",
        "is a Git LFS pointer",
        None,
        None,
    ),
    "almost git lfs": (b"version https://else", "claims a header of", 0, None),
    "byte order mark": (packed(b"\xef\xbb\xbf" + ONE, DATA), "a byte order mark", 8, None),
    "an array": (packed(b"[]"), "not with '['", 8, None),
    "not UTF-8": (packed(b'{"\xff":0}'), "not UTF-8", 10, None),
    "cut JSON": (packed('{"é":'.encode()), "Expecting value", 14, None),
    "trailing NUL": (packed(ONE + b"\0\0", DATA), "padded with something else", 8 + len(ONE), None),
    "nested too deeply": (
        packed(b'{"__metadata__":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        "nested too deeply",
        8,
        None,
    ),
    "many digits": (packed(b'{"a":' + b"1" * 5000 + b"}"), "digits", 8, None),
    "NaN": (packed(ONE.replace(b"[0", b"[NaN"), DATA), "must be two whole numbers", None, "/a"),
    "minus zero": (packed(ONE.replace(b"[0", b"[-0"), DATA), "-0 is negative", 8, None),
    "lone surrogate": (packed(ONE.replace(b'"a"', b'"\\ud800"'), DATA), "surrogate", 8, None),
    "metadata twice": (
        packed(b'{"__metadata__":{},"__metadata__":{}}'),
        "'__metadata__' stands twice",
        8,
        None,
    ),
    "nested metadata": (packed({"__metadata__": {"x": {}}}), "strings", None, "/__metadata__"),
    "metadata list": (packed({"__metadata__": []}), "strings", None, "/__metadata__"),
    "no object": (packed({"a/b": 1}), "is described by dtype", None, "/a~1b"),
    "no dtype": (
        packed({"a": {"shape": [], "data_offsets": [0, 4]}}),
        "is described by dtype",
        None,
        "/a",
    ),
    "unknown dtype": (packed({"a": tensor(0, 8, [2], "Q9")}, DATA), "dtype 'Q9'", None, "/a"),
    "dtype list": (packed({"a": tensor(0, 8, [2], ["F32"])}, DATA), "['F32']", None, "/a"),
    "negative": (packed({"a": tensor(-1, 8)}, DATA), "data_offsets must be two", None, "/a"),
    "float": (packed({"a": tensor(0.0, 8)}, DATA), "data_offsets must be two", None, "/a"),
    "boolean": (packed({"a": tensor(0, 4, [True])}, DATA[:4]), "shape must be", None, "/a"),
    "shape text": (packed({"a": tensor(0, 4, "1")}, DATA[:4]), "shape must be", None, "/a"),
    "three offsets": (
        packed({"a": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8, 8]}}, DATA),
        "must be two whole numbers",
        None,
        "/a",
    ),
    "shape and size": (packed({"a": tensor(0, 8, [3])}, DATA), "does not take 8 by", None, "/a"),
    "backwards": (packed({"a": tensor(8, 0)}, DATA), "does not take -8 bytes", None, "/a"),
    "overflow": (packed({"a": tensor(0, 0, [2**62, 4, 0])}), "overflows 64 bits", None, "/a"),
    "beyond usize": (packed({"a": tensor(0, 0, [0, 2**64])}), "shape must be", None, "/a"),
    "half a byte": (packed({"a": tensor(0, 0, [1], "F4")}), "byte boundary", None, "/a"),
    "overlap": (
        packed({"a": tensor(0, 8), "b": tensor(4, 8, [1])}, DATA, None),
        "overlaps the tensor before it: it should start at 8, not 4",
        8 + len(json.dumps({"a": tensor(0, 8), "b": tensor(4, 8, [1])}, indent=2)) + 4,
        "/b",
    ),
    "hole": (
        packed({"a": tensor(0, 4, [1]), "b": tensor(6, 8, [1], "F16")}, DATA),
        "leaves a gap before",
        8 + len(json.dumps({"a": tensor(0, 4, [1]), "b": tensor(6, 8, [1], "F16")}, indent=2)) + 6,
        "/b",
    ),
    "cut off": (
        packed(ONE, DATA[:-3]),
        f"is cut off: {8 + len(ONE) + 5} bytes of {8 + len(ONE) + 8}",
        8 + len(ONE) + 5,
        None,
    ),
    "trailing bytes": (
        packed(ONE, DATA + b"\0"),
        "has 1 bytes that belong to no tensor",
        8 + len(ONE) + 8,
        None,
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_header_is_refused_with_place_and_reason(case: str) -> None:
    content, words, offset, pointer = REFUSED[case]
    error = refusal(content)
    assert words in error.message
    assert (error.offset, error.pointer) == (offset, pointer)
    with pytest.raises(safetensors.SafetensorError):
        deserialize(content)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b'{"a":' + ONE[6:-1] + b',"a":' + ONE[6:], "'a' stands twice"),
        (b" " + ONE, "not with ' '"),
        (b'{"__metadata__":null,' + ONE[1:], "must be an object of strings"),
        (ONE.replace(b'"F32"', b'{"F32":null}'), "unknown dtype"),
        (ONE[:-2] + b',"extra":1}}', "and nothing else"),
    ],
)
def test_stricter_than_safetensors(raw: bytes, words: str) -> None:
    assert list(deserialize(packed(raw, DATA))) == ["a"]
    assert words in refusal(packed(raw, DATA)).message


def test_padding_with_spaces_and_having_no_tensors_are_fine() -> None:
    assert list(header_of(packed(ONE + b"   ", DATA)).tensors) == ["a"]
    assert header_of(packed(b"{}")).tensors == {}


@pytest.mark.parametrize(
    ("case", "hint"),
    [
        ("git lfs", "git lfs pull"),
        ("empty file", "hf download ORG/NAME x.safetensors --force-download"),
        ("cut off", "hf download ORG/NAME x.safetensors --force-download"),
        ("length beyond the file", "hf download ORG/NAME x.safetensors --force-download"),
    ],
)
def test_damage_comes_with_its_remedy(case: str, hint: str) -> None:
    assert refusal(REFUSED[case][0]).hint == hint


# --- Differential: whatever is accepted here, safetensors accepts and understands alike.

NUMBERS = ["0", "1", "2", "4", "8", "-0", "-1", "1.0", "1e0", "1E1", "NaN", "true", "null", '"1"',
           "[]", "00", str(2**62), str(2**64 - 1), str(2**64)]  # fmt: skip
DTYPES = ['"F32"', '"U8"', '"F4"', '"BOOL"', '"I64"', '"f32"', '"Q9"', "null", '{"F32":null}']
NAMES = ['"a"', '"b"', '"a\\u0062"', '"\\ud83d\\ude00"', '""', '"é"']
SNIPPETS = [b" ", b"\t", b"\n", b"\0", b",", b"}", b"{", b'"', b"\\", b"\xff", b"\xef\xbb\xbf",
            b"\\u0000", b"-", b"0", b"//", b'"z":1,', b'"dtype":"U8",', b"\xc2\xa0"]  # fmt: skip


@st.composite
def sane_tensors(draw: st.DrawFn) -> tuple[list[str], int]:
    """Members that describe tensors lying one after the other, and the length of their data."""
    members, end = [], 0
    for name in draw(st.lists(st.sampled_from(NAMES), max_size=4, unique=True)):
        dtype = draw(st.sampled_from(["U8", "F32", "F4", "F64"]))
        shape = [*draw(st.lists(st.integers(0, 3), max_size=3)), 2]  # even, for F4
        bits = DTYPE_BITS[dtype]
        for length in shape:
            bits *= length
        start, end = end, end + bits // 8
        members.append(f"{name}:{json.dumps(tensor(start, end, shape, dtype))}")
    return draw(st.permutations(members)), end


@st.composite
def strange_member(draw: st.DrawFn) -> str:
    number = st.sampled_from(NUMBERS)
    shape = ",".join(draw(st.lists(number, max_size=3)))
    offsets = ",".join(draw(st.lists(number, min_size=1, max_size=3)))
    fields = [
        f'"dtype":{draw(st.sampled_from(DTYPES))}',
        f'"shape":[{shape}]',
        f'"data_offsets":[{offsets}]',
        draw(st.sampled_from(["", '"z":1e999', '"z":"\\ud800"', '"z":-0', '"\\ud800":1'])),
    ]
    name = draw(st.sampled_from([*NAMES, '"\\u0061"', '"\\ud800"', '"__metadata__"']))
    return f"{name}:{{{','.join(filter(None, draw(st.permutations(fields))))}}}"


@st.composite
def safetensors_files(draw: st.DrawFn) -> bytes:
    """A good file with at most one thing done to it."""
    members, size = draw(sane_tensors())
    fault = draw(st.sampled_from(["none", "member", "metadata", "snippet", "length", "data"]))
    if fault == "member":
        members.append(draw(strange_member()))
    if fault == "metadata":
        members.append(f'"__metadata__":{{"k":{draw(st.sampled_from([*NAMES, *NUMBERS]))}}}')
    raw = bytearray(("{" + ",".join(members) + "}").encode())
    if fault == "snippet":
        place = draw(st.integers(0, len(raw)))
        raw[place : place + draw(st.integers(0, 2))] = draw(st.sampled_from(SNIPPETS))
    length = len(raw) + (draw(st.sampled_from([-1, 1, 8])) if fault == "length" else 0)
    data = size + (draw(st.sampled_from([1, 8])) if fault == "data" else 0)
    return packed(bytes(raw), bytes(data), length)


@given(safetensors_files())
@example(packed(ONE, DATA))
@example(packed(ONE.replace(b"[0", b"[-0"), DATA))
def test_whatever_is_accepted_safetensors_accepts_too(content: bytes) -> None:
    try:
        header = header_of(content)
    except UnreadableError:
        return
    judged = deserialize(content)
    assert judged.keys() == header.tensors.keys()
    for name, found in header.tensors.items():
        data = content[header.data_start + found.start : header.data_start + found.end]
        assert (found.dtype, list(found.shape)) == (judged[name]["dtype"], judged[name]["shape"])
        assert data == bytes(judged[name]["data"])


@given(sane_tensors())
def test_what_is_good_is_accepted_by_both(made: tuple[list[str], int]) -> None:
    members, size = made
    content = packed(("{" + ",".join(members) + "}").encode(), bytes(size))
    assert len(members) == len(header_of(content).tensors) == len(deserialize(content))


# --- Files that are no files, and files that change


def special(directory: Path, kind: str) -> Path:
    path = directory / "m.safetensors"
    if kind == "a FIFO":
        os.mkfifo(path)
    elif kind == "a directory":
        path.mkdir()
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
    elif kind == "a character device":
        path.symlink_to("/dev/zero")
    elif kind == "back to itself":
        path.symlink_to(path.name)
    elif kind == "../blobs/gone, which does not exist":
        path.symlink_to("../blobs/gone")
    return path


@pytest.mark.timeout(5)
@pytest.mark.parametrize(
    "kind",
    [
        "a FIFO",
        "a directory",
        "a socket",
        "a character device",
        "back to itself",
        "../blobs/gone, which does not exist",
        "does not exist",
    ],
)
def test_what_is_no_file_is_named_and_never_waited_for(tmp_path: Path, kind: str) -> None:
    path = special(tmp_path, kind)
    for read in (read_header, lambda path: read_whole(path, "m.safetensors", 100)):
        with pytest.raises(UnreadableError) as caught:
            read(path)
        assert caught.value.path == "m.safetensors"
        assert kind in caught.value.message


@pytest.mark.timeout(5)
def test_a_fifo_put_in_place_after_the_look_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_checkpoint(tmp_path, {"m.safetensors": packed(ONE, DATA)}) / "m.safetensors"
    status = os.stat(path)
    path.unlink()
    os.mkfifo(path)
    monkeypatch.setattr(os, "stat", lambda *_args, **_kw: status)
    with pytest.raises(UnreadableError, match="a FIFO"):
        read_header(path)


@pytest.mark.parametrize("size", [-4, 4])
def test_a_shard_that_changes_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    content = packed(ONE, DATA)
    path = make_checkpoint(tmp_path, {"m.safetensors": content}) / "m.safetensors"
    real = os.pread

    def pread(fd: int, count: int, offset: int) -> bytes:
        data = real(fd, count, offset)
        os.truncate(path, len(content) + size)
        return data

    monkeypatch.setattr(os, "pread", pread)
    with pytest.raises(UnreadableError, match="changed while it was being read"):
        read_header(path)


def test_a_shard_that_shrinks_into_its_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_checkpoint(tmp_path, {"m.safetensors": packed(ONE, DATA)}) / "m.safetensors"
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, n, at: real(fd, n, at)[: n if at == 0 else n - 1])
    with pytest.raises(UnreadableError, match="changed while it was being read"):
        read_header(path)


@pytest.mark.parametrize("content", [b"{}", b"{}   "])
def test_a_text_file_that_grows_or_shrinks_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    path = make_checkpoint(tmp_path, {"config.json": b"{} "}) / "config.json"
    real = os.read

    def read(fd: int, count: int) -> bytes:
        path.write_bytes(content)
        return real(fd, count)

    monkeypatch.setattr(os, "read", read)
    with pytest.raises(UnreadableError, match="changed while it was being read"):
        read_whole(path, "config.json", 100)


@pytest.mark.parametrize("call", ["read", "pread"])
def test_a_read_that_fails_is_an_error_with_the_systems_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = make_checkpoint(tmp_path, {"m.safetensors": packed(ONE, DATA)}) / "m.safetensors"

    def fail(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(UnreadableError, match="cannot be read: Input/output error"):
        read_header(path) if call == "pread" else read_whole(path, "m.safetensors", 10_000)


def test_only_the_header_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = packed(ONE, DATA)
    path = make_checkpoint(tmp_path, {"m.safetensors": content}) / "m.safetensors"
    real, reads = os.pread, []

    def pread(fd: int, count: int, offset: int) -> bytes:
        reads.append((offset, count))
        return real(fd, count, offset)

    monkeypatch.setattr(os, "pread", pread)
    read_header(path)
    assert reads == [(0, 8), (8, len(ONE))]


@pytest.mark.parametrize(
    ("members", "size", "words"),
    [
        (1, 1000, "claims a header of 100,000,000"),
        (1, 200_000_000, "the header has NUL bytes"),  # they are a hole
        (15_000_000, 105_000_009, "it takes more memory than there is"),
    ],
)
def test_a_claim_of_100_mb_does_not_take_the_memory(
    tmp_path: Path, members: int, size: int, words: str
) -> None:
    content = packed(b"{" + b'"a":[],' * members, b"", 100_000_000)
    path = make_checkpoint(tmp_path, {"m.safetensors": content}) / "m.safetensors"
    os.truncate(path, size)
    program = (
        "import sys\nfrom patcher.headers import read_header\n"
        "from patcher.errors import UnreadableError\n"
        "try: read_header(sys.argv[1])\nexcept UnreadableError as error: print(error)"
    )
    limit = 300 * 2**20
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert words in done.stdout


# --- Scales

COUNTED = {
    "model.layers.0.self_attn.k_proj.k_scale": ("k", "model.layers.0.self_attn"),
    "model.layers.0.self_attn.v_proj.v_scale": ("v", "model.layers.0.self_attn"),
    "backbone.layers.5.mixer.k_proj.k_scale": ("k", "backbone.layers.5.mixer"),
    "model.layers.0.self_attn.k_scale": ("k", "model.layers.0.self_attn"),
    "model.layers.0.self_attn.q_scale": ("q", "model.layers.0.self_attn"),
    "model.layers.0.self_attn.v_proj.output_scale": ("v", "model.layers.0.self_attn"),
    "model.layers.0.self_attn.q_proj.output_scale": ("q", "model.layers.0.self_attn"),
    "model.layers.0.self_attn.k_global_scale": ("k", "model.layers.0.self_attn"),
    "model.layers.0.self_attn.kv_scale": ("kv", "model.layers.0.self_attn"),
    "model.layers.0.self_attn.k_cache.scale": ("k", "model.layers.0.self_attn"),
    "model.layers.0.self_attn.v_cache.scale": ("v", "model.layers.0.self_attn"),
    "model.layers.0.self_attn.q.scale": ("q", "model.layers.0.self_attn"),
    "transformer.layers.0.attention.kv_cache_scaling_factor": (
        "kv",
        "transformer.layers.0.attention",
    ),
    "model.layers.0.self_attn.qkv_proj.k_scale": ("k", "model.layers.0.self_attn"),
    "model.layers.0.self_attn.qkqkv_proj.v_scale": ("v", "model.layers.0.self_attn"),
    "k_scale": ("k", ""),
}


@pytest.mark.parametrize("name", COUNTED)
def test_the_scale_names_of_every_producer(name: str) -> None:
    assert scale_of(name) == COUNTED[name]


@given(
    st.sampled_from(["", "k_proj.", "v_proj.", "q_proj.", "k_cache.", "v_cache.", "q."]), st.text()
)
@example("k_cache.", "scale")
@example("", "kv_cache_scaling_factor")
def test_the_quick_search_misses_no_scale(owner: str, last: str) -> None:
    endings = [*_LAST, *(each for _, each in _LAST_TWO), last]
    names = [f"model.layers.0.self_attn.{owner}{each}" for each in endings]
    assert {*filter(scale_of, names)} <= {*likely(names)}


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.kv_a_proj_with_mqa.weight_scale",
        "model.layers.0.self_attn.kv_b_proj.weight",
        "model.layers.0.self_attn.k_proj.weight_scale",
        "model.layers.0.self_attn.k_proj.input_scale",
        "model.layers.0.self_attn.k_proj.bias",
        "model.layers.0.self_attn.prob_output_scale",
        "model.layers.0.self_attn.o_proj.output_scale",
        "model.layers.0.mlp.gate.scale",
        "model.layers.0.self_attn.k_scale.weight",
        "model.layers.0.self_attn.my_k_scale",
        "scale",
        "",
    ],
)
def test_names_that_scale_something_else(name: str) -> None:
    assert scale_of(name) is None


def index_of(weight_map: Any) -> dict[str, Any]:
    return {"metadata": {"total_size": 1}, "weight_map": weight_map}


LAYERS = [f"model.layers.{n}.self_attn" for n in range(3)]
TENSORS = [
    *(f"{layer}.k_proj.k_scale" for layer in LAYERS),
    *(f"{layer}.v_proj.v_scale" for layer in LAYERS[:2]),
    f"{LAYERS[0]}.q_scale",
    f"{LAYERS[0]}.kv_a_proj_with_mqa.weight_scale",
    "model.layers.9.self_attn.kv_scale",
]


def test_index_and_headers_give_the_same_counts(tmp_path: Path) -> None:
    files = {"a.safetensors": shard(*TENSORS[:4]), "b.safetensors": shard(*TENSORS[4:])}
    root = make_checkpoint(tmp_path, files)
    by_headers = count_scales(root, sorted(files))
    weight_map = {name: "ab"[n > 3] + ".safetensors" for n, name in enumerate(TENSORS)}
    make_checkpoint(root, {INDEX_FILE: index_of(weight_map)})
    by_index = count_scales(root, sorted(files))
    assert by_headers.bytes_read == sum(len(content) for content in files.values()) - 8 * 4
    assert by_index.bytes_read == (root / INDEX_FILE).stat().st_size
    assert (by_headers.source, by_index.source) == ("headers", "index")
    ignored = {"source": None, "bytes_read": None}
    assert by_headers.to_dict() | ignored == by_index.to_dict() | ignored
    assert by_index.to_dict() | ignored == {
        "source": None,
        "shards": 2,
        "tensors": 8,
        "k_scales": 3,
        "v_scales": 2,
        "kv_scales": 1,
        "q_scales": 1,
        "paired": 2,
        "unpaired": ("model.layers.2.self_attn.k_proj.k_scale",),
        "missing_shards": (),
        "bytes_read": None,
        "weight_bytes_read": 0,
    }


def test_a_scale_for_both_leaves_nothing_unpaired(tmp_path: Path) -> None:
    files = {"a.safetensors": shard("l.attn.k_scale", "l.attn.kv_scale")}
    counts = count_scales(make_checkpoint(tmp_path, files), ["a.safetensors"])
    assert (counts.k_scales, counts.kv_scales, counts.paired, counts.unpaired) == (1, 1, 0, ())


def test_without_index_and_shards_there_is_no_source(tmp_path: Path) -> None:
    counts = count_scales(tmp_path, [])
    assert (counts.source, counts.tensors, counts.bytes_read) == ("none", 0, 0)


def test_shards_that_were_not_downloaded_are_listed(tmp_path: Path) -> None:
    weight_map = {"a": "sub/1.safetensors", "b": "2.safetensors", "c": "3.safetensors"}
    root = make_checkpoint(
        tmp_path, {INDEX_FILE: index_of(weight_map), "sub/1.safetensors": b"unread"}
    )
    (root / "3.safetensors").symlink_to("gone")
    counts = count_scales(root, ["2.safetensors"])
    assert counts.missing_shards == ("2.safetensors", "3.safetensors")
    assert (counts.shards, counts.tensors) == (3, 3)


def index_refusal(directory: Path, content: Any) -> UnreadableError:
    root = make_checkpoint(directory, {INDEX_FILE: content})
    with pytest.raises(UnreadableError) as caught:
        count_scales(root, [])
    assert caught.value.path == INDEX_FILE
    return caught.value


@pytest.mark.parametrize(
    ("shard_name", "reason"),
    [
        ("../../etc/passwd", "is not a plain path"),
        ("a/../b", "is not a plain path"),
        ("./a", "is not a plain path"),
        ("a//b", "is not a plain path"),
        ("", "is not a plain path"),
        ("/etc/passwd", "is an absolute path"),
        ("a\0b", "is not a printable name"),
        ("a\nb", "is not a printable name"),
        ("\udce9", "is not a printable name"),
        ("..\\a", "has a backslash"),
        ("x" * 4096, "is too long"),
        (None, "is not a string"),
        (["a"], "is not a string"),
        (7, "is not a string"),
    ],
)
def test_a_hostile_shard_name_is_refused(tmp_path: Path, shard_name: Any, reason: str) -> None:
    error = index_refusal(tmp_path, index_of({"ok": "a.safetensors", "a/~b": shard_name}))
    assert error.pointer == "/weight_map/a~1~0b"
    assert reason in error.message


@given(st.text())
def test_a_name_that_is_not_unsafe_stays_below_the_directory(name: str) -> None:
    if unsafe(name) is None:
        path = os.path.normpath(os.path.join("/root/of/checkpoint", name))
        assert path == f"/root/of/checkpoint/{name}"
        assert os.fsencode(path).count(b"\0") == 0


@pytest.mark.parametrize(
    ("content", "words", "hint"),
    [
        ([], "must be an object", None),
        ({}, "must be an object", None),
        ({"weight_map": []}, "must be an object", None),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer", "git lfs pull"),
        (b"", "is empty", "hf download ORG/NAME model.safetensors.index.json --force-download"),
    ],
)
def test_an_index_that_is_none(tmp_path: Path, content: Any, words: str, hint: str | None) -> None:
    error = index_refusal(tmp_path, content)
    assert words in error.message
    assert error.hint == hint


def test_an_index_of_nothing_is_an_index(tmp_path: Path) -> None:
    counts = count_scales(make_checkpoint(tmp_path, {INDEX_FILE: index_of({})}), [])
    assert (counts.source, counts.shards, counts.tensors) == ("index", 0, 0)


def test_a_dangling_index_is_an_error_not_a_missing_index(tmp_path: Path) -> None:
    (tmp_path / INDEX_FILE).symlink_to("../../blobs/0")
    with pytest.raises(UnreadableError, match=r"a link to \.\./\.\./blobs/0"):
        count_scales(tmp_path, [])


def test_an_index_of_more_than_half_a_gigabyte(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, {INDEX_FILE: b"{}"}) / INDEX_FILE
    os.truncate(path, 512 * 2**20 + 1)
    with pytest.raises(UnreadableError, match="536,870,913 bytes"):
        read_index(path)


def test_the_time_of_counting_grows_with_the_names(tmp_path: Path) -> None:
    """Linear would be 4; a second pass over all names for each one would be 16."""

    def seconds(names: int) -> float:
        weight_map = {
            f"language_model.model.layers.{n % 61}.mlp.experts.{n}.down_proj.weight_scale_2": (
                f"model-{n % 119:05d}-of-00119.safetensors"
            )
            for n in range(names)
        }
        (tmp_path / INDEX_FILE).write_bytes(json.dumps(index_of(weight_map)).encode())
        begin = time.process_time()
        assert count_scales(tmp_path, []).tensors == names
        return time.process_time() - begin

    few = min(seconds(20_000) for _ in range(3))
    many = min(seconds(80_000) for _ in range(3))
    assert many < 9 * few
