"""Which statement about the KV cache TensorRT-LLM reads.

hf_quant_config.json decides, and config.json's block counts only where that file is missing; vLLM
and SGLang do the opposite. Read in _torch/model_config.py at 008e0af8,
quantization/modelopt_config.py at 2edf354d and llmapi/llm_utils.py at 0066b2a5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from patcher.engines.base import Place, Refusal
from patcher.jsontext import format_pointer
from patcher.metadata import reading

if TYPE_CHECKING:
    from patcher.engines.base import Documents
    from patcher.engines.trtllm.generations import Generation

SIDECAR, LAYERS = "hf_quant_config.json", "quant_cfg.json"
#: ``KV_CACHE_QUANT_ALGO_LIST`` (quantization/mode.py, #472971060) -> what the cache holds.
ALGORITHMS = {"FP8": "fp8_e4m3", "INT8": "int8", "NVFP4": "nvfp4"}
#: Methods of config.json's block in which no KV-cache statement is read, and their weights.
_SILENT = {"fp8": "FP8_BLOCK_SCALES", "mxfp4": "MXFP4", "mxfp8": "MXFP8", "nvfp4": "NVFP4"}

Shape = Literal["nested", "flat", "compressed-tensors", "silent"]


class Unknown(Struct, frozen=True):
    """A sentence about what was not read in the engine's code."""

    sentence: str


class Stated(Struct, frozen=True):
    """What the files say, before the engine converts it.

    Attributes:
        value: what becomes a ``QuantAlgo``; ``None`` for no KV quantization.
        place: the value that decided; ``None`` where no key did.
        read: the places that were looked at.
        weights: the algorithm of the weights, ``None`` where they are not quantized.
        shape: the form of the block that was read.
    """

    value: Any
    place: Place | None
    read: tuple[Place, ...]
    weights: str | None
    shape: Shape


def find(documents: Documents, generation: Generation) -> Stated | Refusal | Unknown:
    """The statement that this generation reads, the error it raises, or what was not read."""
    if SIDECAR in documents:
        return _overlaid(documents, _sidecar(documents[SIDECAR], generation))
    found = _inline(reading.mapping(documents.get("config.json")), generation)
    return _overlaid(documents, found)


def _sidecar(root: Any, generation: Generation) -> Stated | Refusal | Unknown:
    if not isinstance(root, Mapping):
        return Unknown(f"{SIDECAR} holds no JSON object, and what follows was not read")
    if "quantization" not in root and not generation.flat_files:
        return Refusal("config", "KV004", "KeyError: 'quantization'", Place(SIDECAR, ""))
    if "quantization" not in root and not _is_modelopt(root):
        message = "ValueError: Not a ModelOpt quant config"
        return Refusal("config", "KV004", message, Place(SIDECAR, ""))
    return _modelopt(SIDECAR, (), root)


def _is_modelopt(block: Mapping[str, Any]) -> bool:
    method = reading.text(block, "quant_method") or ""
    return reading.at(block, "producer", "name") == "modelopt" or method.startswith("modelopt")


def _modelopt(
    file: str, keys: tuple[str, ...], root: Mapping[str, Any]
) -> Stated | Refusal | Unknown:
    """A wrapped block is read for one key only, a flat one for the other key only."""
    nested = "quantization" in root
    if nested:
        keys = (*keys, "quantization")
    block = root["quantization"] if nested else root
    if not isinstance(block, Mapping):
        return Unknown(f"{format_pointer(keys)} in {file} is no object; what follows was not read")
    weights = block.get("quant_algo")
    if not isinstance(weights, str):
        return _without_algorithm(file, keys, block)
    key = "kv_cache_quant_algo" if nested else "kv_cache_scheme"
    value = block.get(key)
    if not nested:
        value = "FP8" if _is_float8(value) else None
    place = Place(file, format_pointer((*keys, key)))
    decided = place if key in block else None
    return Stated(value, decided, (place,), weights, "nested" if nested else "flat")


def _without_algorithm(
    file: str, keys: tuple[str, ...], block: Mapping[str, Any]
) -> Refusal | Unknown:
    """llmapi/llm_utils.py ``_apply_modelopt_quant_config``; null is no way out here."""
    if block.get("quantized_layers"):
        return Unknown(
            f"{file} has quantized_layers and no quant_algo: main goes on to config.json, older "
            "code was not read"
        )
    if block.get("quant_algo") is not None:
        return Unknown(f"quant_algo in {file} is no string, and what follows was not read")
    finding = "KV004" if "quant_algo" in block else "KV005"
    message = "ValueError: Pre-quantized checkpoint must have quant_algo."
    return Refusal("config", finding, message, Place(file, format_pointer((*keys, "quant_algo"))))


def _is_float8(scheme: Any) -> bool:
    stated = reading.mapping(scheme)
    return stated.get("type") == "float" and stated.get("num_bits") == 8  # noqa: PLR2004


def _inline(config: Mapping[str, Any], generation: Generation) -> Stated | Refusal | Unknown:
    block = config.get("quantization_config")
    if block is None and reading.at(config, "text_config", "quantization_config") is not None:
        return Unknown("whether a quantization_config under text_config is used was not read")
    if block is None:
        return Stated(None, None, (), None, "silent")
    if not generation.flat_files:
        return Unknown("what it makes of config.json's quantization_config was not read")
    if not isinstance(block, Mapping):
        return Unknown("config.json's quantization_config is no object; what follows was not read")
    return _by_method(block)


def _by_method(block: Mapping[str, Any]) -> Stated | Refusal | Unknown:
    method = block.get("quant_method")
    is_modelopt = _is_modelopt(block)
    if is_modelopt and (method is None or str(method).startswith("modelopt")):
        return _modelopt("config.json", ("quantization_config",), block)
    if method == "compressed-tensors":
        return _compressed_tensors(block)
    if isinstance(method, str) and method in _SILENT and not is_modelopt:
        return Stated(None, None, (), _SILENT[method], "silent")
    return Unknown(f"how it reads a block of quant_method {str(method)[:40]!r} was not read")


def _compressed_tensors(block: Mapping[str, Any]) -> Stated | Refusal:
    """models/quant_config_utils.py (#56242309629): 8-bit float or nothing."""
    place = Place("config.json", "/quantization_config/kv_cache_scheme")
    scheme = block.get("kv_cache_scheme")
    if scheme is not None and not _is_float8(scheme):
        return Refusal("config", "KV004", "ValueError: Unsupported kv_cache_scheme", place)
    decided = place if "kv_cache_scheme" in block else None
    value = None if scheme is None else "FP8"
    return Stated(value, decided, (place,), "compressed-tensors", "compressed-tensors")


def _overlaid(
    documents: Documents, found: Stated | Refusal | Unknown
) -> Stated | Refusal | Unknown:
    """Mixed precision: quant_cfg.json is laid over the block (``_build_modelopt_quant_config``)."""
    if not isinstance(found, Stated) or found.weights != "MIXED_PRECISION":
        return found
    layers = documents.get(LAYERS, {})
    if not isinstance(layers, Mapping):
        return Unknown(f"{LAYERS} holds no JSON object, and what follows was not read")
    if "kv_cache_quant_algo" not in layers:
        return found
    if found.shape != "nested" or found.read[0].file != SIDECAR:
        return Unknown(f"how {LAYERS} is laid over a block of this form was not read")
    return _above(found, layers["kv_cache_quant_algo"])


def _above(found: Stated, value: Any) -> Stated | Refusal | Unknown:
    """``value`` of quant_cfg.json over that of hf_quant_config.json; two that differ are fatal."""
    place = Place(LAYERS, "/kv_cache_quant_algo")
    if value == found.value:
        return replace(found, read=(*found.read, place))
    if value is not None and found.value is not None:
        message = (
            f"RuntimeError: The kvcache config in '{LAYERS}', {str(value)[:40]}, is different from "
            f"'{SIDECAR}', {str(found.value)[:40]}"
        )
        return Refusal("config", "KV006", message, place)
    if not isinstance(value, str) or value not in ALGORITHMS:
        return Unknown(f"what this value in {LAYERS} does was not read; both files must agree")
    return replace(found, value=value, place=place, read=(*found.read, place))
