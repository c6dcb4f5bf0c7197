"""Hostile bytes for the targets of `faults.hostile`: good input with a few places changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from faults import samples
from hypothesis import strategies as st

from patcher import recipes
from patcher.edits import sha256
from patcher.mirroring import manifest
from patcher.mirroring.manifest import MirroredFile
from patcher.planning import SCHEMA as PLAN_SCHEMA
from patcher.transaction import record

if TYPE_CHECKING:
    from random import Random


def _plan_seed() -> bytes:
    files = [edit.to_dict() | {"members": {}} for edit in samples.change().edits]
    return json.dumps(
        {
            "schema": PLAN_SCHEMA,
            "tool_version": "0.1.0",
            "recipe": {"id": "kv-cache-model-dtype", "version": 1, "sha256": "ab" * 32},
            "target": {"gpu": "sm120"},
            "findings": [{"id": "KV001"}],
            "files": files,
        }
    ).encode()


def _record_seed() -> bytes:
    files = [
        {
            "file": edit.file, "kind": "file", "link_target": None, "mode": 0o640, "uid": 0,
            "gid": 0, "mtime_ns": samples.MTIME_NS, "size": len(edit.before),
            "before_sha256": edit.before_sha256, "after_sha256": edit.after_sha256,
            "patch": list(edit.patch), "inverse": list(edit.inverse),
        }
        for edit in samples.change().edits
    ]  # fmt: skip
    return json.dumps(
        {
            "schema": record.SCHEMA, "id": 1, "created": "2026-01-01T00:00:00+00:00", "host": "h",
            "pid": 1, "tool_version": "0.1.0", "recipe": "r@1", "recipe_sha256": sha256(b""),
            "target": {"gpu": "sm120"}, "findings": ["KV001"], "note": "", "files": files,
        }
    ).encode()  # fmt: skip


def _manifest_seed() -> bytes:
    digest = sha256(b"")
    weights = MirroredFile(
        "sub/model.safetensors", "weights", 7, link="symlink", link_target="../../snapshot/sub",
        inode=1, mtime_ns=samples.MTIME_NS,
    )  # fmt: skip
    edits = [
        MirroredFile(
            edit.file, "patched", len(edit.before), edit.before_sha256, edit.after_sha256,
            patch=edit.patch, inverse=edit.inverse,
        )
        for edit in samples.change().edits
    ]  # fmt: skip
    return manifest.encode(
        manifest.Manifest(
            tool_version="0.1.0",
            source=manifest.Source("/models/name", "directory", "org/name", "main"),
            target={"gpu": "sm120"},
            releases={"engine": "vllm", "runs": [], "needed_for": ["0.16.0"]},
            recipe={"id": "r", "version": 1, "sha256": digest},
            link="auto",
            folders=("sub",),
            folder_links={"other": "sub"},
            files=(*edits, MirroredFile("sub/a.json", "copied", 2, digest, digest), weights),
        )
    )


_CONFIG, _OTHER = samples.BEFORE.values()
_TENSORS = b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"__metadata__":{"k":"v"}}'
_MODEL, _MODEL_OTHER = (
    (Path(__file__).parents[2] / "fixtures" / "Kimi-K2.5-NVFP4" / name).read_bytes()
    for name in ("config.json", "hf_quant_config.json")
)
_INDEX = b'{"metadata":{},"weight_map":{"a.k_scale":"model-00001.safetensors","b":"../secret"}}'

#: Good input to start from, for each target.
SEEDS: dict[str, list[bytes]] = {
    "jsontext": [_CONFIG, _OTHER, b"\xef\xbb\xbf[1e5, -0, Infinity, null, {}]\r\n"],
    "header": [len(_TENSORS).to_bytes(8, "little") + _TENSORS + bytes(8), b"version https://git"],
    "header text": [_TENSORS + b"\x08\0", b"{}\0\0"],
    "index": [_INDEX],
    "recipe": [path.read_bytes() for path in sorted(recipes.folder().glob("*.toml"))],
    "record": [_record_seed()],
    "plan": [_plan_seed()],
    "manifest": [_manifest_seed()],
    "metadata": [_MODEL + b"\0" + _MODEL_OTHER, _CONFIG + b"\0" + _OTHER, _OTHER + b"\0" + _CONFIG],
    "commands": [
        b"\0".join((_MODEL, _MODEL_OTHER, _INDEX.replace(b"../secret", b"model.safetensors"))),
        b"\0".join((_MODEL, _MODEL_OTHER, _INDEX)),
        b"\0".join((_MODEL, _MODEL_OTHER, b"")),
    ],
}

#: Pieces that parsers trip over.
TOKENS = [
    b"", b"\0", b"\xff", b"\xed\xa0\x80", b"{", b"}", b"[", b"]", b"[" * 300, b'{"a":' * 300, b'"',
    b"\\", b"\\u0000", b"\\ud800", b",", b":", b"null", b"true", b"NaN", b"-Infinity", b"-0",
    b"1e999", b"9" * 400, b"0.0", b"\x1b]0;x\x07", b"\\u001b[2J", b"\\u202e", b"\n", b"\r", b"#",
    b"../secret", b"/etc/passwd", b"/dev/zero", b"..\\", b"config.json", b"model.safetensors",
    b".ckpt-patch", b"kv_cache_scheme", b"kv_cache_quant_algo", b"quantization_config", b"FP8",
    b"NVFP4", b"modelopt", b"compressed-tensors", b"quark", b"layers", b"head_dim", b"[]", b"{}",
    b"0", b"-1", b"18446744073709551616", b'"op":"remove"', b'"path":"/"', b'"path":""', b"~2",
    b"[[rule]]", b"weights", b"symlink", b"'''", b"1979-05-27T07:32:00Z", b"\xef\xbb\xbf",
]  # fmt: skip

_junk = st.one_of(st.sampled_from(TOKENS), st.binary(max_size=6))
_edits = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 12), _junk), max_size=3)


def _edited(seed: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
    data = bytearray(seed)
    for place, cut, junk in edits:
        start = place % (len(data) + 1)
        data[start : start + cut] = junk
    return bytes(data)


def scrambled(target: str, random: Random) -> bytes:
    """As `inputs`, without Hypothesis: ten times as fast, and nothing is made smaller."""
    edits = [
        (
            random.randrange(10**6),
            random.randrange(13),
            random.choice(TOKENS) if random.random() < 0.6 else random.randbytes(2),
        )
        for _ in range(random.randint(1, 3))
    ]
    return _edited(random.choice(SEEDS[target]), edits)


def inputs(target: str) -> st.SearchStrategy[bytes]:
    """Bytes for a target: good ones with a few places changed, and any at all."""
    changed = st.builds(_edited, st.sampled_from(SEEDS[target]), _edits)
    return st.one_of(changed, changed, changed, st.binary(max_size=80))
