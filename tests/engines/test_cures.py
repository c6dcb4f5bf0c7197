"""The ways out of the cases that the project started from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from patcher import cures, engines, findings, jsontext
from patcher.engines.base import Launch
from patcher.subject import Subject

FIXTURE = Path(__file__).resolve().parents[2] / "fixtures" / "Kimi-K2.5-NVFP4"
SM120 = Launch("sm120", "12.0")


def subject(**kv: object) -> Subject:
    """The fixture, with another KV-cache scheme in config.json where one is given."""
    files = {path.name: path.read_bytes() for path in FIXTURE.glob("*.json")}
    if kv:
        config = json.loads(files["config.json"])
        config["quantization_config"]["kv_cache_scheme"] = kv["scheme"]
        files["config.json"] = json.dumps(config).encode()
    return Subject.of({name: jsontext.read(data, source=name) for name, data in files.items()})


def found(release: str, given: Subject) -> list[tuple[str, str]]:
    return [
        (cure.kind, " ".join(cure.argv) or cure.version or cure.recipe or "")
        for cure in cures.find(given, "vllm", release, SM120)
    ]


@pytest.mark.parametrize("release", ["0.14.0", "0.14.1"])
def test_kimi_on_vllm_014_has_no_dtype_flag(release: str) -> None:
    override, *others = cures.find(subject(), "vllm", release, SM120)
    flag, text = override.argv
    assert flag == "--hf-overrides"
    config = subject().values["config.json"]["quantization_config"]
    assert json.loads(text) == {"quantization_config": {**config, "kv_cache_scheme": None}}
    assert [(cure.kind, cure.version or cure.recipe) for cure in others] == [
        ("upgrade", ">=0.18.0"),
        ("patch", "kv-cache-model-dtype"),
    ]


def test_an_override_that_nobody_could_paste_is_not_offered() -> None:
    given = subject()
    config = given.values["config.json"]
    block = config["quantization_config"] | {"ignore": ["x" * 40] * 100}
    values = {**given.values, "config.json": {**config, "quantization_config": block}}
    long = replace(given, values=values)
    kinds = [cure.kind for cure in cures.find(long, "vllm", "0.14.1", SM120)]
    assert kinds == ["upgrade", "patch"]


def test_an_override_of_the_other_file_is_its_whole_content() -> None:
    given = subject()
    config = {k: v for k, v in given.values["config.json"].items() if k != "quantization_config"}
    sidecar = given.values["hf_quant_config.json"]
    files = {"config.json": config, "hf_quant_config.json": sidecar}
    alone = Subject.of(
        {name: jsontext.read(json.dumps(v).encode(), source=name) for name, v in files.items()}
    )
    override = cures.find(alone, "vllm", "0.14.1", SM120)[0]
    quantization = {**sidecar["quantization"], "kv_cache_quant_algo": None}
    assert json.loads(override.argv[1]) == {
        "quantization_config": {**sidecar, "quantization": quantization}
    }


def test_support_that_stops_again_is_said() -> None:
    """NVFP4 with MLA: not obeyed from 0.14 to 0.19, refused from 0.20 on."""
    nvfp4 = {"dynamic": False, "num_bits": 4, "type": "float"}
    old = Launch("sm75", "7.5")
    (upgrade,) = cures.find(subject(scheme=nvfp4), "vllm", "0.13.0", old)
    assert upgrade.version == ">=0.14.0,<0.20.0"
    assert upgrade.effect.endswith("; from 0.20.0 on it stops again")


@pytest.mark.parametrize(
    ("engine", "release", "flag"), [("vllm", "0.18.1", "bfloat16"), ("sglang", "0.5.23", "bf16")]
)
def test_a_kernel_that_will_fail_has_cures_that_avoid_it(
    engine: str, release: str, flag: str
) -> None:
    """Triton has no FP8 E4M3 below SM89, and no check of these releases says so."""
    launch = Launch("sm86", "8.6")
    given = subject()
    before = engines.answer(engine, release, given.values, given.model, launch)
    assert (before.refusals, bool(findings.failing(before))) == ((), True)
    offered = cures.find(given, engine, release, launch)
    assert [(cure.kind, cure.argv or cure.recipe) for cure in offered] == [
        ("flag", ("--kv-cache-dtype", flag)),
        ("patch", "kv-cache-model-dtype"),
    ]
    after = engines.answer(
        engine, release, given.values, given.model, replace(launch, kv_cache_dtype=flag)
    )
    assert cures.runs(after)


def test_trtllm_mla_takes_bf16_and_not_bfloat16() -> None:
    launch = Launch("sm100", "10.0", kv_cache_dtype="bfloat16", attention_backend="trtllm_mla")
    given = subject()
    refused = engines.answer("sglang", "0.5.18", given.values, given.model, launch)
    assert [refusal.finding for refusal in refused.refusals] == ["KV011"]
    assert cures.find(given, "sglang", "0.5.18", launch)[0].argv == ("--kv-cache-dtype", "bf16")


def test_a_backend_that_was_asked_for_and_refuses() -> None:
    launch = Launch("sm120", "12.0", attention_backend="FLASHMLA")
    flags = [cure for cure in cures.find(subject(), "vllm", "0.33.0", launch) if cure.argv]
    assert [(cure.argv, cure.effect) for cure in flags] == [
        (
            ("--attention-backend", "TRITON_MLA"),
            "no change to the checkpoint; the cache holds fp8_e4m3",
        )
    ]


def test_the_backend_that_sglang_names_when_it_refuses_its_own_choice() -> None:
    """0.5.9: "triton or trtllm_mha backend are the only supported backends on Blackwell GPUs"."""
    text = {"hidden_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 16, "head_dim": 256}
    layers = [*["linear_attention"] * 3, "full_attention"]
    config = {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "torch_dtype": "bfloat16",
        "text_config": {**text, "num_key_value_heads": 2, "layer_types": layers},
    }
    document = jsontext.read(json.dumps(config).encode(), source="config.json")
    given = Subject.of({"config.json": document})
    assert [cure.argv for cure in cures.find(given, "sglang", "0.5.9", SM120) if cure.argv] == [
        ("--attention-backend", "triton")
    ]


def test_tensorrt_llm_has_no_flag_that_takes_quantization_away() -> None:
    nvfp4 = {"dynamic": False, "num_bits": 4, "type": "float"}
    offered = cures.find(subject(scheme=nvfp4), "trtllm", "1.2.1", Launch("sm100", "10.0"))
    assert {cure.argv for cure in offered} <= {(), ("--kv_cache_dtype", "fp8")}


@pytest.mark.parametrize("release", ["0.15.1", "0.16.0", "0.17.1"])
def test_kimi_on_vllm_015_to_017(release: str) -> None:
    assert found(release, subject()) == [
        ("flag", "--kv-cache-dtype bfloat16"),
        ("upgrade", ">=0.18.0"),
        ("patch", "kv-cache-model-dtype"),
    ]


@pytest.mark.parametrize("release", ["0.13.0", "0.18.0", "0.18.1", "0.19.1"])
def test_kimi_starts_before_and_after(release: str) -> None:
    answer = engines.answer("vllm", release, subject().values, subject().model, SM120)
    assert answer.refusals == ()
    assert answer.selected == "TRITON_MLA"


def test_an_nvfp4_cache_with_mla() -> None:
    """Obeyed from 0.20 on, refused by the validator from 0.21 on; FP8 keeps half the memory."""
    nvfp4 = {"dynamic": False, "num_bits": 4, "type": "float"}
    given = subject(scheme=nvfp4)
    before = engines.answer("vllm", "0.19.1", given.values, given.model, SM120)
    assert (before.refusals, before.resolution and before.resolution.kv_cache_dtype) == ((), "auto")
    first = engines.answer("vllm", "0.20.2", given.values, given.model, SM120).refusals
    assert [refusal.finding for refusal in first] == ["KV001"]
    for release in ("0.22.1", "0.33.0"):
        (refusal,) = engines.answer("vllm", release, given.values, given.model, SM120).refusals
        assert refusal.finding == "KV003"
        assert "nvfp4 KV cache is not supported with MLA" in refusal.message
        assert [cure for cure in found(release, given) if cure[0] != "upgrade"] == [
            ("flag", "--kv-cache-dtype fp8"),
            ("patch", "kv-cache-fp8"),
            ("patch", "kv-cache-model-dtype"),
        ]


def test_later_releases_of_a_build_that_was_probed() -> None:
    assert engines.later("vllm", "0.31.1.dev7+g1234567") == ("0.32.0", "0.33.0")
    assert engines.later("vllm", "0.33.0") == ()


@pytest.mark.parametrize("release", ["0.5.10", "0.5.18", "0.5.23"])
def test_sglang_takes_kimi_as_it_is(release: str) -> None:
    answer = engines.answer("sglang", release, subject().values, subject().model, SM120)
    assert answer.refusals == ()
    assert answer.selected == "triton"
    assert answer.resolution is not None
    assert answer.resolution.kv_cache_dtype == "fp8_e4m3"
