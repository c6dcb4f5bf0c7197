"""SGLang's answers, on small configurations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from patcher.engines import facts as packaged
from patcher.engines import sglang
from patcher.engines.base import Answer, Launch, Place
from patcher.engines.sglang import forms
from patcher.engines.sglang.rules import decide
from patcher.metadata.model import describe

FOLDER = Path(packaged.__file__).parent / "sglang"
FP8 = {"dynamic": False, "num_bits": 8, "type": "float"}
INT8 = {"dynamic": False, "num_bits": 8, "type": "int"}
DENSE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 2,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "torch_dtype": "bfloat16",
}
LATENT = {
    **DENSE,
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "num_attention_heads": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}
SPARSE = {**LATENT, "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 64}
FP8_BLOCK = {"quant_method": "fp8", "weight_block_size": [128, 128], "kv_cache_scheme": FP8}
FLAT = {
    "quant_method": "modelopt",
    "quant_algo": "NVFP4",
    "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 16}}},
    "ignore": ["lm_head"],
}


def _launch(gpu: str, **flags: Any) -> Launch:
    return Launch(gpu, f"{gpu[2:-1]}.{gpu[-1]}" if gpu.startswith("sm") else None, **flags)


def _ask(
    release: str, gpu: str, config: dict[str, Any], sidecar: Any = None, **flags: Any
) -> Answer:
    documents = {"config.json": config}
    if sidecar is not None:
        documents["hf_quant_config.json"] = sidecar
    return sglang.answer(release, documents, describe(documents), _launch(gpu, **flags))


def _flat(model: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {**model, "quantization_config": {**FLAT, **fields}}


def _ids(found: Answer) -> list[str]:
    refusals = [refusal.finding for refusal in found.refusals]
    return refusals + [notice.finding for notice in found.notices]


def test_metadata_makes_the_cache_fp8_and_is_named() -> None:
    found = _ask("0.5.23", "sm120", _flat(LATENT, kv_cache_scheme=FP8))
    assert found.resolution is not None
    assert found.resolution.kv_cache_dtype == "fp8_e4m3"
    place = Place("config.json", "/quantization_config/kv_cache_scheme")
    assert found.resolution.decided_by == place
    assert place in found.resolution.read
    assert found.selected == "triton"
    assert [backend.name for backend in found.backends] == ["triton"]
    assert found.refusals == ()


@pytest.mark.parametrize(
    ("release", "decided_by", "dtype"),
    [
        ("0.5.14", "engine default", "auto"),
        ("0.5.23", Place("config.json", "/quantization_config/kv_cache_quant_algo"), "fp8_e4m3"),
    ],
)
def test_a_flat_algorithm_counts_since_0_5_15(release: str, decided_by: Any, dtype: str) -> None:
    found = _ask(release, "sm120", _flat(LATENT, kv_cache_quant_algo="FP8"))
    assert found.resolution is not None
    assert found.resolution.decided_by == decided_by
    assert found.resolution.kv_cache_dtype == dtype
    assert ("KV008" in _ids(found)) is (dtype == "auto")


@pytest.mark.parametrize("value", [None, "auto", "NVFP4", INT8])
def test_only_fp8_changes_the_cache(value: Any) -> None:
    found = _ask("0.5.23", "sm100", _flat(LATENT, kv_cache_scheme=value))
    assert found.resolution is not None
    assert found.resolution.kv_cache_dtype == "auto"
    assert found.resolution.decided_by == "engine default"


def test_the_flag_wins_over_the_metadata() -> None:
    config = _flat(LATENT, kv_cache_scheme=FP8)
    found = _ask("0.5.23", "sm120", config, kv_cache_dtype="bf16")
    assert found.resolution is not None
    assert found.resolution.kv_cache_dtype == "bfloat16"
    assert found.resolution.decided_by == "flag"


def test_config_json_outranks_the_other_file() -> None:
    sidecar = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}}
    sidecar["quantization"]["kv_cache_quant_algo"] = "FP8"
    found = _ask("0.5.23", "sm120", _flat(LATENT, kv_cache_scheme=None), sidecar)
    assert found.resolution is not None
    assert found.resolution.kv_cache_dtype == "auto"
    stale = [notice for notice in found.notices if notice.finding == "KV013"]
    assert stale[0].place == Place("hf_quant_config.json", "/quantization/kv_cache_quant_algo")


def test_mixed_precision_demands_the_key_and_takes_null() -> None:
    layers = {"model.layers.0.mlp.down_proj": {"quant_algo": "NVFP4", "group_size": 16}}
    mixed = {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    absent = _ask("0.5.23", "sm120", _flat(LATENT, **mixed))
    assert [refusal.finding for refusal in absent.refusals] == ["KV005"]
    assert "Cannot find the config file for modelopt_mixed" in absent.refusals[0].message
    null = _ask("0.5.23", "sm120", _flat(LATENT, **mixed, kv_cache_scheme=None))
    assert null.refusals == ()
    assert null.resolution is not None
    assert null.resolution.kv_cache_dtype == "auto"


def test_a_flag_that_is_no_choice_is_refused() -> None:
    found = _ask("0.5.2", "sm120", DENSE, kv_cache_dtype="bf16")
    assert [refusal.finding for refusal in found.refusals] == ["KV009"]
    assert found.resolution is None


@pytest.mark.parametrize(("flag", "starts"), [("bf16", True), ("bfloat16", False)])
def test_trtllm_mla_takes_one_spelling_of_bfloat16(flag: str, *, starts: bool) -> None:
    found = _ask("0.5.20", "sm100", LATENT, kv_cache_dtype=flag)
    assert (found.refusals == ()) is starts
    if not starts:
        assert found.refusals[0].finding == "KV011"
        assert "TensorRT-LLM MLA backend only supports" in found.refusals[0].message


def test_a_backend_without_kernels_for_the_gpu_is_refused_with_every_dtype() -> None:
    found = _ask("0.5.23", "sm90", LATENT, attention_backend="trtllm_mla")
    assert [refusal.finding for refusal in found.refusals] == ["KV001"]
    assert found.backends[0].name == "trtllm_mla"
    assert not found.backends[0].accepts


def test_the_registry_refuses_what_server_args_accepts() -> None:
    found = _ask("0.5.23", "sm120", LATENT, attention_backend="fa3")
    assert [refusal.finding for refusal in found.refusals] == ["KV002"]
    assert found.selected is None


def test_a_deprecated_value_dies_after_the_checks() -> None:
    found = _ask("0.5.20", "sm100", DENSE, kv_cache_dtype="fp4_e2m1", attention_backend="triton")
    assert len(found.refusals) == 1
    assert found.resolution is None


def test_sparse_attention_is_forced_to_fp8_and_its_kernels_are_missing() -> None:
    found = _ask("0.5.23", "sm120", SPARSE)
    assert found.resolution is not None
    assert found.resolution.decided_by == "model hook"
    assert found.resolution.kv_cache_dtype == "fp8_e4m3"
    assert {"KV001", "KV010"} <= set(_ids(found))
    assert found.refusals == ()


def test_tokenspeed_replaces_the_flag() -> None:
    found = _ask(
        "0.5.23", "sm100", LATENT, kv_cache_dtype="bf16", attention_backend="tokenspeed_mla"
    )
    assert found.resolution is not None
    assert found.resolution.kv_cache_dtype == "fp8_e4m3"
    assert "KV009" in _ids(found)


def test_fp8_below_sm89_is_expected_to_fail_in_triton() -> None:
    block = {"quant_method": "fp8", "fmt": "e4m3", "kv_cache_quant_algo": "FP8"}
    found = _ask("0.5.23", "sm86", {**LATENT, "quantization_config": block})
    kernel = [notice for notice in found.notices if "run time" in notice.message]
    assert [notice.severity for notice in kernel] == ["warning"]


def test_old_cards_are_refused_by_the_weight_quantization() -> None:
    found = _ask("0.5.10", "sm90", _flat(LATENT, kv_cache_scheme=FP8))
    [refusal] = found.refusals
    assert "Minimum capability: 100" in refusal.message
    assert (refusal.finding, refusal.place) == ("KV016", None)


@pytest.mark.parametrize(
    ("release", "words"),
    [
        # 0.5.3.post1 renamed "modelopt" to "modelopt_fp8" in its table of methods, and 0.5.4 took
        # the old name back as another one for it; config.json goes on saying "modelopt".
        ("0.5.3", None),
        ("0.5.3.post1", "ValueError: Unknown quantization method: modelopt"),
        ("0.5.3.post2", "ValueError: Unknown quantization method: modelopt"),
        ("0.5.3.post3", "ValueError: Unknown quantization method: modelopt"),
        ("0.5.4", None),
    ],
)
def test_three_post_releases_do_not_know_modelopt(release: str, words: str | None) -> None:
    found = _ask(release, "sm90", _flat(DENSE, quant_algo="FP8", kv_cache_scheme=FP8))
    said = [(refusal.stage, refusal.finding, refusal.message) for refusal in found.refusals]
    assert said == ([("config", "KV016", words)] if words else [])


def test_they_expect_another_producer_in_the_other_file() -> None:
    sidecar = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}
    sidecar["quantization"]["kv_cache_quant_algo"] = "FP8"
    for release in ("0.5.3.post1", "0.5.3.post2", "0.5.3.post3"):
        [refusal] = _ask(release, "sm90", DENSE, sidecar).refusals
        assert (refusal.stage, refusal.finding) == ("resolver", "KV016")
        assert "Unsupported quantization config found for modelopt_fp8" in refusal.message
    assert _ask("0.5.3", "sm90", DENSE, sidecar).refusals == ()
    assert _ask("0.5.4", "sm90", DENSE, sidecar).refusals == ()


def test_amd_gpus_are_refused_because_of_the_weights() -> None:
    for release in ("0.5.8", "0.5.23"):
        [refusal] = _ask(release, "gfx942", _flat(DENSE, kv_cache_scheme=FP8)).refusals
        assert refusal.finding == "KV016"


@pytest.mark.parametrize(("value", "warned"), [(None, True), (FP8, False)])
def test_loaded_scales_spoil_an_unquantized_cache(value: Any, *, warned: bool) -> None:
    found = _ask("0.5.23", "sm120", _flat(DENSE, kv_cache_scheme=value))
    assert ("KV015" in _ids(found)) is warned


def test_a_class_that_drops_the_config_ignores_the_declaration() -> None:
    model = {**DENSE, "architectures": ["Qwen2VLForConditionalGeneration"]}
    found = _ask("0.5.23", "sm120", _flat(model, kv_cache_scheme=FP8))
    assert found.resolution is not None
    assert found.resolution.kv_cache_dtype == "auto"
    assert "KV008" in _ids(found)


@pytest.mark.parametrize("gpu", ["gfx1100", "gfx90a", "xpu", "cpu"])
def test_gpus_without_facts_are_unknown(gpu: str) -> None:
    found = _ask("0.5.23", gpu, DENSE)
    assert found.unknown is not None
    assert found.refusals == ()


def test_an_unknown_quantization_is_unknown() -> None:
    found = _ask("0.5.23", "sm120", {**DENSE, "quantization_config": {"quant_method": "nova"}})
    assert found.unknown is not None
    assert "nova" in found.unknown


@pytest.mark.parametrize("value", [[], 7, "text", {"quant_method": 3}, {}])
def test_malformed_blocks_are_unknown_and_never_raise(value: Any) -> None:
    found = _ask("0.5.23", "sm120", {**DENSE, "quantization_config": value})
    assert found.unknown is not None or found.refusals


@pytest.mark.parametrize(
    ("value", "form"),
    [("fp8", "fp8"), ("FP8", "FP8"), ("", "empty"), (None, "null"), ("x", "string"), (0, "falsy")],
)
def test_algorithm_forms(value: Any, form: str) -> None:
    assert forms.algo_form(value) == form


@pytest.mark.parametrize(
    ("value", "form"),
    [(FP8, "float8"), (INT8, "int8"), ({}, "{}"), ("float8", "FP8"), ({"num_bits": "8"}, "dict")],
)
def test_scheme_forms(value: Any, form: str) -> None:
    assert forms.scheme_forms(value)["scheme"] == form


def test_the_first_rule_that_holds_decides() -> None:
    rules: list[dict[str, Any]] = [
        {"gpu": "a,b", "then": 1},
        {"gpu": "!c", "kv": "x", "then": 2},
        {"then": 3},
    ]
    assert decide(rules, {"gpu": "b"}) == 1
    assert decide(rules, {"gpu": "d", "kv": "x"}) == 2
    assert decide(rules, {"gpu": "c", "kv": "x"}) == 3


@pytest.mark.parametrize(
    ("gpu", "model", "backend"),
    [("sm90", DENSE, "fa3"), ("sm120", DENSE, "flashinfer"), ("sm120", LATENT, "triton")],
)
def test_the_oldest_releases_answer_a_default_that_was_read(
    gpu: str, model: dict[str, Any], backend: str
) -> None:
    found = _ask("0.5.2", gpu, model)
    assert found.selected == backend
    assert "read in its source" in found.notices[-1].message


@pytest.mark.parametrize(("release", "warned"), [("0.5.9", False), ("0.5.11", True)])
def test_hand_kept_facts_hold_for_their_releases_only(release: str, *, warned: bool) -> None:
    found = _ask(release, "sm120", {**LATENT, "quantization_config": {**FP8_BLOCK}})
    assert ("KV015" in _ids(found)) is warned


def test_every_release_answers() -> None:
    known = packaged.releases("sglang")
    assert len(known) > 20
    for release in known:
        assert "auto" in sglang.flag_values(release)
        found = _ask(release, "sm80", DENSE)
        assert found.selected == "flashinfer"
        assert found.resolution is not None


@pytest.mark.parametrize(
    ("release", "starts"), [("0.5.6", True), ("0.5.6.post2", False), ("0.5.7", True)]
)
def test_two_post_releases_choose_a_backend_that_they_refuse(release: str, *, starts: bool) -> None:
    found = _ask(release, "sm120", DENSE)
    assert (found.refusals == ()) is starts
    if not starts:
        assert "TRTLLM MHA backend is only supported on" in found.refusals[0].message


def test_kernel_facts_name_source_and_date() -> None:
    read = json.loads((FOLDER / "kernels.read.json").read_text())
    for part in ("kernels", "scales", "slower"):
        assert all(entry["source"] and entry["date"] for entry in read[part])
