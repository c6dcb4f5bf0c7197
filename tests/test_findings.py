from __future__ import annotations

import json
from typing import Any

import pytest

from patcher import findings, jsontext
from patcher.engines.base import Answer, Notice, Place, Refusal, Resolution
from patcher.headers import ScaleCounts
from patcher.metadata.declarations import Declaration
from patcher.subject import Subject
from patcher.verdict import Finding, Location

FP8 = {"dynamic": False, "num_bits": 8, "type": "float"}
SCHEME = "/quantization_config/kv_cache_scheme"
ALGO = "/quantization/kv_cache_quant_algo"


def subject(scheme: Any = FP8, algo: Any = "FP8", text: str | None = None) -> Subject:
    config = {
        "model_type": "deepseek_v3",
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "quantization_config": {"quant_method": "modelopt", "kv_cache_scheme": scheme},
    }
    sidecar = {
        "producer": {"name": "modelopt"},
        "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": algo},
    }
    files = {
        "config.json": text or json.dumps(config, indent=1),
        "hf_quant_config.json": json.dumps(sidecar, indent=1),
    }
    return Subject.of(
        {name: jsontext.read(data.encode(), source=name) for name, data in files.items()}
    )


def found(answer: Answer) -> list[Finding]:
    return list(findings.of_answer(subject(), answer, "vllm", "0.16.0", "sm120"))


RESOLVED = Resolution("fp8_e4m3", Place("config.json", SCHEME), (Place("config.json", SCHEME),))


def test_a_refused_dtype_names_the_deciding_value_first_and_every_other_statement() -> None:
    refusal = Refusal("selector", "KV001", "ValueError: No valid attention backend", None)
    place = Place("hf_quant_config.json", ALGO)
    refused = Refusal("selector", "KV001", "ValueError: No valid attention backend", place)
    (first,) = found(Answer(RESOLVED, refusals=(refusal,)))
    (second,) = found(Answer(RESOLVED, refusals=(refused,)))
    config = Location("config.json", SCHEME, 7)
    sidecar = Location("hf_quant_config.json", ALGO, 7)
    assert first.locations == (config, sidecar)
    assert second.locations == (sidecar, config)
    assert first.message == (
        "no attention backend of vLLM 0.16.0 runs this model (MLA) with an fp8_e4m3 KV cache on "
        "sm120"
    )
    assert first.detail == "ValueError: No valid attention backend"


@pytest.mark.parametrize("finding", sorted(findings.REFUSALS))
def test_every_refusal_has_words(finding: str) -> None:
    (only,) = found(Answer(RESOLVED, refusals=(Refusal("config", finding, "E", None),)))
    assert only.severity == "error"
    assert "{" not in only.message


def test_that_auto_obeys_the_files_is_told_only_when_it_hurts() -> None:
    notice = Notice("KV009", "info", "--kv-cache-dtype auto means fp8_e4m3 here", None)
    refusal = Refusal("selector", "KV001", "E", None)
    assert found(Answer(RESOLVED, notices=(notice,))) == []
    assert [f.id for f in found(Answer(RESOLVED, refusals=(refusal,), notices=(notice,)))] == [
        "KV001",
        "KV009",
    ]


@pytest.mark.parametrize(
    ("scheme", "algo", "words"),
    [
        (FP8, "FP8", None),
        (None, None, None),
        (FP8, None, "config.json says fp8_e4m3; hf_quant_config.json says no KV quantization"),
        (None, "FP8", "config.json says no KV quantization; hf_quant_config.json says fp8_e4m3"),
        ("NVFP4", "FP8", "config.json says nvfp4; hf_quant_config.json says fp8_e4m3"),
    ],
)
def test_files_that_disagree(scheme: Any, algo: Any, words: str | None) -> None:
    told = list(findings.of_files(subject(scheme, algo), Place("config.json", SCHEME)))
    assert [f.id for f in told] == ([] if words is None else ["KV006"])
    if words:
        assert words in told[0].message
        assert "config.json decides here" in told[0].message


def test_a_config_block_without_a_statement_disagrees_with_the_sidecar() -> None:
    text = '{"model_type": "llama", "quantization_config": {"quant_method": "modelopt"}}'
    told = list(findings.of_files(subject(text=text), None))
    assert [f.id for f in told] == ["KV006"]
    assert "neither decides on this release" in told[0].message


def test_a_key_that_stands_twice_on_the_way_is_ambiguous() -> None:
    text = '{"quantization_config": {"a": 1}, "quantization_config": {"kv_cache_scheme": "FP8"}}'
    (ambiguous, *_) = findings.of_files(subject(text=text), None)
    assert ambiguous.id == "KV012"
    assert ambiguous.locations == (Location("config.json", "/quantization_config", 1),)


def test_a_key_that_stands_twice_elsewhere_is_not() -> None:
    text = '{"a": 1, "a": 2, "quantization_config": {"kv_cache_scheme": "FP8"}}'
    assert "KV012" not in {f.id for f in findings.of_files(subject(text=text), None)}


def scales(**counts: Any) -> ScaleCounts:
    defaults: dict[str, Any] = {
        "source": "index",
        "shards": 2,
        "tensors": 10,
        "k_scales": 0,
        "v_scales": 0,
        "kv_scales": 0,
        "q_scales": 0,
        "paired": 0,
        "unpaired": (),
        "missing_shards": (),
        "bytes_read": 0,
        "weight_bytes_read": 0,
    }
    return ScaleCounts(**(defaults | counts))


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({}, [("KV007", "info")]),
        ({"k_scales": 4, "v_scales": 4, "paired": 4}, []),
        ({"kv_scales": 4}, []),
        ({"k_scales": 2, "v_scales": 1, "unpaired": ("model.layers.1",)}, [("KV007", "warning")]),
        ({"source": "none"}, []),
    ],
)
def test_scales(counts: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    declaration = Declaration("config.json", SCHEME, 7, FP8, "modelopt", "main", "fp8_e4m3")
    told = findings.of_scales(declaration, scales(**counts))
    assert [(f.id, f.severity) for f in told] == expected


def test_errors_come_first_and_nothing_twice() -> None:
    warning, error = Finding("KV006", "warning", "w"), Finding("KV016", "error", "e")
    assert findings.ordered([warning, error, warning]) == (error, warning)
