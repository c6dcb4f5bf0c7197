from __future__ import annotations

import shutil
import struct
from typing import TYPE_CHECKING, Any

import pytest
from conftest import make_checkpoint, packed

from patcher.checking import check
from patcher.checkpoint import open_checkpoint
from patcher.errors import UnreadableError
from patcher.headers import read_scale_values
from patcher.target import Target

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 1,
    "dtype": "bfloat16",
    "quantization_config": {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4",
        "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
        "producer": {"name": "modelopt", "version": "0.40.0"},
        "group_size": 16,
        "ignore": [],
    },
}
SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


def shard(values: Sequence[float], dtype: str = "F32") -> bytes:
    """k and v scales of one layer each, and a weight that must not be read."""
    header: dict[str, Any] = {}
    data = b""
    for number, value in enumerate(values):
        name = (
            f"model.layers.{number // 2}.self_attn.{'kv'[number % 2]}_proj.{'kv'[number % 2]}_scale"
        )
        raw = struct.pack({"F64": "<d", "F16": "<e"}.get(dtype, "<f"), value)
        raw = raw[2:] if dtype == "BF16" else raw
        header[name] = {
            "dtype": dtype,
            "shape": [],
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    weight = {"dtype": "F32", "shape": [64], "data_offsets": [len(data), len(data) + 256]}
    header["model.layers.0.self_attn.q_proj.weight"] = weight
    return packed(header, data + b"\xff" * 256)


@pytest.mark.parametrize("dtype", SIZES)
def test_the_range_of_the_scales(dtype: str, tmp_path: Path) -> None:
    make_checkpoint(tmp_path, {"a.safetensors": shard([1.0, 0.5, 1.0, 2.0], dtype)})
    values = read_scale_values(tmp_path, ["a.safetensors"])
    assert (values.count, values.lowest, values.highest) == (4, 0.5, 2.0)
    assert values.bytes_read == 4 * SIZES[dtype]
    assert not values.all_one


@pytest.mark.parametrize(("given", "all_one"), [([1.0] * 4, True), ([], True), ([1.0, 1.5], False)])
def test_scales_of_one_change_nothing(given: list[float], *, all_one: bool, tmp_path: Path) -> None:
    make_checkpoint(tmp_path, {"a.safetensors": shard(given)})
    assert read_scale_values(tmp_path, ["a.safetensors"]).all_one is all_one


def test_a_scale_that_is_no_scale_is_refused(tmp_path: Path) -> None:
    header = {"x.k_scale": {"dtype": "F32", "shape": [20000], "data_offsets": [0, 80000]}}
    make_checkpoint(tmp_path, {"a.safetensors": packed(header, bytes(80000))})
    with pytest.raises(UnreadableError, match=r"x\.k_scale is no small float tensor"):
        read_scale_values(tmp_path, ["a.safetensors"])


@pytest.mark.parametrize(
    ("scales", "words"),
    [
        (None, "the shards are not here to tell"),
        ([1.0, 1.0], None),
        ([0.5, 1.0], "here they are 0.5 to 1"),
    ],
)
def test_sglang_applies_stored_scales_to_an_unquantized_cache(
    scales: list[float] | None, words: str | None, tmp_path: Path
) -> None:
    files: dict[str, Any] = {"config.json": LLAMA}
    if scales is not None:
        files["model.safetensors"] = shard(scales)
    root = make_checkpoint(tmp_path / "llama", files)
    target = Target.parse("sm120", engine="sglang==0.5.20", kv_cache_dtype="bf16")
    told = [f.message for f in check(open_checkpoint(root), target).findings if f.id == "KV015"]
    if words is None:
        assert told == []
    else:
        assert len(told) >= 1
        assert all(message.endswith(words) for message in told)
    shutil.rmtree(root)
