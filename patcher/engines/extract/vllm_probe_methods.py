"""Probes: which quantization method a block selects, and what its config class refuses."""

from __future__ import annotations

import re
from itertools import product
from typing import TYPE_CHECKING, Any

from patcher.engines.extract.vllm_probe_blocks import ALGOS, normalized
from patcher.engines.extract.vllm_standins import at, failure, namespace, slicer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from patcher.engines.extract.slicer import Slicer
    from patcher.engines.extract.source import Source

_QUANT = "vllm.model_executor.layers.quantization"
_MODEL = "vllm.config.model:ModelConfig"
_LAYERS = "vllm.model_executor.layers.attention"

#: What the weights' part of a block may need; the KV cache depends on none of it.
_USUAL = {
    "bits": 4,
    "group_size": 128,
    "zero_point": True,
    "sym": True,
    "desc_act": False,
    "exclude_modules": [],
    "ignore": [],
    "quantized_layers": {"a": {"quant_algo": "FP8"}},
    "config_groups": {"g": {"targets": ["Linear"], "input_activations": {"num_bits": 4}}},
}
_MODELOPT = ("modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed", "petit_nvfp4")
#: The algorithm stands in the block itself (config.json) or under ``quantization``.
_STYLES = ("flat", "nested")
_JSON_TYPES: tuple[Any, ...] = (8, 1.5, True, [], {}, ["FP8"], {"a": 1})


def _block(style: str, method: str, algo: str | None, **more: Any) -> dict[str, Any]:
    inner = _USUAL | {"quant_algo": algo} | more
    if style == "flat":
        return {"quant_method": method} | inner
    return {"quant_method": method, "quantization": inner}


def _selected(release: Slicer, block: dict[str, Any]) -> Any:
    """``ModelConfig.quantization`` for this block; the release's errors pass."""
    seen = normalized(release, block)
    me = namespace(
        quantization=None,
        hf_config=namespace(quantization_config=seen, model_type="x", architectures=["X"]),
        model_arch_config=namespace(quantization_config=seen),
        allow_deprecated_quantization=False,
        dtype="bfloat16",
        _parse_quant_hf_config=lambda _: seen,
    )
    release.get(_MODEL)._verify_quantization(me)  # noqa: SLF001
    return me.quantization


def _config_class(release: Slicer, method: str) -> Any:
    return release.get(f"{_QUANT}:get_quantization_config")(method)


def supported(release: Slicer) -> list[str]:
    """The release's quantization methods."""
    return list(release.get(f"{_QUANT}:QUANTIZATION_METHODS"))


def methods(source: Source) -> dict[str, Any]:
    """``ModelConfig.quantization`` from ``quant_method`` and ``quant_algo``."""
    release = slicer(source)
    names = supported(release)
    unknown = failure(lambda: _selected(release, {"quant_method": "something"})) or ""
    refused: dict[str, list[str]] = {}
    renamed = {}
    for name in names:
        error = failure(lambda name=name: _selected(release, _block("flat", name, None)))  # type: ignore[misc]
        if error:
            refused.setdefault(error.replace(f"'{name}'", "'{quant_method}'"), []).append(name)
        elif (became := _selected(release, _block("flat", name, None))) != name:
            renamed[name] = became
    return {
        "from": at(release, _MODEL),
        "supported": names,
        "unknown": unknown.partition(". ")[0].replace("something", "{quant_method}"),
        "refused": [{"methods": methods, "error": error} for error, methods in refused.items()],
        "renamed": renamed,
        "any_case": _outcome(release, _block("flat", "modelopt", "nvfp4")) == "modelopt_fp4",
        "by_algo": _by_algo(release, names),
    }


def _by_algo(release: Slicer, names: Iterable[str]) -> list[dict[str, Any]]:
    """Rows of the ModelOpt family where the algorithm changes the method."""
    rows: dict[tuple[str, str, str], list[str]] = {}
    family = [name for name in _MODELOPT if name in names]
    for method, algo in product(family, ALGOS):
        found = {style: _outcome(release, _block(style, method, algo)) for style in _STYLES}
        for style, became in found.items():
            if became not in (method, None):
                where = "any" if len(set(found.values())) == 1 else style
                methods = rows.setdefault((algo, where, became), [])
                methods.extend({method} - set(methods))
    return [
        {"quant_algo": algo, "style": style, "quant_methods": given, "becomes": became}
        for (algo, style, became), given in rows.items()
    ]


def _outcome(release: Slicer, block: dict[str, Any]) -> Any:
    """The selected method; None where the method itself is refused (see ``refused``)."""
    try:
        return _selected(release, block)
    except ValueError:
        return None


def config_classes(source: Source) -> list[dict[str, Any]]:
    """One row per method: class, least compute capability, who gets KV scales."""
    release = slicer(source)
    rows = []
    for method in supported(release):
        try:
            cls = _config_class(release, method)
            least = cls.get_min_capability()
        except (AssertionError, NotImplementedError):  # other hardware only
            continue
        row = {"method": method, "class": cls.__name__, "min_capability": least}
        scales = {name: _kv_scales(release, cls, name) for name in ("gqa", "mla")}
        rows.append(row | {name: when for name, when in scales.items() if when != "never"})
    return rows


def attention_class(release: Slicer, attention: str) -> Any:
    """``Attention`` or ``MLAAttention`` of the release."""
    return release.get(attention_name(release, attention))


def attention_name(release: Slicer, attention: str) -> str:
    """``module:class`` of the attention layer."""
    module, name = {
        "gqa": ("attention", "Attention"),
        "mla": ("mla_attention", "MLAAttention"),
    }[attention]
    new = f"{_LAYERS}.{module}:{name}"
    return new if release.has(new) else f"vllm.attention.layer:{name}"


def _kv_scales(release: Slicer, cls: Any, attention: str) -> str:
    """Whether the layer gets a KV method: ``always``, ``never``, or ``if declared``."""
    answers = [_has_kv_method(release, cls, attention, declared) for declared in (None, "FP8")]
    return {(True, True): "always", (False, True): "if declared"}.get(
        (answers[0], answers[1]), "never"
    )


def _has_kv_method(release: Slicer, cls: Any, attention: str, declared: str | None) -> bool:
    config = cls.__new__(cls)
    vars(config).update(
        exclude_modules=[],
        modules_to_not_convert=[],
        kv_cache_scheme=None,
        kv_cache_quant_method=declared,
        kv_cache_config=None,
        quant_config={"exclude": []},
        quantized_layers={},
        extra_config={},
        packed_modules_mapping={},
    )
    layer = attention_class(release, attention)
    try:
        method = config.get_quant_method(layer.__new__(layer), "model.layers.0.self_attn.attn")
    except AttributeError:  # a class that needs its real state keeps no KV scales in any release
        return False
    return "KVCacheMethod" in type(method).__name__


def modelopt(source: Source) -> dict[str, Any]:
    """What the ModelOpt config classes refuse: algorithms, deleted keys, values of other types."""
    release = slicer(source)
    names = [name for name in _MODELOPT if name in supported(release)]
    lower = _full("flat", "modelopt_fp4", "nvfp4")
    return {
        "from": at(
            release,
            f"{_QUANT}.modelopt:ModelOptQuantConfigBase",
            f"{_QUANT}.modelopt:ModelOptNvFp4Config",
        ),
        "any_case": _parse_failure(release, "modelopt_fp4", lower) is None,
        "asked": list(ALGOS),
        "missing_algo": _parse_failure(release, names[0], _block("flat", names[0], None)),
        "algos": _refused_algos(release, names),
        "required": _required(release, names),
        "kv_text": _kv_text(release),
        "kv_declared": _kv_declared(release),
    }


def _parse_failure(release: Slicer, method: str, block: dict[str, Any]) -> str | None:
    cls = _config_class(release, method)
    return failure(lambda: cls.from_config(block))


def _full(style: str, method: str, algo: str) -> dict[str, Any]:
    return _block(style, method, algo, kv_cache_quant_algo=None, group_size=16)


def _refused_algos(release: Slicer, names: Iterable[str]) -> list[dict[str, Any]]:
    found: dict[tuple[str, str], list[str]] = {}
    for method, algo in product(names, (*ALGOS, "SOMETHING")):
        styles = ("nested",) if method == "petit_nvfp4" else _STYLES
        for error in {_parse_failure(release, method, _full(s, method, algo)) for s in styles}:
            if error:
                text = re.sub(rf"\b{algo}\b", "{quant_algo}", error.partition(". ")[0])
                found.setdefault((method, text), []).append(algo.replace("SOMETHING", "*"))
    rows: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for (method, error), algos in found.items():
        rows.setdefault((tuple(algos), error), []).append(method)
    return [
        {"methods": methods, "quant_algos": list(algos), "error": error}
        for (algos, error), methods in rows.items()
    ]


def _required(release: Slicer, names: Iterable[str]) -> list[dict[str, Any]]:
    """Keys whose absence alone makes an otherwise accepted block unreadable."""
    rows: dict[tuple[str, str, str, str], list[str]] = {}
    keys = ("kv_cache_quant_algo", "group_size", "exclude_modules", "ignore", "quantized_layers")
    for method, algo, style in product(names, ALGOS, _STYLES):
        if _parse_failure(release, method, _full(style, method, algo)):
            continue
        for key in keys:
            block = _full(style, method, algo)
            (block if style == "flat" else block["quantization"]).pop(key)
            error = _parse_failure(release, method, block)
            if error:
                rows.setdefault((method, style, key, error.partition(". ")[0]), []).append(algo)
    return [
        {"method": method, "style": style, "key": key, "quant_algos": algos, "error": error}
        for (method, style, key, error), algos in rows.items()
    ]


def _kv_text(release: Slicer) -> list[dict[str, Any]]:
    """Places where a KV statement that is not text makes the block unreadable."""
    rows = []
    for style, key in product(_STYLES, ("kv_cache_quant_algo", "kv_cache_scheme")):
        refused = {}
        for value in _JSON_TYPES:
            block = _block(style, "modelopt_fp4", "NVFP4", kv_cache_quant_algo=None)
            (block if style == "flat" else block["quantization"])[key] = value
            error = _parse_failure(release, "modelopt_fp4", block)
            if error:
                name = type(value).__name__
                refused[name] = error.replace(f"'{name}'", "'{type}'")
        if refused:
            pointer = f"/{key}" if style == "flat" else f"/quantization/{key}"
            (error,) = set(refused.values())
            rows.append({"pointer": pointer, "types": list(refused), "error": error})
    return rows


def _kv_declared(release: Slicer) -> list[str]:
    """Places whose FP8 form makes the parsed config one with a quantized KV cache."""
    forms = {
        "kv_cache_quant_algo": "FP8",
        "kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False},
    }
    found = []
    for style, key in product(_STYLES, forms):
        block = _full(style, "modelopt_fp4", "NVFP4")
        (block if style == "flat" else block["quantization"])[key] = forms[key]
        config = _config_class(release, "modelopt_fp4").from_config(block)
        names = ("kv_cache_quant_method", "kv_cache_quant_algo")
        if any(getattr(config, name, None) for name in names):
            found.append(f"/{key}" if style == "flat" else f"/quantization/{key}")
    return found
