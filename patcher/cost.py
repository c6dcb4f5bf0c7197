"""What a KV cache costs: bytes per token over all layers, before any sharding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from patcher.verdict import Cost

if TYPE_CHECKING:
    from patcher.metadata.model import Model

#: bytes per stored element. NVFP4 holds half a byte and one FP8 scale per 16 elements.
BYTES = {
    "float32": 4.0,
    "float16": 2.0,
    "bfloat16": 2.0,
    "fp8": 1.0,
    "fp8_e4m3": 1.0,
    "fp8_e5m2": 1.0,
    "fp8_inc": 1.0,
    "int8": 1.0,
    "nvfp4": 0.5 + 1 / 16,
}
#: fp8_ds_mla keeps 512 FP8 values, 4 float32 scales and 64 bfloat16 RoPE values for each token and
#: layer (vLLM 0.16.0, csrc/cache_kernels.cu, concat_and_cache_ds_mla).
DS_MLA_BYTES = 656


def of(model: Model, kv_cache_dtype: str | None) -> Cost:
    """The cost with ``kv_cache_dtype``, and with KV quantization off."""
    return Cost(bytes_per_token(model, kv_cache_dtype), bytes_per_token(model, "auto"))


def bytes_per_token(model: Model, kv_cache_dtype: str | None) -> float | None:
    """Bytes of one token in all layers; ``None`` where model or dtype are not known well enough.

    MLA: (kv_lora_rank + qk_rope_head_dim) x layers x bytes; otherwise
    2 x KV heads x head size x attention layers x bytes.
    """
    layers = model.attention_layers
    if model.head_size is None or model.kv_heads is None or layers is None:
        return None
    if kv_cache_dtype == "fp8_ds_mla":
        return float(DS_MLA_BYTES * layers)
    size = BYTES.get(_dtype(model, kv_cache_dtype) or "")
    if size is None:
        return None
    is_mla = model.attention in {"mla", "sparse-mla"}
    elements = model.head_size if is_mla else 2 * model.kv_heads * model.head_size
    return elements * layers * size


def _dtype(model: Model, kv_cache_dtype: str | None) -> str | None:
    return model.dtype if kv_cache_dtype == "auto" else kv_cache_dtype
