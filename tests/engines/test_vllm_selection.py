from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from patcher.engines import facts
from patcher.engines.vllm.selection import Question, Selection, select

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
    question = Question(
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
        front_end=hooks,
    )
    return select(selection_facts(release), question)


def releases(kind: str) -> list[str]:
    files = sorted(ORACLE.glob(f"{kind}-*.jsonl.gz"))
    return [file.name[len(kind) + 1 : -len(".jsonl.gz")] for file in files] or ["absent"]


def present(release: str) -> None:
    if release == "absent":
        pytest.skip("the oracle files are not here")


def first_sentence(error: str) -> str:
    return error.partition(" Reasons:")[0]


def selector_told(row: Mapping[str, Any]) -> dict[str, Any]:
    told = {"valid": row["valid"], "rejected": list(row["rejected"].items())}
    told |= {name: row.get(name) for name in ("forced_backend", "selected", "error")}
    if row["selected"] and "canonical_kv_cache_dtype" in row:
        told["canonical"] = row["canonical_kv_cache_dtype"]
    return told


def selector_answers(release: str, row: Mapping[str, Any]) -> dict[str, Any]:
    got = answer(release, row, hooks=False)
    assert got.unknown is None
    of_selector = [backend for backend in got.backends if backend.stage == "selector"]
    refused = [refusal for refusal in got.refusals if refusal.stage == "selector"]
    deciding = [b for b in of_selector if got.forced in {None, b.name}]
    accepted = next((b.name for b in deciding if b.accepts), "")
    answers = {
        "valid": list(got.valid),
        "rejected": [(b.name, list(b.reasons)) for b in of_selector if not b.accepts],
    }
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


def kimi(release: str, dtype: str = "fp8_e4m3", capability: str = "12.0", **more: Any) -> Selection:
    question = Question(
        capability=capability,
        head_size=576,
        model_dtype="bfloat16",
        kv_cache_dtype=dtype,
        use_mla=True,
        num_heads_per_rank=8,
        text_config=KIMI,
        **more,
    )
    return select(selection_facts(release), question)


def test_kimi_on_sm120_is_refused_by_0_16() -> None:
    got = kimi("0.16.0")
    assert got.valid == ()
    assert got.selected is None
    assert {backend.name: backend.reasons for backend in got.backends}["TRITON_MLA"] == (
        "kv_cache_dtype not supported",
    )
    assert [backend.name for backend in got.backends] == [
        "FLASH_ATTN_MLA",
        "FLASHMLA",
        "FLASHINFER_MLA",
        "TRITON_MLA",
        "FLASHMLA_SPARSE",
    ]
    (refusal,) = got.refusals
    assert (refusal.finding, refusal.stage) == ("KV001", "selector")
    assert refusal.message.startswith(
        "ValueError: No valid attention backend found for cuda with AttentionSelectorConfig("
        "head_size=576, dtype=torch.bfloat16, kv_cache_dtype=fp8_e4m3, block_size=None, "
        "use_mla=True, has_sink=False, use_sparse=False, use_mm_prefix=False, "
        "attn_type=AttentionType.DECODER). Reasons: {FLASH_ATTN_MLA: [kv_cache_dtype not supp"
    )


def test_kimi_on_sm120_runs_on_0_18_and_with_a_flag_on_0_16() -> None:
    assert kimi("0.18.1").selected == "TRITON_MLA"
    assert kimi("0.33.0").selected == "TRITON_MLA"
    assert kimi("0.16.0", "bfloat16").selected == "TRITON_MLA"
    assert kimi("0.14.1", "bfloat16").selected is None


def test_the_implementation_refuses_what_the_selector_accepted() -> None:
    got = kimi("0.33.0", "fp8", "8.6", gpu="NVIDIA A10")
    assert got.valid == ("TRITON_MLA",)
    assert got.selected is None
    assert got.backends[-1].stage == "implementation"
    (refusal,) = got.refusals
    assert (refusal.finding, refusal.stage) == ("KV002", "implementation")
    assert refusal.message == (
        "ValueError: FP8 KV cache is not supported by the Triton MLA backend on NVIDIA A10 "
        "(compute capability 8.6); native FP8 (fp8e4nv) requires SM89+. Re-run with "
        "--kv-cache-dtype bfloat16."
    )


def test_a_backend_that_was_asked_for_is_the_only_one_that_counts() -> None:
    got = kimi("0.16.0", "bfloat16", attention_backend="FLASHMLA")
    assert got.selected is None
    assert got.valid == ("TRITON_MLA",)
    assert got.refusals[0].message == (
        "ValueError: Selected backend AttentionBackendEnum.FLASHMLA is not valid for this "
        "configuration. Reason: ['compute capability not supported', "
        "'FlashMLA Dense is only supported on Hopper devices.']"
    )
    accepted = kimi("0.16.0", "bfloat16", attention_backend="TRITON_MLA")
    assert (accepted.selected, accepted.refusals) == ("TRITON_MLA", ())
    elsewhere = kimi("0.16.0", attention_backend="CUTLASS_MLA")
    assert elsewhere.backends[0].reasons == ("compute capability not supported",)


def test_a_forced_backend_has_no_second() -> None:
    got = kimi("0.14.1", "fp8_e5m2", "10.0")
    assert (got.forced, got.selected) == ("CUTLASS_MLA", None)
    assert got.refusals[0].message == (
        "ValueError: Selected backend AttentionBackendEnum.CUTLASS_MLA is not valid for this "
        "configuration. Reason: ['kv_cache_dtype not supported']"
    )
    assert kimi("0.16.0", "auto", "10.0").forced == "FLASHINFER_MLA"
    assert kimi("0.18.1", "auto", "10.0").forced is None


def test_hooks_and_layers_change_the_dtype() -> None:
    sparse: dict[str, Any] = {
        "head_size": 576,
        "model_dtype": "bfloat16",
        "use_mla": True,
        "use_sparse": True,
        "num_heads_per_rank": 16,
    }
    v32 = {**sparse, "text_config": DEEPSEEK_V32, "architecture": "DeepseekV32ForCausalLM"}
    old = select(
        selection_facts("0.16.0"), Question(capability="9.0", kv_cache_dtype="fp8_e4m3", **v32)
    )
    assert (old.selected, old.kv_cache_dtype, old.hook) == ("FLASHMLA_SPARSE", "fp8_ds_mla", True)
    blackwell = select(
        selection_facts("0.33.0"), Question(capability="12.0", kv_cache_dtype="auto", **v32)
    )
    assert blackwell.selected == "FLASHINFER_MLA_SPARSE_SM120"
    assert (blackwell.kv_cache_dtype, blackwell.hook) == ("fp8_ds_mla", False)
    glm = {**sparse, "text_config": GLM5, "architecture": "GlmMoeDsaForCausalLM"}
    forced = select(
        selection_facts("0.33.0"), Question(capability="10.0", kv_cache_dtype="auto", **glm)
    )
    assert (forced.kv_cache_dtype, forced.hook) == ("fp8_e4m3", True)


def gqa(release: str, head_size: int, **more: Any) -> Selection:
    values: dict[str, Any] = {
        "capability": "9.0",
        "model_dtype": "bfloat16",
        "kv_cache_dtype": "auto",
        "num_heads_per_rank": 8,
        **more,
    }
    return select(selection_facts(release), Question(head_size=head_size, **values))


def test_head_sizes_that_no_grid_has() -> None:
    assert gqa("0.16.0", 80).valid == ("FLASH_ATTN", "TRITON_ATTN", "FLEX_ATTENTION")
    assert gqa("0.16.0", 20).valid == ("FLEX_ATTENTION",)
    assert gqa("0.16.0", 512).valid == ("TRITON_ATTN", "FLEX_ATTENTION")


def test_sinks_and_scales_per_head() -> None:
    assert gqa("0.33.0", 64, has_sink=True, capability="8.9").selected == "TRITON_ATTN"
    per_head = gqa("0.33.0", 128, kv_cache_dtype="fp8", per_head_scales=True, capability="12.0")
    assert per_head.selected is None
    assert all("per-head quant scales not supported" in b.reasons for b in per_head.backends)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"head_size": 4096}, "head_size 4096"),
        ({"kv_cache_dtype": "fp3"}, "kv_cache_dtype fp3"),
        ({"capability": "13.0"}, "capability 13.0"),
        ({"model_dtype": "float64"}, "dtype float64"),
        ({"attention_backend": "NO_SUCH"}, "attention backend NO_SUCH; known: "),
    ],
)
def test_what_the_facts_do_not_cover_is_unknown(changes: dict[str, Any], words: str) -> None:
    got = gqa("0.33.0", **{"head_size": 128, **changes})
    assert words in str(got.unknown)
    assert (got.valid, got.backends, got.selected, got.refusals) == ((), (), None, ())
