"""The ways out of the cases that the project started from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from patcher import cures, engines, jsontext
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
def test_kimi_on_vllm_014_has_no_flag(release: str) -> None:
    assert found(release, subject()) == [
        ("upgrade", ">=0.18.0"),
        ("patch", "kv-cache-model-dtype"),
    ]


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
