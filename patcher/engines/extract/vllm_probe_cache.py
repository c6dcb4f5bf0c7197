"""Probes: the KV-cache dtype of a vLLM release, from the block to the attention layer."""

from __future__ import annotations

import inspect
from functools import cmp_to_key
from itertools import product
from typing import TYPE_CHECKING, Any, get_args

from patcher.engines.extract.vllm_probe_methods import attention_name
from patcher.engines.extract.vllm_standins import at, failure, namespace, slicer

if TYPE_CHECKING:
    from patcher.engines.extract.slicer import Slicer
    from patcher.engines.extract.source import Source

_TORCH_UTILS = "vllm.utils.torch_utils"
_VLLM = "vllm.config.vllm:VllmConfig"
_SCHEMES = "vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors"
_KEYS = ("kv_cache_scheme", "kv_cache_quant_algo", "kv_cache_dtype")
_POINTERS = tuple(f"{inner}/{key}" for inner in ("", "/quantization") for key in _KEYS)
_WORDS = ("fp8", "fp8_e4m3", "fp8_e5m2", "nvfp4", "nvfp4_affine", "int8", "int4", "mxfp8", "mxfp4")
_OTHER_WORDS = ("auto", "none", "null", "bfloat16", "bf16", "float16", "static", "dynamic")
_ABSENT = "absent"
_NUMBERS = (8, 4, 16, 2, "8", _ABSENT)
_TYPES = ("float", "int", "FLOAT", _ABSENT)
_DYNAMIC = (False, True, None, "false", "local", _ABSENT)


def cache_dtypes(source: Source) -> dict[str, Any]:
    """The choices of ``--kv-cache-dtype``."""
    release = slicer(source)
    name = "vllm.config.cache:CacheDType"
    return {"from": at(release, name), "values": list(get_args(release.get(name)))}


def resolver(source: Source) -> dict[str, Any] | None:
    """How ``auto`` is resolved from the block; ``None`` where the release does not do so."""
    release = slicer(source)
    name = f"{_TORCH_UTILS}:resolve_kv_cache_dtype_string"
    if not (release.has(name) and release.has("vllm.engine.arg_utils:" + name.partition(":")[2])):
        return None
    resolve = release.get(name)

    def ask(block: dict[str, Any], flag: str = "auto") -> str:
        model = namespace(hf_config=namespace(quantization_config=block))
        return str(resolve(flag, model))

    def value(found: Any) -> str:
        return ask({"quant_method": "modelopt", "kv_cache_scheme": found})

    return {
        "from": at(release, name),
        "quant_methods": [
            method
            for method in ("modelopt*", "modelopt", "fp8", "compressed-tensors", "quark", "")
            if ask({"quant_method": method, "kv_cache_scheme": "FP8"}) != "auto"
        ],
        "flag_wins": value("FP8") != "bfloat16" == ask({"quant_method": "modelopt"}, "bfloat16"),
        "chain": _chain(ask),
        "strings": _strings(release, value),
        "dicts": _dicts(value),
        "other_types": sorted({value(found) for found in (8, 1.5, True, ["FP8"])}),
    }


def _at_pointer(pointer: str, value: Any, block: dict[str, Any]) -> None:
    *inner, key = pointer.split("/")[1:]
    (block.setdefault(inner[0], {}) if inner else block)[key] = value


def _chain(ask: Any) -> list[str]:
    """The places that are read, the strongest first; a falsy value passes to the next one."""

    def block(**values: Any) -> dict[str, Any]:
        made: dict[str, Any] = {"quant_method": "modelopt", "quantization": {}}
        for pointer, value in values.items():
            _at_pointer(pointer, value, made)
        return made

    read = [pointer for pointer in _POINTERS if ask(block(**{pointer: "FP8"})) == "fp8_e4m3"]

    def order(one: str, other: str) -> int:
        return -1 if ask(block(**{one: "FP8", other: "INT8"})) == "fp8_e4m3" else 1

    chain = sorted(read, key=cmp_to_key(order))
    nothing: tuple[Any, ...] = (None, "", {}, [], 0, False)
    for falsy in nothing:
        if ask(block(**{chain[0]: falsy, chain[-1]: "FP8"})) != "fp8_e4m3":
            raise AssertionError(f"{falsy!r} is not passed over")
    return chain


def _strings(release: Slicer, value: Any) -> dict[str, str]:
    known = f"{_TORCH_UTILS}:MODELOPT_TO_VLLM_KV_CACHE_DTYPE_MAP"
    words = {*_WORDS, *_OTHER_WORDS, *(map(str.lower, release.get(known)))}
    for word in words:
        if len({value(form) for form in (word, word.upper(), word.title())}) != 1:
            raise AssertionError(f"{word!r} depends on case")
    return {word: value(word) for word in sorted(words) if value(word) != "auto"}


def _dicts(value: Any) -> list[dict[str, Any]]:
    """Schemes that mean something; every other scheme is ``auto``."""
    rows: dict[tuple[Any, ...], list[Any]] = {}
    for bits, kind, dynamic in product(_NUMBERS, _TYPES, _DYNAMIC):
        parts = {"num_bits": bits, "type": kind, "dynamic": dynamic}
        dtype = value({key: part for key, part in parts.items() if part != _ABSENT} | {"x": 1})
        if dtype != "auto":
            rows.setdefault((bits, kind, dtype), []).append(dynamic)
    for values in rows.values():
        if (None in values) is not (_ABSENT in values):
            raise AssertionError("an absent `dynamic` is not like null")
    return [
        {"num_bits": bits, "type": kind, "kv_cache_dtype": dtype}
        | ({} if len(dynamic) == len(_DYNAMIC) else {"dynamic": dynamic})
        for (bits, kind, dtype), dynamic in rows.items()
    ]


def validators(source: Source) -> dict[str, Any]:
    """What ``VllmConfig`` itself refuses once the KV-cache dtype and the quantization are known."""
    release = slicer(source)
    cls = release.get(_VLLM)
    dtypes = cache_dtypes(source)["values"]
    low = namespace(to_int=lambda: 11)
    release.answers["vllm.platforms.current_platform"].get_device_capability = lambda *_: low
    weights = "vllm.model_executor.model_loader.weight_utils.get_quant_config"
    least = namespace(get_min_capability=lambda: 7777)
    release.answers[weights] = lambda *_, **__: least
    model = namespace(quantization="METHOD")
    text = failure(lambda: cls._get_quantization_config(model, None)) or ""
    for value, name in (("METHOD", "method"), ("7777", "min_capability"), ("11", "capability")):
        text = text.replace(value, f"{{{name}}}")
    return {
        "from": at(release, _VLLM),
        "capability": text,
        "nvfp4_mla": _nvfp4_mla(cls, dtypes),
        "float_mismatch": _float_mismatch(cls, dtypes),
    }


def _nvfp4_mla(cls: Any, dtypes: list[str]) -> dict[str, Any] | None:
    check = getattr(cls, "validate_nvfp4_kv_cache_with_mla", None)
    if check is None:
        return None

    def refusal(dtype: str, *, use_mla: bool) -> str | None:
        cache = namespace(cache_dtype=dtype)
        return failure(
            lambda: check(namespace(model_config=namespace(use_mla=use_mla), cache_config=cache))
        )

    refused = [dtype for dtype in dtypes if refusal(dtype, use_mla=True)]
    if any(refusal(dtype, use_mla=False) for dtype in dtypes):
        raise AssertionError("the validator refuses without MLA")
    text = refusal(refused[0], use_mla=True) or ""
    return {"kv_cache_dtypes": refused, "error": text.partition(". ")[0]}


def _float_mismatch(cls: Any, dtypes: list[str]) -> list[dict[str, str]] | None:
    check = getattr(cls, "_reject_mismatched_float_kv_cache", None)
    if check is None:
        return None
    rows = []
    for dtype, of_model in product(dtypes, ("float16", "bfloat16", "float32")):
        me = namespace(
            model_config=namespace(dtype=f"torch.{of_model}"),
            cache_config=namespace(cache_dtype=dtype),
        )
        if error := failure(lambda me=me: check(me)):  # type: ignore[misc]
            rows.append({"kv_cache_dtype": dtype, "dtype": of_model, "error": error})
    return rows


class _Selecting(BaseException):
    """The layer asks for a backend."""


def layers(source: Source) -> dict[str, Any]:
    """What the attention layer's constructor does before and while it chooses a backend."""
    return {name: _layer(source, name) for name in ("gqa", "mla")}


def _layer(source: Source, attention: str) -> dict[str, Any]:
    scheme = {"strategy": "attn_head"}
    auto = _construct(source, attention, "auto", scheme)
    plain = _construct(source, attention, "auto", None)
    explicit = _construct(source, attention, "fp8_e5m2", scheme)
    forces = {("fp8", "fp8"): "always", ("fp8", "fp8_e5m2"): "if auto", ("auto", "fp8_e5m2"): "no"}
    return {
        "from": at(slicer(source), attention_name(slicer(source), attention)),
        "scheme_forces_fp8": forces[auto["dtype"], explicit["dtype"]],
        "asks_for_per_head_scales": auto["per_head"] and not plain["per_head"],
        "quantizes_before_selecting": plain["quantized_first"],
    }


def _construct(source: Source, attention: str, flag: str, scheme: Any) -> dict[str, Any]:
    """Run the constructor until it asks for a backend; note with what and after what."""
    release = slicer(source)
    seen: dict[str, Any] = {"quantized_first": False}

    def select(_head: int, _dtype: object, dtype: str, *_: object, **asked: Any) -> None:
        seen.update(dtype=dtype, per_head=bool(asked.get("use_per_head_quant_scales")))
        raise _Selecting

    cache = namespace(
        cache_dtype=flag,
        block_size=16,
        calculate_kv_scales=False,
        sliding_window=None,
        kv_cache_dtype_skip_layers=[],
        enable_prefix_caching=False,
    )
    model = namespace(dtype=release.module("torch").bfloat16, is_mm_prefix_lm=False)
    config = namespace(model_config=model, compilation_config=namespace(static_forward_context={}))
    quant = namespace(get_quant_method=lambda *_, **__: seen.update(quantized_first=True))
    if scheme is not None:
        quant.kv_cache_scheme = scheme
    name = attention_name(release, attention)
    module = name.partition(":")[0]
    release.answers[f"{module}.get_attn_backend"] = select
    release.answers[f"{module}.get_current_vllm_config"] = lambda: config
    arguments = LAYER_ARGUMENTS[attention] | {"cache_config": cache, "quant_config": quant}
    try:
        release.get(name)(**arguments, prefix="model.layers.0.self_attn.attn")
    except _Selecting:
        return seen
    raise AssertionError(f"{name} chose no backend")


LAYER_ARGUMENTS: dict[str, dict[str, Any]] = {
    "gqa": {"num_heads": 8, "head_size": 128, "scale": 1.0, "num_kv_heads": 8},
    "mla": {
        "num_heads": 8,
        "scale": 1.0,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "q_lora_rank": None,
        "kv_lora_rank": 512,
        "kv_b_proj": None,
    },
}


def e5m2(source: Source) -> dict[str, Any]:
    """``fp8_e5m2`` and a layer that loads KV scales."""
    release = slicer(source)
    attention = attention_name(release, "gqa")
    init = release.get(f"{attention.partition(':')[0]}:_init_kv_cache_quant")
    base = release.get(f"{_SCHEMES}:BaseKVCacheMethod")

    def refusal(method_class: Any, scheme: Any) -> str | None:
        method = method_class.__new__(method_class)
        method.quant_config = namespace(kv_cache_scheme=scheme)
        method.create_weights = lambda _: None
        layer_class = release.get(attention)
        layer = layer_class.__new__(layer_class)
        layer.kv_cache_dtype = "fp8_e5m2"
        layer.calculate_kv_scales = False
        given = {
            "layer": layer,
            "quant_config": namespace(
                get_quant_method=lambda *_, **__: method, online_quantization_config=None
            ),
            "prefix": "model.layers.0.self_attn.attn",
            "kv_cache_dtype": "fp8_e5m2",
            "calculate_kv_scales": False,
        }
        wanted = inspect.signature(init).parameters
        return failure(lambda: init(**{key: given[key] for key in wanted}))

    compressed = release.get(f"{_SCHEMES}:CompressedTensorsKVCacheMethod")
    error = refusal(base, None)
    if error is None or "e5m2" not in error:
        raise AssertionError(f"fp8_e5m2 over a checkpoint with KV scales: {error}")
    return {
        "from": at(release, f"{attention.partition(':')[0]}:_init_kv_cache_quant"),
        "error": error,
        "without_scheme": refusal(compressed, None) is not None,
    }
