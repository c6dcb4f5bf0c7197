from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patcher.engines import facts
from patcher.engines.base import Answer, Launch, Notice, Place, Resolution
from patcher.engines.trtllm import answer, flag_values, generations, kernels
from patcher.engines.trtllm.judging import judge
from patcher.metadata.model import describe

FOLDER = Path(facts.__file__).parent / "trtllm"
CORPUS = Path(__file__).resolve().parents[2].parent / "shared" / "corpus"
OLD, EARLY, LATE = "1.0.0", "1.1.0", "1.2.0"
RELEASES = ("0.21.0", "1.0.0", "1.1.0", "1.2.0", "1.2.1")

GQA = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "torch_dtype": "bfloat16",
}
MLA = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 2,
    "num_attention_heads": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "torch_dtype": "bfloat16",
}
DSA = {**MLA, "model_type": "deepseek_v32", "index_topk": 2048}
GLM = {**DSA, "model_type": "glm_moe_dsa"}
SMALL_MLA = {**MLA, "kv_lora_rank": 256}
FLOAT8 = {"dynamic": False, "num_bits": 8, "type": "float"}
HF, CONFIG, LAYERS = "hf_quant_config.json", "config.json", "quant_cfg.json"
NESTED = Place(HF, "/quantization/kv_cache_quant_algo")
SCHEME = Place(CONFIG, "/quantization_config/kv_cache_scheme")


def nested(kv: Any = "FP8", algo: str = "NVFP4", **more: Any) -> dict[str, Any]:
    block = {"quant_algo": algo, "kv_cache_quant_algo": kv, **more}
    return {HF: {"producer": {"name": "modelopt"}, "quantization": block}}


def flat(scheme: Any, **more: Any) -> dict[str, Any]:
    block = {"quant_algo": "NVFP4", "kv_cache_scheme": scheme, **more}
    return {HF: {"producer": {"name": "modelopt"}, **block}}


def inline(**block: Any) -> dict[str, Any]:
    return {CONFIG: {"quantization_config": block}}


def mixed(kv: Any, layers: Any) -> dict[str, Any]:
    return {**nested(kv, "MIXED_PRECISION"), LAYERS: layers}


def ask(  # noqa: PLR0913 - a launch has that many parts
    files: dict[str, Any],
    config: dict[str, Any] | None = None,
    *,
    release: str = LATE,
    gpu: str = "sm100",
    flag: str = "auto",
    backend: str | None = None,
) -> Answer:
    documents = {**files, CONFIG: {**(config or GQA), **files.get(CONFIG, {})}}
    capability = f"{gpu[2:-1]}.{gpu[-1]}" if gpu.startswith("sm") else None
    launch = Launch(gpu, capability, flag, backend)
    return answer(release, documents, describe(documents), launch)


def outcome(given: Answer) -> tuple[str, ...]:
    """("runs", dtype), ("refuses", finding, text) or ("unknown", text)."""
    if given.unknown is not None:
        return "unknown", given.unknown
    if given.refusals:
        (refusal,) = given.refusals
        return "refuses", refusal.finding, refusal.message
    assert given.resolution is not None
    return "runs", given.resolution.kv_cache_dtype


FP8, DTYPE = ("runs", "fp8_e4m3"), ("runs", "auto")

# ---- which file and which key ------------------------------------------------------------------

READ = {
    "hf_quant_config.json beats config.json: model_config.py @008e0af8": (
        {**nested("FP8"), **inline(quant_method="modelopt", quant_algo="NVFP4")},
        Resolution("fp8_e4m3", NESTED, (NESTED,)),
    ),
    "null beats config.json's FP8: llm_utils.py @0066b2a5": (
        {
            **nested(None),
            **inline(quant_method="modelopt", quant_algo="NVFP4", kv_cache_scheme=FLOAT8),
        },
        Resolution("auto", NESTED, (NESTED,)),
    ),
    "a deleted key is accepted: llm_utils.py _apply_modelopt_quant_config": (
        {HF: {"quantization": {"quant_algo": "NVFP4"}}},
        Resolution("auto", "engine default", (NESTED,)),
    ),
    "nested reads kv_cache_quant_algo only: modelopt_config.py @2edf354d": (
        nested(None, kv_cache_scheme=FLOAT8),
        Resolution("auto", NESTED, (NESTED,)),
    ),
    "no quantization at all": ({}, Resolution("auto", "engine default")),
    "quant_cfg.json says the same: model_config.py _build_modelopt_quant_config": (
        mixed("FP8", {"kv_cache_quant_algo": "FP8"}),
        Resolution("fp8_e4m3", NESTED, (NESTED, Place(LAYERS, "/kv_cache_quant_algo"))),
    ),
    "quant_cfg.json wakes a nulled FP8: model_config.py _build_modelopt_quant_config": (
        mixed(None, {"kv_cache_quant_algo": "FP8"}),
        Resolution(
            "fp8_e4m3",
            Place(LAYERS, "/kv_cache_quant_algo"),
            (NESTED, Place(LAYERS, "/kv_cache_quant_algo")),
        ),
    ),
    "quant_cfg.json without the key": (
        mixed("FP8", {"quantized_layers": {}}),
        Resolution("fp8_e4m3", NESTED, (NESTED,)),
    ),
    "quant_cfg.json counts for mixed precision only": (
        {**nested("FP8", "NVFP4"), LAYERS: {"kv_cache_quant_algo": "NVFP4"}},
        Resolution("fp8_e4m3", NESTED, (NESTED,)),
    ),
}


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(("files", "expected"), READ.values(), ids=READ)
def test_reads(release: str, files: dict[str, Any], expected: Resolution) -> None:
    given = ask(files, release=release)
    assert (given.resolution, given.refusals, given.unknown) == (expected, (), None)


QUANT_ALGO = "ValueError: {!r} is not a valid QuantAlgo"
GONE = "ValueError: Pre-quantized checkpoint must have quant_algo."
CLASH = (
    "RuntimeError: The kvcache config in 'quant_cfg.json', NVFP4, is different from "
    "'hf_quant_config.json', FP8"
)
OVER = Place(LAYERS, "/kv_cache_quant_algo")
ALGO = Place(HF, "/quantization/quant_algo")
REFUSED = {
    **{
        f"QuantAlgo takes exact names, not {value!r}: modelopt_config.py @2edf354d": (
            nested(value),
            ("KV004", QUANT_ALGO.format(value if isinstance(value, str) else str(value)), NESTED),
        )
        for value in ("auto", "none", "", "fp8", "Fp8", 8, False, {"num_bits": 8})
    },
    "quant_algo deleted: llm_utils.py _apply_modelopt_quant_config": (
        {HF: {"quantization": {"kv_cache_quant_algo": "FP8"}}},
        ("KV005", GONE, ALGO),
    ),
    "quant_algo null: llm_utils.py _apply_modelopt_quant_config": (
        {HF: {"quantization": {"quant_algo": None, "kv_cache_quant_algo": None}}},
        ("KV004", GONE, ALGO),
    ),
    "quant_cfg.json contradicts: model_config.py _build_modelopt_quant_config": (
        mixed("FP8", {"kv_cache_quant_algo": "NVFP4"}),
        ("KV006", CLASH, OVER),
    ),
    "INT8: resource_manager.py #57350670334 #3501434665": (
        nested("INT8"),
        ("KV003", "AssertionError: Quantized kv cache is not expected", NESTED),
    ),
}


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(("files", "expected"), REFUSED.values(), ids=REFUSED)
def test_refuses_in_every_generation(
    release: str, files: dict[str, Any], expected: tuple[str, str, Place]
) -> None:
    given = ask(files, release=release)
    assert [(one.finding, one.message, one.place) for one in given.refusals] == [expected]
    assert given.unknown is None


@pytest.mark.parametrize("gpu", ["sm80", "sm90", "sm100", "sm103", "sm120", "sm75", "sm110"])
def test_int8_fails_on_every_gpu(gpu: str) -> None:
    for config in (GQA, MLA, DSA, GLM):
        assert outcome(ask(nested("INT8"), config, gpu=gpu))[:2] == ("refuses", "KV003")


# ---- where the generations differ --------------------------------------------------------------


def test_flat_file_is_a_key_error_before_modelopt_config_py() -> None:
    """Only ``quant_config_dict["quantization"]`` was parsed."""
    for release in ("0.21.0", "1.0.0"):
        assert outcome(ask(flat(FLOAT8), release=release)) == (
            "refuses",
            "KV004",
            "KeyError: 'quantization'",
        )


def differ(release: str, each: str) -> str:
    return (
        f"which generation of the code TensorRT-LLM {release} holds is inferred, not verified, "
        f"and they differ: {each}"
    )


KEY_ERROR = "does not start (KeyError: 'quantization')"
NEWER = "middle with flat files or main"
INLINE = "middle: what it makes of config.json's quantization_config was not read"
RUNS_FP8, RUNS_DTYPE = "runs with fp8_e4m3 in the cache", "runs with the model dtype in the cache"
UNSUPPORTED = "does not start (ValueError: Unsupported kv_cache_scheme)"
CT = {"quant_method": "compressed-tensors"}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8"}
DIFFER = {
    "flat FP8 scheme: modelopt_config.py @2edf354d": (
        flat(FLOAT8),
        f"middle: {KEY_ERROR}; {NEWER}: {RUNS_FP8}",
    ),
    "flat NVFP4 scheme is no KV quantization: modelopt_config.py @2edf354d": (
        flat({"num_bits": 4, "type": "float"}),
        f"middle: {KEY_ERROR}; {NEWER}: {RUNS_DTYPE}",
    ),
    "flat scheme as a word is no KV quantization: modelopt_config.py @2edf354d": (
        flat("NVFP4"),
        f"middle: {KEY_ERROR}; {NEWER}: {RUNS_DTYPE}",
    ),
    "flat kv_cache_quant_algo is ignored: modelopt_config.py @2edf354d": (
        flat(None, kv_cache_quant_algo="FP8"),
        f"middle: {KEY_ERROR}; {NEWER}: {RUNS_DTYPE}",
    ),
    "config.json flat, no sidecar: modelopt_config.py @2edf354d": (
        inline(**MODELOPT, kv_cache_scheme=FLOAT8),
        f"{INLINE}; {NEWER}: {RUNS_FP8}",
    ),
    "config.json nested, no sidecar: modelopt_config.py @2edf354d": (
        inline(
            quant_method="modelopt",
            quantization={"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"},
        ),
        f"{INLINE}; {NEWER}: {RUNS_FP8}",
    ),
    "compressed-tensors 8-bit float: quant_config_utils.py #56242309629": (
        inline(**CT, kv_cache_scheme={**FLOAT8, "strategy": "tensor", "symmetric": True}),
        f"{INLINE}; {NEWER}: {RUNS_FP8}",
    ),
    "compressed-tensors null: quant_config_utils.py #56242309629": (
        inline(**CT, kv_cache_scheme=None),
        f"{INLINE}; {NEWER}: {RUNS_DTYPE}",
    ),
    "compressed-tensors absent: quant_config_utils.py #56242309629": (
        inline(**CT),
        f"{INLINE}; {NEWER}: {RUNS_DTYPE}",
    ),
    "compressed-tensors int8: quant_config_utils.py #56242309629": (
        inline(**CT, kv_cache_scheme={"num_bits": 8, "type": "int"}),
        f"{INLINE}; {NEWER}: {UNSUPPORTED}",
    ),
    "compressed-tensors 4-bit: quant_config_utils.py #56242309629": (
        inline(**CT, kv_cache_scheme={"num_bits": 4, "type": "float"}),
        f"{INLINE}; {NEWER}: {UNSUPPORTED}",
    ),
    "compressed-tensors, a word: quant_config_utils.py #56242309629": (
        inline(**CT, kv_cache_scheme="static"),
        f"{INLINE}; {NEWER}: {UNSUPPORTED}",
    ),
    **{
        f"quant_method {method} has no KV metadata: modelopt_config.py @2edf354d": (
            inline(quant_method=method, kv_cache_scheme="static"),
            f"{INLINE}; {NEWER}: {RUNS_DTYPE}",
        )
        for method in ("fp8", "mxfp4", "mxfp8", "nvfp4")
    },
    "quark was not read": (
        inline(quant_method="quark"),
        f"{INLINE}; {NEWER}: how it reads a block of quant_method 'quark' was not read",
    ),
    "fp8 by method and modelopt by producer was not read": (
        inline(quant_method="fp8", producer={"name": "modelopt"}, kv_cache_quant_algo="FP8"),
        f"{INLINE}; {NEWER}: how it reads a block of quant_method 'fp8' was not read",
    ),
}


@pytest.mark.parametrize(("files", "each"), DIFFER.values(), ids=DIFFER)
def test_says_what_each_generation_would_do(files: dict[str, Any], each: str) -> None:
    given = ask(files)
    assert outcome(given) == ("unknown", differ(LATE, each))
    assert given.resolution is None


def test_neither_wrapper_nor_modelopt_marker() -> None:
    """ValueError "Not a ModelOpt quant config" in modelopt_config.py @2edf354d, KeyError before.

    No generation starts, so the releases that may hold either still have an answer.
    """
    files = {HF: {"quant_algo": "FP8"}}
    for release in RELEASES:
        assert outcome(ask(files, release=release))[:2] == ("refuses", "KV004")
    message = "ValueError: Not a ModelOpt quant config"
    assert outcome(by_main(files)) == ("refuses", "KV004", message)


UNREAD = {
    "no quant_algo but quantized_layers": (
        {HF: {"quantization": {"quantized_layers": {"a": {"quant_algo": "FP8"}}}}},
        "hf_quant_config.json has quantized_layers and no quant_algo: main goes on to config.json, "
        "older code was not read",
    ),
    "a KV format that is not in KV_CACHE_QUANT_ALGO_LIST": (
        nested("NVFP4_AFFINE"),
        "whether QuantAlgo knows 'NVFP4_AFFINE' as a KV-cache format was not read",
    ),
    "quant_cfg.json nulls what hf_quant_config.json says": (
        mixed("FP8", {"kv_cache_quant_algo": None}),
        "what this value in quant_cfg.json does was not read; both files must agree",
    ),
    "quant_cfg.json is a list": (
        mixed("FP8", []),
        "quant_cfg.json holds no JSON object, and what follows was not read",
    ),
    "quant_cfg.json wakes an unknown word": (
        mixed(None, {"kv_cache_quant_algo": "fp8"}),
        "what this value in quant_cfg.json does was not read; both files must agree",
    ),
    "a block under text_config": (
        {CONFIG: {"text_config": {"quantization_config": {"quant_method": "fp8"}}}},
        "whether a quantization_config under text_config is used was not read",
    ),
    "hf_quant_config.json is a list": (
        {HF: []},
        "hf_quant_config.json holds no JSON object, and what follows was not read",
    ),
    "its quantization is null": (
        {HF: {"quantization": None}},
        "/quantization in hf_quant_config.json is no object; what follows was not read",
    ),
    "quant_algo is a number": (
        {HF: {"quantization": {"quant_algo": 8}}},
        "quant_algo in hf_quant_config.json is no string, and what follows was not read",
    ),
}


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(("files", "sentence"), UNREAD.values(), ids=UNREAD)
def test_what_was_not_read_is_unknown(release: str, files: dict[str, Any], sentence: str) -> None:
    assert outcome(ask(files, release=release)) == ("unknown", sentence)


# ---- the launch flag ---------------------------------------------------------------------------

MISMATCH = (
    "RuntimeError: You cannot override a checkpoint with a pre-quantized KV cache that doesn't "
    "match."
)


@pytest.mark.parametrize("value", ["bfloat16", "bf16", "float16", "fp8_e4m3", "fp8_ds_mla"])
@pytest.mark.parametrize(
    ("release", "accepted"),
    [
        pytest.param(OLD, "auto, fp8", id="oldest: model_engine.py #5682132957"),
        pytest.param(LATE, "auto, fp8, nvfp4", id="middle: model_loader.py @004b733e"),
    ],
)
def test_no_generation_takes_another_dtype(release: str, accepted: str, value: str) -> None:
    given = ask(nested("FP8"), release=release, flag=value)
    message = f"--kv_cache_dtype {value} is not one of {accepted}"
    assert outcome(given) == ("refuses", "KV009", message)
    assert given.resolution is None


FLAGS = {
    "the same value: model_loader.py @004b733e": (LATE, nested("FP8"), "fp8", FP8),
    "nothing in the files, middle: model_loader.py @004b733e": (LATE, {}, "fp8", FP8),
    "nothing in the files, oldest: model_engine.py #5682132957": (OLD, {}, "fp8", FP8),
    "null in the files: model_loader.py @004b733e": (LATE, nested(None), "fp8", FP8),
    "auto is the checkpoint's: model_loader.py @004b733e": (LATE, nested("FP8"), "auto", FP8),
    "mismatch in 1.0: model_engine.py #1034563403": (
        OLD,
        nested("NVFP4"),
        "fp8",
        ("refuses", "KV009", MISMATCH),
    ),
    "mismatch is overridden by main: #56800572848, test #53276296143": (
        LATE,
        nested("NVFP4"),
        "fp8",
        (
            "unknown",
            differ(
                LATE,
                f"middle or middle with flat files: does not start ({MISMATCH}); main: {RUNS_FP8}",
            ),
        ),
    ),
    "INT8 in the files is a mismatch too: model_engine.py #1034563403": (
        OLD,
        nested("INT8"),
        "fp8",
        ("refuses", "KV009", MISMATCH),
    ),
    "nvfp4 without such metadata: 1.3.0rc27 documentation": (
        LATE,
        nested(None),
        "nvfp4",
        (
            "unknown",
            "the documentation demands offline quantization for an NVFP4 cache; what the flag does "
            "to a checkpoint without it was not read",
        ),
    ),
    "nvfp4 is not a value of the oldest generation: model_engine.py #5682132957": (
        OLD,
        nested("FP8"),
        "nvfp4",
        (
            "refuses",
            "KV009",
            "--kv_cache_dtype nvfp4 is not one of auto, fp8",
        ),
    ),
}


@pytest.mark.parametrize(("release", "files", "flag", "expected"), FLAGS.values(), ids=FLAGS)
def test_flag(release: str, files: dict[str, Any], flag: str, expected: tuple[str, ...]) -> None:
    assert outcome(ask(files, release=release, flag=flag)) == expected


def test_who_decided() -> None:
    by_flag = ask({}, flag="fp8").resolution
    agreed = ask(nested("FP8"), flag="fp8").resolution
    assert by_flag == Resolution("fp8_e4m3", "flag")
    assert agreed == Resolution("fp8_e4m3", NESTED, (NESTED,))


def test_fp8_ds_mla_is_taken_by_main_for_sparse_mla_on_sm12x() -> None:
    """NVIDIA/TensorRT-LLM PR #16224."""
    refused = "does not start (--kv_cache_dtype fp8_ds_mla is not one of auto, fp8, nvfp4)"
    sentence = (
        f"middle or middle with flat files: {refused}; "
        "main: what fp8_ds_mla does beyond being accepted here was not read"
    )
    for gpu in ("sm120", "sm121"):
        given = ask(nested("FP8"), DSA, gpu=gpu, flag="fp8_ds_mla")
        assert outcome(given) == ("unknown", differ(LATE, sentence))


@pytest.mark.parametrize(
    ("release", "values"),
    [
        ("0.21.0", ("auto", "fp8")),
        ("1.0.0", ("auto", "fp8")),
        ("1.1.0", ("auto", "fp8")),
        ("1.2.0", ("auto", "fp8", "nvfp4")),
        ("1.2.1", ("auto", "fp8", "nvfp4")),
    ],
)
def test_flag_values_are_those_of_every_candidate(release: str, values: tuple[str, ...]) -> None:
    assert flag_values(release) == values


# ---- the attention operators -------------------------------------------------------------------

FP8_MLA = "FP8 Generation MLA is supported on Ada, Hopper or Blackwell architecture."
FP4_MLA = "FP4 KV cache is not supported for MLA generation."
FP4_MAIN = (
    "main has an FP4 MLA kernel for SM100 and SM103, under conditions (tokens per block, no "
    "chunked context, no beams) that the files do not show"
)
ONLY_SM10X = "an NVFP4 cache needs trtllm-gen kernels, which exist for SM10x only"
XQA = (
    "on SM120 and SM121 MLA uses a kernel that is compiled for 128 query heads per GPU; whether "
    "another one takes over, and with which cache, was not read"
)
HOPPER = "FlashMLA's sparse attention needs a BF16 KV cache on Hopper"
WEIGHTS = "whether weights of this kind run on a GPU before Blackwell was not verified"
OLD_NVFP4 = "whether the oldest generation runs an NVFP4 cache was not read"
OLD_DSA = "whether the oldest generation knows DeepSeek-V3.2 was not read"
AMPERE = "an FP8 cache on SM80 or SM86 without FP8 or NVFP4 weights was not verified"


def not_read(cache: str, gpu: str) -> str:
    return (
        f"whether a cache of {cache} runs with this kind of attention and these weights on {gpu} "
        "was not read"
    )


#: (model, kv, weights, GPU, release) -> outcome, by where it was read.
KERNELS: dict[str, list[tuple[dict[str, Any], Any, str, str, str, tuple[str, ...]]]] = {
    "attentionOp.cpp #35970649562, FP8 context FMHA": [
        (GQA, "FP8", "FP8", gpu, release, FP8)
        for gpu in ("sm89", "sm90", "sm100", "sm103", "sm120", "sm121")
        for release in RELEASES
    ],
    "attentionOp.cpp #35970649562, FP8 MLA": [
        (MLA, "FP8", "FP8", gpu, release, FP8)
        for gpu in ("sm89", "sm90", "sm100", "sm103")
        for release in RELEASES
    ],
    "attentionOp.cpp #35970649562 and #53259956211, FP8 MLA on old GPUs": [
        (MLA, "FP8", "NVFP4", gpu, release, ("refuses", "KV001", FP8_MLA))
        for gpu in ("sm75", "sm80", "sm86")
        for release in RELEASES
    ],
    "#35970649562 and flashinfer-ai/flashinfer#2745, MLA on SM12x": [
        (MLA, kv, "NVFP4", gpu, LATE, ("unknown", XQA))
        for kv in ("FP8", None)
        for gpu in ("sm120", "sm121")
    ],
    "attentionOp.cpp @00dbe288, geometry of MLA": [
        (
            SMALL_MLA,
            kv,
            "FP8",
            "sm100",
            LATE,
            ("refuses", "KV001", "MLA must have kv_lora_rank 512 and qk_rope_head_dim 64"),
        )
        for kv in ("FP8", None)
    ],
    "#4099357126 #57440096911 #29769881526, FP4 MLA": [
        (MLA, "NVFP4", "NVFP4", gpu, release, ("refuses", "KV003", FP4_MLA))
        for gpu, release in [
            ("sm90", LATE),
            ("sm120", LATE),
            ("sm100", OLD),
            ("sm103", EARLY),
        ]
    ],
    "#56499034861, FP4 MLA of main": [
        (
            MLA,
            "NVFP4",
            "NVFP4",
            gpu,
            LATE,
            (
                "unknown",
                differ(
                    LATE,
                    f"middle or middle with flat files: does not start ({FP4_MLA}); "
                    f"main: {FP4_MAIN}",
                ),
            ),
        )
        for gpu in ("sm100", "sm103")
    ],
    "NVIDIA/TensorRT-LLM#10241, NVFP4 without MLA": [
        (GQA, "NVFP4", "NVFP4", gpu, LATE, ("refuses", "KV001", ONLY_SM10X))
        for gpu in ("sm80", "sm89", "sm90", "sm120", "sm121")
    ],
    "trtllm-gen on SM10x, NVFP4 without MLA": [
        (GQA, "NVFP4", weights, gpu, LATE, ("runs", "nvfp4"))
        for gpu in ("sm100", "sm103")
        for weights in ("NVFP4", "FP8")
    ],
    "model_engine.py #5682132957, NVFP4 in the oldest": [
        (
            GQA,
            "NVFP4",
            "NVFP4",
            "sm100",
            OLD,
            (
                "unknown",
                differ(OLD, f"oldest: {OLD_NVFP4}; middle: runs with nvfp4 in the cache"),
            ),
        ),
    ],
    "mFP8ContextFMHA, NVFP4 cache beside other weights": [
        (
            GQA,
            "NVFP4",
            "MIXED_PRECISION",
            "sm100",
            LATE,
            ("unknown", not_read("nvfp4", "sm100")),
        ),
    ],
    "NVIDIA/Model-Optimizer#763, DeepSeek-V3.2 on Hopper": [
        (DSA, "FP8", "NVFP4", "sm90", "1.2.0", ("refuses", "KV001", HOPPER)),
        (DSA, "FP8", "NVFP4", "sm90", "1.2.1", ("refuses", "KV001", HOPPER)),
        (DSA, None, "NVFP4", "sm90", "1.2.0", DTYPE),
        (
            DSA,
            "FP8",
            "NVFP4",
            "sm90",
            "1.1.0",
            (
                "unknown",
                differ(
                    "1.1.0",
                    f"middle or middle with flat files: does not start ({HOPPER}); "
                    f"oldest: {OLD_DSA}",
                ),
            ),
        ),
    ],
    "not read: DSA elsewhere, other sparse MLA": [
        (DSA, "FP8", "NVFP4", "sm100", LATE, ("unknown", not_read("fp8_e4m3", "sm100"))),
        (GLM, None, "NVFP4", "sm90", LATE, ("unknown", WEIGHTS)),
        (GLM, None, "NVFP4", "sm100", LATE, ("unknown", not_read("the model dtype", "sm100"))),
    ],
    "FP8 weights need SM89: #35970649562": [
        (GQA, kv, "FP8", gpu, LATE, ("refuses", "KV001", "FP8 weights need SM89 or newer"))
        for kv in ("FP8", None)
        for gpu in ("sm75", "sm80", "sm86")
    ],
    "#53259956211, FP8 context FMHA on Ampere": [
        (
            GQA,
            "FP8",
            "NVFP4",
            "sm80",
            LATE,
            ("refuses", "KV001", "FP8 FMHA can only be enabled on ..."),
        ),
        (GQA, None, "NVFP4", "sm80", LATE, ("unknown", WEIGHTS)),
        (GQA, "FP8", "W4A16_AWQ", "sm86", LATE, ("unknown", AMPERE)),
        (GQA, None, "W4A16_AWQ", "sm86", LATE, DTYPE),
    ],
    "not verified: FP4 weights before Blackwell": [
        (GQA, kv, weights, gpu, LATE, ("unknown", WEIGHTS))
        for kv, weights, gpu in [
            ("FP8", "NVFP4", "sm90"),
            (None, "MIXED_PRECISION", "sm89"),
        ]
    ],
    "no GPU that was read": [
        (GQA, "FP8", "NVFP4", "sm110", LATE, ("unknown", not_read("fp8_e4m3", "sm110"))),
        (GQA, None, "NVFP4", "sm75", LATE, ("unknown", not_read("the model dtype", "sm75"))),
    ],
}


@pytest.mark.parametrize("source", KERNELS)
def test_attention(source: str) -> None:
    for config, kv, weights, gpu, release, expected in KERNELS[source]:
        given = ask(nested(kv, weights), config, gpu=gpu, release=release)
        assert outcome(given) == expected, (kv, weights, gpu, release)


def test_a_refused_cache_names_the_statement_and_refused_weights_do_not() -> None:
    cache = ask(nested("FP8"), MLA, gpu="sm80").refusals[0]
    weights = ask(nested("FP8", "FP8"), gpu="sm80").refusals[0]
    assert (cache.place, cache.stage) == (NESTED, "implementation")
    assert weights.place is None


def test_unquantized_model_runs_on_every_gpu_that_was_read() -> None:
    for gpu in ("sm80", "sm86", "sm89", "sm90", "sm100", "sm103", "sm120", "sm121"):
        assert outcome(ask({}, gpu=gpu)) == DTYPE
    assert outcome(ask({}, gpu="sm80", flag="fp8")) == ("unknown", AMPERE)


@pytest.mark.parametrize("gpu", ["gfx942", "xpu", "cpu"])
def test_other_makers_gpus(gpu: str) -> None:
    expected = ("refuses", "KV001", "TensorRT-LLM runs on NVIDIA GPUs only")
    assert outcome(ask(nested(None), gpu=gpu)) == expected


def test_a_chosen_backend_is_unknown_and_the_files_still_refuse() -> None:
    given = ask(nested("FP8"), backend="TRTLLM")
    assert outcome(given) == ("unknown", "what a chosen attention backend accepts was not read")
    assert given.resolution == Resolution("fp8_e4m3", NESTED, (NESTED,))
    assert outcome(ask(nested("auto"), backend="TRTLLM"))[:2] == ("refuses", "KV004")


def test_block_scaled_fp8_weights_on_sm120() -> None:
    """NVIDIA/TensorRT-LLM#5581."""
    given = ask(inline(quant_method="fp8"), gpu="sm120")
    last = "FP8 block-scaled weights were refused on SM120 in 2025; later code was not read"
    assert outcome(given) == ("unknown", differ(LATE, f"{INLINE}; {NEWER}: {last}"))


@pytest.mark.parametrize("method", ["compressed-tensors", "mxfp4", "mxfp8"])
def test_weights_that_were_not_read_on_ampere(method: str) -> None:
    files = inline(quant_method=method)
    sentence = "whether weights of this kind run on SM80 or SM86 was not verified"
    assert outcome(by_main(files, "sm80", "8.0")) == ("unknown", sentence)
    assert outcome(by_main(files)) == DTYPE


# ---- notices -----------------------------------------------------------------------------------


def said(given: Answer) -> list[tuple[str, str, Place | None]]:
    return [(one.finding, one.severity, one.place) for one in given.notices]


NOTICES = {
    "config.json beside hf_quant_config.json": (
        {**nested("FP8"), **inline(**MODELOPT, kv_cache_scheme=FLOAT8)},
        [("KV013", "info", SCHEME)],
    ),
    "the obeyed statement and null are no notice": (
        {**nested("FP8"), **inline(**MODELOPT, kv_cache_scheme=None)},
        [],
    ),
    "scheme inside a wrapped block": (
        nested(None, kv_cache_scheme=FLOAT8),
        [("KV008", "warning", Place(HF, "/quantization/kv_cache_scheme"))],
    ),
    "scheme beside an obeyed statement": (
        nested("FP8", kv_cache_scheme=FLOAT8),
        [("KV013", "info", Place(HF, "/quantization/kv_cache_scheme"))],
    ),
    "quant_cfg.json without mixed precision": (
        {**nested("FP8"), LAYERS: {"kv_cache_quant_algo": "FP8"}},
        [("KV013", "info", OVER)],
    ),
    "quant_cfg.json with mixed precision": (mixed("FP8", {"kv_cache_quant_algo": "FP8"}), []),
    "a block under text_config": (
        {
            **nested(None),
            CONFIG: {"text_config": {"quantization_config": {**CT, "kv_cache_scheme": FLOAT8}}},
        },
        [("KV013", "info", Place(CONFIG, "/text_config/quantization_config/kv_cache_scheme"))],
    ),
}


@pytest.mark.parametrize(("files", "expected"), NOTICES.values(), ids=NOTICES)
def test_notices(files: dict[str, Any], expected: list[tuple[str, str, Place]]) -> None:
    given = ask(files)
    assert said(given) == expected
    assert given.unknown is None


def by_main(files: dict[str, Any], gpu: str = "sm100", capability: str = "10.0") -> Answer:
    documents = {**files, CONFIG: {**GQA, **files.get(CONFIG, {})}}
    newest = generations.of(LATE)[-1]
    assert newest.name == "main"
    return judge(newest, documents, describe(documents), Launch(gpu, capability))


FLAT_READ = "a flat ModelOpt block is read for kv_cache_scheme only, and only 8-bit float counts"
SILENT_READ = "no KV-cache statement is read in a block of this quantization method"
IGNORED = "ignored, the cache has the model's dtype: "
MAIN_NOTICES = {
    "flat kv_cache_quant_algo: modelopt_config.py @2edf354d": (
        flat(None, kv_cache_quant_algo="FP8"),
        [Notice("KV008", "warning", IGNORED + FLAT_READ, Place(HF, "/kv_cache_quant_algo"))],
    ),
    "flat NVFP4 scheme: modelopt_config.py @2edf354d": (
        flat("NVFP4"),
        [Notice("KV008", "warning", IGNORED + FLAT_READ, Place(HF, "/kv_cache_scheme"))],
    ),
    "AutoFP8's word: modelopt_config.py @2edf354d": (
        inline(quant_method="fp8", kv_cache_scheme="static"),
        [Notice("KV008", "warning", IGNORED + SILENT_READ, SCHEME)],
    ),
    "another block of config.json": (
        {
            CONFIG: {
                "quantization_config": {**CT, "kv_cache_scheme": FLOAT8},
                "text_config": {"quantization_config": {**CT, "kv_cache_scheme": FLOAT8}},
            }
        },
        [
            Notice(
                "KV013",
                "info",
                "not read: of config.json only quantization_config at the top counts",
                Place(CONFIG, "/text_config/quantization_config/kv_cache_scheme"),
            )
        ],
    ),
}


@pytest.mark.parametrize(("files", "expected"), MAIN_NOTICES.values(), ids=MAIN_NOTICES)
def test_notices_of_main(files: dict[str, Any], expected: list[Notice]) -> None:
    assert list(by_main(files).notices) == expected


# ---- real files, the patch, the facts, arbitrary input -----------------------------------------


def real(name: str) -> dict[str, Any]:
    folder = CORPUS / name
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there")
    return {path.name: json.loads(path.read_text()) for path in folder.glob("*.json")}


@pytest.mark.parametrize(
    ("name", "gpu", "expected"),
    [
        ("nvidia--Kimi-K2.5-NVFP4", "sm100", FP8),
        ("nvidia--Kimi-K2.5-NVFP4", "sm120", ("unknown", XQA)),
        ("nvidia--Kimi-K2.5-NVFP4", "sm80", ("refuses", "KV001", FP8_MLA)),
        ("nvidia--DeepSeek-V3.1-NVFP4", "sm103", FP8),
        ("nvidia--Llama-3.1-70B-Instruct-FP8", "sm90", FP8),
        ("nvidia--Qwen3.6-35B-A3B-NVFP4", "sm120", FP8),
        ("nvidia--MiniMax-M3-NVFP4", "sm100", DTYPE),
        ("Qwen--Qwen3-32B", "sm90", DTYPE),
    ],
)
def test_real_checkpoints(name: str, gpu: str, expected: tuple[str, ...]) -> None:
    files = real(name)
    given = ask(files, files[CONFIG], gpu=gpu)
    assert outcome(given) == expected


def test_null_is_the_cure_and_needs_only_hf_quant_config_json() -> None:
    refused = ask(nested("FP8"), DSA, gpu="sm90")
    config_only = {**nested("FP8"), **inline(**MODELOPT, kv_cache_scheme=None)}
    assert outcome(refused)[0] == "refuses"
    assert outcome(ask(config_only, DSA, gpu="sm90"))[0] == "refuses"
    assert outcome(ask(nested(None), DSA, gpu="sm90")) == DTYPE


def test_facts_say_that_they_were_read_and_what_is_inferred() -> None:
    files = {path.name: json.loads(path.read_text()) for path in FOLDER.iterdir()}
    assert sorted(files) == [f"{release}.resolution.json" for release in RELEASES]
    bodies: dict[str, Any] = {}
    for name, file in files.items():
        assert name == f"{file['version']}.resolution.json"
        assert (file["engine"], file["evidence"]) == ("trtllm", "read")
        assert file["mapping"].startswith("inferred")
        for generation in file["generations"]:
            assert generation == bodies.setdefault(generation["name"], generation)
            assert generation["flag"]["from"]
            assert generation["flat_files"]["from"]
    assert sorted(bodies) == ["main", "middle", "middle with flat files", "oldest"]


def test_every_row_of_the_table_has_its_source_and_names_that_exist() -> None:
    known = {name for release in RELEASES for name in (g.name for g in generations.of(release))}
    for row in kernels.ROWS:
        assert row.source
        assert bool(row.message) == (row.says != "runs")
        assert (row.generations or frozenset()) <= known


POINTERS = [
    (HF, ()),
    (HF, ("producer",)),
    (HF, ("quantization",)),
    (HF, ("quantization", "quant_algo")),
    (HF, ("quantization", "kv_cache_quant_algo")),
    (HF, ("quantization", "quantized_layers")),
    (HF, ("quant_algo",)),
    (HF, ("quant_method",)),
    (HF, ("kv_cache_scheme",)),
    (LAYERS, ()),
    (LAYERS, ("kv_cache_quant_algo",)),
    (CONFIG, ("text_config",)),
    (CONFIG, ("quantization_config",)),
    (CONFIG, ("quantization_config", "quant_method")),
    (CONFIG, ("quantization_config", "quantization")),
    (CONFIG, ("quantization_config", "kv_cache_scheme")),
    (CONFIG, ("quantization_config", "kv_cache_scheme", "num_bits")),
]
WORDS = st.sampled_from(
    ["FP8", "NVFP4", "INT8", "fp8", "auto", "", "MIXED_PRECISION", "modelopt", "float", "static"]
)
SCALARS = st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False) | WORDS
KEYS = st.sampled_from(
    ["quant_algo", "kv_cache_quant_algo", "kv_cache_scheme", "quantization", "quant_method", "type"]
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=8,
)
BASES = st.sampled_from(
    [
        {},
        nested("FP8"),
        mixed("FP8", {"kv_cache_quant_algo": "FP8"}),
        flat(FLOAT8),
        inline(**MODELOPT, kv_cache_scheme=FLOAT8),
        inline(**CT, kv_cache_scheme=FLOAT8),
    ]
)


def placed(files: dict[str, Any], file: str, keys: tuple[str, ...], value: Any) -> None:
    if not keys:
        files[file] = value
        return
    inner = files.setdefault(file, {})
    for key in keys[:-1]:
        inner = inner.setdefault(key, {}) if isinstance(inner, dict) else inner
    if isinstance(inner, dict):
        inner[keys[-1]] = value


LAUNCHES = st.fixed_dictionaries(
    {
        "gpu": st.sampled_from(["sm75", "sm80", "sm90", "sm100", "sm110", "sm120", "gfx942"]),
        "flag": st.sampled_from(["auto", "fp8", "nvfp4", "bfloat16", "fp8_ds_mla"]),
        "backend": st.sampled_from([None, "TRTLLM"]),
    }
)


@settings(deadline=None)  # five releases an example, on machines that may be busy
@given(
    base=BASES,
    edits=st.lists(st.tuples(st.sampled_from(POINTERS), VALUES), max_size=3),
    config=st.sampled_from([GQA, MLA, DSA, GLM, SMALL_MLA, {}]),
    launch=LAUNCHES,
)
def test_any_json_is_answered_and_unknown_is_never_a_verdict(
    base: dict[str, Any],
    edits: list[tuple[tuple[str, tuple[str, ...]], Any]],
    config: dict[str, Any],
    launch: dict[str, Any],
) -> None:
    files = json.loads(json.dumps(base))
    for (file, keys), value in edits:
        placed(files, file, keys, json.loads(json.dumps(value)))
    for release in RELEASES:
        one = ask(files, config, release=release, **launch)
        if one.unknown is not None:
            assert one.unknown
            assert (one.refusals, one.selected, one.backends) == ((), None, ())
        else:
            assert one.refusals or one.resolution is not None
        assert len({(note.finding, note.place) for note in one.notices}) == len(one.notices)
