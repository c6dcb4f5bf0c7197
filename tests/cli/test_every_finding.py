"""Each finding on a checkpoint as people have them, with the words that the engine would print."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import make_checkpoint

from patcher import explain
from patcher.engines.extract.sglang_models import MODELS

if TYPE_CHECKING:
    from running import Run

FIXTURE = Path(__file__).resolve().parents[2] / "fixtures" / "Kimi-K2.5-NVFP4"
SIDECAR = "hf_quant_config.json"
WEIGHTS = {"model.embed_tokens.weight": "model-00001-of-00001.safetensors"}
NVFP4 = {"dynamic": False, "num_bits": 4, "type": "float"}


def kimi(scheme: Any = ...) -> dict[str, Any]:
    """The fixture's files, with another KV-cache scheme where one is given."""
    files = {path.name: json.loads(path.read_bytes()) for path in FIXTURE.glob("*.json")}
    if scheme is not ...:
        files["config.json"]["quantization_config"]["kv_cache_scheme"] = scheme
    return files


def with_block(kind: str, block: dict[str, Any]) -> dict[str, Any]:
    return {"config.json": copy.deepcopy(MODELS[kind]) | {"quantization_config": block}}


def compressed(numbers: str) -> dict[str, Any]:
    """A Llama as llm-compressor writes it."""
    weights = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True}
    scheme = weights | {"type": numbers, "dynamic": False}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": weights}}
    block = {"quant_method": "compressed-tensors", "format": "float-quantized"}
    return with_block(
        "mha", block | {"ignore": ["lm_head"], "config_groups": groups, "kv_cache_scheme": scheme}
    )


def deleted() -> dict[str, Any]:
    files = kimi()
    del files["config.json"]["quantization_config"]
    del files[SIDECAR]["quantization"]["kv_cache_quant_algo"]
    return files


def sparse() -> dict[str, Any]:
    return with_block("dsa", kimi()["config.json"]["quantization_config"])


def marked() -> dict[str, Any]:
    files = kimi()
    return files | {SIDECAR: b"\xef\xbb\xbf" + json.dumps(files[SIDECAR]).encode()}


#: id -> files, GPU, engine, other options, severity, and words of the message or the engine's text.
CASES: dict[str, tuple[dict[str, Any], str, str, tuple[str, ...], str, str]] = {
    "KV001": (
        kimi(), "sm120", "vllm==0.16.0", (), "error",
        "ValueError: No valid attention backend found for cuda with AttentionSelectorConfig(",
    ),
    "KV002": (
        kimi(), "sm86", "vllm==0.26.0", (), "error",
        "ValueError: FP8 KV cache is not supported by the Triton MLA backend on ",
    ),
    "KV003": (
        kimi(NVFP4), "sm120", "vllm==0.33.0", (), "error",
        "ValueError: nvfp4 KV cache is not supported with MLA (Multi-head Latent Attention)",
    ),
    "KV004": (
        compressed("int"), "sm90", "vllm==0.33.0", (), "error",
        "NotImplementedError: Currently supported kv cache quantization is num_bits=8, type=float",
    ),
    "KV005": (
        deleted(), "sm120", "vllm==0.33.0", (), "error",
        "ValueError: NVFP4 quantization requires the following fields in hf_quant_config.json: "
        "['kv_cache_quant_algo']",
    ),
    "KV006": (kimi(None), "sm120", "vllm==0.33.0", (), "warning", "the files disagree: "),
    "KV007": (
        kimi() | {"model.safetensors.index.json": {"metadata": {}, "weight_map": WEIGHTS}},
        "sm120", "vllm==0.33.0", (), "info", "no k/v scale tensors in the weights",
    ),
    "KV008": (
        kimi(), "sm120", "vllm==0.13.0", (), "warning",
        "this release never takes the KV-cache dtype from the files",
    ),
    "KV009": (
        compressed("float"), "sm120", "vllm==0.33.0", ("--kv-cache-dtype", "fp8_e5m2"), "error",
        "ValueError: fp8_e5m2 kv-cache is not supported with fp8 checkpoints.",
    ),
    "KV010": (
        sparse(), "sm120", "sglang==0.5.20", (), "warning",
        "SGLang sets fp8_e4m3 for this model on sm120, whatever the files say",
    ),
    "KV011": (
        kimi(), "sm100", "sglang==0.5.18",
        ("--backend", "trtllm_mla", "--kv-cache-dtype", "bfloat16"), "error",
        "ValueError: TensorRT-LLM MLA backend only supports kv-cache-dtype of ",
    ),
    "KV012": (
        marked(), "sm120", "vllm==0.33.0", (), "warning", "starts with a byte order mark",
    ),
    "KV013": (
        kimi(), "sm120", "vllm==0.33.0", (), "info", "not read: another statement decides",
    ),
    "KV014": (
        {"config.json": MODELS["mha"]}, "sm120", "sglang==0.5.4", (), "info",
        "SGLang 0.5.4 chooses flashinfer after the checks that were run",
    ),
    "KV015": (
        kimi(), "sm120", "sglang==0.5.10", (), "warning",
        "ModelOptFp8KVCacheMethod loads stored scales",
    ),
    "KV016": (
        kimi(), "sm75", "vllm==0.13.0", (), "error",
        "ValueError: The quantization method modelopt_fp4 is not supported for the current GPU.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("finding", CASES)
def test_a_finding_and_what_the_engine_prints(finding: str, tmp_path: Path, run: Run) -> None:
    files, gpu, engine, options, severity, words = CASES[finding]
    root = make_checkpoint(tmp_path / "model", files)
    done = run("check", "--json", "--target", gpu, "--engine", engine, *options, str(root))
    told = [item for item in json.loads(done.out)["findings"] if item["id"] == finding]
    assert [item["severity"] for item in told[:1]] == [severity]
    assert any(words in f"{item['message']}\n{item['detail']}" for item in told)
    assert done.code == (1 if severity == "error" else 0)


def test_every_finding_has_a_case() -> None:
    assert set(CASES) == set(explain.titles())
