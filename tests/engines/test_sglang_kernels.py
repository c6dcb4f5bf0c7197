"""What SGLang's checks do not see, read in sources: kernels that fail, scales that are applied.

Each fact is asked for where it holds, and one step outside: the release, GPU, dtype or backend next
to it. The facts themselves name a public source and a date.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from patcher import gpus
from patcher.engines import facts as packaged
from patcher.engines import sglang
from patcher.engines.base import Answer, Launch
from patcher.engines.extract.sglang_models import MODELS
from patcher.metadata.model import describe

READ = json.loads((Path(packaged.__file__).parent / "sglang" / "kernels.read.json").read_text())
FP8 = {"dynamic": False, "num_bits": 8, "type": "float"}
NVFP4 = {
    "quant_method": "modelopt",
    "quant_algo": "NVFP4",
    "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 16}}},
    "ignore": ["lm_head"],
}
#: Weights in FP8 blocks: every GPU from SM80 on takes them, and scales are loaded from 0.5.7 on.
BLOCKS = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
Model = dict[str, Any]


def _ask(release: str, gpu: str, model: Model, **flags: str) -> Answer:
    documents = {"config.json": model}
    launch = Launch(gpu, gpus.find(gpu).capability, **flags)
    return sglang.answer(release, documents, describe(documents), launch)


def _model(kind: str, block: dict[str, Any] | None = None, **fields: Any) -> Model:
    model = {**MODELS[kind], **fields}
    return model if block is None else {**model, "quantization_config": block}


def _text(part: str, name: str) -> str:
    return next(str(entry["message"]) for entry in READ[part] if entry["id"] == name)


MLA, MHA, DSA = _model("mla"), _model("mha"), _model("dsa")
FLAT = {**NVFP4, "kv_cache_scheme": FP8}
OLD = {"attention_backend": "triton", "kv_cache_dtype": "fp8_e4m3"}
TRTLLM = {"attention_backend": "trtllm_mla"}
DECODE = {"decode_attention_backend": "trtllm_mla"}
TRTLLM_MHA = {"attention_backend": "trtllm_mha"}
FEW = _model("mla", num_attention_heads=64, num_key_value_heads=64)

KERNELS: list[tuple[str, bool, str, str, Model, dict[str, str]]] = [
    ("triton-fp8-below-sm89", True, "0.5.23", "sm86", MLA, OLD),
    ("triton-fp8-below-sm89", False, "0.5.23", "sm89", MLA, OLD),
    ("triton-fp8-below-sm89", False, "0.5.23", "sm86", MLA, {}),
    ("xqa-mla-128-heads", True, "0.5.23", "sm120", FEW, DECODE),
    ("xqa-mla-128-heads", False, "0.5.23", "sm120", MLA, DECODE),
    ("xqa-mla-128-heads", False, "0.5.23", "sm100", FEW, DECODE),
    ("xqa-mla-fp8-only", True, "0.5.10", "sm120", MLA, DECODE),
    ("xqa-mla-fp8-only", False, "0.5.10", "sm120", MLA, {**DECODE, "kv_cache_dtype": "fp8_e4m3"}),
    ("xqa-mla-fp8-only", False, "0.5.11", "sm120", MLA, DECODE),
    ("trtllm-ragged-prefill-sm12x", True, "0.5.23", "sm121", MLA, TRTLLM),
    ("trtllm-ragged-prefill-sm12x", False, "0.5.23", "sm121", MLA, DECODE),
    ("trtllm-ragged-prefill-sm12x", False, "0.5.23", "sm103", MLA, TRTLLM),
    ("dsa-trtllm-sm12x", True, "0.5.20", "sm120", DSA, {}),
    ("dsa-trtllm-sm12x", False, "0.5.20", "sm100", DSA, {}),
    ("dsa-below-sm90", True, "0.5.20", "sm80", DSA, {}),
    ("dsa-below-sm90", False, "0.5.20", "sm90", DSA, {}),
    ("dsa-rocm", True, "0.5.9", "gfx942", DSA, {}),
    ("dsa-rocm", False, "0.5.20", "gfx942", DSA, {}),
    ("fa3-query-not-cast", True, "0.5.8", "sm90", _model("mha", {**FLAT, "quant_algo": "FP8"}), {}),
    (
        "fa3-query-not-cast",
        False,
        "0.5.9",
        "sm90",
        _model("mha", {**FLAT, "quant_algo": "FP8"}),
        {},
    ),
    ("fa3-query-not-cast", False, "0.5.8", "sm90", MHA, {"kv_cache_dtype": "fp8_e4m3"}),
    ("trtllm-mha-sm12x-fp8-prefill", True, "0.5.19", "sm120", _model("mha", FLAT), TRTLLM_MHA),
    ("trtllm-mha-sm12x-fp8-prefill", False, "0.5.19", "sm100", _model("mha", FLAT), TRTLLM_MHA),
    ("mxfp8-needs-fa4", True, "0.5.16", "sm100", MHA, {"kv_cache_dtype": "mxfp8"}),
    ("mxfp8-needs-fa4", False, "0.5.16", "sm100", MHA, {}),
]


@pytest.mark.parametrize(("name", "holds", "release", "gpu", "model", "flags"), KERNELS)
def test_a_kernel_that_fails(  # noqa: PLR0913 - the columns of the table
    name: str, *, holds: bool, release: str, gpu: str, model: Model, flags: dict[str, str]
) -> None:
    found = _ask(release, gpu, model, **flags)
    assert found.refusals == ()
    assert found.unknown is None
    wanted = f"expected to fail at run time: {_text('kernels', name)} (read 2026-11-30, not run)"
    told = [notice.severity for notice in found.notices if notice.message == wanted]
    assert told == (["warning"] if holds else [])


def test_every_kernel_fact_is_asked_for_and_outside_of_it() -> None:
    names = {entry["id"] for entry in READ["kernels"]}
    assert {row[0] for row in KERNELS if row[1]} == names
    assert {row[0] for row in KERNELS if not row[1]} == names


BF16 = {"kv_cache_dtype": "bf16"}
DENSE = _model("mha", FLAT)
OFF = _model("mha", {**FLAT, "kv_cache_scheme": None})
SCALES: list[tuple[str, bool, str, str, Model, dict[str, str]]] = [
    ("flashinfer-mha", True, "0.5.10", "sm120", DENSE, BF16),
    ("flashinfer-mha", True, "0.5.23", "sm120", DENSE, BF16),
    ("flashinfer-mha", True, "0.5.23", "sm120", OFF, {}),
    ("flashinfer-mha", False, "0.5.23", "sm120", DENSE, {}),
    ("triton-mha", False, "0.5.9", "sm90", _model("mha", {**FLAT, "quant_algo": "FP8"}),
     {**BF16, "attention_backend": "triton"}),
    ("triton-mha", True, "0.5.10", "sm90", _model("mha", {**FLAT, "quant_algo": "FP8"}),
     {**BF16, "attention_backend": "triton"}),
    ("triton-mha", True, "0.5.23", "sm120", DENSE, {**BF16, "attention_backend": "triton"}),
    ("trtllm-mha", True, "0.5.13.post1", "sm100", DENSE, {**BF16, **TRTLLM_MHA}),
    ("trtllm-mha", False, "0.5.14", "sm100", DENSE, {**BF16, **TRTLLM_MHA}),
    ("triton-mla-never-divides", True, "0.5.10", "sm120", _model("mla", FLAT), {}),
    ("triton-mla-never-divides", True, "0.5.11", "sm120", _model("mla", FLAT), BF16),
    ("triton-mla-never-divides", False, "0.5.12", "sm120", _model("mla", FLAT), {}),
    ("trtllm-mla", True, "0.5.8", "sm100", _model("mla", {**BLOCKS, "kv_cache_scheme": FP8}), {}),
    ("trtllm-mla", False, "0.5.9", "sm100", _model("mla", {**BLOCKS, "kv_cache_scheme": FP8}), {}),
    ("dsa-trtllm", True, "0.5.23", "sm100", _model("dsa", FLAT), BF16),
    ("dsa-trtllm", False, "0.5.23", "sm100", _model("dsa", FLAT), {}),
    ("dsa-trtllm", False, "0.5.23", "sm90", _model("dsa", FLAT), BF16),
]  # fmt: skip


@pytest.mark.parametrize(("name", "holds", "release", "gpu", "model", "flags"), SCALES)
def test_scales_that_are_applied_to_what_was_not_divided(  # noqa: PLR0913 - as above
    name: str, *, holds: bool, release: str, gpu: str, model: Model, flags: dict[str, str]
) -> None:
    found = _ask(release, gpu, model, **flags)
    assert found.refusals == ()
    told = [notice.message for notice in found.notices if notice.finding == "KV015"]
    assert any(_text("scales", name) in message for message in told) is holds
    assert all("answers are wrong unless all are 1.0" in message for message in told)


def test_every_fact_about_scales_is_asked_for_and_outside_of_it() -> None:
    names = {entry["id"] for entry in READ["scales"]}
    assert {row[0] for row in SCALES if row[1]} == names
    assert {row[0] for row in SCALES if not row[1]} == names


@pytest.mark.parametrize(
    ("release", "gpu", "model", "flags", "other"),
    [
        ("0.5.20", "sm120", DENSE, BF16, "trtllm_mha"),
        ("0.5.12", "sm120", DENSE, BF16, None),  # there its prefill takes SM10x only
        ("0.5.13", "sm100", DENSE, {**BF16, **TRTLLM_MHA}, None),
        ("0.5.11", "sm100", _model("mla", FLAT), {"attention_backend": "triton"}, "trtllm_mla"),
        ("0.5.11", "sm120", _model("mla", FLAT), {}, "flashinfer"),
    ],
)
def test_the_warning_names_a_backend_that_is_right(
    release: str, gpu: str, model: Model, flags: dict[str, str], other: str | None
) -> None:
    found = _ask(release, gpu, model, **flags)
    [told] = [notice.message for notice in found.notices if notice.finding == "KV015"]
    hint = f" (right with --attention-backend {other})" if other else ""
    assert told.endswith(f"answers are wrong unless all are 1.0{hint}")
    if other:
        taken = _ask(release, gpu, model, **{**flags, "attention_backend": other})
        assert taken.refusals == ()
        assert "KV015" not in [notice.finding for notice in taken.notices]


def test_a_class_that_drops_the_config_still_loads_the_scales() -> None:
    """Its attention layers get the configuration; only the cache's dtype does not come from it."""
    model = {**DENSE, "architectures": ["Qwen2VLForConditionalGeneration"]}
    found = _ask("0.5.23", "sm120", model)
    assert {"KV008", "KV015"} <= {notice.finding for notice in found.notices}
