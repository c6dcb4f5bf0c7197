"""The vLLM resolver against what the releases' own code answered, and the famous cases by hand."""

from __future__ import annotations

import functools
import gzip
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patcher.engines.base import Notice, Place, Refusal
from patcher.engines.extract.vllm_resolution import render
from patcher.engines.vllm.resolution import Resolved, resolve, uses_mla
from patcher.metadata.model import Model

if TYPE_CHECKING:
    from collections.abc import Mapping

_ROOT = Path(__file__).resolve().parents[2]
_FACTS = _ROOT / "patcher" / "engines" / "facts" / "vllm"
_ORACLES = (
    "0.12.0",
    "0.14.1",
    "0.16.0",
    "0.18.1",
    "0.20.2",
    "0.23.0",
    "0.26.0",
    "0.30.0",
    "0.33.0",
)
_RELEASES = sorted(path.name.removesuffix(".resolution.json") for path in _FACTS.glob("*.resol*"))

FP8 = {"dynamic": False, "num_bits": 8, "type": "float"}
FP8_TENSOR = FP8 | {"strategy": "tensor", "symmetric": True}
SCHEME = Place("config.json", "/quantization_config/kv_cache_scheme")


@functools.cache
def facts(release: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((_FACTS / f"{release}.resolution.json").read_text())
    return loaded


def model(model_type: str = "llama", *, mla: bool = False, dtype: str = "bfloat16") -> Model:
    return Model(
        model_type=model_type,
        text_model_type="deepseek_v3" if mla else "llama",
        text_pointer="",
        architectures=(),
        attention="mla" if mla else "gqa",
        head_size=576 if mla else 128,
        attention_heads=32,
        kv_heads=1 if mla else 8,
        layers=32,
        attention_layers=32,
        hybrid=False,
        sliding_window=None,
        sinks=False,
        dtype=dtype,
        kv_lora_rank=512 if mla else None,
    )


def ask(  # noqa: PLR0913 - one parameter for each part of the question
    release: str,
    config: Mapping[str, Any],
    sidecar: object = None,
    *,
    flag: str = "auto",
    mla: bool = False,
    capability: str = "12.0",
    dtype: str = "bfloat16",
) -> Resolved:
    documents: dict[str, Any] = {"config.json": config}
    if sidecar is not None:
        documents["hf_quant_config.json"] = sidecar
    return resolve(
        facts(release),
        documents,
        model(config.get("model_type", "llama"), mla=mla, dtype=dtype),
        kv_cache_dtype=flag,
        capability=capability,
        use_mla=mla,
    )


def nvfp4(**kv: Any) -> dict[str, Any]:
    """A ModelOpt NVFP4 block as config.json holds it."""
    return {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4",
        "ignore": ["lm_head"],
        "producer": {"name": "modelopt", "version": "0.40.0"},
        "group_size": 16,
    } | kv


def sidecar(**kv: Any) -> dict[str, Any]:
    """hf_quant_config.json of a ModelOpt NVFP4 checkpoint."""
    inner = {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"], "group_size": 16} | kv
    return {"producer": {"name": "modelopt", "version": "0.40.0"}, "quantization": inner}


def compressed(scheme: object) -> dict[str, Any]:
    block = {"quant_method": "compressed-tensors", "kv_cache_scheme": scheme}
    return {"model_type": "llama", "quantization_config": block}


def dtypes(resolved: Resolved) -> tuple[str | None, str | None]:
    before = resolved.resolution
    return before.kv_cache_dtype if before else None, resolved.layer_kv_cache_dtype


def said(notices: tuple[Notice, ...]) -> list[tuple[str, str, Place | None]]:
    return [(notice.finding, notice.severity, notice.place) for notice in notices]


# --- the releases' own answers -------------------------------------------------------------------


def first_sentence(text: str) -> str:
    return text.partition("\n")[0].partition(". ")[0].rstrip(".")


def variant_files(variant: Mapping[str, Any]) -> dict[str, Any]:
    """The files of an oracle variant; ``where`` says in which place its block stood."""
    where, block = variant["where"], variant["quant"]
    config: dict[str, Any] = {"model_type": "kimi_k25" if "kimi" in where else "llama"}
    if block is not None:
        holder = {"quantization_config": block}
        forms = {
            "text_config": {"text_config": holder},
            "kimi_text": {"text_config": holder},
            "compression_config": {"compression_config": block},
        }
        config |= forms.get(where, holder)
    files = {"config.json": config}
    return files | (
        {"hf_quant_config.json": variant["hf_quant_config"]} if variant["hf_quant_config"] else {}
    )


#: What the other half (the selector, a backend's constructor) answers.
_OF_BACKENDS = ("No valid attention backend", "Selected backend", "by the Triton")


def oracle_answer(row: Mapping[str, Any]) -> dict[str, Any]:
    error = row.get("error")
    if error is not None:
        error = "a backend" if is_of_backends(error) else first_sentence(error)
    keys = ("resolved", "quantization", "quant_config_cls", "layer_kv_cache_dtype")
    return {key: row[key] for key in keys if row.get(key)} | {"error": error}


def asked_of_the_selector(row: Mapping[str, Any]) -> dict[str, str]:
    """What the release's refusal says it was asked for: ``kv_cache_dtype=fp8, ...``."""
    fields = re.findall(r"(kv_cache_dtype|use_per_head_quant_scales)(?:=|: )(\w+)", row["error"])
    return dict(fields)


def is_of_backends(error: str) -> bool:
    return any(words in error for words in _OF_BACKENDS)


def our_answer(row: Mapping[str, Any], ours: Resolved) -> dict[str, Any]:
    """Ours in the oracle's words; keys that the row lacks were not reached by the release."""
    resolved, layer = dtypes(ours)
    values = {
        "resolved": resolved,
        "quantization": ours.quant_method,
        "quant_config_cls": ours.quant_config_cls,
        "layer_kv_cache_dtype": layer,
    }
    return {key: value for key, value in values.items() if row.get(key)} | {
        "error": our_error(row, ours)
    }


def our_error(row: Mapping[str, Any], ours: Resolved) -> str | None:
    # The oracle built layers directly, so VllmConfig's own KV-cache validators were not run.
    found = [refusal for refusal in ours.refusals if refusal.finding != "KV003"]
    error = row.get("error") or ""
    if is_of_backends(error):
        return first_sentence(found[0].message) if found else "a backend"
    if "per-head scales" in error:
        found += ours.backend_refusals.values()
    elif row.get("backend") in ours.backend_refusals:
        found.append(ours.backend_refusals[row["backend"]])
    found += ours.late_refusals
    return first_sentence(found[0].message) if found else None


@pytest.mark.parametrize("release", _ORACLES)
def test_every_row_of_the_oracle(release: str, shared: Path) -> None:
    path = shared / "oracle" / "vllm" / f"resolve-{release}.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        variants = json.loads(next(lines))["variants"]
        rows = [json.loads(line) for line in lines]
    rows = [row for row in rows if "ModuleNotFoundError" not in (row.get("error") or "")]
    differ = []
    for row in rows:
        files, mla = variant_files(variants[row["variant"]]), row["attn"] == "mla"
        ours = resolve(
            facts(release),
            files,
            model(files["config.json"]["model_type"], mla=mla),
            kv_cache_dtype=row["cli_kv_cache_dtype"],
            capability=row["capability"],
            use_mla=mla,
        )
        if (mine := our_answer(row, ours)) != (theirs := oracle_answer(row)):
            differ.append((row["variant"], row["attn"], row["cli_kv_cache_dtype"], mine, theirs))
        assert ("resolved" in row) is (ours.resolution is not None)
        if is_of_backends(row.get("error") or ""):
            asks = {
                "kv_cache_dtype": ours.layer_kv_cache_dtype,
                "use_per_head_quant_scales": str(ours.per_head_scales),
            }
            assert asked_of_the_selector(row).items() <= asks.items(), row
    assert len(rows) > 3300
    assert differ == []


# --- famous cases --------------------------------------------------------------------------------

KIMI = {"model_type": "kimi_k25", "quantization_config": nvfp4(kv_cache_scheme=FP8)}


@pytest.mark.parametrize("release", ["0.12.0", "0.14.1"])
def test_kimi_is_unknown_before_0_15(release: str) -> None:
    answer = ask(release, KIMI, mla=True)
    assert answer.resolution is None
    (refusal,) = answer.refusals
    assert (refusal.stage, refusal.finding) == ("config", "KV016")
    assert refusal.place == Place("config.json", "/model_type")
    assert "model type `kimi_k25`" in refusal.message


@pytest.mark.parametrize("release", ["0.16.0", "0.20.2", "0.33.0"])
def test_kimi_gets_fp8_from_its_scheme(release: str) -> None:
    answer = ask(release, KIMI, mla=True)
    assert answer.resolution is not None
    assert answer.resolution.kv_cache_dtype == "fp8_e4m3"
    assert answer.resolution.decided_by == SCHEME
    assert answer.resolution.read == (SCHEME,)
    assert answer.quant_method == "modelopt_fp4"
    assert not answer.refusals
    assert said(answer.notices) == [("KV009", "info", SCHEME)]


@pytest.mark.parametrize(("release", "dtype"), [("0.12.0", "auto"), ("0.14.1", "fp8_e4m3")])
def test_deepseek_with_the_same_block(release: str, dtype: str) -> None:
    config = KIMI | {"model_type": "deepseek_v3"}
    answer = ask(release, config, mla=True)
    assert dtypes(answer) == (dtype, dtype)
    finding = ("KV008", "warning", SCHEME) if dtype == "auto" else ("KV009", "info", SCHEME)
    assert said(answer.notices) == [finding]


def test_kimi_with_the_block_under_text_config() -> None:
    config = {
        "model_type": "kimi_k25",
        "text_config": {"quantization_config": nvfp4(kv_cache_scheme=FP8)},
    }
    nested = Place("config.json", "/text_config/quantization_config/kv_cache_scheme")
    lifted = ask("0.16.0", config, mla=True)
    assert lifted.resolution is not None
    assert (lifted.resolution.kv_cache_dtype, lifted.resolution.decided_by) == ("fp8_e4m3", nested)
    ignored = ask("0.33.0", config, mla=True)
    assert dtypes(ignored) == ("auto", "auto")
    assert ignored.quant_method == "modelopt_fp4"
    assert said(ignored.notices) == [("KV008", "warning", nested)]


def test_compressed_tensors_and_an_explicit_flag() -> None:
    config = compressed(FP8_TENSOR)
    forced = ask("0.16.0", config, flag="bfloat16")
    assert dtypes(forced) == ("bfloat16", "fp8")
    assert forced.layer is not None
    assert forced.layer.decided_by == SCHEME
    assert said(forced.notices) == [("KV009", "warning", SCHEME)]
    yields = ask("0.23.0", config, flag="bfloat16")
    assert dtypes(yields) == ("bfloat16", "bfloat16")
    assert yields.layer is not None
    assert yields.layer.decided_by == "flag"
    assert yields.notices == ()
    assert dtypes(ask("0.23.0", config)) == ("auto", "fp8")


@pytest.mark.parametrize(
    ("release", "mla"), [("0.14.1", False), ("0.16.0", True), ("0.33.0", True)]
)
def test_compressed_tensors_where_the_scheme_is_ignored(release: str, *, mla: bool) -> None:
    answer = ask(release, compressed(FP8_TENSOR), mla=mla)
    assert dtypes(answer) == ("auto", "auto")
    assert said(answer.notices) == [("KV008", "warning", SCHEME)]


@pytest.mark.parametrize(
    ("release", "scheme", "message"),
    [
        ("0.23.0", FP8_TENSOR | {"type": "int"}, None),
        (
            "0.26.0",
            FP8_TENSOR | {"type": "int"},
            "NotImplementedError: Currently supported kv cache quantization is num_bits=8, "
            "type=float, however received num_bits=8, type=int",
        ),
        (
            "0.16.0",
            {},
            "NotImplementedError: Currently supported kv cache quantization is num_bits=8, "
            "type=float, however received num_bits=None, type=None",
        ),
        (
            "0.16.0",
            FP8,
            "NotImplementedError: Invalid strategy for compressed-tensors KV cache",
        ),
        ("0.18.1", FP8, "ValueError: None is not a valid QuantizationStrategy"),
        (
            "0.33.0",
            FP8_TENSOR | {"symmetric": False},
            "NotImplementedError: Only support symmetric scaling factor for compressed-tensors "
            "KV cache",
        ),
        ("0.33.0", "static", "AttributeError: 'str' object has no attribute 'get'"),
    ],
)
def test_compressed_tensors_schemes(release: str, scheme: object, message: str | None) -> None:
    late = ask(release, compressed(scheme)).late_refusals
    expected = () if message is None else (Refusal("implementation", "KV004", message, SCHEME),)
    assert late == expected
    assert ask(release, compressed(scheme), mla=True).late_refusals == ()


def test_scales_per_head() -> None:
    config = compressed(FP8_TENSOR | {"strategy": "attn_head"})
    asserted = ask("0.16.0", config)
    assert not asserted.per_head_scales
    assert asserted.backend_refusals["FLASHINFER"].message == (
        "AssertionError: Layer Attention with implementation FlashInferImpl "
        "does not support per-head scales."
    )
    assert "FLASH_ATTN" not in asserted.backend_refusals
    selected = ask("0.18.1", config)
    assert selected.per_head_scales
    assert selected.backend_refusals == {}


@pytest.mark.parametrize("release", _RELEASES)
def test_a_deleted_key_stops_every_release_and_null_none(release: str) -> None:
    config = {"model_type": "llama"}
    deleted = ask(release, config, sidecar())
    assert deleted.refusals == (
        Refusal(
            "validator",
            "KV005",
            "ValueError: NVFP4 quantization requires the following fields in "
            "hf_quant_config.json: ['kv_cache_quant_algo']",
            Place("hf_quant_config.json", "/quantization"),
        ),
    )
    nulled = ask(release, config, sidecar(kv_cache_quant_algo=None))
    assert nulled.refusals == ()
    assert dtypes(nulled) == ("auto", "auto")
    assert nulled.notices == ()


@pytest.mark.parametrize("release", ["0.16.0", "0.33.0"])
def test_files_that_disagree(release: str) -> None:
    algo = Place("hf_quant_config.json", "/quantization/kv_cache_quant_algo")
    fp8_file = sidecar(kv_cache_quant_algo="FP8")
    dead = ask(release, {"quantization_config": nvfp4()}, fp8_file)
    assert dtypes(dead) == ("auto", "auto")
    assert said(dead.notices) == [("KV008", "warning", algo)]
    both = ask(release, {"quantization_config": nvfp4(kv_cache_scheme=FP8)}, fp8_file)
    assert dtypes(both) == ("fp8_e4m3", "fp8_e4m3")
    assert said(both.notices) == [("KV009", "info", SCHEME), ("KV013", "info", algo)]
    alone = ask(release, {"text_config": {"quantization_config": nvfp4()}}, fp8_file)
    assert alone.resolution is not None
    assert alone.resolution.decided_by == algo


def test_the_order_within_a_block() -> None:
    block = nvfp4(kv_cache_scheme=None, kv_cache_quant_algo="FP8")
    answer = ask("0.16.0", {"quantization_config": block})
    assert answer.resolution is not None
    algo = Place("config.json", "/quantization_config/kv_cache_quant_algo")
    assert answer.resolution.read == (SCHEME, algo)
    assert answer.resolution.decided_by == algo


@pytest.mark.parametrize(
    ("release", "statement", "dtype"),
    [
        ("0.16.0", FP8, "fp8_e4m3"),
        ("0.16.0", "fp8", "fp8_e4m3"),
        ("0.16.0", "NVFP4", "auto"),
        ("0.20.2", "NVFP4", "nvfp4"),
        ("0.20.2", {"num_bits": 4, "type": "float"}, "nvfp4"),
        ("0.33.0", {"num_bits": 8, "type": "float"}, "auto"),
        ("0.33.0", FP8 | {"dynamic": 0}, "auto"),
        ("0.33.0", "INT8", "auto"),
    ],
)
def test_what_a_statement_means(release: str, statement: object, dtype: str) -> None:
    answer = ask(release, {"quantization_config": nvfp4(kv_cache_scheme=statement)})
    assert dtypes(answer) == (dtype, dtype)
    finding = ("KV004", "warning") if dtype == "auto" else ("KV009", "info")
    assert said(answer.notices) == [(*finding, SCHEME)]


@pytest.mark.parametrize(("release", "refused"), [("0.20.2", False), ("0.23.0", True)])
def test_nvfp4_and_mla(release: str, *, refused: bool) -> None:
    config = {"quantization_config": nvfp4(kv_cache_scheme="NVFP4")}
    answer = ask(release, config, mla=True)
    assert [refusal.finding for refusal in answer.refusals] == ["KV003"] * refused
    assert all(refusal.place == SCHEME for refusal in answer.refusals)
    assert ask(release, config).refusals == ()


def test_a_float_cache_of_another_type_than_the_model() -> None:
    (refusal,) = ask("0.33.0", {}, flag="bfloat16", dtype="float16").refusals
    assert refusal.finding == "KV003"
    assert refusal.message.startswith('ValueError: kv_cache_dtype="bfloat16" is incompatible')
    assert ask("0.33.0", {}, flag="bfloat16").refusals == ()
    assert ask("0.30.0", {}, flag="bfloat16", dtype="float16").refusals == ()


def test_e5m2_over_an_fp8_checkpoint() -> None:
    message = "ValueError: fp8_e5m2 kv-cache is not supported with fp8 checkpoints."
    plain = compressed(None)
    early = ask("0.12.0", plain, flag="fp8_e5m2")
    assert [refusal.message for refusal in early.refusals] == [message]
    late = ask("0.23.0", plain, flag="fp8_e5m2")
    assert (late.refusals, [refusal.message for refusal in late.late_refusals]) == ((), [message])
    exempt = ask("0.24.0", plain, flag="fp8_e5m2")
    assert (exempt.refusals, exempt.late_refusals) == ((), ())


def test_a_flag_that_the_release_does_not_have() -> None:
    (refusal,) = ask("0.16.0", {}, flag="nvfp4").refusals
    assert (refusal.stage, refusal.finding) == ("config", "KV009")
    assert "'nvfp4'" in refusal.message


def test_quark_without_its_group() -> None:
    block = {"quant_method": "quark", "export": {"pack_method": "reorder"}}
    (refusal,) = ask("0.33.0", {"quantization_config": block}).refusals
    assert refusal.finding == "KV005"
    assert refusal.message == "TypeError: object of type 'NoneType' has no len()"
    block["export"] = {"kv_cache_group": []}
    assert ask("0.33.0", {"quantization_config": block}).refusals == ()


def test_weights_that_the_gpu_is_too_old_for() -> None:
    config = {"quantization_config": nvfp4(quant_algo="FP8")}
    (refusal,) = ask("0.16.0", config, capability="8.6").refusals
    assert refusal.message == (
        "ValueError: The quantization method modelopt is not supported for the current GPU. "
        "Minimum capability: 89. Current capability: 86."
    )
    assert ask("0.16.0", config, capability="8.9").refusals == ()


def test_uses_mla_follows_the_release() -> None:
    text = model("x", mla=True)
    assert uses_mla(facts("0.12.0"), text)
    assert not uses_mla(facts("0.12.0"), model("x"))


# --- anything that a file may hold ---------------------------------------------------------------

_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(0, 16)
    | st.sampled_from(
        ["", "FP8", "NVFP4", "modelopt", "quark", "compressed-tensors", "float", "tensor", "fp8"]
    )
)
_KEYS = st.sampled_from(
    [
        "quant_method",
        "quant_algo",
        "quantization",
        "producer",
        "name",
        "kv_cache_scheme",
        "kv_cache_quant_algo",
        "export",
        "kv_cache_group",
        "layer_quant_config",
        "output_tensors",
        "num_bits",
        "type",
        "quantized_layers",
    ]
)
_JSON = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_KEYS, inner, max_size=5),
    max_leaves=12,
)
_METHODS = st.sampled_from(["modelopt", "modelopt_mixed", "quark", "compressed-tensors", "fp8"])


@given(
    block=st.dictionaries(_KEYS, _JSON, max_size=6) | _JSON,
    method=_METHODS,
    side=_JSON,
    release=st.sampled_from(["0.12.0", "0.16.0", "0.33.0"]),
    mla=st.booleans(),
)
def test_odd_json_is_answered(
    block: Any, method: str, side: object, release: str, *, mla: bool
) -> None:
    if isinstance(block, dict):
        block.setdefault("quant_method", method)
    answer = ask(release, {"quantization_config": block}, side, mla=mla)
    assert answer.resolution is not None or answer.refusals


@pytest.mark.parametrize("block", [[], "modelopt", 8, {"quant_method": None}])
def test_malformed_blocks(block: object) -> None:
    (refusal,) = ask("0.33.0", {"quantization_config": block}).refusals
    assert (refusal.stage, refusal.finding) == ("config", "KV012")
    assert refusal.message.startswith("AttributeError: ")


# --- the facts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("release", _RELEASES)
def test_facts_are_small_and_say_where_they_come_from(release: str) -> None:
    text = (_FACTS / f"{release}.resolution.json").read_text()
    loaded = json.loads(text)
    assert len(text) < 20_000
    assert render(loaded) == text
    assert (loaded["engine"], loaded["version"]) == ("vllm", release)
    for name in ("cache_dtypes", "top_block", "modelopt", "compressed_tensors", "validators"):
        module, _, line = loaded[name]["from"].partition(":")
        assert module.startswith("vllm.")
        assert int(line) > 0
