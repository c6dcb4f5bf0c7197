"""Statements that the files make and that TensorRT-LLM does not heed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from patcher.engines.base import Notice, Place
from patcher.engines.trtllm.statements import LAYERS, SIDECAR
from patcher.jsontext import format_pointer
from patcher.metadata import blocks, forms, meanings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from patcher.engines.base import Documents, Resolution
    from patcher.engines.trtllm.statements import Shape, Stated

Notices = tuple[Notice, ...]

#: What is read of the deciding block, by its shape.
_READ: Mapping[Shape, str] = {
    "nested": 'a block with a "quantization" object is read for its kv_cache_quant_algo only',
    "flat": "a flat ModelOpt block is read for kv_cache_scheme only, and only 8-bit float counts",
    "compressed-tensors": "a compressed-tensors block is read for kv_cache_scheme only",
    "silent": "no KV-cache statement is read in a block of this quantization method",
}
#: Why the statements of another file are not read.
_ELSEWHERE = {
    "config.json": f"{SIDECAR} decides, config.json is only compared with it",
    LAYERS: f"{LAYERS} is read for mixed precision only",
}
_OUTSIDE = "of config.json only quantization_config at the top counts"


def of(documents: Documents, stated: Stated, resolution: Resolution) -> Notices:
    """KV008 for what the deciding file asks for in vain, KV013 for what is dormant."""
    return tuple(_of(documents, stated, resolution))


def _of(documents: Documents, stated: Stated, resolution: Resolution) -> Iterator[Notice]:
    deciding = SIDECAR if SIDECAR in documents else "config.json"
    for place in _statements(documents):
        if stated.value is not None and place in stated.read:
            continue
        if place.file != deciding:
            yield Notice("KV013", "info", f"not read: {_ELSEWHERE[place.file]}", place)
        elif deciding == "config.json" and not place.pointer.startswith("/quantization_config/"):
            yield Notice("KV013", "info", f"not read: {_OUTSIDE}", place)
        elif resolution.kv_cache_dtype == "auto":
            message = f"ignored, the cache has the model's dtype: {_READ[stated.shape]}"
            yield Notice("KV008", "warning", message, place)
        else:
            yield Notice("KV013", "info", f"not read: {_READ[stated.shape]}", place)


def _statements(documents: Documents) -> Iterator[Place]:
    """All statements that ask for a quantized cache, obeyed or not."""
    for file in ("config.json", SIDECAR, LAYERS):
        for block in blocks.find(file, documents.get(file)):
            for statement in forms.of(block):
                if statement.meaning != meanings.NONE:
                    yield Place(file, format_pointer(statement.keys))
