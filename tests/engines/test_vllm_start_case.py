"""The two cases on vLLM that the project started from, release by release.

Kimi-K2.5-NVFP4 on an RTX PRO 6000 (SM120) does not start on some releases, and an NVFP4 cache does
not start with multi-head latent attention on any that obeys it. What is refused, by whom, in which
words, from which release on, and what can be done about it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from patcher import cures, engines, jsontext
from patcher.engines.base import Answer, BackendAnswer, Launch, Place
from patcher.subject import Subject

FIXTURE = Path(__file__).resolve().parents[2] / "fixtures" / "Kimi-K2.5-NVFP4"
SM120 = Launch("sm120", "12.0")
SCHEME = Place("config.json", "/quantization_config/kv_cache_scheme")
RELEASES = tuple(
    release
    for release in engines.releases("vllm")
    if "0.13.0" <= release <= "0.19.9"  # all of them have two digits after "0."
)
REFUSING = ("0.14.0", "0.14.1", "0.15.0", "0.15.1", "0.16.0", "0.17.0", "0.17.1")
#: What the five MLA backends of those releases have against it, in their order.
REASONS = {
    "FLASH_ATTN_MLA": (
        "kv_cache_dtype not supported",
        "compute capability not supported",
        "FlashAttention MLA not supported on this device",
    ),
    "FLASHMLA": (
        "compute capability not supported",
        "FlashMLA Dense is only supported on Hopper devices.",
    ),
    "FLASHINFER_MLA": ("compute capability not supported",),
    "TRITON_MLA": ("kv_cache_dtype not supported",),
    "FLASHMLA_SPARSE": (
        "kv_cache_dtype not supported",
        "non-sparse not supported",
        "compute capability not supported",
    ),
}


def subject(scheme: object = None) -> Subject:
    """The fixture, with another KV-cache scheme in config.json where one is given."""
    files = {path.name: path.read_bytes() for path in FIXTURE.glob("*.json")}
    if scheme is not None:
        config = json.loads(files["config.json"])
        config["quantization_config"]["kv_cache_scheme"] = scheme
        files["config.json"] = json.dumps(config).encode()
    return Subject.of({name: jsontext.read(data, source=name) for name, data in files.items()})


def ask(release: str, scheme: object = None, **launch: str) -> Answer:
    given = subject(scheme)
    asked = Launch("sm120", "12.0", **launch)
    return engines.answer("vllm", release, given.values, given.model, asked)


def cache(answer: Answer) -> str | None:
    return answer.resolution.kv_cache_dtype if answer.resolution else None


def ways_out(release: str, scheme: object = None) -> list[tuple[str, str]]:
    """The cures but ``--hf-overrides``, which takes the place of a patch."""
    return [
        (cure.kind, " ".join(cure.argv) or cure.version or cure.recipe or "")
        for cure in cures.find(subject(scheme), "vllm", release, SM120)
        if "--hf-overrides" not in cure.argv
    ]


# Kimi-K2.5-NVFP4 on SM120


def test_every_release_from_013_to_019_is_asked() -> None:
    around = ("0.18.0", "0.18.1", "0.19.0", "0.19.1")
    assert list(RELEASES) == ["0.13.0", *REFUSING, *around]


def test_013_starts_because_it_does_not_read_the_declaration() -> None:
    answer = ask("0.13.0")
    assert (answer.refusals, answer.selected, cache(answer)) == ((), "TRITON_MLA", "auto")
    assert answer.resolution is not None
    assert answer.resolution.decided_by == "engine default"
    assert {notice.finding for notice in answer.notices} >= {"KV008"}


@pytest.mark.parametrize("release", REFUSING)
def test_014_to_017_obey_it_and_no_backend_runs_it(release: str) -> None:
    answer = ask(release)
    assert (answer.selected, cache(answer)) == (None, "fp8_e4m3")
    assert answer.resolution is not None
    assert answer.resolution.decided_by == SCHEME
    (refusal,) = answer.refusals
    assert (refusal.stage, refusal.finding, refusal.place) == ("selector", "KV001", SCHEME)
    assert refusal.message.startswith(
        "ValueError: No valid attention backend found for cuda with AttentionSelectorConfig("
        "head_size=576, dtype=torch.bfloat16, kv_cache_dtype=fp8_e4m3, "
    )
    assert {each.name: each.reasons for each in answer.backends} == REASONS
    assert not any(each.accepts for each in answer.backends)


@pytest.mark.parametrize("release", ["0.18.0", "0.18.1", "0.19.0", "0.19.1"])
def test_018_is_the_first_that_runs_it(release: str) -> None:
    answer = ask(release)
    assert (answer.refusals, answer.selected) == ((), "TRITON_MLA")
    assert cache(answer) == "fp8_e4m3"
    assert BackendAnswer("TRITON_MLA", accepts=True, stage="selector") in answer.backends


def test_it_runs_on_every_release_since() -> None:
    since = engines.later("vllm", "0.17.1")
    assert since[0] == "0.18.0"
    assert {ask(release).selected for release in since} == {"TRITON_MLA"}


@pytest.mark.parametrize("release", ["0.14.0", "0.14.1"])
def test_014_has_no_value_of_the_flag_that_helps(release: str) -> None:
    """``auto`` asks the checkpoint again, and no backend lists an explicit ``bfloat16`` yet."""
    assert [ask(release, kv_cache_dtype=flag).selected for flag in ("auto", "bfloat16")] == [
        None,
        None,
    ]
    assert ways_out(release) == [("upgrade", ">=0.18.0"), ("patch", "kv-cache-model-dtype")]


@pytest.mark.parametrize("release", REFUSING[2:])
def test_from_015_on_a_flag_helps(release: str) -> None:
    flagged = ask(release, kv_cache_dtype="bfloat16")
    assert (flagged.refusals, flagged.selected) == ((), "TRITON_MLA")
    assert ways_out(release) == [
        ("flag", "--kv-cache-dtype bfloat16"),
        ("upgrade", ">=0.18.0"),
        ("patch", "kv-cache-model-dtype"),
    ]


@pytest.mark.parametrize("release", REFUSING)
def test_the_patch_makes_it_start(release: str) -> None:
    patched = subject()
    config = dict(patched.values["config.json"])
    config["quantization_config"] = {**config["quantization_config"], "kv_cache_scheme": None}
    answer = engines.answer(
        "vllm", release, {**patched.values, "config.json": config}, patched.model, SM120
    )
    assert (answer.refusals, answer.selected, cache(answer)) == ((), "TRITON_MLA", "auto")


# "nvfp4 KV cache is not supported with MLA"

NVFP4 = {"dynamic": False, "num_bits": 4, "type": "float"}
NVFP4_REFUSED = "nvfp4 KV cache is not supported with MLA (Multi-head Latent Attention) backends"


def test_up_to_019_the_nvfp4_statement_is_not_understood() -> None:
    before = [release for release in engines.releases("vllm") if release < "0.20"]
    assert before[-1] == "0.19.1"
    for release in before:
        answer = ask(release, NVFP4)
        assert (answer.refusals, cache(answer)) == ((), "auto"), release


@pytest.mark.parametrize("release", ["0.20.0", "0.20.1", "0.20.2"])
def test_020_is_the_first_that_obeys_it_and_the_selector_refuses(release: str) -> None:
    answer = ask(release, NVFP4)
    assert cache(answer) == "nvfp4"
    (refusal,) = answer.refusals
    assert (refusal.stage, refusal.finding, refusal.place) == ("selector", "KV001", SCHEME)
    assert "No valid attention backend found for cuda" in refusal.message


def test_021_is_the_first_whose_validator_speaks() -> None:
    since = engines.later("vllm", "0.20.2")
    assert (since[0], since[-1]) == ("0.21.0", engines.releases("vllm")[-1])
    for release in since:
        (refusal,) = ask(release, NVFP4).refusals
        assert (refusal.stage, refusal.finding, refusal.place) == ("validator", "KV003", SCHEME)
        assert NVFP4_REFUSED in refusal.message, release


@pytest.mark.parametrize("gpu", [("sm90", "9.0"), ("sm100", "10.0"), ("sm121", "12.1")])
def test_no_gpu_helps(gpu: tuple[str, str]) -> None:
    given = subject(NVFP4)
    for release in engines.later("vllm", "0.19.1"):
        answer = engines.answer("vllm", release, given.values, given.model, Launch(*gpu))
        assert [refusal.finding for refusal in answer.refusals] in (["KV001"], ["KV003"]), release


@pytest.mark.parametrize("release", ["0.20.2", "0.21.0", "0.22.1", "0.33.0"])
def test_what_to_do_instead(release: str) -> None:
    """FP8 keeps half of the memory; an upgrade is none, because no later release runs it."""
    assert ways_out(release, NVFP4) == [
        ("flag", "--kv-cache-dtype fp8"),
        ("patch", "kv-cache-fp8"),
        ("patch", "kv-cache-model-dtype"),
    ]
    flagged = ask(release, NVFP4, kv_cache_dtype="fp8")
    assert (flagged.refusals, flagged.selected) == ((), "TRITON_MLA")
