"""Probes: what a vLLM release says to compressed-tensors and Quark KV-cache statements."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

from patcher.engines.extract.vllm_standins import (
    QuantizationStrategy,
    at,
    failure,
    namespace,
    slicer,
)

if TYPE_CHECKING:
    from patcher.engines.extract.source import Source

_QUANT = "vllm.model_executor.layers.quantization"
_COMPRESSED = f"{_QUANT}.compressed_tensors.compressed_tensors"
_QUARK = f"{_QUANT}.quark.quark"
_GOOD = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True}
_BACKENDS = "vllm.v1.attention.backends"


def compressed_tensors(source: Source) -> dict[str, Any]:
    """Whether ``kv_cache_scheme`` reaches the layer, and which schemes the layer refuses."""
    release = slicer(source)
    block = {"format": "float-quantized", "ignore": [], "config_groups": {}}
    config = release.get(f"{_COMPRESSED}:CompressedTensorsConfig")
    kept = config.from_config(block | {"kv_cache_scheme": _GOOD}).kv_cache_scheme
    validate = release.get(f"{_COMPRESSED}:CompressedTensorsKVCacheMethod").validate_kv_cache_scheme

    def refusal(**changed: Any) -> str | None:
        scheme = {key: value for key, value in (_GOOD | changed).items() if value is not ...}
        return failure(lambda: validate(scheme))

    bad: dict[str, dict[str, Any]] = {
        "numbers": {"num_bits": 2, "type": "int"},
        "strategy": {"strategy": "channel"},
    }
    if refusal(**bad["numbers"], **bad["strategy"]) != refusal(**bad["numbers"]) or (
        refusal(**bad["strategy"], symmetric=False) != refusal(**bad["strategy"])
    ):
        raise AssertionError("the checks are not in the order numbers, strategy, symmetric")
    for value in (True, False, None, ..., "true", "", 0, 1):
        if bool(value is not ... and value) is not (refusal(symmetric=value) is None):
            raise AssertionError(f"symmetric: {value!r} is not judged by its truth")
    return {
        "from": at(release, f"{_COMPRESSED}:CompressedTensorsKVCacheMethod"),
        "passes_scheme": kept is not None,
        "numbers": _numbers(refusal),
        "strategies": _strategies(refusal),
        "asymmetric": _first(refusal(symmetric=False)),
        "per_head": _per_head(source),
    }


def _first(error: str | None) -> str | None:
    """The first sentence."""
    return error and error.partition(". ")[0]


def _numbers(refusal: Any) -> dict[str, Any]:
    """``num_bits`` is 8 or not, ``type`` is float or not; each asked with two values."""
    refused, texts = [], set()
    for eight, is_float in product((True, False), repeat=2):
        values = product((8,) if eight else (4, "8"), ("float",) if is_float else ("int", ""))
        errors = {
            (refusal(num_bits=bits, type=kind) or "").replace(
                f"received num_bits={bits}, type={kind}",
                "received num_bits={num_bits}, type={type}",
            )
            for bits, kind in values
        }
        (error,) = errors
        if error:
            refused.append({"num_bits_is_8": eight, "type_is_float": is_float})
            texts.add(error)
    (error,) = texts
    return {"error": error, "refused": refused}


def _strategies(refusal: Any) -> dict[str, Any]:
    """Accepted ones; what the others, an absent (or null) one and an unheard-of one raise."""
    known = {each.value: _first(refusal(strategy=each.value)) for each in QuantizationStrategy}
    (refused,) = {error for error in known.values() if error}
    absent = _first(refusal(strategy=...))
    if absent != _first(refusal(strategy=None)):
        raise AssertionError("an absent strategy is not like null")
    other = _first(refusal(strategy="other-strategy")) or ""
    return {
        "accepted": [name for name, error in known.items() if error is None],
        "refused": [name for name, error in known.items() if error],
        "error": refused,
        "absent": absent,
        "other": other.replace("other-strategy", "{strategy}"),
    }


def _per_head(source: Source) -> dict[str, Any] | None:
    """Releases whose layer asserts, after the choice, that the backend has per-head scales."""
    release = slicer(source)
    cls = release.get(f"{_COMPRESSED}:CompressedTensorsKVCacheMethod")
    method = cls.__new__(cls)
    method.quant_config = namespace(kv_cache_scheme={"strategy": "attn_head"})
    layer = namespace(impl=namespace(supports_per_head_quant_scales=False), num_kv_heads=1)
    error = failure(lambda: method.create_weights(layer)) or ""
    if not error.startswith("AssertionError"):
        return None
    text = error.replace("Layer SimpleNamespace", "Layer Attention")
    implementations = {
        "FLASHINFER": f"{_BACKENDS}.flashinfer:FlashInferImpl",
        "TRITON_ATTN": f"{_BACKENDS}.triton_attn:TritonAttentionImpl",
        "FLEX_ATTENTION": f"{_BACKENDS}.flex_attention:FlexAttentionImpl",
    }
    return {
        "error": text.replace("SimpleNamespace", "{implementation}"),
        "refuses": {
            name: implementation.partition(":")[2]
            for name, implementation in implementations.items()
            if not release.get(implementation).supports_per_head_quant_scales
        },
    }


def quark(source: Source) -> dict[str, Any]:
    """What Quark's parser and its KV method refuse, one text for each fault."""
    release = slicer(source)
    parse = release.get(f"{_QUARK}:QuarkConfig").from_config
    validate = release.get(f"{_QUARK}:QuarkKVCacheMethod").validate_kv_cache_config
    good = {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}

    def parsed(group: Any, layers: Any) -> str | None:
        return failure(
            lambda: parse({"export": {"kv_cache_group": group}, "layer_quant_config": layers})
        )

    def named(*outputs: Any) -> dict[str, Any]:
        return {f"*{number}": {"output_tensors": output} for number, output in enumerate(outputs)}

    if parsed([], {}) or parsed(["*0", "*1"], named(good, good)) or validate(good):
        raise AssertionError("a sound Quark statement is refused")
    return {
        "from": at(release, f"{_QUARK}:QuarkConfig"),
        "no_export": failure(lambda: parse({})),
        "no_group": failure(lambda: parse({"export": {}})),
        "no_match": parsed(["*0"], {}),
        "layers_absent": parsed(["*0"], None),
        "outputs_differ": parsed(["*0", "*1"], named(good, good | {"dtype": "int8"})),
        "outputs_absent": failure(
            lambda: parse({"export": {"kv_cache_group": ["*0"]}, "layer_quant_config": {"*0": {}}})
        ),
        "outputs_null": parsed(["*0"], named(None)),
        "dtype": (failure(lambda: validate(good | {"dtype": "int8"})) or "").replace(
            "int8", "{dtype}"
        ),
        "qscheme": _first(failure(lambda: validate(good | {"qscheme": "per_channel"}))),
    }
