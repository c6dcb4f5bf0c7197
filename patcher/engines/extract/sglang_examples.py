"""Examples of checkpoint metadata, one for each combination of forms that SGLang tells apart."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from patcher.engines.extract.sglang_models import MODELS

if TYPE_CHECKING:
    from collections.abc import Mapping

_ABSENT: Any = ...  # survives a deep copy
#: A ``kv_cache_quant_algo`` that no release knows.
EXAMPLE = "none"
#: The form of an ``hf_quant_config.json`` whose NVFP4 has no group size.
UNGROUPED = "NVFP4 without group_size"
_KV_ALGO: dict[str, Any] = {
    "-": _ABSENT,
    "null": None,
    "empty": "",
    "FP8": "FP8",
    "fp8": "fp8",
    "NVFP4": "NVFP4",
    "INT8": "INT8",
    "string": EXAMPLE,
    "falsy": False,
    "truthy": ["FP8"],
}
_SCHEME: dict[str, Any] = {
    "-": _ABSENT,
    "null": None,
    "empty": "",
    "FP8": "FP8",
    "FP4": "NVFP4",
    "string": "none",
    "falsy": False,
    "truthy": ["FP8"],
    "{}": {},
    "dict": {"type": "posit", "num_bits": 3},
    "float8": {"type": "float", "num_bits": 8},
    "float4": {"type": "float", "num_bits": 4},
    "int8": {"type": "int", "num_bits": 8},
    "int4": {"type": "int", "num_bits": 4},
    "bits8": {"num_bits": 8},
    "bits4": {"num_bits": 4},
}
_LAYERS: dict[str, Any] = {
    "-": _ABSENT,
    "nvfp4": {"model.layers.0.mlp.down_proj": {"quant_algo": "NVFP4", "group_size": 16}},
    "other": {"model.layers.0.mlp.down_proj": {"quant_algo": "FP8"}},
}
_TENSOR = {
    "num_bits": 8,
    "type": "float",
    "strategy": "tensor",
    "symmetric": True,
    "dynamic": False,
}
_QUARK = {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": False, "symmetric": True}
_QUARK_LAYER = {"weight": _QUARK, "input_tensors": _QUARK, "output_tensors": None, "bias": None}

#: quant_method -> the other fields that a real checkpoint of that method has.
_COMPANIONS: dict[str, dict[str, Any]] = {
    "modelopt": {
        "config_groups": {
            "group_0": {
                "input_activations": {"num_bits": 4, "type": "float", "group_size": 16},
                "weights": {"num_bits": 4, "type": "float", "group_size": 16},
                "targets": ["Linear"],
            }
        },
        "ignore": ["lm_head"],
        "producer": {"name": "modelopt", "version": "0.40"},
    },
    "fp8": {"activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]},
    "compressed-tensors": {
        "format": "float-quantized",
        "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": _TENSOR, "input_activations": _TENSOR}
        },
    },
    "quark": {
        "export": {"kv_cache_group": [], "pack_method": "reorder"},
        "exclude": ["lm_head"],
        "global_quant_config": _QUARK_LAYER,
        "layer_quant_config": {},
        "layer_type_quant_config": {},
    },
    "mxfp8": {"activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [1, 32]},
    "awq": {"bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"},
    "gptq": {"bits": 4, "group_size": 128, "desc_act": False, "sym": True},
    "bitsandbytes": {"load_in_8bit": False, "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "auto-round": {
        "bits": 4, "group_size": 128, "sym": True, "packing_format": "auto_round:auto_gptq",
    },
}  # fmt: skip

_BOTH = ("cuda", "hip")
_ALGOS = ("NVFP4", "FP8", "MXFP8", "NVFP4_AWQ", "W4A16_NVFP4", "FP8_PB_WO", "other", "-")

#: family -> feature -> the forms that are tried, all with all.
FAMILIES: dict[str, dict[str, tuple[str, ...]]] = {
    "none": {"place": ("none",), "quantization_flag": ("-",), "vendor": _BOTH},
    "modelopt": {
        "place": ("config",),
        "method": ("modelopt", "-"),
        "algo": _ALGOS,
        "kv_algo": tuple(_KV_ALGO),
        "scheme": tuple(_SCHEME),
        "quantization_flag": ("-", "modelopt_fp4"),
        "vendor": _BOTH,
    },
    "modelopt mixed": {
        "place": ("config",),
        "method": ("modelopt",),
        "algo": ("MIXED_PRECISION",),
        "layers": tuple(_LAYERS),
        "nemotron": ("no", "yes"),
        "kv_algo": ("-", "null", "FP8", "fp8", "NVFP4", "string", "empty"),
        "scheme": ("-", "null", "float8", "float4", "int8", "FP8", "string", "{}"),
        "sidecar": ("no file", "-", "null", "FP8", "NVFP4", "string"),
        "vendor": _BOTH,
        "quantization_flag": ("-",),
    },
    "hf_quant_config": {
        "place": ("hf-nested",),
        "method": ("modelopt", "-", "other"),
        "algo": (*_ALGOS, UNGROUPED),
        "kv_algo": tuple(_KV_ALGO),
        "scheme": ("-", "null", "float8"),
        "vendor": _BOTH,
        "quantization_flag": ("-", "modelopt_fp4"),
    },
    "hf_quant_config mixed": {
        "place": ("hf-nested",),
        "method": ("modelopt", "-", "other"),
        "algo": ("MIXED_PRECISION",),
        "layers": tuple(_LAYERS),
        "nemotron": ("no", "yes"),
        "kv_algo": tuple(_KV_ALGO),
        "scheme": ("-", "null", "float8"),
        "vendor": _BOTH,
        "quantization_flag": ("-", "modelopt_fp4"),
    },
    "compressed-tensors": {
        "place": ("config",),
        "method": ("compressed-tensors",),
        "scheme": tuple(_SCHEME),
        "dynamic": ("no", "yes"),
        "strategy": ("-", "tensor", "other"),
        "symmetric": ("yes", "no"),
        "kv_algo": ("-", "null", "FP8"),
        "sidecar": ("no file", "FP8"),
        "vendor": _BOTH,
        "quantization_flag": ("-",),
    },
    "fp8": {
        "place": ("config",),
        "method": ("fp8", "mxfp8"),
        "kv_algo": tuple(_KV_ALGO),
        "scheme": ("-", "null", "float8", "FP8", "int8"),
        "sidecar": ("no file", "FP8"),
        "vendor": _BOTH,
        "quantization_flag": ("-",),
    },
    "quark": {
        "place": ("config",),
        "method": ("quark",),
        "kv_group": ("[]", "empty", "stated"),
        "kv_algo": ("-", "null", "FP8"),
        "scheme": ("-", "null", "float8"),
        "sidecar": ("no file", "FP8"),
        "vendor": _BOTH,
        "quantization_flag": ("-",),
    },
    "weights only": {
        "place": ("config",),
        "method": ("awq", "gptq", "bitsandbytes", "auto-round", "mxfp4"),
        "kv_algo": ("-", "null", "FP8"),
        "scheme": ("-", "null", "float8"),
        "sidecar": ("no file", "FP8"),
        "vendor": _BOTH,
        "quantization_flag": ("-",),
    },
}


def documents(forms: Mapping[str, str]) -> dict[str, Any]:
    """Metadata files that have these forms; features that are not named are absent."""
    config = dict(MODELS["mla"])
    if forms.get("nemotron") == "yes":
        config.update(model_type="nemotron_h", architectures=["NemotronHForCausalLM"])
        config["hybrid_override_pattern"] = "M*E*"  # one letter a layer
    files: dict[str, Any] = {"config.json": config}
    if forms["place"] == "config":
        config["quantization_config"] = _block(forms)
        if forms.get("sidecar", "no file") != "no file":
            algo = forms.get("algo", "FP8")
            files["hf_quant_config.json"] = _sidecar({"algo": algo, "layers": "nvfp4"}, forms)
    elif forms["place"] == "hf-nested":
        files["hf_quant_config.json"] = _sidecar(forms, {"sidecar": forms["kv_algo"]})
        _put(files["hf_quant_config.json"]["quantization"], "kv_cache_scheme", _scheme(forms))
    return files


def _block(forms: Mapping[str, str]) -> dict[str, Any]:
    method = forms["method"]
    block = copy.deepcopy(_COMPANIONS.get("modelopt" if method == "-" else method, {}))
    if method != "-":
        block["quant_method"] = method
    _put_algo(block, forms)
    _put(block, "kv_cache_quant_algo", _KV_ALGO[forms.get("kv_algo", "-")])
    _put(block, "kv_cache_scheme", _scheme(forms))
    _put(block, "quantized_layers", _LAYERS[forms.get("layers", "-")])
    if forms.get("kv_group", "[]") != "[]":
        block["export"]["kv_cache_group"] = ["*k_proj"]
        stated = dict(_QUARK) if forms["kv_group"] == "stated" else None
        block["layer_quant_config"] = {"*k_proj": {**_QUARK_LAYER, "output_tensors": stated}}
    return block


def _sidecar(forms: Mapping[str, str], outer: Mapping[str, str]) -> dict[str, Any]:
    inner: dict[str, Any] = {"group_size": 16, "exclude_modules": ["lm_head"]}
    if forms.get("algo") == UNGROUPED:
        del inner["group_size"]
    _put_algo(inner, forms)
    _put(inner, "kv_cache_quant_algo", _KV_ALGO[outer["sidecar"]])
    _put(inner, "quantized_layers", _LAYERS[forms.get("layers", "-")])
    names = {"modelopt": "modelopt", "other": "other", "-": None}
    name = names[forms.get("method", "modelopt")]
    producer = {"producer": {"name": name, "version": "0.40"}} if name else {}
    return {**producer, "quantization": inner}


def _put_algo(block: dict[str, Any], forms: Mapping[str, str]) -> None:
    algo = forms.get("algo", "-")
    if algo != "-":
        block["quant_algo"] = {"other": "INT4_AWQ", UNGROUPED: "NVFP4"}.get(algo, algo)
    if algo == "MXFP8":
        block["group_size"] = 32


def _scheme(forms: Mapping[str, str]) -> Any:
    value = copy.deepcopy(_SCHEME[forms.get("scheme", "-")])
    if isinstance(value, dict) and value:
        value["dynamic"] = forms.get("dynamic") == "yes"
        if forms.get("symmetric") == "no":
            value["symmetric"] = False
        strategy = forms.get("strategy", "-")
        if strategy != "-":
            value["strategy"] = "attn_head" if strategy == "other" else strategy
    return value


def _put(block: dict[str, Any], key: str, value: Any) -> None:
    if value is not _ABSENT:
        block[key] = value
