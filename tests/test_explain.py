"""The pages of the findings: complete, in one form, and true to what the engines print."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from patcher import explain
from patcher.errors import UsageError

IDS = [f"KV{number:03}" for number in range(1, 17)]
ORACLE = Path(__file__).parents[1] / ".." / "shared" / "oracle"

#: What a page quotes, and a recorded run of the engine that printed it.
QUOTES = [
    ("KV001", "vllm/grid-0.16.0", "No valid attention backend found for cuda with"),
    ("KV001", "vllm/grid-0.16.0", "TRITON_MLA: [kv_cache_dtype not supported]"),
    ("KV002", "vllm/layers-0.26.0", "FP8 KV cache is not supported by the Triton MLA backend on"),
    ("KV002", "vllm/layers-0.26.0", "native FP8 (fp8e4nv) requires SM89+."),
    (
        "KV004",
        "vllm/resolve-0.16.0",
        (
            "Currently supported kv cache quantization is num_bits=8, type=float, however received"
            " num_bits=4, type=int"
        ),
    ),
    (
        "KV004",
        "vllm/resolve-0.16.0",
        (
            "Invalid strategy for compressed-tensors KV cache. Expected strategies: ('tensor',"
            " 'attn_head'), found strategy: channel"
        ),
    ),
    ("KV004", "vllm/resolve-0.20.2", "ValueError: None is not a valid QuantizationStrategy"),
    (
        "KV005",
        "vllm/resolve-0.33.0",
        (
            "NVFP4 quantization requires the following fields in hf_quant_config.json:"
            " ['kv_cache_quant_algo']"
        ),
    ),
    ("KV005", "vllm/resolve-0.33.0", "TypeError: object of type 'NoneType' has no len()"),
    ("KV005", "sglang/ckpt-0.5.18", "Cannot find the config file for modelopt_mixed"),
    (
        "KV009",
        "vllm/resolve-0.33.0",
        "ValueError: fp8_e5m2 kv-cache is not supported with fp8 checkpoints.",
    ),
    (
        "KV010",
        "sglang/grid-0.5.10",
        "DeepSeek DSA only supports bf16/bfloat16 or fp8_e4m3 kv_cache_dtype",
    ),
    (
        "KV011",
        "sglang/grid-0.5.14",
        "tokenspeed_mla backend requires kv-cache-dtype=fp8_e4m3, got auto.",
    ),
    (
        "KV011",
        "sglang/grid-0.5.14",
        (
            "TensorRT-LLM MLA backend only supports kv-cache-dtype of fp8_e4m3, fp4_e2m1, bf16, or"
            " auto."
        ),
    ),
]


def test_every_finding_has_one_page() -> None:
    assert list(explain.titles()) == IDS
    assert explain.titles()["KV001"] == "No attention backend accepts the KV-cache dtype"
    assert explain.titles()["KV005"] == "A required key was deleted"


@pytest.mark.parametrize("finding", IDS)
def test_page_has_the_common_form(finding: str) -> None:
    text = explain.page(finding)
    lines = text.splitlines()
    assert lines[0] == f"# {finding} {explain.titles()[finding]}"
    assert 15 <= len(lines) <= 30
    assert max(map(len, lines)) <= 100
    assert text.isascii()
    assert "!" not in text
    assert "What to do" in text
    assert "\n1. " in text
    assert re.search(r"\bExample: ", text)


@pytest.mark.parametrize("finding", IDS)
def test_page_names_findings_that_exist(finding: str) -> None:
    assert set(re.findall(r"KV[0-9]+", explain.page(finding))) <= set(IDS)


@pytest.mark.parametrize(("finding", "run", "quote"), QUOTES)
def test_quoted_errors_are_the_engines_own(finding: str, run: str, quote: str) -> None:
    assert quote in " ".join(explain.page(finding).split())
    recorded = ORACLE / f"{run}.jsonl.gz"
    if not recorded.exists():
        pytest.skip(f"{run} was not recorded here")
    with gzip.open(recorded, "rt", encoding="utf-8") as file:
        assert any(quote in line for line in file)


@pytest.mark.parametrize("spelling", ["KV007", "kv007", " Kv007\n"])
def test_case_and_blanks_do_not_matter(spelling: str) -> None:
    assert explain.page(spelling).startswith("# KV007 ")


@pytest.mark.parametrize("bad", ["", "KV000", "KV017", "KV1", "../KV001", "KV001.md", "KV001\0"])
def test_unknown_finding_lists_the_known_ones(bad: str) -> None:
    with pytest.raises(UsageError, match=r"unknown finding .*KV001, KV002, .*KV016$") as caught:
        explain.page(bad)
    assert caught.value.hint == "ckpt-patch explain KV001"
    assert caught.value.exit_code == 2
