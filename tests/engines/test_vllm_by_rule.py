"""vLLM where its code was read and not run: the first releases, and AMD GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from patcher.engines import answer, facts, flag_values, later, nearest, releases
from patcher.engines.base import Answer, Launch
from patcher.engines.facts import provenance
from patcher.metadata.model import describe

SCHEME = {"dynamic": False, "num_bits": 8, "type": "float"}
DEEPSEEK_V3: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "torch_dtype": "bfloat16",
    "num_attention_heads": 128,
    "num_hidden_layers": 61,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}
DEEPSEEK_V32 = DEEPSEEK_V3 | {
    "architectures": ["DeepseekV32ForCausalLM"],
    "model_type": "deepseek_v32",
    "index_topk": 2048,
}
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "head_dim": 128,
}
GPUS = {"sm90": "9.0", "sm120": "12.0", "sm75": "7.5"}


def modelopt(**block: Any) -> dict[str, Any]:
    return {
        "quant_method": "modelopt",
        "quant_algo": "FP8",
        "producer": {"name": "modelopt"},
        "kv_cache_scheme": SCHEME,
        **block,
    }


def ask(
    release: str, gpu: str, config: dict[str, Any], block: dict[str, Any] | None = None, **flag: str
) -> Answer:
    documents = {"config.json": config | ({"quantization_config": block} if block else {})}
    launch = Launch(gpu, GPUS.get(gpu), **flag)
    return answer("vllm", release, documents, describe(documents), launch)


def cache(told: Answer) -> str | None:
    return told.resolution.kv_cache_dtype if told.resolution else None


# The first releases

EARLY = ("0.10.0", "0.10.1", "0.10.1.1", "0.10.2", "0.11.0")


def test_they_are_listed_as_read_and_asked_only_by_name() -> None:
    listed = {row.release: row.how for row in provenance.packaged("vllm")}
    assert [release for release, how in listed.items() if how == "read"] == list(EARLY)
    assert not set(EARLY) & set(releases("vllm"))
    assert facts.read("sglang") == ()
    assert later("vllm", "0.10.2") == releases("vllm")


@pytest.mark.parametrize("version", [*EARLY, "0.10.2.post1", "0.10.2+cu126", "0.11.0rc1"])
def test_the_answer_says_how_it_is_known(version: str) -> None:
    release, note = nearest("vllm", version)
    assert release == version.partition("rc")[0].partition(".post")[0].partition("+")[0]
    assert "rules that were read in its code, not run" in str(note)


def test_0_11_1_is_as_the_release_after_it() -> None:
    assert nearest("vllm", "0.11.1") == (
        "0.11.2",
        "vllm 0.11.1 is judged as 0.11.2: the code of both was run and gives the same facts",
    )


@pytest.mark.parametrize("release", EARLY)
@pytest.mark.parametrize("gpu", ["sm90", "sm120"])
@pytest.mark.parametrize("config", [DEEPSEEK_V3, LLAMA])
def test_the_declaration_is_ignored(release: str, gpu: str, config: dict[str, Any]) -> None:
    told = ask(release, gpu, config, modelopt())
    assert (told.refusals, told.unknown, cache(told)) == ((), None, "auto")
    assert str(told.note).startswith(
        "read, not run: https://github.com/vllm-project/vllm/blob/v0.1"
    )
    assert {notice.finding for notice in told.notices} >= {"KV008"}


@pytest.mark.parametrize("release", ["0.10.2", "0.11.0"])
def test_fp8_by_flag_passes_the_check_and_ends_in_triton(release: str) -> None:
    told = ask(release, "sm120", DEEPSEEK_V3, kv_cache_dtype="fp8")
    (refusal,) = told.refusals
    assert (refusal.finding, refusal.stage) == ("KV001", "implementation")
    assert refusal.message == (
        "NotImplementedError: TritonMLA V1 with FP8 KV cache not yet supported"
    )


@pytest.mark.parametrize(
    ("gpu", "config", "flag"),
    [
        ("sm90", DEEPSEEK_V3, {"kv_cache_dtype": "fp8"}),
        ("sm120", DEEPSEEK_V3, {"kv_cache_dtype": "bfloat16"}),
        ("sm120", DEEPSEEK_V3, {"attention_backend": "TRITON_MLA"}),
        ("sm75", DEEPSEEK_V3, {}),
        ("gfx942", DEEPSEEK_V3, {}),
        ("sm120", DEEPSEEK_V32, {}),
        ("sm120", DEEPSEEK_V3 | {"model_type": "kimi_k25"}, {}),
    ],
)
def test_what_no_rule_covers_is_unknown(
    gpu: str, config: dict[str, Any], flag: dict[str, Any]
) -> None:
    told = ask("0.10.2", gpu, config, **flag)
    assert str(told.unknown).startswith(("vLLM 0.10.2: ", "vLLM 0.11.2 refuses these files"))
    assert (told.selected, told.refusals) == (None, ())


def test_files_that_the_first_known_release_refuses_are_unknown_before() -> None:
    broken = modelopt(quantization={"quant_algo": "NVFP4"}, quant_method="modelopt_fp4")
    told = ask("0.10.2", "sm120", DEEPSEEK_V3, broken)
    assert "what 0.10.2 does was not read" in str(told.unknown)


def test_the_flag_has_the_values_of_its_release() -> None:
    assert flag_values("vllm", "0.10.2") == ("auto", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc")
    assert "bfloat16" in flag_values("vllm", "0.11.0")


# AMD

AMD = ("gfx942", "gfx950")


@pytest.mark.parametrize("gpu", AMD)
@pytest.mark.parametrize("release", ["0.11.2", "0.17.1", "0.18.0", "0.33.0"])
def test_mla_in_the_models_dtype_runs(release: str, gpu: str) -> None:
    told = ask(release, gpu, DEEPSEEK_V3, {"quant_method": "fp8"})
    assert (told.refusals, told.unknown, told.selected) == ((), None, "TRITON_MLA")
    assert str(told.note).startswith("read, not run: ")


@pytest.mark.parametrize("gpu", AMD)
def test_fp8_with_mla_needs_0_18(gpu: str) -> None:
    (refusal,) = ask("0.17.1", gpu, DEEPSEEK_V3, kv_cache_dtype="fp8").refusals
    assert "TritonMLA V1 with FP8 KV cache not yet supported" in refusal.message
    told = ask("0.18.0", gpu, DEEPSEEK_V3, kv_cache_dtype="fp8")
    assert (told.refusals, told.selected, cache(told)) == ((), "TRITON_MLA", "fp8")


@pytest.mark.parametrize(
    ("release", "words"),
    [
        ("0.11.2", "Sparse Attention is not supported on ROCm."),
        ("0.12.0", "ROCMAiterMLASparseBackend doesn't support fp8 kv_cache_dtype."),
        ("0.17.1", "ROCMAiterMLASparseBackend doesn't support fp8 kv_cache_dtype."),
        ("0.20.2", "ROCM_AITER_MLA_SPARSE: [kv_cache_dtype not supported]"),
    ],
)
def test_sparse_mla_refuses_fp8(release: str, words: str) -> None:
    (refusal,) = ask(release, "gfx942", DEEPSEEK_V32, kv_cache_dtype="fp8").refusals
    assert (refusal.finding, words in refusal.message) == ("KV001", True)
    assert ask("0.21.0", "gfx942", DEEPSEEK_V32, kv_cache_dtype="fp8").unknown


@pytest.mark.parametrize(
    ("release", "refused"), [("0.16.0", True), ("0.20.2", True), ("0.21.0", False)]
)
def test_modelopt_weights_were_refused_whatever_the_cache(release: str, *, refused: bool) -> None:
    told = ask(release, "gfx942", DEEPSEEK_V3, modelopt())
    if refused:
        (refusal,) = told.refusals
        assert (refusal.finding, refusal.place) == ("KV016", None)
        assert "modelopt quantization is currently not supported in rocm" in refusal.message
    else:
        assert "say nothing about deepseek_v3" in str(told.unknown)


@pytest.mark.parametrize(
    ("gpu", "config", "more"),
    [
        ("gfx1100", DEEPSEEK_V3, {}),
        ("gfx942", LLAMA, {}),
        ("gfx942", DEEPSEEK_V3, {"attention_backend": "ROCM_AITER_MLA"}),
        ("gfx942", DEEPSEEK_V32, {}),
    ],
)
def test_the_rest_is_unknown(gpu: str, config: dict[str, Any], more: dict[str, Any]) -> None:
    told = ask("0.33.0", gpu, config, **more)
    assert str(told.unknown).startswith("vLLM 0.33.0: ")
    assert (told.selected, told.refusals, told.note) == (None, (), None)


@pytest.mark.parametrize("table", ["early", "rocm"])
def test_every_rule_has_a_source_and_a_date(table: str) -> None:
    rows = facts.load("vllm", table, "read")["rules"]
    assert len({row["id"] for row in rows}) == len(rows)
    for row in rows:
        assert row["source"].startswith("https://github.com/vllm-project/vllm/blob/v0.")
        assert row["date"] >= "2026-11-30"
        assert row["says"] in {"runs", "refuses"}
