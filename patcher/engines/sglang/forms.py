"""What SGLang looks at in a checkpoint's metadata, reduced to named forms.

A release's loader branches on little: which block it finds, two names in it, and the form of the
two KV-cache values. The facts are tables over these forms, made by giving the release one example
of each (see ``patcher/engines/extract/sglang_checkpoint.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from patcher.engines.base import Place

if TYPE_CHECKING:
    from patcher.engines.base import Documents
    from patcher.metadata.model import Model

CONFIG = "config.json"
SIDECAR = "hf_quant_config.json"
#: Where config.json may hold the quantization block, in the order in which SGLang looks.
BLOCKS = ("/quantization_config", "/text_config/quantization_config", "/compression_config")

_ALGOS = frozenset(
    {"FP8", "NVFP4", "MXFP8", "MIXED_PRECISION", "NVFP4_AWQ", "W4A16_NVFP4", "FP8_PB_WO"}
)
_KV_ALGOS = frozenset({"FP8", "NVFP4", "INT8", ""})
_SCHEME_NAMES = {"FP8": "FP8", "FLOAT8": "FP8", "FP4": "FP4", "FLOAT4": "FP4", "NVFP4": "FP4"}
_STRATEGIES = frozenset({"-", "tensor"})
_MISSING = object()


def block(documents: Documents) -> Place | None:
    """The quantization block that SGLang uses; ``None`` for an unquantized model."""
    config = documents.get(CONFIG)
    for pointer in BLOCKS:
        if at(config, pointer) is not None:
            return Place(CONFIG, pointer)
    return Place(SIDECAR, "") if SIDECAR in documents else None


def at(value: Any, pointer: str) -> Any:
    """The value at an RFC 6901 pointer without escapes; ``None`` where there is none."""
    for key in pointer.split("/")[1:]:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def features(documents: Documents, model: Model, vendor: str, quantization: str) -> dict[str, str]:
    """The forms of these documents, by feature; ``"-"`` means absent.

    ``vendor`` is ``"cuda"`` or ``"hip"``; ``quantization`` is the launch flag, ``"-"`` when it is
    not given.
    """
    place = block(documents)
    found = {"vendor": vendor, "quantization_flag": quantization, "nemotron": _nemotron(model)}
    if place is None:
        return {"place": "none", **found}
    outer = at(documents[place.file], place.pointer)
    inner = outer.get("quantization") if isinstance(outer, Mapping) else None
    nested = place.file == SIDECAR and isinstance(inner, Mapping)
    fields = inner if nested else outer
    if not isinstance(fields, Mapping):
        return {"place": "malformed", **found}
    kind = "hf-nested" if nested else "hf-flat" if place.file == SIDECAR else "config"
    return {
        "place": kind,
        "method": _method(outer, place.file),
        "algo": _algo(outer, fields, nested=nested),
        "kv_algo": algo_form(fields.get("kv_cache_quant_algo", _MISSING)),
        "said": str(fields.get("kv_cache_quant_algo", "")),
        "layers": _layers(fields.get("quantized_layers", _MISSING)),
        "sidecar": _sidecar(documents) if place.file == CONFIG else "-",
        **scheme_forms(fields.get("kv_cache_scheme", _MISSING)),
        **_quark(fields),
        **found,
    }


def _algo(outer: Mapping[str, Any], fields: Mapping[str, Any], *, nested: bool) -> str:
    """``quant_algo``. Nested NVFP4 is a form of its own where it has no group size."""
    name = _name(fields.get("quant_algo", _MISSING), _ALGOS)
    if nested and "NVFP4" in name and "'group_size'" not in repr(outer):
        return f"{name} without group_size"
    return name


def algo_form(value: Any) -> str:
    """Of ``kv_cache_quant_algo``: its name, ``fp8`` for another spelling of FP8, or its kind."""
    form = _name(value, _KV_ALGOS)
    if form == "other":
        return "fp8" if value.upper() == "FP8" else "string"
    return {"": "empty"}.get(form, form)


def scheme_forms(value: Any) -> dict[str, str]:
    """Of ``kv_cache_scheme``: what it is, and the three fields that can make it unreadable."""
    plain = {"dynamic": "no", "strategy": "-", "symmetric": "yes"}
    if not isinstance(value, Mapping):
        form = _name(value, frozenset())
        if form == "other":
            form = _SCHEME_NAMES.get(value.strip().upper(), "string") if value else "empty"
        return {"scheme": form, **plain}
    strategy = value.get("strategy", "-")
    return {
        "scheme": _scheme_kind(value),
        "dynamic": "yes" if value.get("dynamic", False) else "no",
        "strategy": strategy if strategy in _STRATEGIES else "other",
        "symmetric": "yes" if value.get("symmetric", True) else "no",
    }


def _scheme_kind(value: Mapping[str, Any]) -> str:
    if not value:
        return "{}"
    kind, bits = value.get("type"), value.get("num_bits")
    kinds = {"float": "float", "int": "int", None: "bits"}
    if kind in kinds and bits in {4, 8} and not isinstance(bits, bool):
        return f"{kinds[kind]}{int(bits)}"
    return "dict"


def _name(value: Any, known: frozenset[str]) -> str:
    """A known name, ``other`` for another string, else the kind of value."""
    if value is _MISSING:
        return "-"
    if isinstance(value, str):
        return value if value in known else "other"
    if value is None:
        return "null"
    return "truthy" if value else "falsy"


def _method(outer: Mapping[str, Any], file: str) -> str:
    """``quant_method`` in config.json, the producer's name in hf_quant_config.json."""
    if file == CONFIG:
        value = outer.get("quant_method", _MISSING)
    else:
        producer = outer.get("producer")
        value = producer.get("name", _MISSING) if isinstance(producer, Mapping) else _MISSING
    if value is _MISSING:
        return "-"
    name = value.lower() if isinstance(value, str) else "malformed"
    return name if file == CONFIG or name == "modelopt" else "other"


def _layers(value: Any) -> str:
    """Whether ``quantized_layers`` names an NVFP4 layer, which decides the loader since 0.5.15."""
    if value is _MISSING:
        return "-"
    layers = value.values() if isinstance(value, Mapping) else ()
    names = {str(layer.get("quant_algo", "")).upper() for layer in layers if _is_map(layer)}
    return "nvfp4" if names & {"NVFP4", "W4A16_NVFP4"} else "other"


def _sidecar(documents: Documents) -> str:
    """The form of ``kv_cache_quant_algo`` in hf_quant_config.json beside a block in config.json."""
    if SIDECAR not in documents:
        return "no file"
    inner = at(documents[SIDECAR], "/quantization")
    if not isinstance(inner, Mapping):
        return "malformed"
    return algo_form(inner.get("kv_cache_quant_algo", _MISSING))


def _quark(fields: Mapping[str, Any]) -> dict[str, str]:
    """Whether Quark's export names KV-cache layers, and whether those say how."""
    group = at(fields, "/export/kv_cache_group")
    if not isinstance(group, list) or not group:
        return {"kv_group": "-" if not isinstance(group, list) else "[]"}
    layers = fields.get("layer_quant_config")
    configs = [at(layers, f"/{name}/output_tensors") for name in group]
    stated = all(_is_map(config) for config in configs)
    return {"kv_group": "stated" if stated else "empty"}


def _is_map(value: Any) -> bool:
    return isinstance(value, Mapping)


def _nemotron(model: Model) -> str:
    """0.5.10 to 0.5.14 load ModelOpt's mixed precision only for this family."""
    names = (model.model_type or "", *model.architectures)
    return "yes" if any(name.startswith(("nemotron_h", "NemotronH")) for name in names) else "no"
