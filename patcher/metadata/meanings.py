"""What a KV-cache statement means: a kv_cache_dtype, ``none`` or ``unreadable``.

This is what its producer meant by it. Whether an engine reads it so is the engine's affair.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from patcher.metadata import reading

NONE = "none"
UNREADABLE = "unreadable"

#: Spellings of the producers, in lower case: ModelOpt's algorithms, torch's dtypes, AutoRound's and
#: Quark's dtypes, MindIE's kinds. ModelOpt writes FP8 for its affine variant; the name is a preset.
_NAMES = {
    "none": NONE,
    "fp8": "fp8_e4m3",
    "fp8_affine": "fp8_e4m3",
    "fp8_e4m3": "fp8_e4m3",
    "fp8_e4m3fn": "fp8_e4m3",
    "fp8_e4m3fnuz": "fp8_e4m3",
    "float8_e4m3": "fp8_e4m3",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e4m3fnuz": "fp8_e4m3",
    "fp8_e5m2": "fp8_e5m2",
    "fp8_e5m2fnuz": "fp8_e5m2",
    "float8_e5m2": "fp8_e5m2",
    "float8_e5m2fnuz": "fp8_e5m2",
    "fp4": "nvfp4",
    "float4_e2m1": "nvfp4",
    "float4_e2m1fn_x2": "nvfp4",
    "nvfp4": "nvfp4",
    "nvfp4_rotate": "nvfp4",
    "nvfp4_affine": "nvfp4_affine",
    "mxfp8": "mxfp8",
    "int8": "int8",
    "c8": "int8",
    "kv8": "int8",
    "int4": "int4",
    "c4": "int4",
    "kv4": "int4",
}
#: AutoFP8 and those who follow it say how the scale is found, not what is stored: that is FP8.
_SCALES = {"static": "fp8_e4m3", "dynamic": "fp8_e4m3"}
_WIDTHS = {
    ("float", 8): "fp8_e4m3",
    ("float", 4): "nvfp4",
    ("int", 8): "int8",
    ("int", 4): "int4",
}


def of_name(value: Any) -> str:
    """The meaning of one word: ``"FP8"``, ``"torch.float8_e4m3fn"``, ``null``."""
    if value is None:
        return NONE
    if not isinstance(value, str):
        return UNREADABLE
    return _NAMES.get(value.lower().removeprefix("torch."), UNREADABLE)


def of_scheme(value: Any) -> str:
    """A scheme as ModelOpt, AutoFP8 and HiFP8 write it: a word, or widths that are all stated."""
    if isinstance(value, str):
        return _SCALES.get(value.lower()) or of_name(value)
    return _of_widths(value, {})


def of_arguments(value: Any) -> str:
    """Arguments of compressed-tensors, where an absent width is 8 and an absent type integer."""
    return _of_widths(value, {"num_bits": 8, "type": "int"})


def of_dtype(value: Any) -> str:
    """Quark's tensor specification: ``{"dtype": "fp8_e4m3", ...}``."""
    if value is None:
        return NONE
    return of_name(value["dtype"]) if reading.text(reading.mapping(value), "dtype") else UNREADABLE


def of_flag(value: Any) -> str:
    """Qwen-1's switch of its own INT8 cache."""
    return {True: "int8", False: NONE}[value] if isinstance(value, bool) else of_scheme(value)


def of_integers(value: Any) -> str:
    """Transformers' quantized cache: integers of ``nbits`` bits, 4 where it is not stated."""
    bits = reading.mapping(value).get("nbits", 4)
    return f"int{bits}" if reading.is_integer(bits) and 0 < bits <= 8 else UNREADABLE  # noqa: PLR2004


def _of_widths(value: Any, defaults: Mapping[str, Any]) -> str:
    if value is None:
        return NONE
    if not isinstance(value, Mapping):
        return UNREADABLE
    stated = {**defaults, **value}
    bits, kind = stated.get("num_bits"), reading.text(stated, "type")
    if kind is None or not reading.is_integer(bits):
        return UNREADABLE
    return _WIDTHS.get((kind.lower(), bits), UNREADABLE)
