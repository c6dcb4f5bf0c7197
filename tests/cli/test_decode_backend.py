"""``--decode-backend``: SGLang's ``--decode-attention-backend``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from conftest import make_checkpoint

from patcher.engines.extract.sglang_models import MODELS

if TYPE_CHECKING:
    from pathlib import Path

    from running import Run

SGLANG = ("--target", "sm100", "--engine", "sglang==0.5.22")
BLOCK = {"quant_method": "fp8", "fmt": "e4m3", "kv_cache_quant_algo": "FP8"}


@pytest.fixture
def deepseek(tmp_path: Path) -> str:
    config = {**MODELS["mla"], "quantization_config": BLOCK}
    return str(make_checkpoint(tmp_path / "DeepSeek", {"config.json": config}))


@pytest.mark.parametrize("option", ["--decode-backend", "--decode-attention-backend"])
def test_the_launch_is_judged_with_it(option: str, deepseek: str, run: Run) -> None:
    assert run("check", *SGLANG, deepseek).code == 0
    done = run("check", *SGLANG, option, "tokenspeed_mla", deepseek)
    assert done.code == 1
    for words in (
        "x KV011",
        "ValueError: tokenspeed_mla backend requires kv-cache-dtype=fp8_e4m3, got auto.",
        "sglang serve ... --kv-cache-dtype fp8_e4m3",
        "sglang serve ... --attention-backend trtllm_mla",
        "instead of --decode-attention-backend; no change to the checkpoint",
    ):
        assert words in done.out
    cured = run(
        "check", *SGLANG, option, "tokenspeed_mla", "--kv-cache-dtype", "fp8_e4m3", deepseek
    )
    assert cured.code == 0


def test_it_is_in_the_json(deepseek: str, run: Run) -> None:
    done = run("check", "--json", *SGLANG, "--decode-backend", "tokenspeed_mla", deepseek)
    document = json.loads(done.out)
    assert document["target"]["decode_attention_backend"] == "tokenspeed_mla"
    flags = [cure["argv"] for cure in document["cures"] if cure["kind"] == "flag"]
    assert flags == [["--kv-cache-dtype", "fp8_e4m3"], ["--attention-backend", "trtllm_mla"]]


@pytest.mark.parametrize("command", ["check", "plan", "apply", "report", "export"])
@pytest.mark.parametrize(
    ("engine", "reason"),
    [
        (("--engine", "vllm==0.16.0"), "vLLM has no such flag"),
        (("--engine", "trtllm==1.2.0"), "TensorRT-LLM has no such flag"),
    ],
)
def test_other_engines_have_no_such_flag(
    command: str, engine: tuple[str, ...], reason: str, deepseek: str, run: Run
) -> None:
    done = run(command, "--target", "sm100", *engine, "--decode-backend", "triton", deepseek)
    assert done.code == 2
    assert f"Error: --decode-backend is a launch flag of SGLang, and {reason}" in done.err
    assert "for example --engine sglang==0.5.23" in done.err


def test_an_unknown_backend_is_refused_with_the_known_ones(deepseek: str, run: Run) -> None:
    done = run("check", "-v", *SGLANG, "--decode-backend", "nope", deepseek)
    assert done.code == 1
    assert "argument --decode-attention-backend: invalid choice: 'nope' (choose from " in done.out
    assert "trtllm_mla, cutedsl_mla, tokenspeed_mla" in done.out


def test_what_the_release_was_not_asked_about_is_unknown(deepseek: str, run: Run) -> None:
    pair = ("--backend", "triton", "--decode-backend", "trtllm_mla")
    done = run("check", *SGLANG, *pair, deepseek)
    assert done.code == 4
    assert "together with --attention-backend triton" in done.out


def test_a_record_keeps_it(deepseek: str, run: Run) -> None:
    launch = (*SGLANG, "--decode-backend", "trtllm_mla", "--recipe", "kv-cache-model-dtype")
    assert run("apply", *launch, deepseek).code == 0
    told = json.loads(run("log", "--json", deepseek).out)
    assert "trtllm_mla" in json.dumps(told)
