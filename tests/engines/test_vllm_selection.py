from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from patcher.engines import facts
from patcher.engines.vllm.selection import Selection, select

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ORACLE = Path(__file__).parents[3] / "shared" / "oracle" / "vllm"
TENSOR_PARALLEL = 8
#: The oracle cuts the errors of layers.
LONGEST_ERROR = 600

DEEPSEEK = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
KIMI = {**DEEPSEEK, "num_attention_heads": 64}
DEEPSEEK_V32 = {**DEEPSEEK, "num_attention_heads": 128, "index_topk": 2048}
GLM5 = {
    **DEEPSEEK_V32,
    "num_attention_heads": 64,
    "qk_nope_head_dim": 192,
    "v_head_dim": 256,
}
#: kind of the oracle -> text config, architecture with a hook.
KINDS: dict[str, tuple[dict[str, int], str | None]] = {
    **{f"gqa-{size}": ({"num_attention_heads": 32}, None) for size in (64, 96, 128, 256)},
    "mla-dense-576": (KIMI, "DeepseekV3ForCausalLM"),
    "mla-sparse-576": (DEEPSEEK_V32, "DeepseekV32ForCausalLM"),
    "mla-sparse-576-glm5": (GLM5, "GlmMoeDsaForCausalLM"),
}


@cache
def selection_facts(release: str) -> Mapping[str, Any]:
    return facts.load("vllm", release, "selection")


def rows(kind: str, release: str) -> Iterator[dict[str, Any]]:
    with gzip.open(ORACLE / f"{kind}-{release}.jsonl.gz", "rt") as file:
        yield from (row for row in map(json.loads, file) if not row.get("meta"))


def answer(release: str, row: Mapping[str, Any], *, hooks: bool) -> Selection:
    text_config, architecture = KINDS[row["kind"]]
    return select(
        selection_facts(release),
        capability=row["capability"],
        head_size=row["head_size"],
        model_dtype=row["dtype"],
        kv_cache_dtype=row["kv_cache_dtype"],
        use_mla=row["kind"].startswith("mla"),
        use_sparse="sparse" in row["kind"],
        num_heads_per_rank=text_config["num_attention_heads"] // TENSOR_PARALLEL,
        text_config=text_config,
        architecture=architecture if hooks else None,
        gpu=f"FAKE-SM{row['capability'].replace('.', '')}",
    )


def releases(kind: str) -> list[str]:
    files = sorted(ORACLE.glob(f"{kind}-*.jsonl.gz"))
    return [file.name[len(kind) + 1 : -len(".jsonl.gz")] for file in files] or ["absent"]


def present(release: str) -> None:
    if release == "absent":
        pytest.skip("the oracle files are not here")


def first_sentence(error: str) -> str:
    return error.partition(" Reasons:")[0]


def is_forced_by_environment(row: Mapping[str, Any]) -> bool:
    """0.12.0 assigns a variable on SM 10.0; only the rows of the layers were made with it."""
    return (row["version"], row["capability"]) == ("0.12.0", "10.0") and "mla" in row["kind"]


def selector_told(row: Mapping[str, Any]) -> dict[str, Any]:
    told = {"valid": row["valid"], "rejected": list(row["rejected"].items())}
    if not is_forced_by_environment(row):
        told |= {name: row.get(name) for name in ("forced_backend", "selected", "error")}
    if row["selected"] and "canonical_kv_cache_dtype" in row:
        told["canonical"] = row["canonical_kv_cache_dtype"]
    return told


def selector_answers(release: str, row: Mapping[str, Any]) -> dict[str, Any]:
    got = answer(release, row, hooks=False)
    assert got.unknown is None
    of_selector = [backend for backend in got.backends if backend.stage == "selector"]
    refused = [refusal for refusal in got.refusals if refusal.stage == "selector"]
    accepted = next((b.name for b in of_selector if b.name == (got.forced or b.name) and b.accepts), "")
    answers = {
        "valid": list(got.valid),
        "rejected": [(b.name, list(b.reasons)) for b in of_selector if not b.accepts],
    }
    if not is_forced_by_environment(row):
        answers |= {
            "forced_backend": got.forced,
            "selected": selection_facts(release)["backends"].get(accepted, {}).get("class"),
            "error": refused[0].message if refused else None,
        }
    if row["selected"] and "canonical_kv_cache_dtype" in row:
        answers["canonical"] = got.kv_cache_dtype
    return answers


@pytest.mark.parametrize("release", releases("grid"))
def test_every_row_of_the_selector(release: str) -> None:
    present(release)
    compared = 0
    for row in rows("grid", release):
        assert selector_answers(release, row) == selector_told(row), row
        compared += 1
    assert compared >= 980


@pytest.mark.parametrize("release", releases("grid"))
def test_every_dtype_after_a_model_hook(release: str) -> None:
    present(release)
    for row in rows("grid", release):
        if "model_hook_kv_cache_dtype" in row:
            hooked = row["model_hook_kv_cache_dtype"]
            got = answer(release, row, hooks=True)
            assert got.hook is (hooked != row["kv_cache_dtype"]), row
            if got.selected is None:
                assert got.kv_cache_dtype == hooked, row


def layer_told(row: Mapping[str, Any]) -> tuple[Any, ...]:
    if row["layer_ok"]:
        return True, row["backend"], row["layer_kv_cache_dtype"], None
    return False, None, None, row["error"][:LONGEST_ERROR]


def layer_answers(release: str, row: Mapping[str, Any]) -> tuple[Any, ...]:
    got = answer(release, row, hooks=True)
    assert got.unknown is None
    if got.refusals:
        return False, None, None, got.refusals[0].message[:LONGEST_ERROR]
    return True, got.selected, got.kv_cache_dtype, None


@pytest.mark.parametrize("release", releases("layers"))
def test_every_row_of_the_layers(release: str) -> None:
    present(release)
    compared = 0
    for row in rows("layers", release):
        if "accelerator" in row.get("error", "") or "workspace" in row.get("error", ""):
            continue
        assert layer_answers(release, row) == layer_told(row), row
        compared += 1
    assert compared >= 980
